#!/usr/bin/env python3
"""A hostile client against a real kvarnd: frames and metadata made by hand.

    hostile.py BIN_DIR [--factor N] [--only GROUP] [--keep-going]

Each group of attacks has the daemon answer every call with a known status and, when it refuses, a sentence; the
connection lives unless framing itself is lost. After each group the daemon is alive, its descriptors, sequences,
leases, requests in flight, staging and pool are what they were, and a bystander's block still reads the same. At the
end the daemon stops with 0 and no sanitizer has said anything. --factor repeats the long loops N times as often.
Standard library only; the seed is fixed.
"""
import argparse
import array
import os
import random
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time

HELLO, PING, OPEN_SPACE, LOOKUP, RELEASE, COMPRESS, DECOMPRESS, ATTEND, EXPORT, IMPORT, DROP, VERIFY = range(1, 13)
SEQ_OPEN, SEQ_APPEND, SEQ_ATTEND, SEQ_COMMIT, SEQ_FORK, SEQ_RELEASE = range(16, 22)
STATS, LIST, DRAIN = 32, 33, 34

STATUS = {
    0: "OK", 1: "EXISTS", 16: "BAD_FRAME", 17: "TOO_LARGE", 18: "UNSUPPORTED", 19: "INVALID_SHAPE",
    20: "NON_FINITE", 21: "FINGERPRINT_MISMATCH", 22: "DENIED", 23: "NOT_FOUND", 24: "STALE",
    25: "LEASE_EXPIRED", 32: "RETRY", 33: "NO_SPACE", 34: "QUOTA", 35: "DRAINING", 48: "DEADLINE",
    49: "CANCELLED", 50: "GPU_LOST", 51: "PEER_LOST", 52: "CORRUPT", 64: "INTERNAL",
}
AT_END = 2**64 - 1
HEADER = struct.Struct("<4sBBHQIIQ")
PUT_ROW = struct.Struct("<32sIIQII")
SEQ_ROW = struct.Struct("<QQIIII")
SEQ_STATUS = struct.Struct("<QQIIQ")
BLOCK_STATUS = struct.Struct("<IIII")

LAYERS, HEADS, DIM, GROUP = 2, 2, 64, 64
ROW = 2 * DIM                              # of one token and head, fp16
PLANE = LAYERS * GROUP * HEADS * ROW       # K of one block
EDGES = (0, 1, 2, 63, 64, 255, 4095, 4096, 4097, 2**16, 2**31 - 1, 2**31, 2**32 - 2, 2**32 - 1)
WIDE = EDGES + (2**32, 2**63 - 1, 2**63, 2**64 - 2, 2**64 - 1)

rng = random.Random(20260401)


# ---- protobuf, by hand

def varint(value):
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def field(number, value):
    """int -> varint, float -> fixed32, bytes and str -> length-delimited, dict -> message."""
    if isinstance(value, dict):
        value = message(value)
    if isinstance(value, str):
        value = value.encode()
    if isinstance(value, float):
        return varint(number << 3 | 5) + struct.pack("<f", value)
    if isinstance(value, bytes):
        return varint(number << 3 | 2) + varint(len(value)) + value
    return varint(number << 3) + varint(value)


def message(fields):
    return b"".join(field(number, value) for number, value in fields.items() if value is not None)


def changed(fields, changes):
    return {**fields, **changes}


def parse(data):
    at, out = 0, {}

    def number():
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value
    while at < len(data):
        tag = number()
        if tag & 7 == 0:
            value = number()
        elif tag & 7 == 1:
            value, at = struct.unpack_from("<d", data, at)[0], at + 8
        elif tag & 7 == 5:
            value, at = struct.unpack_from("<f", data, at)[0], at + 4
        else:
            count = number()
            value, at = bytes(data[at:at + count]), at + count
        out.setdefault(tag >> 3, []).append(value)
    return out


# ---- a connection

class Gone(Exception):
    pass


class Reply:
    def __init__(self, op, ident, metadata, payload):
        self.op, self.ident, self.payload = op, ident, payload
        self.fields = parse(metadata)
        number = self.get(1)
        assert number in STATUS, f"status {number} is not in the list"
        self.status = STATUS[number]
        self.text = self.get(2, b"").decode()
        self.retry_us = self.get(3)

    def get(self, number, default=0):
        return self.fields.get(number, [default])[0]

    def __repr__(self):
        return f"{self.status} {self.text!r} +{len(self.payload)}"


def frame(op, metadata=b"", payload=b"", ident=1, deadline_us=0, magic=b"KVRN", version=1, flags=0, metadata_bytes=None,
          payload_bytes=None):
    return HEADER.pack(magic, version, op & 255, flags, ident,
                       len(metadata) if metadata_bytes is None else metadata_bytes, deadline_us,
                       len(payload) if payload_bytes is None else payload_bytes) + metadata + payload


class Conn:
    def __init__(self, daemon, tcp=False, hello=True, timeout=30):
        self.sock = socket.socket(socket.AF_INET if tcp else socket.AF_UNIX)
        self.sock.connect(("127.0.0.1", daemon.port) if tcp else daemon.path)
        self.sock.settimeout(timeout)
        self.last = 0
        self.space = None
        if hello:
            reply = self.call(HELLO, {1: 1, 2: 1, 3: 1, 4: "hostile"})
            assert reply.status == "OK", reply

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.sock.close()

    close = __exit__

    def send(self, data):
        try:
            self.sock.sendall(data)
        except (BrokenPipeError, ConnectionResetError) as error:
            raise Gone from error

    def read(self, count):
        out = bytearray()
        while len(out) < count:
            try:
                piece = self.sock.recv(min(count - len(out), 1 << 20))
            except ConnectionResetError as error:
                raise Gone from error
            if not piece:
                raise Gone(f"the connection ended after {len(out)} of {count} bytes")
            out += piece
        return bytes(out)

    def start(self, op, fields=b"", payload=b"", **header):
        self.last += 1
        metadata = fields if isinstance(fields, bytes) else message(fields)
        self.send(frame(op, metadata, payload, ident=self.last, **header))
        return self.last

    def reply(self):
        magic, version, op, flags, ident, metadata, deadline, payload = HEADER.unpack(self.read(HEADER.size))
        assert magic == b"KVRN" and version == 1 and flags == 1 and deadline == 0
        return Reply(op, ident, self.read(metadata), self.read(payload))

    def call(self, op, fields=b"", payload=b"", **header):
        ident = self.start(op, fields, payload, **header)
        reply = self.reply()
        assert reply.ident == ident and reply.op == op & 255, (reply.ident, ident, reply.op, op, reply)
        assert reply.status in ("OK", "EXISTS") or reply.text, f"op {op}: {reply.status} says nothing"
        return reply

    def ended(self):
        """What the daemon says last; None when it only closes."""
        last = None
        try:
            while True:
                last = self.reply()
        except Gone:
            return last

    def open(self, model="m", **changes):
        fields = space_fields(model)
        fields.update({int(k[1:]): v for k, v in changes.items()})
        reply = self.call(OPEN_SPACE, fields)
        assert reply.status == "OK", reply
        self.space = reply.get(4)
        self.origin = {1: reply.get(5), 2: 0, 3: LAYERS, 4: 0, 5: HEADS}
        return self.space

    def sequence(self, keys=()):
        reply = self.call(SEQ_OPEN, {1: self.space, 3: len(keys)}, b"".join(keys))
        assert reply.status == "OK", reply
        return SEQ_STATUS.unpack(reply.payload)[0]

    def put(self, keys, kind=1, rows=None, **header):
        return self.call(COMPRESS, {1: self.space, 2: len(keys)}, put_payload(keys, kind, rows), **header)

    def append(self, sequence, tokens, rows=None, position=AT_END):
        return self.call(SEQ_APPEND, {1: self.space, 2: 1},
                         SEQ_ROW.pack(sequence, position, 0, tokens, 0, 0) + (rows or kv(tokens)))


def space_fields(model):
    return {1: model, 5: LAYERS, 6: HEADS, 7: DIM, 8: 1, 9: "kvarn_k2v2_g64"}


noise = struct.pack("<65536e", *(rng.uniform(-2, 2) for _ in range(65536)))


def rows(count):
    """count fp16 numbers as bytes."""
    return (noise * (2 * count // len(noise) + 1))[:2 * count]


def kv(tokens, layers=LAYERS):
    return rows(2 * tokens * layers * HEADS * DIM)


def key(*name):
    return repr(name).encode().ljust(32, b".")[:32]


def put_payload(keys, kind=1, data=None):
    table = b"".join(PUT_ROW.pack(k, kind, GROUP, 0, 0, 0) for k in keys)
    return table + (data or rows(len(keys) * PLANE))


# ---- the daemon

class Daemon:
    def __init__(self, bin_dir, pool="host:48MiB", staging="64MiB", *more):
        self.bin_dir = bin_dir
        self.folder = tempfile.mkdtemp(prefix="kvarn-hostile.")
        self.path = self.folder + "/s"
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.log = open(self.folder + "/log", "wb+")
        ready, told = os.pipe()
        self.process = subprocess.Popen(
            [bin_dir + "/kvarnd", "--listen", "unix:" + self.path, "--listen", f"tcp:127.0.0.1:{self.port}", "--pool",
             pool, "--staging", staging, "--threads", "2", "--quiet", "--ready-fd", str(told), *more],
            pass_fds=[told], stderr=self.log, stdin=subprocess.DEVNULL, stdout=self.log,
            env=dict(os.environ, ASAN_OPTIONS="quarantine_size_mb=8:" + os.environ.get("ASAN_OPTIONS", "")))
        os.close(told)
        assert os.read(ready, 1), self.errors()
        os.close(ready)
        self.pid = self.process.pid

    def errors(self):
        self.log.flush()
        return open(self.folder + "/log", "rb").read().decode(errors="replace")

    def alive(self):
        assert self.process.poll() is None, f"the daemon ended: {self.process.returncode}\n{self.errors()[-6000:]}"

    def descriptors(self):
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def resident_kib(self):
        for line in open(f"/proc/{self.pid}/status"):
            if line.startswith("RssAnon:"):
                return int(line.split()[1])
        return 0

    def workers(self):
        found = []
        for name in os.listdir("/proc"):
            try:
                if name.isdigit() and int(open(f"/proc/{name}/stat").read().rsplit(")", 1)[1].split()[1]) == self.pid:
                    found.append(int(name))
            except OSError:
                pass
        return found

    def metrics(self):
        with Conn(self) as conn:
            reply = conn.call(STATS)
        return {m[1][0].decode(): m[2][0] if 2 in m else 0.0 for m in map(parse, reply.fields[4])}

    def gauges(self):
        m = self.metrics()
        return {name: m["kvarn_" + name] for name in (
            "sequences", "leases", "leased_blocks", "requests_in_flight", "requests_parked",
            "staging_largest_free_bytes", "pool_used_bytes", "evictable_blocks")} | {"descriptors": self.descriptors()}

    def stop(self):
        self.alive()
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(30)
        text = self.errors()
        assert code == 0, f"exit code {code}\n{text[-6000:]}"
        for word in ("runtime error", "AddressSanitizer", "LeakSanitizer"):
            assert word not in text, text[-8000:]
        for name in os.listdir(self.folder):
            os.unlink(self.folder + "/" + name)
        os.rmdir(self.folder)


def settled(daemon, before, seconds=15):
    """Waits until the gauges are what they were."""
    end = time.time() + seconds
    while True:
        daemon.alive()
        now = daemon.gauges()
        if now == before:
            return
        if os.environ.get("TELL"):
            print({k: (before[k], now[k]) for k in now if now[k] != before[k]})
        if time.time() > end:
            raise AssertionError({k: (before[k], now[k]) for k in now if now[k] != before[k]})
        time.sleep(0.05)


def drop(conn, keys):
    for i in range(0, len(keys), 1024):
        part = keys[i:i + 1024]
        conn.call(DROP, {1: conn.space, 2: len(part)}, b"".join(part))


# ---- the attacks. Each gives what it tried, as text.

def templates(conn):
    """One right call of each operation: name, op, metadata, payload."""
    k = key("t", 0)
    conn.put([k, key("t", 1)])
    seq = conn.sequence([k])
    assert conn.append(seq, 3).status == "OK"
    query = {1: 2 * HEADS, 2: 1}
    q = rows(2 * HEADS * DIM)
    s = conn.space
    exported = conn.call(EXPORT, {1: s, 2: 1}, k).payload
    lay = {1: 0, 2: PLANE, 3: GROUP * HEADS * ROW, 4: GROUP * HEADS * ROW, 5: HEADS * ROW, 6: ROW}
    layer_rows = rows(2 * HEADS * DIM)  # K and V of one token and layer
    row = SEQ_ROW.pack(seq, AT_END, 1, 1, 0, 0)
    return [
        (PING, {1: 7}, b""),
        (OPEN_SPACE, changed(space_fields("fuzz"), {10: 8, 11: 0, 12: 128, 14: 0, 15: 1, 16: 0, 17: 1}), b""),
        (LOOKUP, {1: s, 2: 1, 3: 1}, k),
        (RELEASE, {1: 1}, b""),
        (COMPRESS, {1: s, 2: 1, 6: lay}, put_payload([k])),
        (DECOMPRESS, {1: s, 2: 1, 4: 0, 5: 1}, k),
        (ATTEND, {1: s, 2: 1, 4: 0, 7: query}, k + q),
        (EXPORT, {1: s, 2: 1}, k),
        (IMPORT, {1: s, 2: 1, 9: conn.origin}, exported),
        (DROP, {1: s, 2: 1}, key("nobody")),
        (VERIFY, {1: s, 2: 1, 8: 0}, k),
        (SEQ_OPEN, {1: s, 3: 1}, k),
        (SEQ_APPEND, {1: s, 2: 1, 4: 0, 5: LAYERS, 6: {1: 0, 2: LAYERS * HEADS * ROW}}, row + kv(1)),
        (SEQ_ATTEND, {1: s, 2: 1, 4: 0, 7: {1: 2 * HEADS}}, row + q + layer_rows),
        (SEQ_COMMIT, {1: s, 2: 1, 3: 0}, SEQ_ROW.pack(seq, 0, 0, 1, 0, 0)),
        (SEQ_FORK, {1: s, 2: 1, 8: 1}, SEQ_ROW.pack(seq, 0, 0, 0, 0, 0)),
        (SEQ_RELEASE, {1: s, 2: 1}, SEQ_ROW.pack(seq + (5 << 32), 0, 0, 0, 0, 0)),
        (STATS, {1: 0}, b""),
        (LIST, {}, b""),
    ]


def every_field(daemon, _):
    """Every field of every operation at its edges, one at a time; also nested fields, and floats as NaN and inf."""
    tried = 0
    counts = {}
    with Conn(daemon) as conn:
        conn.open("every-field")

        def call(op, fields, payload):
            nonlocal tried
            reply = conn.call(op, fields, payload)
            counts[reply.status] = counts.get(reply.status, 0) + 1
            tried += 1
        for op, fields, payload in templates(conn):
            call(op, fields, payload)
            for number in range(1, 18):
                values = WIDE + (rng.getrandbits(32), rng.getrandbits(64))
                old = fields.get(number)
                if isinstance(old, str):
                    values = ("", "a" * 512, "a" * 513, "\u00e9" * 256, b"\xff\xfe", b"a\0b", "../..", "a\nb")
                if isinstance(old, dict):
                    for inner in range(1, 10):
                        for value in values + (0.0, float("nan"), float("inf"), -1.0, 1e-45, 3e38):
                            call(op, changed(fields, {number: changed(old, {inner: value})}), payload)
                    continue
                for value in values:
                    call(op, changed(fields, {number: value}), payload)
                call(op, changed(fields, {number: 1.5}), payload)
                call(op, changed(fields, {number: b"x"}), payload)
                call(op, {k: v for k, v in fields.items() if k != number}, payload)
        drop(conn, [key("t", 0), key("t", 1)])
    return f"{tried} calls: {counts}"


def every_word(daemon, _):
    """Every 32- and 64-bit word of every table at its edges; payloads cut and extended."""
    tried = 0
    counts = {}
    stored = [key("t", 0), key("t", 1)]
    with Conn(daemon) as conn:
        conn.open("every-word")
        for op, fields, payload in templates(conn):
            table = {COMPRESS: 56, IMPORT: 56}.get(op, 32 if payload else 0)
            changed = []
            for at in range(0, table, 4):
                for value in EDGES:
                    changed.append(payload[:at] + struct.pack("<I", value) + payload[at + 4:])
            for at in range(0, table, 8):
                for value in WIDE:
                    changed.append(payload[:at] + struct.pack("<Q", value) + payload[at + 8:])
            for cut in (1, 2, 4, 31, 32, 56, len(payload) // 2, len(payload)):
                changed += [payload[:len(payload) - cut] if cut <= len(payload) else b"", payload + bytes(cut)]
            for one in changed:
                if op == PING and len(one) > 4096:
                    continue
                reply = conn.call(op, fields, one)
                counts[reply.status] = counts.get(reply.status, 0) + 1
                tried += 1
                if op in (COMPRESS, IMPORT) and reply.status == "OK":
                    stored.append(one[:32])
        drop(conn, stored)
    return f"{tried} calls: {counts}"


def told_right(daemon, _):
    """Bad calls with the status and the word that the answer must have."""
    nan = struct.pack("<e", float("nan"))
    cases = 0
    with Conn(daemon) as conn, Conn(daemon) as other:
        space = conn.open("told")
        other.open("told")
        a, b = key("told", 1), key("told", 2)

        def expect(reply, status, *words):
            nonlocal cases
            cases += 1
            assert reply.status == status and all(w in reply.text for w in words), (status, words, reply)
            return reply
        expect(conn.call(99), "UNSUPPORTED", "99")
        expect(conn.call(0), "UNSUPPORTED", "0")
        expect(conn.call(OPEN_SPACE, changed(space_fields("x"), {9: "kvarn_k3v3"})), "UNSUPPORTED", "kvarn_k3v3",
               "kvarn_k2v2_g64")
        expect(conn.call(OPEN_SPACE, changed(space_fields("x"), {7: 96})), "INVALID_SHAPE", "96")
        expect(conn.call(OPEN_SPACE, changed(space_fields("x"), {8: 3})), "UNSUPPORTED", "3")
        expect(conn.call(OPEN_SPACE, dict(space_fields(""))), "INVALID_SHAPE", "model")
        expect(conn.call(OPEN_SPACE, changed(space_fields("x"), {5: 2**32 - 1})), "INVALID_SHAPE", "layers")
        expect(conn.call(OPEN_SPACE, changed(space_fields("x"), {14: 2**32 - 1, 15: 2})), "INVALID_SHAPE", "layers")
        expect(conn.call(OPEN_SPACE, changed(space_fields("x"), {5: 1024, 6: 1024})), "TOO_LARGE", "pool")
        expect(conn.call(LOOKUP, {1: 1, 2: 1}, a), "NOT_FOUND", "space")
        # NaN, named: layer 1, token 3 of block 1, head 1, channel 5 of V
        at = rows(2 * PLANE // 2 * 2)
        spot = 2 * PLANE + ((1 * 2 * GROUP + GROUP + 3) * HEADS + 1) * ROW + 2 * 5
        reply = expect(conn.put([a, b], rows=at[:spot] + nan + at[spot + 2:]), "NON_FINITE", "tensor v", "layer 1",
                       "token 3", "head 1", "channel 5")
        assert [BLOCK_STATUS.unpack_from(reply.payload, 16 * i)[0] for i in (0, 1)] == [0, 20]
        expect(conn.call(DECOMPRESS, {1: space, 2: 1}, b), "NOT_FOUND", b.hex()[:8])
        expect(conn.put([b, b, b]), "OK")  # the same key thrice in one call
        expect(conn.call(COMPRESS, {1: space, 2: 1}, put_payload([a], kind=3)), "INVALID_SHAPE", "kind = 3")
        expect(conn.call(COMPRESS, {1: space, 2: 4096}, put_payload([a])), "INVALID_SHAPE", "4096")
        expect(conn.call(COMPRESS, {1: space, 2: 1, 6: {3: 2**63}}, put_payload([a])), "INVALID_SHAPE")
        expect(conn.call(COMPRESS, {1: space, 2: 1, 6: {6: 2**63}}, put_payload([a])), "INVALID_SHAPE", "64 bits")
        expect(conn.call(COMPRESS, {1: space, 2: 1, 6: {1: 2**64 - 1}}, put_payload([a])), "INVALID_SHAPE")
        expect(conn.call(COMPRESS, {1: space, 2: 1, 6: {2: 2 * PLANE}}, put_payload([a])), "INVALID_SHAPE")
        # odd offsets are allowed: rows are read at any alignment
        expect(conn.call(COMPRESS, {1: space, 2: 1, 6: {1: 1, 2: PLANE + 3}}, put_payload([key("odd")], data=bytes(2 * PLANE + 8))),
               "OK")
        for change, word in (({1: 2**32 - 1}, "q_heads"), ({1: 0}, "q_heads"), ({1: 3}, "q_heads"),
                             ({5: float("nan")}, "scale"), ({5: -1.0}, "scale"), ({6: float("inf")}, "soft_cap"),
                             ({2: 257}, "q_tokens"), ({2: 0}, "q_tokens")):
            query = changed({1: 2 * HEADS, 2: 1}, change)
            expect(conn.call(ATTEND, {1: space, 2: 1, 7: query}, b + rows(2 * HEADS * DIM)), "INVALID_SHAPE", word)
        expect(conn.call(ATTEND, {1: space, 2: 1, 7: {1: 4, 2: 1, 3: 9}}, b + rows(4 * DIM)), "UNSUPPORTED", "9")
        expect(conn.call(ATTEND, {1: space, 2: 1, 4: LAYERS, 7: {1: 4, 2: 1}}, b + rows(4 * DIM)), "INVALID_SHAPE",
               f"layer {LAYERS}")
        q = bytearray(rows(4 * DIM))
        q[2 * (DIM + 7):2 * (DIM + 8)] = nan
        expect(conn.call(ATTEND, {1: space, 2: 1, 7: {1: 4, 2: 1}}, b + bytes(q)), "NON_FINITE", "head 1", "channel 7")
        for window in (0, 1, 2**32 - 1):
            expect(conn.call(ATTEND, {1: space, 2: 1, 7: {1: 4, 2: 1, 7: window}}, b + rows(4 * DIM)), "OK")
        expect(conn.call(ATTEND, {1: space, 2: 0, 7: {1: 4, 2: 1}}, rows(4 * DIM)), "OK")
        # damaged import
        good = bytearray(conn.call(EXPORT, {1: space, 2: 1}, b).payload)
        drop(conn, [b])
        good[60] ^= 1
        expect(conn.call(IMPORT, {1: space, 2: 1}, bytes(good)), "INVALID_SHAPE", "origin")
        foreign = changed(conn.origin, {1: bytes(32)})
        expect(conn.call(IMPORT, {1: space, 2: 1, 9: foreign}, bytes(good)), "FINGERPRINT_MISMATCH")
        expect(conn.call(IMPORT, {1: space, 2: 1, 9: conn.origin}, bytes(good)), "CORRUPT", "digest")
        # sequences
        seq = conn.sequence()
        expect(conn.append(seq, 1, position=1), "INVALID_SHAPE", "hole")
        expect(conn.append(seq, 1, position=2**64 - 2), "INVALID_SHAPE", "hole")
        expect(conn.append(seq, 0, rows=b"\0"), "INVALID_SHAPE")
        expect(conn.call(SEQ_APPEND, {1: space, 2: 1}, SEQ_ROW.pack(seq, AT_END, 0, 8193, 0, 0) + kv(8193)), "TOO_LARGE",
               "8192")
        bad = bytearray(kv(2))
        spot = ((1 * 2 + 1) * HEADS * DIM + 9) * 2  # K, layer 1, token 1, head 0, channel 9
        bad[spot:spot + 2] = struct.pack("<e", float("-inf"))
        expect(conn.append(seq, 2, rows=bytes(bad)), "NON_FINITE", "tensor k", "layer 1", "token 1", "channel 9")
        expect(conn.call(SEQ_COMMIT, {1: space, 2: 1}, SEQ_ROW.pack(seq, 0, 0, 1, 0, 0)), "INVALID_SHAPE", "layer")
        expect(conn.call(SEQ_COMMIT, {1: space, 2: 1}, SEQ_ROW.pack(seq, 0, 0, 0, 0, 0)), "OK")
        expect(conn.append(seq, 2), "OK")
        expect(conn.call(SEQ_COMMIT, {1: space, 2: 1, 3: 1}, SEQ_ROW.pack(seq, 0, 0, 1, 1, 0) + a), "INVALID_SHAPE",
               "keys")
        expect(conn.call(SEQ_COMMIT, {1: space, 2: 1, 3: 1}, SEQ_ROW.pack(seq, 0, 0, 1, 0, 0) + a), "INVALID_SHAPE",
               "keys")
        twice = SEQ_ROW.pack(seq, AT_END, 0, 1, 0, 0) * 2
        expect(conn.call(SEQ_APPEND, {1: space, 2: 2}, twice + kv(2)), "INVALID_SHAPE", "twice")
        expect(other.append(seq, 1), "NOT_FOUND", "sequence")
        expect(other.call(SEQ_RELEASE, {1: space, 2: 1}, SEQ_ROW.pack(seq, 0, 0, 0, 0, 0)), "NOT_FOUND")
        for count, status in ((0, "INVALID_SHAPE"), (4097, "INVALID_SHAPE"), (2**32 - 1, "INVALID_SHAPE"), (1, "OK")):
            expect(conn.call(SEQ_FORK, {1: space, 2: 1, 8: count}, SEQ_ROW.pack(seq, 0, 0, 0, 0, 0)), status)
        expect(conn.call(SEQ_FORK, {1: space, 2: 1, 8: 4096}, SEQ_ROW.pack(seq, 0, 0, 0, 0, 0)), "NO_SPACE", "child")
        expect(conn.call(SEQ_RELEASE, {1: space, 2: 1}, SEQ_ROW.pack(seq, 0, 0, 0, 0, 0)), "OK")
        expect(conn.call(SEQ_RELEASE, {1: space, 2: 1}, SEQ_ROW.pack(seq, 0, 0, 0, 0, 0)), "STALE", "released")
        # leases
        expect(conn.call(RELEASE, {1: 2**64 - 1}), "NOT_FOUND", "lease")
        conn.put([b])
        lease = expect(conn.call(LOOKUP, {1: space, 2: 1, 3: 1000}, b), "OK").get(6)
        expect(other.call(RELEASE, {1: lease}), "NOT_FOUND", "lease")
        expect(conn.call(RELEASE, {1: lease}), "OK")
        expect(conn.call(RELEASE, {1: lease}), "STALE", "released")
        lease = expect(conn.call(LOOKUP, {1: space, 2: 1, 3: 1}, b), "OK").get(6)
        time.sleep(0.02)
        expect(conn.call(RELEASE, {1: lease}), "LEASE_EXPIRED")
        # now and then a call begins within its microsecond
        begun = [conn.call(LOOKUP, {1: space, 2: 1}, b, deadline_us=1).status for _ in range(100)]
        assert "DEADLINE" in begun and set(begun) <= {"DEADLINE", "OK"}, begun
        drop(conn, [a, b, key("odd")])
    return f"{cases} cases"


def tenants(daemon, _):
    """TCP is another tenant: handles of ours are not theirs, and what is not theirs is absent."""
    with Conn(daemon) as conn, Conn(daemon, tcp=True) as other:
        space = conn.open("tenants")
        k = key("mine")
        conn.put([k])
        seq = conn.sequence([k])
        lease = conn.call(LOOKUP, {1: space, 2: 1, 3: 60000}, k).get(6)
        theirs = other.open("tenants")
        assert theirs != space
        absent = other.call(LOOKUP, {1: 12345, 2: 1}, k)
        for op in (LOOKUP, COMPRESS, DECOMPRESS, ATTEND, EXPORT, IMPORT, DROP, VERIFY):
            reply = other.call(op, {1: space, 2: 1, 7: {1: 2, 2: 1}}, k + bytes(64))
            assert (reply.status, reply.text) == (absent.status, absent.text), reply
        for op in (SEQ_OPEN, SEQ_APPEND, SEQ_ATTEND, SEQ_COMMIT, SEQ_FORK, SEQ_RELEASE):
            for handle in (space, theirs):
                reply = other.call(op, {1: handle, 2: 1, 7: {1: 2}, 8: 1}, SEQ_ROW.pack(seq, AT_END, 1, 0, 0, 0))
                assert reply.status in ("NOT_FOUND", "INVALID_SHAPE"), (op, reply)
        assert other.call(RELEASE, {1: lease}).status == "NOT_FOUND"
        assert other.call(DRAIN, {1: 1}).status == "DENIED"
        row = other.call(LOOKUP, {1: theirs, 2: 1}, k)
        assert row.get(5) == 0 and BLOCK_STATUS.unpack(row.payload)[0] == 23
        assert b"kvarn_pool" not in b"".join(other.call(STATS).fields[4])
        models = [parse(s)[1][0] for s in other.call(LIST).fields.get(4, [])]
        assert len(models) == len(set(models)) and space not in models
        conn.call(RELEASE, {1: lease})
        conn.call(SEQ_RELEASE, {1: space, 2: 1}, SEQ_ROW.pack(seq, 0, 0, 0, 0, 0))
        drop(conn, [k])
    return "16 calls with another tenant's handles"


def framing(daemon, factor):
    """Headers that lose framing end the connection with a reason; other protocols end it at once."""
    tried = 0
    bad = [dict(version=0), dict(version=2), dict(version=255), dict(flags=2), dict(flags=0xffff),
           dict(metadata_bytes=65537), dict(metadata_bytes=2**31), dict(metadata_bytes=2**32 - 1),
           dict(payload_bytes=2**31), dict(payload_bytes=2**32), dict(payload_bytes=2**63),
           dict(payload_bytes=2**64 - 1)]
    for header in bad:
        for tcp in (False, True):
            with Conn(daemon, tcp=tcp) as conn:
                conn.send(frame(PING, ident=9, **header) + bytes(1000))
                last = conn.ended()
                assert last is not None and last.status in ("BAD_FRAME", "TOO_LARGE", "UNSUPPORTED") and last.text, (
                    header, last)
                tried += 1
    for text in (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(300),
                 b"*1\r\n$4\r\nPING\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", bytes(64), b"\xff" * 64):
        for tcp in (False, True):
            with Conn(daemon, tcp=tcp, hello=False) as conn:
                conn.send(text)
                assert conn.ended() is None
                tried += 1
    with Conn(daemon, hello=False) as conn:  # no HELLO
        assert conn.call(PING).status == "DENIED"
        assert conn.call(HELLO, {1: 2, 2: 3}).status == "UNSUPPORTED"
        assert conn.call(PING).status == "DENIED"
        assert conn.call(HELLO, {1: 3, 2: 1}).status in ("UNSUPPORTED", "BAD_FRAME")
        assert conn.call(HELLO, {1: 1, 2: 2**32 - 1}).status == "OK"
        assert conn.call(PING).status == "OK"
    with Conn(daemon) as conn:  # id 0, id in flight, a reply as a request
        for data, status in ((frame(PING, ident=0), "BAD_FRAME"), (frame(PING, ident=5, flags=1), "BAD_FRAME")):
            conn.send(data)
            assert conn.reply().status == status
        conn.send(frame(PING, ident=5) * 64)
        statuses = {conn.reply().status for _ in range(64)}
        assert statuses <= {"OK", "BAD_FRAME"}
        assert conn.call(PING).status == "OK"
    for _ in range(2000 * factor):  # noise, with and without the magic
        with Conn(daemon, hello=False) as conn:
            data = bytearray(rng.randbytes(rng.randrange(1, 200)))
            if rng.random() < 0.7:
                data[:6] = b"KVRN\x01" + bytes([rng.randrange(40)])
            try:
                conn.send(bytes(data))
            except Gone:
                pass
            tried += 1
    return f"{tried} bad headers and openings"


def metadata(daemon, factor):
    """Metadata that protobuf-c must never see: depth, floods, wrong wire types, twice, cut anywhere, flipped bits."""
    tried = 0
    counts = {}
    with Conn(daemon) as conn:
        conn.open("metadata")
        base = templates(conn)

        def call(op, data, payload=b""):
            nonlocal tried
            reply = conn.call(op, data, payload)
            counts[reply.status] = counts.get(reply.status, 0) + 1
            tried += 1
            return reply
        deep = b""
        for _ in range(8000):
            deep = varint(6 << 3 | 2) + varint(len(deep)) + deep
            if len(deep) > 60000:
                break
        for op, fields, payload in base:
            whole = message(fields)
            call(op, deep[:65000], payload)
            for data in (b"\x98\x06\x01" * 21845, b"\x9a\x06\x00" * 21845, b"\xa1\x06" + bytes(8), b"\x0b\x0c",
                         b"\x08" + b"\xff" * 10 + b"\x01", b"\x08" + b"\xff" * 9 + b"\x02", b"\x00\x00", b"\xff" * 12,
                         b"\x0a\xff\xff\xff\xff\x0f", whole * 2, b"\x0e\x01"):
                reply = call(op, data, payload)
                if op != LIST and data in (whole * 2, b"\x0e\x01"):
                    assert not whole or reply.status == "BAD_FRAME", (op, reply)
            for cut in range(len(whole)):
                call(op, whole[:cut], payload)
            for _ in range(20 * factor):
                data = bytearray(whole or b"\0")
                for _ in range(rng.randrange(1, 4)):
                    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
                if op == SEQ_FORK or op == VERIFY:
                    continue
                call(op, bytes(data), payload)
        drop(conn, [key("t", 0), key("t", 1)])
    return f"{tried} calls: {counts}"


def cut_anywhere(daemon, factor):
    """Every operation cut at every byte of its head, at samples of its payload, and before its reply is read."""
    tried = 0
    for tcp in (False, True):
        with Conn(daemon, tcp=tcp) as conn:
            conn.open("cut")
            for op, fields, payload in templates(conn):
                data = frame(op, message(fields), payload, ident=7)
                head = len(data) - len(payload)
                cuts = set(range(0, head, 1 if factor > 1 else 5)) | {head, head + 1, head + 31, head + 32,
                                                                       len(data) - 1, len(data)}
                for cut in sorted(c for c in cuts if c <= len(data)):
                    victim = Conn(daemon, tcp=tcp)
                    victim.send(data[:cut])
                    victim.close()
                    tried += 1
            for repeat in range(50 * factor):
                victim = Conn(daemon, tcp=tcp)
                victim.open("cut")
                seq = victim.sequence()
                for _ in range(8):
                    victim.start(SEQ_APPEND, {1: victim.space, 2: 1},
                                 SEQ_ROW.pack(seq, AT_END, 0, 16, 0, 0) + kv(16))
                    victim.start(COMPRESS, {1: victim.space, 2: 2}, put_payload([key("c", repeat), key("c", 0)]))
                    victim.start(SEQ_FORK, {1: victim.space, 2: 1, 8: 3}, SEQ_ROW.pack(seq, 0, 0, 0, 0, 0))
                    victim.start(LOOKUP, {1: victim.space, 2: 1, 3: 60000}, key("c", 0))
                victim.close()
                tried += 1
            time.sleep(0.3)
            drop(conn, [key("t", 0), key("t", 1)] + [key("c", i) for i in range(50 * factor)])
    return f"{tried} connections"


def pieces(daemon, factor):
    """The same stream whole, byte by byte and in random pieces gives the same answers."""
    with Conn(daemon) as conn:
        conn.open("pieces")
        conn.put([key("p", 0)])
        q = rows(4 * DIM)
        stream = [frame(PING, message({1: 5}), ident=1), frame(99, b"abc", b"payload", ident=2),
                  frame(LOOKUP, message({1: conn.space, 2: 1}), key("p", 0), ident=3),
                  frame(PING, b"\xff", ident=4), frame(PING, ident=0),
                  frame(ATTEND, message({1: conn.space, 2: 1, 7: {1: 4, 2: 1}}), key("p", 0) + q, ident=6)]
        data = b"".join(stream)

        def answers(splits):
            with Conn(daemon) as victim:
                at = 0
                for one in splits:
                    victim.send(data[at:at + one])
                    at += one
                got = sorted((r.ident, r.status, r.text, r.payload) for r in (victim.reply() for _ in stream))
            return got
        first = answers([len(data)])
        assert [r[1] for r in first] == ["BAD_FRAME", "OK", "UNSUPPORTED", "OK", "BAD_FRAME", "OK"], first
        assert answers([1] * len(data)) == first
        for _ in range(40 * factor):
            splits = []
            while sum(splits) < len(data):
                splits.append(rng.randrange(1, 200))
            assert answers(splits) == first
        drop(conn, [key("p", 0)])
    return f"{40 * factor + 2} ways to cut one stream"


def descriptors_sent(daemon, _):
    """Descriptors are closed, all of them, and end the connection."""
    for count in (1, 2, 20, 50, 200):
        for _ in range(10):
            with Conn(daemon) as conn:
                spare = [os.open("/dev/null", os.O_RDONLY) for _ in range(count)]
                try:
                    conn.sock.sendmsg([frame(PING, ident=3)],
                                      [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", spare))])
                finally:
                    for fd in spare:
                        os.close(fd)
                last = conn.ended()
                assert last is not None and last.status == "DENIED" and "descriptor" in last.text, last
    return "50 messages of 1 to 200 descriptors"


def handles(daemon, factor):
    """Random handles: near ones, old ones, of other kinds. Never someone else's object."""
    tried = 0
    with Conn(daemon) as conn:
        conn.open("handles")
        live, dead = [], []
        for _ in range(1500 * factor):
            choice = rng.random()
            if choice < 0.3 and len(live) < 64:
                live.append(conn.sequence())
            elif choice < 0.5 and live:
                one = live.pop(rng.randrange(len(live)))
                assert conn.call(SEQ_RELEASE, {1: conn.space, 2: 1},
                                 SEQ_ROW.pack(one, 0, 0, 0, 0, 0)).status == "OK"
                dead.append(one)
            elif choice < 0.8 and dead:
                one = rng.choice(dead[-200:])
                status = conn.call(SEQ_COMMIT, {1: conn.space, 2: 1}, SEQ_ROW.pack(one, 0, 0, 0, 0, 0)).status
                assert status in ("STALE", "NOT_FOUND"), status
            else:
                one = rng.choice(live or [7]) + rng.choice((1, 2, 1 << 32, -(1 << 32), 1 << 40))
                if one not in live and 0 <= one < 2**64:
                    status = conn.call(SEQ_RELEASE, {1: conn.space, 2: 1},
                                       SEQ_ROW.pack(one, 0, 0, 0, 0, 0)).status
                    assert status in ("STALE", "NOT_FOUND"), status
            tried += 1
    return f"{tried} operations"


def pipelined(daemon, factor):
    """10,000 requests whose replies are read late: answered once each; a queue no longer than its bound."""
    total = 2000 * factor
    with Conn(daemon) as conn:
        data = b"".join(frame(PING, ident=i + 1) for i in range(total))
        conn.sock.setblocking(False)
        sent, at, got, idents = 0, 0, bytearray(), []
        end = time.time() + 60
        while len(idents) < total and time.time() < end:
            try:
                sent += conn.sock.send(data[sent:sent + 65536]) if sent < len(data) else 0
            except BlockingIOError:
                pass
            try:
                if sent == len(data) or rng.random() < 0.2:
                    got += conn.sock.recv(65536)
            except BlockingIOError:
                time.sleep(0.001)
            while at + 32 <= len(got):
                header = HEADER.unpack_from(got, at)
                idents.append(header[4])
                at += 32 + header[5] + header[7]
        assert sorted(idents) == list(range(1, total + 1)) and idents == sorted(idents)
    return f"{total} requests"


def not_reading(daemon, _):
    """A client that asks for 2 GiB and reads nothing: paused, its memory bounded."""
    with Conn(daemon) as conn:
        conn.open("not-reading")
        keys = [key("nr", i) for i in range(32)]
        conn.put(keys)
        before = daemon.resident_kib()
        conn.sock.setblocking(False)
        data = frame(DECOMPRESS, message({1: conn.space, 2: 32}), b"".join(keys), ident=0)
        sent = 0
        try:
            for i in range(1000):
                sent += conn.sock.send(data[:8] + struct.pack("<Q", i + 1) + data[16:])
        except BlockingIOError:
            pass
        time.sleep(0.5)
        with Conn(daemon) as other:
            start = time.time()
            assert other.call(PING).status == "OK" and time.time() - start < 1
        grown = daemon.resident_kib() - before
        assert grown < 65536, f"{grown} KiB more"
        with Conn(daemon) as other:
            other.open("not-reading")
            conn.close()
            time.sleep(0.2)
            drop(other, keys)
    return f"{sent} bytes asked, {grown} KiB held"


def full_pool(daemon, _):
    """Sequences until nothing can be evicted; then NO_SPACE with a remedy; all of it comes back."""
    made = 0
    with Conn(daemon) as conn:
        conn.open("full")
        while True:
            seq = conn.sequence()
            reply = conn.append(seq, 256)
            made += 1
            if reply.status != "OK":
                break
            assert made < 10000
        assert reply.status == "NO_SPACE" and "pool" in reply.text, reply
        reply = conn.put([key("full")])
        assert reply.status == "NO_SPACE" and "pool" in reply.text, reply
        assert conn.call(SEQ_FORK, {1: conn.space, 2: 1, 8: 8}, SEQ_ROW.pack(seq, 0, 0, 0, 0, 0)).status in (
            "NO_SPACE", "OK")
    end = time.time() + 10
    while daemon.metrics()["kvarn_sequences"] > 1 and time.time() < end:
        time.sleep(0.05)
    with Conn(daemon) as conn:
        conn.open("full")
        assert conn.put([key("full")]).status == "OK"
        drop(conn, [key("full")])
    return f"{made} sequences"


def many_spaces(daemon, _):
    """1000 models with blocks: the bound on spaces is told, and LIST and STATS stay whole."""
    with Conn(daemon) as conn:
        stored = []
        for i in range(1000):
            name = f"model-{i:04}-".ljust(126, "x") + "\u00e9\u00e9"
            reply = conn.call(OPEN_SPACE, space_fields(name))
            if reply.status != "OK":
                assert reply.status == "RETRY" and "256" in reply.text, reply
                break
            conn.space = reply.get(4)
            assert conn.put([key("ms", i)]).status == "OK"
            stored.append((conn.space, key("ms", i)))
        assert len(stored) < 256
        listed = {parse(s)[1][0] for s in conn.call(LIST).fields.get(4, [])}
        missing = [s for s, _ in stored if s not in listed]
        assert not missing, f"LIST names {len(listed)} of {len(stored)} spaces"
        for conn.space, k in stored:
            drop(conn, [k])
    return f"{len(stored)} spaces held blocks"


def big_replies(daemon, _):
    """No reply is larger than what HELLO promised."""
    tried = 0
    with Conn(daemon) as conn:
        most = conn.call(HELLO, {1: 1, 2: 1}).get(8)
        conn.open("big")
        k = key("big")
        conn.put([k])
        exact = most // (2 * PLANE)
        for count in (exact, exact + 1):
            if count <= 4096:
                reply = conn.call(DECOMPRESS, {1: conn.space, 2: count}, k * count)
                assert len(reply.payload) <= most, f"DECOMPRESS gave {len(reply.payload)} bytes, most is {most}"
                assert reply.status in ("OK", "TOO_LARGE"), reply
                tried += 1
        drop(conn, [k])
        # wide queries in 16 bit, answers in 32 bit
        heads = 64 * HEADS
        for q_tokens in (64, 255):
            kk = [key("wide", i) for i in range(4)]
            conn.open("wide", _7=256)
            reply = conn.call(COMPRESS, {1: conn.space, 2: 4},
                              b"".join(PUT_ROW.pack(x, 1, GROUP, 0, 0, 0) for x in kk) + rows(16 * PLANE))
            assert reply.status == "OK", reply
            q = rows(q_tokens * heads * 256)
            reply = conn.call(ATTEND, {1: conn.space, 2: 4, 7: {1: heads, 2: q_tokens}}, b"".join(kk) + q)
            assert len(reply.payload) <= most, f"ATTEND gave {len(reply.payload)} bytes, most is {most}"
            tried += 1
        drop(conn, kk)
    return f"{tried} replies, most {most} bytes"


def large_at_once(daemon, _):
    """More large payloads at once than staging holds: all are answered, none starves."""
    conns = [Conn(daemon) for _ in range(12)]
    blocks = 128  # 8 MiB each
    for i, conn in enumerate(conns):
        conn.open("large")
        conn.keys = [key("large", i, j) for j in range(blocks)]
        conn.data = frame(COMPRESS, message({1: conn.space, 2: blocks}), put_payload(conn.keys), ident=1)
        conn.at = 0
        conn.sock.setblocking(False)
    end = time.time() + 60
    while any(c.at < len(c.data) for c in conns) and time.time() < end:
        moved = False
        for conn in conns:
            try:
                if conn.at < len(conn.data):
                    conn.at += conn.sock.send(conn.data[conn.at:conn.at + (1 << 18)])
                    moved = True
            except BlockingIOError:
                pass
        if not moved:
            time.sleep(0.002)
    counts = {}
    for conn in conns:
        conn.sock.settimeout(60)
        reply = conn.reply()
        counts[reply.status] = counts.get(reply.status, 0) + 1
        assert reply.status in ("OK", "RETRY", "NO_SPACE", "DEADLINE"), reply
    for conn in conns:
        drop(conn, conn.keys)
        conn.close()
    return f"12 payloads of 8 MiB: {counts}"


def deadlines(daemon, factor):
    """Deadlines of a microsecond on everything."""
    counts = {}
    with Conn(daemon) as conn:
        conn.open("deadline")
        base = templates(conn)
        for _ in range(10 * factor):
            for op, fields, payload in base:
                reply = conn.call(op, fields, payload, deadline_us=rng.choice((1, 1, 50, 500)))
                counts[reply.status] = counts.get(reply.status, 0) + 1
        drop(conn, [key("t", 0), key("t", 1)])
    return f"{counts}"


def same_keys(daemon, factor):
    """Two clients store the same keys at once, again and again."""
    with Conn(daemon) as a, Conn(daemon) as b:
        a.open("same")
        b.open("same")
        for i in range(100 * factor):
            keys = [key("same", i, j) for j in range(4)]
            data = put_payload(keys)
            back = put_payload(keys[::-1])
            a.start(COMPRESS, {1: a.space, 2: 4}, data)
            b.start(COMPRESS, {1: b.space, 2: 4}, back)
            if i % 3 == 0:
                a.start(DROP, {1: a.space, 2: 4}, b"".join(keys))
                assert a.reply().status in ("OK", "NOT_FOUND")
            assert a.reply().status in ("OK", "NOT_FOUND")
            assert b.reply().status == "OK"
            drop(a, keys)
    return f"{100 * factor} rounds"


def killed_clients(daemon, factor):
    """Clients that die by SIGKILL in the middle of everything."""
    count = 20 * factor
    for i in range(count):
        pid = os.fork()
        if pid == 0:
            try:
                conn = Conn(daemon, tcp=i % 2 == 1)
                conn.open("killed")
                seq = conn.sequence()
                while True:
                    conn.append(seq, 32)
                    conn.call(SEQ_COMMIT, {1: conn.space, 2: 1}, SEQ_ROW.pack(seq, 0, 0, 32, 0, 0))
            finally:
                os._exit(0)
        time.sleep(0.02 + rng.random() * 0.03)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    return f"{count} clients"


def worker_killed(daemon, factor):
    """The worker dies, or stops for a while, under traffic."""
    counts = {}
    with Conn(daemon) as conn:
        conn.open("worker")
        k = key("worker")
        conn.put([k])
        for i in range(3 * factor):
            workers = daemon.workers()
            for j in range(8):
                conn.start(ATTEND, {1: conn.space, 2: 1, 7: {1: 4, 2: 1}}, k + rows(4 * DIM))
            for pid in workers:
                os.kill(pid, signal.SIGSTOP if i % 3 == 1 else signal.SIGKILL)
            if i % 3 == 1:
                time.sleep(0.1)
                for pid in workers:
                    os.kill(pid, signal.SIGCONT)
            for j in range(8):
                reply = conn.reply()
                counts[reply.status] = counts.get(reply.status, 0) + 1
                assert reply.status in ("OK", "GPU_LOST", "RETRY"), reply
            end = time.time() + 20
            while True:
                reply = conn.call(ATTEND, {1: conn.space, 2: 1, 7: {1: 4, 2: 1}}, k + rows(4 * DIM))
                if reply.status == "OK":
                    break
                assert reply.status in ("GPU_LOST", "RETRY") and time.time() < end, reply
                time.sleep(0.05)
        drop(conn, [k])
    return f"{3 * factor} rounds: {counts}"


def connects(daemon, factor):
    """Connect and close, with and without a first byte."""
    count = 1000 * factor
    before = daemon.resident_kib()
    for i in range(count):
        s = socket.socket(socket.AF_INET if i % 2 else socket.AF_UNIX)
        s.connect(("127.0.0.1", daemon.port) if i % 2 else daemon.path)
        if i % 3 == 0:
            s.send(b"K")
        s.close()
    grown = daemon.resident_kib() - before
    assert grown < 32768, f"{grown} KiB more"
    return f"{count} connections, {grown} KiB more"


def idle_crowd(daemon, _):
    """More connections than are allowed: those over the bound are told so, the others live."""
    crowd, refused = [], 0
    try:
        for _ in range(1100):
            s = socket.socket(socket.AF_UNIX)
            s.connect(daemon.path)
            s.settimeout(10)
            crowd.append(s)
        time.sleep(0.3)
        for s in crowd[1000:]:
            s.setblocking(False)
            try:
                data = s.recv(512)
                refused += data[:4] == b"KVRN"
            except BlockingIOError:
                pass
        crowd[5].sendall(frame(HELLO, message({1: 1, 2: 1})))
        assert crowd[5].recv(512)[:4] == b"KVRN"
        assert refused >= 70, refused
    finally:
        for s in crowd:
            s.close()
    return f"1100 connections, {refused} turned away"


def sequence_memory(daemon, _):
    """Sequences over thousands of shared blocks, forked: what the front keeps for them is bounded."""
    with Conn(daemon, timeout=120) as conn:
        conn.open("seqmem", _5=1, _6=1)
        k = key("seqmem")
        small = rows(2 * GROUP * DIM)
        reply = conn.call(COMPRESS, {1: conn.space, 2: 1}, PUT_ROW.pack(k, 1, GROUP, 0, 0, 0) + small)
        assert reply.status == "OK", reply
        seq = conn.sequence([k] * 4096)
        before = daemon.resident_kib()
        made, slowest = 1, 0.0
        with Conn(daemon) as other:
            for _ in range(16):
                start = time.time()
                conn.start(SEQ_FORK, {1: conn.space, 2: 1, 8: 4000}, SEQ_ROW.pack(seq, 0, 0, 0, 0, 0))
                other.call(PING)
                slowest = max(slowest, time.time() - start)
                reply = conn.reply()
                if reply.status != "OK":
                    break
                made += 4000
        grown = daemon.resident_kib() - before
        drop(conn, [k])
    start = time.time()
    with Conn(daemon) as other:
        gone = time.time() - start
    assert grown < 256 << 10, f"{grown} KiB for {made} sequences"
    return f"{made} sequences, {grown} KiB, slowest ping {slowest:.3f} s, end {gone:.3f} s, last {reply.status}"


GROUPS = [told_right, every_field, every_word, tenants, framing, metadata, pieces, cut_anywhere, descriptors_sent,
          handles, pipelined, deadlines, same_keys, not_reading, big_replies, large_at_once, many_spaces,
          sequence_memory, full_pool, killed_clients, worker_killed, connects, idle_crowd]


def main():
    options = argparse.ArgumentParser()
    options.add_argument("bin_dir")
    options.add_argument("--factor", type=int, default=1)
    options.add_argument("--only", action="append")
    options.add_argument("--keep-going", action="store_true")
    options = options.parse_args()
    daemon = Daemon(options.bin_dir)
    try:
        return attack(daemon, options)
    finally:
        if daemon.process.poll() is None:
            daemon.process.kill()


def attack(daemon, options):
    failed = []
    watch = Conn(daemon)
    watch.open("bystander")
    assert watch.put([key("bystander")], kind=2).status == "OK"
    held = watch.sequence([key("bystander")])
    treasure = watch.call(DECOMPRESS, {1: watch.space, 2: 1}, key("bystander")).payload
    for group in GROUPS:
        if options.only and group.__name__ not in options.only:
            continue
        before = daemon.gauges()
        restarted = daemon.metrics()["kvarn_worker_restarts_total"]
        start = time.time()
        try:
            said = group(daemon, options.factor)
            settled(daemon, before)
            restarts = daemon.metrics()["kvarn_worker_restarts_total"] - restarted
            assert restarts == 0 or group is worker_killed, f"the worker ended {restarts} times"
            again = watch.call(DECOMPRESS, {1: watch.space, 2: 1}, key("bystander"))
            differ = [i for i in range(len(treasure)) if again.payload[i:i + 1] != treasure[i:i + 1]]
            assert not differ, f"the bystander's block changed: {again}, {len(differ)} bytes from {differ[0]}"
        except Exception as error:  # told with the group's name
            daemon.alive()
            if not options.keep_going:
                print(f"{group.__name__}: FAILED", flush=True)
                raise
            said = f"FAILED {type(error).__name__} {error}"[:1500]
            failed.append(group.__name__)
        print(f"{group.__name__:18} {time.time() - start:6.2f} s  {daemon.resident_kib() >> 10:4} MiB  {said}", flush=True)
    assert watch.append(held, 1).status == "OK"
    watch.close()
    daemon.stop()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
