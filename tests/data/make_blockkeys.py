#!/usr/bin/env python3
"""Writes tests/data/blockkeys.txt: block keys as a vLLM worker with --prefix-caching-hash-algo sha256_cbor makes them.

Needs cbor2 from PyPI (5.6 or newer); run it again only to add cases:
    python3 -m venv /tmp/cbor && /tmp/cbor/bin/pip install cbor2 && /tmp/cbor/bin/python tests/data/make_blockkeys.py

What is hashed is SHA-256(cbor2.dumps((parent, tokens, extra), canonical=True)): parent is the 32 bytes of the key before,
or SHA-256(cbor2.dumps(PYTHONHASHSEED text)) at the first block; tokens a tuple of ints; extra None, or the tuple
(cache_salt,) at the first block. One line per block: seed salt tokens key, separated by spaces; "-" stands for an empty salt
and for an empty token list, "+" in the seed column for a block that follows the one on the line before; texts are in hex.
"""
import hashlib
import os
import random

import cbor2


def sha256_cbor(thing):
    return hashlib.sha256(cbor2.dumps(thing, canonical=True)).digest()


def chain(seed, salt, blocks):
    parent = sha256_cbor(seed)
    for i, tokens in enumerate(blocks):
        extra = (salt,) if i == 0 and salt else None
        parent = sha256_cbor((parent, tuple(tokens), extra))
        yield " ".join([
            seed.encode().hex() if i == 0 else "+",
            salt.encode().hex() if i == 0 and salt else "-",
            ",".join(map(str, tokens)) or "-",
            parent.hex(),
        ])


def main():
    rng = random.Random(20)
    lines = []
    # every length of a CBOR head, on both sides of each step
    edges = [0, 1, 23, 24, 255, 256, 65535, 65536, 2**31 - 1, 2**31, 2**32 - 1]
    for case in [
        ("0", "", [edges]),
        ("0", "", [[]]),
        ("0", "", [[1, 2, 3], [4, 5, 6], [7, 8, 9]]),
        ("0", "salt", [[1, 2, 3], [4, 5, 6], [7, 8, 9]]),
        ("seed42", "", [[1, 2, 3]]),
        ("random text of a seed that is longer than 23 bytes", "Salz und \u20ac, l\u00e4nger als 23 Bytes", [[5] * 16] * 2),
        ("7", "x" * 300, [list(range(24))]),
        ("0", "", [[rng.randrange(151936) for _ in range(64)] for _ in range(4)]),
        ("0", "", [[rng.randrange(128256) for _ in range(128)] for _ in range(3)]),
        ("0", "", [[rng.randrange(2**32) for _ in range(700)]]),
    ]:
        lines += chain(*case)
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "blockkeys.txt")
    with open(path, "w", encoding="ascii") as out:
        out.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
