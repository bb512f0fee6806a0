#!/usr/bin/env python3
"""Writes tests/client/baseline_numbers.h: what kvarn_ref.py makes of a small input by KIVI and RTN.

    python3 tests/data/make_baseline.py > tests/client/baseline_numbers.h

The input is a formula in integers, which test_baseline.c repeats. Values that lie near the middle
between two codes are refused, for there float32 and float64 may round apart.
"""
import numpy as np

import kvarn_ref as ref

TOKENS, DIM, BITS = 128, 8, (2, 4)
ROWS = (0, 1, 63, 127)


def rows(salt: int) -> np.ndarray:
    t, c = np.arange(TOKENS)[:, None], np.arange(DIM)[None, :]
    x = ((t * 37 + c * 101 + t * c * 7 + t * t * salt) % 257 - 128) / 64.0
    x = x + ((t * 89 + c * 43 + salt) % 1021) / 32768.0
    return x + np.where(c == 3, 12.0, 0.0)


def sure(x: np.ndarray, bits: int, group: int) -> None:
    g = x.reshape(-1, group)
    lo = g.min(axis=1, keepdims=True)
    code = (g - lo) / ((g.max(axis=1, keepdims=True) - lo) / ((1 << bits) - 1))
    if np.abs(code - np.floor(code) - 0.5).min() < 1e-5:
        raise SystemExit("a value lies between two codes; change the formula")


def table(name: str, x: np.ndarray) -> None:
    print(f"static const double {name}_sum = {float(x.sum())!r};")
    print(f"static const double {name}[{len(ROWS)}][{DIM}] = {{")
    for t in ROWS:
        print("    {" + ", ".join(repr(float(value)) for value in x[t]) + "},")
    print("};")


print("/* By tests/data/make_baseline.py; see there. */\n/* clang-format off */")
print(f"static const size_t numbers_rows[{len(ROWS)}] = {{" + ", ".join(map(str, ROWS)) + "};")
k, v = rows(3), rows(5)
for bits in BITS:
    sure(np.ascontiguousarray(k.T), bits, TOKENS)
    sure(k, bits, DIM)
    sure(v, bits, DIM)
    table(f"kivi_k{bits}", ref.kivi_kv(k, k, bits, bits, TOKENS)[0])
    table(f"kivi_v{bits}", ref.kivi_kv(v, v, bits, bits, DIM)[1])
    rtn = ref.rtn_token_kv(k, v, bits, bits)
    table(f"rtn_k{bits}", rtn[0])
    table(f"rtn_v{bits}", rtn[1])
