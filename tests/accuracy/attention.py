"""Attention of a block of queries over the rows of a sequence, and what of it stays exact."""
from __future__ import annotations

import numpy as np

SINK = 128                           # first tokens of a sequence, always exact


def attention(q: np.ndarray, k: np.ndarray, v: np.ndarray, window: int) -> np.ndarray:
    """Causal attention of q [B, Hq, D], the last B positions, over k, v [Hkv, N, D]."""
    steps, q_heads, dim = q.shape
    heads, n, _ = k.shape
    ratio = q_heads // heads
    out = np.empty_like(q)
    own = np.triu(np.full((steps, steps), -np.inf, np.float32), 1)[:, None, :]
    far = None                       # what lies before the window of each query
    if window and n > window:
        distance = n - steps + np.arange(steps)[:, None] - np.arange(n)[None, :]
        far = np.where(distance >= window, np.float32(-np.inf), np.float32(0))[:, None, :]
    scaled = q * np.float32(1 / np.sqrt(dim))
    for h in range(heads):
        rows = scaled[:, h * ratio:(h + 1) * ratio].reshape(steps * ratio, dim)
        s = rows @ k[h].T
        by_step = s.reshape(steps, ratio, n)
        by_step[..., n - steps:] += own
        if far is not None:
            by_step += far
        s -= s.max(axis=1, keepdims=True)
        np.exp(s, out=s)
        got = (s @ v[h]) / s.sum(axis=1, keepdims=True)
        out[:, h * ratio:(h + 1) * ratio] = got.reshape(steps, ratio, dim)
    return out
