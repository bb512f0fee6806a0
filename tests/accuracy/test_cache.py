#!/usr/bin/env python3
"""Attention, caches, text extraction and tokens of the harness, on small made-up data.

Leaves itself out (77) where numpy is not installed.
"""
from __future__ import annotations

import sys
from types import SimpleNamespace

try:
    import numpy as np
except ImportError:
    sys.exit(77)

import texts
from attention import SINK, attention
from cache import Cache, StaticCache
from pieces import PieceTokenizer

HEADS, RATIO, DIM, WINDOW = 2, 3, 8, 40


class FakeEngine:
    """Two layers: one sees everything, one a window."""

    shape = SimpleNamespace(layers=2, kv_heads=HEADS, q_heads=HEADS * RATIO, dim=DIM)

    def window(self, layer: int) -> int:
        return WINDOW if layer == 1 else 0

    def cached_layers(self) -> list[int]:
        return [0]


class Negate:
    """A method whose doing is easy to see."""

    group = 64

    def __init__(self, share: float = 1):
        self.share, self.shapes = share, []

    def roundtrip(self, k, v):
        self.shapes.append(k.shape)
        return -k, -v


def naive(q, k, v, window: int) -> np.ndarray:
    """One query and head at a time, in float64."""
    out = np.zeros(q.shape)
    for i in range(len(q)):
        last = k.shape[1] - len(q) + i
        first = max(0, last - window + 1) if window else 0
        for head in range(q.shape[1]):
            rows = slice(first, last + 1)
            s = k[head // RATIO, rows].astype(np.float64) @ q[i, head] / np.sqrt(DIM)
            p = np.exp(s - s.max())
            out[i, head] = p @ v[head // RATIO, rows] / p.sum()
    return out


def rows(rng, count: int, heads: int) -> np.ndarray:
    """Values that fp16 holds exactly."""
    x = rng.standard_normal((count, heads, DIM)).astype(np.float16)
    return x.astype(np.float32)


def test_attention() -> None:
    rng = np.random.default_rng(1)
    for steps, n, window in ((1, 1, 0), (5, 5, 0), (3, 90, 0), (16, 90, WINDOW), (90, 90, 20)):
        q, k, v = rows(rng, steps, HEADS * RATIO), rows(rng, n, HEADS), rows(rng, n, HEADS)
        k, v = k.swapaxes(0, 1), v.swapaxes(0, 1)
        gap = np.abs(attention(q, k, v, window) - naive(q, k, v, window)).max()
        assert gap < 1e-5, (steps, n, window, gap)


def fill(lane: Cache, data, step: int, see=None) -> None:
    """Both layers, step tokens at a time; see(layer, first, out) gets what attention gave."""
    for first in range(0, len(data[0]), step):
        part = [x[first:first + step] for x in data]
        for layer in range(2):
            out = lane.attend(layer, *part)
            if see:
                see(layer, first, out)
        lane.commit(len(part[0]))


def test_policy() -> None:
    """Sink and tail stay exact, tiles change when they are complete, the sliding layer never."""
    rng, length = np.random.default_rng(2), SINK + 3 * 64 + 10
    data = [rows(rng, length, h) for h in (HEADS * RATIO, HEADS, HEADS)]
    k = data[1].swapaxes(0, 1)
    for step in (64, 1):
        method, seen = Negate(), []
        lane = Cache(FakeEngine(), length, method, sealed=lambda *args: seen.append(args[:2]))
        fill(lane, data, step)
        end = SINK + 3 * 64
        assert (lane.k[1] == k).all()
        assert (lane.k[0, :, :SINK] == k[:, :SINK]).all()
        assert (lane.k[0, :, SINK:end] == -k[:, SINK:end]).all()
        assert (lane.k[0, :, end:] == k[:, end:]).all()
        assert method.shapes == [(HEADS, 64, DIM)] * 3
        assert seen == [([0], SINK + 64 * i) for i in range(3)]


def test_forms_agree() -> None:
    """A block that is aligned to a tile gives what its tokens give one by one."""
    rng, length = np.random.default_rng(3), SINK + 4 * 64
    data = [rows(rng, length, h) for h in (HEADS * RATIO, HEADS, HEADS)]
    outs = []
    for step in (64, 1):
        out = np.zeros((2, *data[0].shape))

        def see(layer, first, got, out=out):
            out[layer, first:first + len(got)] = got

        fill(Cache(FakeEngine(), length, Negate()), data, step, see)
        outs.append(out)
    assert np.abs(outs[0] - outs[1]).max() < 1e-5
    exact = np.zeros_like(outs[0])

    def see_exact(layer, first, got):
        exact[layer, first:first + len(got)] = got

    fill(Cache(FakeEngine(), length), data, 64, see_exact)
    changed = np.abs(outs[0] - exact).max(axis=(2, 3))
    assert (changed[0, :SINK + 64] < 1e-5).all() and (changed[0, SINK + 64:] > 1e-3).all()
    assert (changed[1] < 1e-5).all()


def test_newest() -> None:
    """Half of the tiles: the older ones are not seen any more."""
    rng, length = np.random.default_rng(4), SINK + 4 * 64 + 1
    data = [rows(rng, length, h) for h in (HEADS * RATIO, HEADS, HEADS)]
    last = []
    lane = Cache(FakeEngine(), length, Negate(0.5), watch=lambda *args: last.append(args))
    fill(lane, [x[:-1] for x in data], 64)
    lane.attend(0, *(x[-1:] for x in data))
    there = np.r_[:SINK, SINK + 2 * 64:length]
    want = naive(data[0][-1:], lane.k[0][:, there], lane.v[0][:, there], 0)
    assert np.abs(last[-1][2] - want).max() < 1e-5


def test_static() -> None:
    """Rows come from the clean cache, whatever the lane computed itself."""
    rng, length = np.random.default_rng(5), SINK + 2 * 64
    data = [rows(rng, length, h) for h in (HEADS * RATIO, HEADS, HEADS)]
    clean = Cache(FakeEngine(), length)
    fill(clean, data, 64)
    lane = StaticCache(clean, length, Negate())
    fill(lane, [data[0], data[1] * 2, data[2] * 2], 64)
    assert (lane.k[0, :, SINK:] == -clean.k[0, :, SINK:]).all()
    assert (lane.v[1] == clean.v[1]).all()


def test_texts() -> None:
    parser = texts.Prose()
    parser.feed('<ul>no</ul><div><h2>A  title</h2><p>One <b>bold</b>\n word.</p>'
                '<pre>two\n  lines</pre></div>')
    parser.flush()
    assert parser.blocks == ["A title", "One bold word.", "two\n  lines"], parser.blocks
    assert texts.paragraphs(["one", "two", "", "three "]) == "one two\n\nthree"
    assert texts.ascii_only("\u201cna\u00efve\u201d \u2014 \u4e2d") == '"naive" -- '


def test_pieces() -> None:
    """Against the rule itself: the best pair of all is joined, again and again."""
    rng = np.random.default_rng(6)
    letters = list("abc\u2581")
    words = letters + sorted({"".join(rng.choice(letters, n)) for n in (2, 2, 3, 4, 5)
                              for _ in range(20)})
    meta = {"tokenizer.ggml.tokens": words,
            "tokenizer.ggml.scores": list(rng.integers(-9, 0, len(words)).astype(float))}
    tokenizer = PieceTokenizer(meta)
    for _ in range(50):
        text = "".join(rng.choice(list("abc "), 40))
        parts = list(text.replace(" ", "\u2581"))
        while True:
            pairs = [(-tokenizer.scores[tokenizer.ids[a + b]], i)
                     for i, (a, b) in enumerate(zip(parts, parts[1:])) if a + b in tokenizer.ids]
            if not pairs:
                break
            at = min(pairs)[1]
            parts[at:at + 2] = [parts[at] + parts[at + 1]]
        assert tokenizer.encode(text) == [tokenizer.ids[part] for part in parts]
        assert tokenizer.decode(tokenizer.encode(text)) == text


def main() -> None:
    for name, test in list(globals().items()):
        if name.startswith("test_"):
            test()
            print(f"{name} ok")


if __name__ == "__main__":
    main()
