"""Regimes: how a model is run so that a method's errors show.

decode     teacher-forced decoding, in blocks of a tile: the same function as token by token,
           since rows of an unfinished tile are exact whoever comes first (README.md)
blocks N   the same with larger blocks, whose queries see the whole block exact
static     K and V of an fp16 run, stored by the method: no error travels between tokens
free       decode over the fp16 model's own continuation, and every method's own one
"""
from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Callable

import numpy as np

import measures
from attention import SINK
from cache import Cache, StaticCache
from models import Model

TEMPERATURE = 0.8
ALONE = 12                           # what a token alone costs, in tokens of a block
ROWS = 128                           # log-probabilities are compared so many rows at a time

Tick = Callable[[float], None]


@dataclass
class Track:
    """What one method did over one text; the lists grow block by block."""

    method: object
    lane: Cache
    kl: list = field(default_factory=list)         # [positions] each
    top1: list = field(default_factory=list)
    nll: list = field(default_factory=list)
    picks: list = field(default_factory=list)
    error2: list = field(default_factory=list)     # [layers, heads] a block
    norm2: list = field(default_factory=list)
    tiles: list = field(default_factory=list)      # KeyErrors, in order of position

    def positions(self, name: str) -> np.ndarray:
        return np.concatenate(getattr(self, name))


@dataclass
class KeyErrors:
    """Errors of the keys of one run of tiles, each [layers * heads, tokens]."""

    first: int
    norm: np.ndarray                 # of the length, against the row that was stored
    drift: np.ndarray                # of the length, against the fp16 run's row
    magnitude: np.ndarray            # E_M
    direction: np.ndarray            # E_D


class Run:
    """One text through the fp16 model and all methods, block after block."""

    def __init__(self, model: Model, tokens: list[int], methods: list, *, static: bool = False,
                 noise: Callable[[int], np.ndarray] | None = None):
        """tokens: one more than are computed, for the last target.

        noise(position): Gumbel noise of the token that follows, the same for all methods:
        then each track also says which token it would have sampled there.
        """
        self.model, self.engine, self.noise = model, model.engine, noise
        self.tokens, self.length = np.array(tokens), len(tokens) - 1
        self.out: dict[int, np.ndarray] = {}
        self.exact = Cache(self.engine, self.length, watch=self._keep)
        self.nll: list[np.ndarray] = []
        self.tracks = [self._track(method, static) for method in methods]

    def _keep(self, layer: int, _q: np.ndarray, out: np.ndarray) -> None:
        self.out[layer] = out

    def _track(self, method, static: bool) -> Track:
        track = Track(method, None)
        s = self.engine.shape

        def watch(layer: int, _q: np.ndarray, out: np.ndarray) -> None:
            exact = self.out[layer]
            track.error2[-1][layer] += np.square(out - exact).sum(axis=(0, 2))
            track.norm2[-1][layer] += np.square(exact).sum(axis=(0, 2))

        def sealed(layers: list[int], first: int, k, _v, k_hat, _v_hat) -> None:
            rows = (len(layers) * s.kv_heads, -1)
            clean = self.exact.k[layers, :, first:first + k.shape[2]]
            track.tiles.append(KeyErrors(first, *(x.reshape(rows) for x in (
                measures.k_norm_error(k, k_hat), measures.k_norm_error(clean, k_hat),
                *measures.magnitude_direction(k, k_hat)))))

        if static:
            track.lane = StaticCache(self.exact, self.length, method, watch, sealed)
        else:
            track.lane = Cache(self.engine, self.length, method, watch, sealed)
        return track

    def _step(self, track: Track, rows: np.ndarray, logp_ref: np.ndarray,
              targets: np.ndarray) -> None:
        """One block of one method, compared with the fp16 model's."""
        s, first = self.engine.shape, track.lane.used
        track.error2.append(np.zeros((s.layers, s.q_heads)))
        track.norm2.append(np.zeros((s.layers, s.q_heads)))
        hidden = self.engine.forward(rows[None], [track.lane])[0]
        for at in range(0, len(rows), ROWS):
            part = slice(at, at + ROWS)
            logp, exact = self.engine.log_probs(hidden[part]), logp_ref[part]
            track.kl.append(measures.kl(exact, logp))
            track.top1.append(measures.top1(exact, logp))
            track.nll.append(measures.nll(logp, targets[part]))
            if self.noise:
                track.picks.append(np.array([pick(row, self.noise(first + at + i))
                                             for i, row in enumerate(logp)]))

    def go(self, block: int, threads: int, tick: Tick) -> None:
        with ThreadPoolExecutor(threads) as pool:
            for first in range(0, self.length, block):
                end = min(first + block, self.length)
                rows, targets = self.tokens[first:end], self.tokens[first + 1:end + 1]
                hidden = self.engine.forward(rows[None], [self.exact])[0]
                logp = np.concatenate([self.engine.log_probs(hidden[at:at + ROWS])
                                       for at in range(0, len(rows), ROWS)])
                self.nll.append(measures.nll(logp, targets))
                for _ in pool.map(lambda t, r=rows, p=logp, n=targets: self._step(t, r, p, n),
                                  self.tracks):
                    tick(work(first, end))
                tick(work(first, end))


def work(first: int, end: int) -> float:
    """Relative cost of positions [first, end) of one method."""
    return (end - first) * (1 + (first + end) / 5000)


def teacher_forced(model: Model, tokens: list[int], methods: list, *, block: int = 0,
                   static: bool = False, threads: int = 2, tick: Tick = lambda _: None,
                   noise=None) -> Run:
    """block 0: the smallest tile of the methods, which makes it token-by-token decoding."""
    run = Run(model, tokens, methods, static=static, noise=noise)
    run.go(block or smallest_tile(methods), threads, tick)
    return run


def smallest_tile(methods: list) -> int:
    return min((getattr(method, "group", SINK) for method in methods), default=SINK)


def pick(logp: np.ndarray, noise: np.ndarray) -> int:
    """A token sampled at the temperature, by the Gumbel-max rule."""
    return int((logp / TEMPERATURE + noise).argmax())


def gumbel(seed: int, vocabulary: int) -> Callable[[int], np.ndarray]:
    """Noise of each position, always the same for a seed."""
    return lambda position: np.random.default_rng((seed, position)).gumbel(
        size=vocabulary).astype(np.float32)


def own_texts(model: Model, prompt: list[int], methods: list, count: int, seed: int,
              threads: int, tick: Tick) -> list[list[int]]:
    """Prompt and the continuation that the fp16 model (first) and each method samples.

    Token by token; all sequences draw the same noise.
    """
    engine = model.engine
    noise = gumbel(seed, len(engine.w["token_embd.weight"]))
    lanes = [Cache(engine, len(prompt) + count, method) for method in (None, *methods)]
    texts = [list(prompt) for _ in lanes]
    with ThreadPoolExecutor(threads) as pool:
        hidden = list(pool.map(lambda lane: prefill(engine, prompt, lane), lanes))
        parts = [range(at, len(lanes), threads) for at in range(min(threads, len(lanes)))]

        def step(part: range) -> None:
            logp = engine.log_probs(np.stack([hidden[i] for i in part]))
            for row, i in zip(logp, part):
                texts[i].append(pick(row, noise(len(texts[i]) - 1)))
            rows = engine.forward(np.array([[texts[i][-1]] for i in part]),
                                  [lanes[i] for i in part])
            for row, i in zip(rows, part):
                hidden[i] = row[0]

        for _ in range(count):
            list(pool.map(step, parts))
            tick(len(lanes) * ALONE * work(len(prompt), len(prompt) + 1))
    return texts


def prefill(engine, prompt: list[int], lane: Cache) -> np.ndarray:
    """Fill a lane with the prompt; gives the last hidden row."""
    for first in range(0, len(prompt), lane.group):
        rows = np.array([prompt[first:first + lane.group]])
        hidden = engine.forward(rows, [lane])[0]
    return hidden[-1]
