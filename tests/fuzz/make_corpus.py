#!/usr/bin/env python3
"""Writes the small seeds under tests/fuzz/corpus/{frame,codec}: one sound input per shape, a few broken ones.

Inputs that a fuzzer found and that showed a fault are added to the same folders by hand, named after the fault.
"""
import os
import struct

HERE = os.path.dirname(os.path.abspath(__file__))
# KVW_MESSAGES of proto/codec.h, then the bare result
MESSAGES = ["hello", "hello_reply", "ping", "ping_reply", "open_space", "open_space_reply", "blocks", "blocks_reply",
            "release", "sequences", "sequences_reply", "stats", "stats_reply", "list_reply", "drain",
            "events", "events_reply", "result"]


def varint(value):
    out = b""
    while value > 0x7F:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])


def num(field, value):
    return varint(field << 3) + varint(value)


def data(field, value):
    return varint(field << 3 | 2) + varint(len(value)) + value


def f32(field, value):
    return varint(field << 3 | 5) + struct.pack("<f", value)


def f64(field, value):
    return varint(field << 3 | 1) + struct.pack("<d", value)


def nums(first, last):
    return b"".join(num(i, i * 37) for i in range(first, last + 1))


RESULT = num(1, 32) + data(2, "busy, 3 \u20ac".encode()) + num(3, 1500)
LAYOUT = nums(1, 6)
QUERY = nums(1, 4) + f32(5, 0.125) + f32(6, 30.0) + num(7, 64) + num(8, 1) + num(9, 1)
SPACE = (num(1, 7) + data(2, b"model") + data(3, b"kvarn_k4v2_g128") + data(4, bytes(range(32))) + nums(5, 12))
CODEC = {
    "hello": nums(1, 3) + data(4, b"client 1"),
    "hello_reply": RESULT + nums(4, 5) + data(6, b"kvarnd") + data(7, b"cpu/avx2") + nums(8, 9) + data(10, b"default"),
    "ping": num(1, 2**64 - 1),
    "ping_reply": RESULT + num(4, 9),
    "open_space": b"".join(data(i, b"text %d" % i) for i in range(1, 5)) + nums(5, 8) + data(9, b"kvarn_k2v2_g128")
    + num(10, 8) + num(11, 1) + num(12, 128) + data(13, b"sha256_cbor") + nums(14, 17)
    + data(18, b"cuda:0"),
    "open_space_reply": RESULT + num(4, 3) + data(5, bytes(range(32))) + nums(6, 11),
    "blocks": nums(1, 5) + data(6, LAYOUT) + data(7, QUERY) + num(8, 1) + nums(10, 14),
    "blocks_reply": RESULT + nums(4, 10),
    "release": num(1, 5),
    "sequences": nums(1, 5) + data(6, LAYOUT) + data(7, QUERY) + num(8, 2),
    "sequences_reply": RESULT + nums(4, 5),
    "stats": num(1, 1),
    "stats_reply": RESULT + b"".join(data(4, data(1, b"metric %d" % i) + f64(2, i / 3)) for i in range(3)),
    "list_reply": RESULT + data(4, SPACE) * 2 + data(4, b""),
    "drain": num(1, 500),
    "events": nums(1, 6),
    "events_reply": RESULT + nums(4, 8),
    "result": RESULT,
}


def header(metadata=0, payload=0, version=1, op=2, flags=0, request=1, magic=b"KVRN"):
    return magic + struct.pack("<BBHQIIQ", version, op, flags, request, metadata, 1000, payload)


def frame(metadata=b"", payload=b"", **fields):
    return header(len(metadata), len(payload), **fields) + metadata + payload


def write(folder, name, content):
    path = os.path.join(HERE, "corpus", folder)
    os.makedirs(path, exist_ok=True)
    with open(os.path.join(path, name), "wb") as out:
        out.write(content)


def main():
    for name, metadata in CODEC.items():
        write("codec", name, bytes([MESSAGES.index(name)]) + metadata)
    write("codec", "unknown_fields", bytes([0]) + (num(100, 1) + data(101, b"z") + f32(102, 0) + f64(103, 0)) * 4)
    write("codec", "twice", bytes([0]) + num(1, 1) * 2)
    write("codec", "bad_text", bytes([0]) + data(4, b"a\0b\xff"))
    write("codec", "group", bytes([6]) + varint(6 << 3 | 3) + varint(6 << 3 | 4))
    write("codec", "nested", bytes([6]) + data(6, data(6, data(6, LAYOUT))))
    write("codec", "varint_11", bytes([2]) + b"\x08" + b"\x80" * 10 + b"\x01")

    lead = bytes([16, 6])  # payload limit 4096, pieces of 7
    write("frame", "empty", lead + frame())
    write("frame", "metadata", lead + frame(CODEC["hello"], op=1))
    write("frame", "payload", lead + frame(CODEC["blocks"], bytes(range(100)), op=6, flags=1))
    write("frame", "three", lead + frame() + frame(b"abc", b"defgh") + frame(b"", b"x"))
    write("frame", "cut", lead + frame(b"abc", b"defgh")[:-2])
    write("frame", "second_broken", lead + frame(b"abc", b"defgh") + frame(magic=b"KVRX"))
    write("frame", "metadata_over", lead + header(metadata=65537))
    write("frame", "payload_over", lead + header(payload=2**64 - 1))
    write("frame", "payload_huge", bytes([255, 0]) + header(payload=2**64 - 1) + bytes(50))
    write("frame", "flag", lead + header(flags=2))
    write("frame", "version", lead + header(version=2))
    write("frame", "http", lead + b"GET / HTTP/1.1\r\n\r\n")


if __name__ == "__main__":
    main()
