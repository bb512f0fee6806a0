"""Encoders beside the presets: what else the same record could hold, for choosing a preset.

Each variant fills the record of kernels/METHOD.md (codes, a step and a zero for every row
of the balanced matrix, a scale for every column, all fp16) in another way; a reader would
decode all of them alike.  A matrix is K with channels as rows, or V with tokens as rows.
The rows that are presets of kvarnd (`kvarn_*`, `scalefree_*`, `tight_*`) are measured
through the daemon; `tight` here is the same formula, so that its parts can be left out.
"""
from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

F32 = np.float32
GROUP = 128
LOG_LOW, LOG_HIGH = -0.3, 10.0       # published clamp of a scale's logarithm
STD_LOW, STD_HIGH = 1e-3, 1e3
FLAT = 1e-12
CORRECTION = (0.7, 1.5)              # a corrected scale stays within these times the balanced one


def hadamard(dim: int) -> np.ndarray:
    h = np.ones((1, 1), F32)
    while len(h) < dim:
        h = np.block([[h, h], [h, -h]])
    return h / np.sqrt(F32(dim))


def fp16(x: np.ndarray) -> np.ndarray:
    return x.astype(np.float16).astype(F32)


def spread(x: np.ndarray) -> np.ndarray:
    return x.max((1, 2)) / np.maximum(x.min((1, 2)), 1e-8)


def grow(log: np.ndarray, measured: np.ndarray) -> np.ndarray:
    left = np.clip(measured / np.exp(log), STD_LOW, STD_HIGH)
    return np.clip(log + np.log(left), LOG_LOW, LOG_HIGH)


def balance(t: np.ndarray, iterations: int, scale_free: bool) -> tuple[np.ndarray, np.ndarray]:
    """Scales of columns [n, 1, C] and rows [n, R, 1] of t [n, R, C] (METHOD.md, section 3)."""
    col, row = t.std(1, ddof=1, keepdims=True), t.std(2, ddof=1, keepdims=True)
    if scale_free:                   # no clamp holds back a deviation that was lifted to 1
        low = np.minimum(col.min((1, 2)), row.min((1, 2)))[:, None, None]
        t = t / np.maximum(low, FLAT)
        col, row = t.std(1, ddof=1, keepdims=True), t.std(2, ddof=1, keepdims=True)
    log_col, log_row = np.zeros_like(col), np.zeros_like(row)
    best, best_col, best_row = spread(col) + spread(row), np.ones_like(col), np.ones_like(row)
    for _ in range(iterations):
        log_col = grow(log_col, col)
        row = (t / np.exp(log_col)).std(2, ddof=1, keepdims=True)
        log_row = grow(log_row, row)
        col = (t / np.exp(log_row)).std(1, ddof=1, keepdims=True)
        imbalance = spread(col / np.exp(log_col)) + spread(row / np.exp(log_row))
        better = (imbalance <= best)[:, None, None]
        best = np.minimum(imbalance, best)
        best_col = np.where(better, np.exp(log_col), best_col)
        best_row = np.where(better, np.exp(log_row), best_row)
    return best_col, best_row


@dataclass(frozen=True)
class Encoder:
    """How one matrix is encoded."""

    bits: int
    share: float = 1.0               # of a row's range that the codes span
    search: float = 0.0              # > 0: each row picks the share of least sum |error|^search
    fit: int = 0                     # rounds of alternating least squares over codes and vectors
    correct: str = "none"            # of the column scale: none, norm, product, least
    scale_free: bool = True
    iterations: int = 8

    def __call__(self, t: np.ndarray) -> np.ndarray:
        """What a reader gets back of t [n, rows, columns]."""
        col, _ = balance(t, self.iterations, self.scale_free)
        x = t / col
        shares = np.arange(0.55, 1.01, 0.05) if self.search else (self.share,)
        code, step, zero = self._round(x, shares)
        for _ in range(self.fit):
            code, step, zero, col = self._refit(t, code, col)
        p = code * fp16(step) + fp16(zero)
        return p * fp16(self._corrected(t, p, col))

    def _round(self, x: np.ndarray, shares) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        low, high = x.min(2, keepdims=True), x.max(2, keepdims=True)
        top, best = 2 ** self.bits - 1, None
        for share in shares:
            step = np.maximum(F32(share) * (high - low) / top, FLAT)
            zero = low + F32((1 - share) / 2) * (high - low)
            code = np.clip(np.rint((x - zero) / step), 0, top)
            error = (np.abs(code * step + zero - x) ** (self.search or 2)).sum(2, keepdims=True)
            found = (error, code, step, zero)
            if best is None:
                best = found
            else:
                better = error < best[0]
                best = tuple(np.where(better, new, old) for new, old in zip(found, best))
        return best[1:]

    def _refit(self, t: np.ndarray, code: np.ndarray, col: np.ndarray) -> tuple:
        """Steps and zeros of least error for these codes, then columns, then codes again."""
        w, y = col * col, t / col
        s0 = np.broadcast_to(w, t.shape).sum(2, keepdims=True)
        s1, s2 = (w * code).sum(2, keepdims=True), (w * code * code).sum(2, keepdims=True)
        t0, t1 = (w * y).sum(2, keepdims=True), (w * y * code).sum(2, keepdims=True)
        det = s0 * s2 - s1 * s1
        sound = det > 1e-6 * s0 * s2
        det = np.where(sound, det, 1)
        step = np.maximum(np.where(sound, (s0 * t1 - s1 * t0) / det, 0), FLAT)
        zero = np.where(sound, (s2 * t0 - s1 * t1) / det, t0 / s0)
        p = code * step + zero
        col = np.maximum((t * p).sum(1, keepdims=True) / (p * p).sum(1, keepdims=True), 0.1 * col)
        code = np.clip(np.rint((t / col - zero) / step), 0, 2 ** self.bits - 1)
        return code, step, zero, col

    def _corrected(self, t: np.ndarray, p: np.ndarray, col: np.ndarray) -> np.ndarray:
        tt, tp, pp = ((a * b).sum(1, keepdims=True) for a, b in ((t, t), (t, p), (p, p)))
        with np.errstate(divide="ignore", invalid="ignore"):
            wanted = {"none": col, "norm": np.sqrt(tt / pp), "product": tt / tp,
                      "least": tp / pp}[self.correct]
        low, high = CORRECTION
        return np.where(np.isfinite(wanted), np.clip(wanted, low * col, high * col), col)


@dataclass(frozen=True)
class Variant:
    """Two encoders and the rotations around them: a Method of the harness."""

    name: str
    label: str
    k: Encoder
    v: Encoder
    rotate_k: bool = True
    flips: bool = False              # fixed random signs before the rotation
    group: int = GROUP

    def bytes_per_token(self, dim: int) -> float:
        return dim * (self.k.bits + self.v.bits) / 8 + 6 * (dim + self.group) / self.group

    def roundtrip(self, k: np.ndarray, v: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        dim = k.shape[2]
        h = hadamard(dim)
        if self.flips:
            h = np.random.default_rng(dim).choice([F32(-1), F32(1)], (dim, 1)) * h
        hk = h if self.rotate_k else np.eye(dim, dtype=F32)
        k_hat = self.k(np.ascontiguousarray((k @ hk).swapaxes(1, 2))).swapaxes(1, 2)
        return k_hat @ hk.T, self.v(v @ h) @ h.T


TIGHT_K = Encoder(2, share=0.75, correct="norm")
TIGHT_V = Encoder(2, share=0.70, correct="product")


def both(name: str, label: str, **change) -> Variant:
    """The published form in scale-free balance with the same change for K and V."""
    return Variant(name, label, Encoder(2, **change), Encoder(2, **change))


TIGHT = Variant("tight", "tight: 0.75 and norm for K, 0.70 and product for V", TIGHT_K, TIGHT_V)
ALL = [
    both("published", "published balance, whole range", scale_free=False),
    both("scale_free", "scale-free balance, whole range"),
    *(both(f"share_{s}", f"{s / 100} of the range", share=s / 100) for s in (90, 80, 75, 70, 60)),
    both("search_2", "share of least squares for every row", search=2),
    both("search_4", "share of least fourth powers for every row", search=4),
    both("fit", "alternating least squares", share=0.7, fit=4),
    both("fit_norm", "alternating least squares, norms kept", share=0.7, fit=4, correct="norm"),
    both("fit_product", "alternating least squares, products kept", share=0.7, fit=4,
         correct="product"),
    *(replace(TIGHT, name=f"tight_{c}", label=f"tight, both with correction '{c}'",
              k=replace(TIGHT_K, correct=c), v=replace(TIGHT_V, correct=c))
      for c in ("none", "norm", "product", "least")),
    TIGHT,
    replace(TIGHT, name="tight_flips", label="tight, random signs before the rotation", flips=True),
    replace(TIGHT, name="tight_public", label="tight, published balance",
            k=replace(TIGHT_K, scale_free=False), v=replace(TIGHT_V, scale_free=False)),
    replace(TIGHT, name="tight_plain_k", label="tight, K not rotated", rotate_k=False),
    Variant("tight_k4v2", "tight K4V2", Encoder(4, share=0.97, correct="norm"), TIGHT_V),
    Variant("tight_k4v2_whole", "tight K4V2, whole range for K", Encoder(4, correct="norm"),
            TIGHT_V),
]
VARIANTS = {variant.name: variant for variant in ALL}
