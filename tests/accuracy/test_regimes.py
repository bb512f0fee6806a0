#!/usr/bin/env python3
"""Engine and regimes over a tiny model of random weights.

The engine is compared with tests/data/llama_numpy.py, which computes all tokens at once;
the regimes with a method that changes nothing and one that does.  Leaves itself out (77)
where numpy is not installed.
"""
from __future__ import annotations

import sys
from types import SimpleNamespace

try:
    import numpy as np
except ImportError:
    sys.exit(77)

import regimes
from attention import SINK
from cache import Cache
from engine import Engine, llama_numpy
from rows import Rows

LAYERS, HIDDEN, FEED, WORDS = 6, 24, 40, 50
SHAPE = llama_numpy.Shape(layers=LAYERS, q_heads=4, kv_heads=2, dim=8, theta=10000.0, eps=1e-5,
                          window=0)


class Same:
    """Stores everything exactly."""

    name, label, group = "same", "same", 64

    def bytes_per_token(self, dim: int) -> float:
        return 4.0 * dim

    def roundtrip(self, k, v):
        return k, v


class Coarse(Same):
    name = "coarse"

    def roundtrip(self, k, v):
        return np.rint(k / 2) * 2, np.rint(v / 2) * 2


def weights(rng) -> dict[str, np.ndarray]:
    rows = {"attn_q": (32, HIDDEN), "attn_k": (16, HIDDEN), "attn_v": (16, HIDDEN),
            "attn_output": (HIDDEN, 32), "ffn_gate": (FEED, HIDDEN), "ffn_up": (FEED, HIDDEN),
            "ffn_down": (HIDDEN, FEED)}
    w = {"token_embd.weight": rng.standard_normal((WORDS, HIDDEN)) / 3,
         "output_norm.weight": rng.uniform(0.5, 1.5, HIDDEN)}
    for i in range(LAYERS):
        w |= {f"blk.{i}.{name}.weight": rng.standard_normal(shape) / np.sqrt(shape[1])
              for name, shape in rows.items()}
        w |= {f"blk.{i}.{name}.weight": rng.uniform(0.5, 1.5, HIDDEN)
              for name in ("attn_norm", "ffn_norm")}
    return {name: x.astype(np.float32) for name, x in w.items()}


def models(gemma: bool) -> tuple[llama_numpy.Model, Engine]:
    """The same weights in both engines; Gemma's extras when asked for."""
    w = weights(np.random.default_rng(1))
    plain, engine = llama_numpy.Model.__new__(llama_numpy.Model), Engine.__new__(Engine)
    plain.shape = SHAPE
    if gemma:
        plain.shape = llama_numpy.Shape(**{**SHAPE.__dict__, "window": 40})
        for i in range(LAYERS):
            w[f"blk.{i}.attn_k_norm.weight"] = np.linspace(0.5, 2, 8, dtype=np.float32)
            w[f"blk.{i}.post_ffw_norm.weight"] = np.linspace(0.5, 2, HIDDEN, dtype=np.float32)
    plain.gemma, plain.interleaved, plain.w, plain.used, plain.last = gemma, False, dict(w), 0, {}
    room = (LAYERS, 512, SHAPE.kv_heads, SHAPE.dim)
    plain.k, plain.v = np.zeros(room, np.float16), np.zeros(room, np.float16)
    engine.model, engine.shape, engine.gemma, engine.w = plain, plain.shape, gemma, dict(w)
    for i in range(LAYERS):
        engine._join(i, ("attn_q", "attn_k", "attn_v"), "qkv")
        engine._join(i, ("ffn_gate", "ffn_up"), "gate_up")
    if not gemma:                    # llama_numpy looks at the layer's number alone
        plain.window = lambda i: 0
    return plain, engine


def tokens(count: int) -> list[int]:
    return [int(x) for x in np.random.default_rng(2).integers(0, WORDS, count)]


def test_engine() -> None:
    for gemma in (False, True):
        plain, engine = models(gemma)
        text = tokens(200)
        want = plain.forward(text)
        for step in (64, 25):
            lanes = [Cache(engine, 200), Cache(engine, 200)]
            rows = np.array([text, text[::-1]])
            got = [engine.forward(rows[:, at:at + step], lanes)[0] for at in range(0, 200, step)]
            gap = np.abs(engine.logits(np.concatenate(got)) - want).max()
            assert gap < 2e-2 * np.abs(want).max(), (gemma, step, gap)
        assert engine.cached_layers() == ([5] if gemma else list(range(LAYERS)))


def test_teacher_forced() -> None:
    """A method that changes nothing has no error; one that does has one once tiles are read."""
    model = SimpleNamespace(engine=models(False)[1], spec=SimpleNamespace(name="tiny"))
    for static in (False, True):
        run = regimes.teacher_forced(model, tokens(385), [Same(), Coarse()], static=static)
        same, coarse = run.tracks
        assert len(same.positions("kl")) == run.length == 384
        assert np.abs(same.positions("kl")).max() < 1e-5 and same.positions("top1").all()
        kl = coarse.positions("kl")
        assert np.abs(kl[:SINK + 64]).max() < 1e-5 and kl[SINK + 64:].mean() > 1e-3
        found = Rows(run, coarse, "text", "decode").all(64)
        value = {row.measure: row for row in found if row.position_bin == (192, 384)
                 and row.layer is None}
        assert abs(value["kl"].value - kl[192:].mean()) < 1e-9
        assert value["kl"].lo < value["kl"].value < value["kl"].hi
        maps = [row for row in found if row.layer is not None]
        assert len(maps) == LAYERS * 4 and all(row.value > 0 for row in maps)
        drift = [row.value for row in found if row.measure == "k_norm_drift"]
        assert min(drift) > 0


def test_no_accumulation() -> None:
    """Static rows come from the exact run: what is stored does not drift from it."""
    model = SimpleNamespace(engine=models(False)[1], spec=SimpleNamespace(name="tiny"))
    apart = {}
    for static in (False, True):
        run = regimes.teacher_forced(model, tokens(385), [Coarse()], static=static)
        apart[static] = max(np.abs(t.norm - t.drift).max() for t in run.tracks[0].tiles)
    assert apart[True] == 0 and apart[False] > 1e-3, apart


def test_free() -> None:
    """Samples of a method without errors never leave the exact model's."""
    model = SimpleNamespace(engine=models(False)[1], spec=SimpleNamespace(name="tiny"))
    prompt, methods = tokens(330), [Same(), Coarse()]
    exact, same, coarse = regimes.own_texts(model, prompt, methods, 60, 3, 2, lambda _: None)
    assert len(exact) == 390 and same == exact and coarse != exact
    run = regimes.teacher_forced(model, exact, methods, noise=regimes.gumbel(3, WORDS))
    for track, text in zip(run.tracks, (same, coarse)):
        alone = regimes.teacher_forced(model, text, [])
        rows = Rows(run, track, "text", "free")
        rows.first = 330
        step, own = rows.free(exact, np.concatenate(alone.nll))
        other = [i for i in range(60) if text[330 + i] != exact[330 + i]]
        assert step.value == (other[0] if other else 60), (step, other[:1])
        assert own.lo < own.value < own.hi


def main() -> None:
    for name, test in list(globals().items()):
        if name.startswith("test_"):
            test()
            print(f"{name} ok", flush=True)


if __name__ == "__main__":
    main()
