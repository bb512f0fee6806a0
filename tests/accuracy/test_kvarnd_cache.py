#!/usr/bin/env python3
"""kvarnd as the harness uses it: tiles against the golden vectors, sequences against tiles.

Usage: test_kvarnd_cache.py BUILD.  Leaves itself out (77) where numpy is not installed.
"""
from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

try:
    import numpy as np
except ImportError:
    sys.exit(77)

from attention import SINK, attention
from kvarnd_cache import Connection, KvarndMethod, Sequence
from paths import ROOT, Missing

sys.path.insert(0, str(ROOT / "tests" / "data"))
import st_file  # noqa: E402

HEADS, RATIO, DIM, LAYERS = 2, 3, 64, 2


class FakeEngine:
    shape = SimpleNamespace(layers=LAYERS, kv_heads=HEADS, q_heads=HEADS * RATIO, dim=DIM)

    def cached_layers(self) -> list[int]:
        return [0, 1]


def test_tiles(connection: Connection) -> None:
    """Reconstructions of the float64 reference, within the fp16 of DECOMPRESS."""
    seen = 0
    for group in (64, 128):
        data, _ = st_file.read(ROOT / "tests" / "data" / f"golden_d{DIM}_g{group}.safetensors")
        for name in [key for key in data if key.startswith("plain.") and key.endswith("k_hat")]:
            preset = name.split(".")[1]
            method = KvarndMethod(preset, connection)
            k, v = (data[f"plain.{side}"].astype(np.float32)[None] for side in "kv")
            got = method.roundtrip(np.repeat(k, 3, 0), np.repeat(v, 3, 0))
            record = data[f"plain.{preset}.record"]
            assert method.bytes_per_token(DIM) * group == record.size
            for side, rows in zip("kv", got):
                want = data[f"plain.{preset}.{side}_hat"]
                gap = np.abs(rows - want).max() / np.abs(want).max()
                assert gap < 2e-3, (preset, side, gap)
                seen += 1
    assert seen >= 8


def test_sequence(connection: Connection) -> None:
    """Attention over sink, one tile and a tail, appended row by row."""
    rng, length, preset = np.random.default_rng(1), SINK + 128 + 9, "kvarn_k2v2_g128"
    k, v = (rng.standard_normal((LAYERS, length, HEADS, DIM)).astype(np.float16)
            .astype(np.float32) for _ in "kv")
    q = rng.standard_normal((length, HEADS * RATIO, DIM)).astype(np.float32)
    exact = SimpleNamespace(commit=lambda count: None)
    sequence = Sequence(connection, preset, FakeEngine(), exact)
    got = np.zeros((LAYERS, *q.shape), np.float32)
    for at in range(length):
        row = slice(at, at + 1)
        for layer in range(LAYERS):
            got[layer, row] = sequence.attend(layer, q[row], k[layer, row], v[layer, row])
        sequence.commit(1)
    sequence.release()
    method = KvarndMethod(preset, connection)
    for layer in range(LAYERS):
        rows = [x[layer].swapaxes(0, 1).copy() for x in (k, v)]
        end = SINK + method.group
        want = attention(q[:end], *(x[:, :end] for x in rows), 0)
        gap = np.abs(got[layer, :end] - want).max()
        assert gap < 2e-3, ("exact", layer, gap)
        tile = method.roundtrip(*(x[:, SINK:end] for x in rows))
        for x, stored in zip(rows, tile):
            x[:, SINK:end] = stored
        want = attention(q[end:], *rows, 0)
        gap = np.abs(got[layer, end:] - want).max()
        assert gap < 2e-3, ("tile", layer, gap)


def test_refusals(connection: Connection) -> None:
    try:
        KvarndMethod("kvarn_k9v9", connection)
    except Missing as error:
        assert "kvarn_k2v2_g128" in str(error)
    else:
        raise AssertionError("an unknown preset was taken")
    bad = np.full((1, 128, DIM), np.nan, np.float32)
    try:
        KvarndMethod("kvarn_k2v2_g128", connection).roundtrip(bad, bad)
    except RuntimeError as error:
        assert "compress" in str(error)
    else:
        raise AssertionError("a NaN was stored")


def main() -> None:
    connection = Connection(Path(sys.argv[1]))
    for name, test in list(globals().items()):
        if name.startswith("test_"):
            test(connection)
            print(f"{name} ok")
    connection.close()


if __name__ == "__main__":
    main()
