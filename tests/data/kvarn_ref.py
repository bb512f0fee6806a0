"""Float64 reference of the KVarN method; slow, plain and independent of the C code.

Symbols, for one kv head and one tile of G tokens with head dimension D:
    H        orthonormal Sylvester-Hadamard matrix, H = H^T = H^-1
    K~, V~   rotated rows, x~ = x H
    K is balanced as [D, G]: rows are channels, columns are tokens
    V is balanced as [G, D]: rows are tokens, columns are channels
    K^[g, d] = (cK[d, g] * a[d] + z[d]) * u[g]
    V^[g, d] = (cV[g, d] * b[g] + y[g]) * w[d]

Policies: "public" is the published method.  "scalefree" first divides the matrix by a
gain, so that the lower clamp of the log scales cannot bind on small data.  "tight" does
so too, lets the codes span only the middle share of a row's range, and then chooses u and
w anew from what a reader will see.
"""
from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

STD_LO, STD_HI = 1e-3, 1e3          # clamp of every measured standard deviation
LOG_LO, LOG_HI = -0.3, 10.0         # clamp of every accumulated log scale
SPREAD_FLOOR = 1e-8
GAIN_FLOOR = 1e-4                   # deviations below this share of the largest are ignored
STEP_FLOOR = 1e-10
ITERATIONS = 8
SHARES = {("k", 2): 0.75, ("v", 2): 0.70}   # of the policy "tight"; 1 for 4 bits
CORRECTION = 0.7, 1.5               # limits of a corrected scale, relative to the balanced
SUM_FLOOR = 2.0 ** -126


# ---------------------------------------------------------------- rotation
def hadamard(n: int) -> np.ndarray:
    """Entry (i, j) is (-1)^popcount(i & j) / sqrt(n)."""
    if n & (n - 1):
        raise ValueError("n must be a power of two")
    h = np.ones((1, 1))
    while len(h) < n:
        h = np.block([[h, h], [h, -h]])
    return h / math.sqrt(n)


# --------------------------------------------------- variance normalisation
def _stds(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return x.std(axis=0, ddof=1), x.std(axis=1, ddof=1)


def imbalance(x: np.ndarray) -> float:
    """Spread of column deviations plus spread of row deviations; 2 is perfect."""
    return sum(s.max() / max(s.min(), SPREAD_FLOOR) for s in _stds(x))


def gain_of(tile: np.ndarray) -> float:
    """Smallest row or column deviation that is not negligible; 1 for a flat tile."""
    s = np.concatenate(_stds(tile))
    top = s.max()
    return float(s[s >= GAIN_FLOOR * top].min()) if top > 0 else 1.0


def varn(tile: np.ndarray, iters: int = ITERATIONS, trace: list | None = None):
    """Balance a tile [R, C]; returns (balanced, column scales, row scales).

    Columns come first in every iteration, and a tie keeps the newer iterate.  `trace`
    receives (imbalance, column scales) of every iterate.
    """
    t = np.asarray(tile, dtype=np.float64)
    lc, lr = np.zeros(t.shape[1]), np.zeros(t.shape[0])
    cur, best = t, imbalance(t)
    bc, br = np.exp(lc), np.exp(lr)
    if trace is not None:
        trace.append((best, bc))
    for _ in range(iters):
        lc = np.clip(lc + np.log(np.clip(_stds(cur)[0], STD_LO, STD_HI)), LOG_LO, LOG_HI)
        cur = t / np.exp(lc)[None, :] / np.exp(lr)[:, None]
        lr = np.clip(lr + np.log(np.clip(_stds(cur)[1], STD_LO, STD_HI)), LOG_LO, LOG_HI)
        cur = t / np.exp(lc)[None, :] / np.exp(lr)[:, None]
        now = imbalance(cur)
        if trace is not None:
            trace.append((now, np.exp(lc)))
        if now <= best:
            best, bc, br = now, np.exp(lc), np.exp(lr)
    return t / bc[None, :] / br[:, None], bc, br


def balance(tile: np.ndarray, policy: str, iters: int = ITERATIONS):
    """As varn(); the gain of the scale-free policy is part of the row scales."""
    if policy not in ("public", "scalefree", "tight"):
        raise ValueError(f"no policy {policy}")
    gain = gain_of(tile) if policy != "public" else 1.0
    x, col, row = varn(tile / gain, iters)
    return x, col, row * gain


# ------------------------------------------------------------- scalar codes
def rtn_rows(x: np.ndarray, bits: int, share: float = 1.0):
    """Round-to-nearest-even of every row over the middle share of its range.

    Returns (codes, step, value of code 0); values outside get the code of their end.
    """
    qmax = (1 << bits) - 1
    lo, hi = x.min(axis=1, keepdims=True), x.max(axis=1, keepdims=True)
    step = np.maximum(share * (hi - lo) / qmax, STEP_FLOOR)
    lo = lo + (1 - share) / 2 * (hi - lo)
    code = np.clip(np.rint((x - lo) / step), 0, qmax).astype(np.int64)
    return code, step[:, 0], lo[:, 0]


def pack_rows(code: np.ndarray, bits: int) -> np.ndarray:
    """Least significant bit first, every row starting on a byte."""
    rows, cols = code.shape
    planes = (code[:, :, None] >> np.arange(bits)) & 1
    return np.packbits(planes.reshape(rows, cols * bits).astype(np.uint8), axis=1,
                       bitorder="little")


def unpack_rows(buf: np.ndarray, bits: int, cols: int) -> np.ndarray:
    planes = np.unpackbits(buf, axis=1, bitorder="little")[:, :cols * bits]
    planes = planes.reshape(buf.shape[0], cols, bits).astype(np.int64)
    return (planes << np.arange(bits)).sum(axis=2)


def f16(x: np.ndarray) -> np.ndarray:
    """The value that survives storage as fp16."""
    return x.astype(np.float16).astype(np.float64)


# -------------------------------------------------------------------- tiles
@dataclass
class Tile:
    """Codes and the six fp16-rounded vectors of one tile."""

    bits_k: int
    bits_v: int
    ck: np.ndarray                  # [D, G]
    a: np.ndarray                   # [D]
    z: np.ndarray                   # [D]
    u: np.ndarray                   # [G]
    cv: np.ndarray                  # [G, D]
    w: np.ndarray                   # [D]
    b: np.ndarray                   # [G]
    y: np.ndarray                   # [G]


def share_of(tensor: str, bits: int, policy: str) -> float:
    """The share of a row's range that the codes of this tensor span."""
    return SHARES.get((tensor, bits), 1.0) if policy == "tight" else 1.0


def correct(tile: np.ndarray, seen: np.ndarray, scale: np.ndarray, tensor: str) -> np.ndarray:
    """Column scales for what a reader will see without them, `seen`, of the unbalanced tile.

    A key keeps its length, a channel of V its product with itself: anything that is fitted
    for least error shrinks, which adds up over channels and tokens.
    """
    kept = (tile * tile).sum(axis=0)
    other = ((seen if tensor == "k" else tile) * seen).sum(axis=0)
    usable = (kept >= SUM_FLOOR) & (other >= SUM_FLOOR)
    fit = np.divide(kept, other, out=np.ones_like(kept), where=usable)
    fit = np.sqrt(fit) if tensor == "k" else fit
    low, high = CORRECTION
    return np.where(usable, np.clip(fit, low * scale, high * scale), scale)


def quantise_side(tile: np.ndarray, tensor: str, bits: int, policy: str, iters: int):
    """Codes and the three fp16-rounded vectors (step, value of code 0, column scale)."""
    x, col, row = balance(tile, policy, iters)
    code, step, lo = rtn_rows(x, bits, share_of(tensor, bits, policy))
    step, lo = f16(row * step), f16(row * lo)
    if policy == "tight":
        col = correct(tile, code * step[:, None] + lo[:, None], col, tensor)
    return code, step, lo, f16(col)


def quantise(k: np.ndarray, v: np.ndarray, bits_k: int, bits_v: int, policy: str,
             iters: int = ITERATIONS, *, k_rotated: bool = False) -> Tile:
    """Compress k, v [G, D], neither rotated; k as it comes when k_rotated is set."""
    h = hadamard(k.shape[1])
    ck, a, z, u = quantise_side((k if k_rotated else k @ h).T, "k", bits_k, policy, iters)
    cv, b, y, w = quantise_side(v @ h, "v", bits_v, policy, iters)
    return Tile(bits_k, bits_v, ck, a, z, u, cv, w, b, y)


def dequantise_rotated(t: Tile) -> tuple[np.ndarray, np.ndarray]:
    k = (t.ck * t.a[:, None] + t.z[:, None]) * t.u[None, :]
    v = (t.cv * t.b[:, None] + t.y[:, None]) * t.w[None, :]
    return k.T, v


def dequantise(t: Tile, *, k_rotated: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """Keys and values [G, D] in the original channel order."""
    h = hadamard(len(t.a))
    k, v = dequantise_rotated(t)
    return k if k_rotated else k @ h, v @ h


def record_bytes(d: int, g: int, bits_k: int, bits_v: int) -> int:
    return d * g * (bits_k + bits_v) // 8 + 6 * (d + g)


def to_record(t: Tile) -> np.ndarray:
    """Canonical byte order: K codes, a, z, u, V codes, w, b, y; no padding."""
    def half(x: np.ndarray) -> bytes:
        return x.astype("<f2").tobytes()
    raw = (pack_rows(t.ck, t.bits_k).tobytes() + half(t.a) + half(t.z) + half(t.u)
           + pack_rows(t.cv, t.bits_v).tobytes() + half(t.w) + half(t.b) + half(t.y))
    return np.frombuffer(raw, np.uint8)


def from_record(raw: np.ndarray, d: int, g: int, bits_k: int, bits_v: int) -> Tile:
    data, at = raw.tobytes(), 0

    def take(size: int) -> bytes:
        nonlocal at
        at += size
        return data[at - size:at]

    def half(n: int) -> np.ndarray:
        return np.frombuffer(take(2 * n), "<f2").astype(np.float64)

    def codes(rows: int, cols: int, bits: int) -> np.ndarray:
        packed = np.frombuffer(take(rows * cols * bits // 8), np.uint8)
        return unpack_rows(packed.reshape(rows, -1), bits, cols)

    return Tile(bits_k, bits_v, codes(d, g, bits_k), half(d), half(d), half(g),
                codes(g, d, bits_v), half(d), half(g), half(g))


# ---------------------------------------------------------------- attention
def attend_dense(q: np.ndarray, k: np.ndarray, v: np.ndarray, scale: float):
    """q [Hq, D]; k, v [N, D] -> out [Hq, D], lse [Hq]."""
    s = q @ k.T * scale
    top = s.max(axis=1, keepdims=True)
    p = np.exp(s - top)
    total = p.sum(axis=1, keepdims=True)
    return p / total @ v, (top + np.log(total))[:, 0]


def merge(parts: list[tuple[np.ndarray, np.ndarray]]):
    """Join (out, lse) of disjoint key ranges exactly; an empty range has lse -inf."""
    lses = np.stack([p[1] for p in parts])
    top = lses.max(axis=0)
    weight = np.exp(lses - np.where(np.isfinite(top), top, 0.0))
    total = weight.sum(axis=0)
    safe = np.where(total > 0, total, 1.0)
    out = sum(p[0] * (x / safe)[:, None] for p, x in zip(parts, weight))
    with np.errstate(divide="ignore"):
        return out, top + np.log(total)


def attend_tile(q: np.ndarray, t: Tile, scale: float, *, k_rotated: bool = False):
    """Attention over one tile with the scales folded into query and weights."""
    h = hadamard(len(t.a))
    qr = q if k_rotated else q @ h
    s = (qr * t.a @ t.ck + (qr @ t.z)[:, None]) * t.u * scale
    top = s.max(axis=1, keepdims=True)
    p = np.exp(s - top)
    total = p.sum(axis=1, keepdims=True)
    out = ((p * t.b) @ t.cv + (p @ t.y)[:, None]) * t.w / total
    return out @ h, (top + np.log(total))[:, 0]


# ---------------------------------------------------------------- baselines
def _group_rtn(x: np.ndarray, bits: int, group: int) -> np.ndarray:
    code, step, lo = rtn_rows(x.reshape(-1, group), bits)
    return (code * f16(step)[:, None] + f16(lo)[:, None]).reshape(x.shape)


def kivi_kv(k: np.ndarray, v: np.ndarray, bits_k: int, bits_v: int, group: int = 32):
    """KIVI on whole groups: K per channel over tokens, V per token over channels."""
    return (_group_rtn(np.ascontiguousarray(k.T), bits_k, group).T,
            _group_rtn(v, bits_v, group))


def rtn_token_kv(k: np.ndarray, v: np.ndarray, bits_k: int, bits_v: int):
    """Plain round-to-nearest with one range per token."""
    return _group_rtn(k, bits_k, k.shape[1]), _group_rtn(v, bits_v, v.shape[1])


# ------------------------------------------------------------ test material
def synth(rng: np.random.Generator, n: int, d: int, gain: float = 1.0,
          outlier_channels: int = 4, outlier_tokens: float = 0.02, heads: int = 4):
    """Queries, keys with offset and outlier channels and outlier tokens, and values."""
    drift = np.cumsum(rng.standard_normal((n, d)), axis=0)
    drift = 0.3 * drift / (np.abs(drift).max(axis=0) + 1e-9)
    spread = np.exp(0.35 * rng.standard_normal(d))
    offset = 0.3 * rng.standard_normal(d)
    out = rng.choice(d, outlier_channels, replace=False)
    spread[out] *= 4.0
    offset[out] += rng.choice([-1, 1], outlier_channels) * 12.0
    token = np.exp(0.35 * rng.standard_normal(n))
    hot, cold = rng.random(n) < outlier_tokens, rng.random(n) < outlier_tokens
    token[hot] *= rng.uniform(3.0, 6.0, hot.sum())
    token[cold] *= rng.uniform(0.15, 0.35, cold.sum())
    k = gain * ((rng.standard_normal((n, d)) + drift) * spread + offset) * token[:, None]
    v = (gain * rng.standard_normal((n, d)) * np.exp(0.3 * rng.standard_normal(d))
         * np.exp(0.45 * rng.standard_normal(n))[:, None])
    mean = k.mean(axis=0)
    pick = rng.integers(n // 8, n, (heads, 3))
    q = (k[pick] - mean).sum(axis=1) / 3 + gain * 0.5 * rng.standard_normal((heads, d))
    logits = q @ (k - mean).T / math.sqrt(d)
    return q * 2.5 / logits.std(axis=1, keepdims=True), k, v
