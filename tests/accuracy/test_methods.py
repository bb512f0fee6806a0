#!/usr/bin/env python3
"""Reference code of the methods: values worked out by hand, the float64 reference, known tables.

Leaves itself out (77) where numpy is not installed.
"""
from __future__ import annotations

import sys
from pathlib import Path

try:
    import numpy as np
except ImportError:
    sys.exit(77)

from methods import METHODS, Kivi, Rtn, published, round_to_levels
from variants import hadamard
from vectors import NsnQuant, TurboQuant, codebook, levels, nearest, rotation

DATA = Path(__file__).resolve().parents[1] / "data"
sys.path.insert(0, str(DATA))
import kvarn_ref as ref  # noqa: E402
import st_file  # noqa: E402

G = 128


def tiles(dim: int, count: int = 3) -> tuple[np.ndarray, np.ndarray]:
    """Keys and values with outlier channels and tokens, as float32 tiles."""
    _, k, v = ref.synth(np.random.default_rng(dim), count * G, dim)
    return tuple(x.astype(np.float32).reshape(count, G, dim) for x in (k, v))


def same(got: np.ndarray, want: np.ndarray, share: float) -> None:
    """Equal in nearly all elements: float32 and float64 may round a code or a step apart."""
    near = np.isclose(got, want, rtol=2e-3, atol=1e-4 * np.abs(want).max())
    assert near.mean() >= 1 - share, f"{1 - near.mean():.5f} of the elements differ"


def test_rounding() -> None:
    got = round_to_levels(np.array([[0, 3, 1.5, 2.5], [.5, .5, .5, .5]], np.float32), 2)
    assert got.tolist() == [[0, 3, 2, 2], [.5, .5, .5, .5]], got   # halves go to even codes


def test_bytes() -> None:
    """At dim 128 and 64, counted by hand: codes, then 2 bytes for each number beside them."""
    want = {"kivi_k2v2_g128": (64 + 4 + 4, 32 + 2 + 4), "kivi_k2v2_g32": (64 + 16 + 16, 32 + 8 + 8),
            "kivi_k4v2_g128": (96 + 4 + 4, 48 + 2 + 4), "rtn_k2v2": (64 + 8, 32 + 8),
            "hadamard_kivi_k2v2_g128": (64 + 4 + 4, 32 + 2 + 4),
            "turboquant_k2v2": (64 + 4, 32 + 4), "turboquant_norm_k3v3": (96 + 4, 48 + 4),
            "nsnquant_k2v2": (64 + 8 + 4, 32 + 8 + 2), "nsnquant_k1v1": (32 + 8 + 4, 16 + 8 + 2),
            "kvarn_k3v3_ref": (96 + 12, 48 + 9), "kvarn_k8v8_ref": (256 + 12, 128 + 9)}
    for name, sizes in want.items():
        got = tuple(METHODS[name].bytes_per_token(dim) for dim in (128, 64))
        assert got == sizes, f"{name}: {got}, not {sizes}"
    assert published(2, 2).bytes_per_token(128) * G == ref.record_bytes(128, G, 2, 2)


def test_scalar_methods() -> None:
    for dim in (64, 256):
        k, v = tiles(dim)
        for bits_k, bits_v in ((2, 2), (4, 2)):
            for size in (32, 128):
                got = Kivi(bits_k, bits_v, size).roundtrip(k, v)
                turned = Kivi(bits_k, bits_v, size, rotate=True).roundtrip(k, v)
                h = ref.hadamard(dim)
                for i in range(len(k)):
                    kh, vh = k[i].astype(np.float64), v[i].astype(np.float64)
                    same(got[0][i], ref.kivi_kv(kh, kh, bits_k, 2, size)[0], 1e-4)
                    same(got[1][i], ref.kivi_kv(vh, vh, 2, bits_v, min(size, dim))[1], 1e-4)
                    want = ref.kivi_kv(kh @ h, kh @ h, bits_k, 2, size)[0] @ h
                    assert np.abs(turned[0][i] - want).mean() < 2e-3 * np.abs(want).mean()
            got = Rtn(bits_k, bits_v).roundtrip(k, v)
            want = ref.rtn_token_kv(k[1].astype(np.float64), v[1].astype(np.float64), bits_k, bits_v)
            same(got[0][1], want[0], 1e-4)
            same(got[1][1], want[1], 1e-4)


def test_published() -> None:
    """The golden reconstructions, and any number of bits against the float64 reference."""
    for dim in (64, 128, 256):
        data, _ = st_file.read(DATA / f"golden_d{dim}_g{G}.safetensors")
        for bits in (2, 4):
            k, v = (data[f"plain.{x}"].astype(np.float32)[None] for x in "kv")
            for got, x in zip(published(bits, bits).roundtrip(k, v), "kv"):
                want = data[f"plain.kvarn_k{bits}v{bits}_g{G}.{x}_hat"]
                assert np.abs(got[0] - want).mean() < 2e-3 * np.abs(want).mean(), (dim, bits, x)
    k, v = tiles(64)
    for bits in ((3, 3), (8, 8)):
        got = published(*bits).roundtrip(k, v)
        want = ref.dequantise(ref.quantise(k[0].astype(np.float64), v[0].astype(np.float64), *bits,
                                           "public"))
        for a, b in zip(got, want):
            assert np.abs(a[0] - b).mean() < 2e-3 * np.abs(b).mean()


def test_levels() -> None:
    """A coordinate of a random direction in 3-space is uniform; in many dimensions, normal."""
    assert np.allclose(levels(3, 2), [-.75, -.25, .25, .75], atol=1e-4)
    wide = levels(4096, 2) * 64
    assert np.allclose(wide, [-1.5104, -.4528, .4528, 1.5104], atol=2e-3), wide
    assert np.allclose(levels(4096, 1) * 64, [-.7979, .7979], atol=1e-3)   # sqrt(2 / pi)
    turn = rotation(64).astype(np.float64)
    assert np.allclose(turn @ turn.T, np.eye(64), atol=1e-6)


def error(x: np.ndarray, got: np.ndarray) -> float:
    return float(np.square(got - x).sum() / np.square(x).sum())


def test_turboquant() -> None:
    """Known distortions of Lloyd-Max for a normal coordinate, whatever the lengths are."""
    k, v = tiles(256)
    for bits, known in ((1, .3634), (2, .1175), (3, .03454), (4, .009497)):
        got = TurboQuant(bits, bits).roundtrip(v, v)[1]
        unit, near = (y / np.linalg.norm(v, axis=-1, keepdims=True) for y in (v, got))
        assert .96 * known < error(unit, near) < 1.02 * known, (bits, error(unit, near))
    got = TurboQuant(2, 2, keep_norm=True).roundtrip(k, v)[0]
    ratio = np.linalg.norm(got, axis=-1) / np.linalg.norm(k, axis=-1)
    assert np.abs(ratio - 1).max() < 6e-4       # a length in fp16
    shrunk = TurboQuant(2, 2).roundtrip(k, v)[0]
    ratio = np.linalg.norm(shrunk, axis=-1) / np.linalg.norm(k, axis=-1)
    assert abs(ratio.mean() - np.sqrt(1 - .1175)) < .02      # centroids shrink what they code


def test_nsnquant() -> None:
    for magnitudes, scalar in ((True, .1175), (False, .3634)):
        book = codebook(magnitudes)
        assert book.shape == (256, 8) and (not magnitudes or (book > 0).all())
        x = np.random.default_rng(1).standard_normal((2000, 8)).astype(np.float32)
        x = np.abs(x) if magnitudes else x
        owner = nearest(x, book)
        far = np.square(x[:, None] - book).sum(axis=2)
        assert np.isclose(far[np.arange(2000), owner], far.min(axis=1), rtol=1e-4).all()
        assert far.min(axis=1).mean() / 8 < scalar           # below a coordinate at a time
    same_rows = np.broadcast_to(np.arange(64, dtype=np.float32), (1, G, 64))
    for bits in (1, 2):
        got = NsnQuant(bits).roundtrip(same_rows, np.zeros_like(same_rows))
        assert np.abs(got[0] - same_rows).max() < .08        # nothing but the mean, in fp16
        assert not got[1].any()
        k, v = tiles(128)
        found = error(v, NsnQuant(bits).roundtrip(k, v)[1])
        assert found < {1: .45, 2: .12}[bits], found


def test_shapes() -> None:
    """Any number of tiles; each is what it is alone, whatever lies beside it."""
    for dim, count in ((64, 66), (256, 2)):
        k, v = tiles(dim, count)
        for name, method in METHODS.items():
            whole = method.roundtrip(k, v)
            part = method.roundtrip(k[-1:], v[-1:])
            for a, b, x in zip(whole, part, (k, v)):
                assert a.dtype == np.float32 and a.shape == x.shape and np.isfinite(a).all(), name
                assert np.abs(a[-1:] - b).mean() < 1e-3 * np.abs(b).mean(), name
    h = hadamard(64)
    assert np.allclose(h @ h, np.eye(64), atol=1e-6)


if __name__ == "__main__":
    for test in [value for name, value in sorted(globals().items()) if name.startswith("test_")]:
        test()
        print(f"{test.__name__[5:]}: ok")
