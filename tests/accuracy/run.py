"""Measures methods of storing a KV cache on real models: see README.md.

Everything is seeded; results are appended to a file of JSON lines, text by text.
"""
from __future__ import annotations

import argparse
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")   # lanes are the threads; before numpy

import numpy as np  # noqa: E402

import regimes  # noqa: E402
import results  # noqa: E402
import texts  # noqa: E402
from kvarnd_cache import PLAIN_K, Connection, KvarndMethod  # noqa: E402
from methods import METHODS, SHORT  # noqa: E402
from models import MODELS, Model  # noqa: E402
from paths import ROOT, Missing  # noqa: E402
from rows import Rows  # noqa: E402
from variants import VARIANTS  # noqa: E402

SEED = 1
FREE_PROMPT = 768
COST = {"smollm2-135m": 1.0, "gemma3-270m": 1.3, "qwen2.5-coder-1.5b": 8.0}   # a token, about
SHORT_PRESETS = ("_k2v2_g128", "_k4v2_g128", "kvarn_k4v4_g128", "_k2v2_g128" + PLAIN_K)
BLOCKS = 512                         # of the paper's pseudo-decoding


class Newest:
    """A method that keeps only its newest tiles, as many as fit the bytes of another."""

    def __init__(self, method, budget, dim: int):
        self.method, self.group = method, getattr(method, "group", 128)
        self.share = budget.bytes_per_token(dim) / method.bytes_per_token(dim)
        self.name = f"{method.name}_newest"
        self.label = f"{getattr(method, 'label', method.name)}, newest {self.share:.0%}"

    def bytes_per_token(self, dim: int) -> float:
        return self.method.bytes_per_token(dim) * self.share

    def roundtrip(self, k, v):
        return self.method.roundtrip(k, v)


@dataclass(frozen=True)
class Job:
    model: str
    text: str
    regime: str                      # decode, static, blocks512, free
    length: int                      # positions

    def units(self, lanes: int) -> float:
        """What its ticks add up to."""
        extra = 1.0
        if self.regime == "free":    # the methods' own continuations, token by token
            extra += regimes.ALONE * (self.length - FREE_PROMPT) / self.length
        return extra * lanes * regimes.work(0, self.length)

    def cost(self, lanes: int) -> float:
        """Relative time."""
        return COST[self.model] * self.units(lanes)


class Progress:
    """Share of the work done and the time that is left, on one line of stderr."""

    def __init__(self, jobs: list[Job], lanes: int):
        self.costs = {job: job.cost(lanes) for job in jobs}
        self.total, self.finished = sum(self.costs.values()), 0.0
        self.begun, self.due = time.monotonic(), 0.0

    def show(self, job: Job, share: float) -> None:
        """share of the job that is done; at most one line a second, 30 s in a log."""
        now, terminal = time.monotonic(), sys.stderr.isatty()
        if now < self.due:
            return
        self.due = now + (1 if terminal else 30)
        done = (self.finished + min(share, 1) * self.costs[job]) / self.total
        left = (now - self.begun) * (1 - done) / max(done, 1e-6)
        print(f"{done:6.1%}  {job.model} {job.text} {job.regime}: "
              f"about {left / 60:.0f} min left   ", end="\r" if terminal else "\n",
              file=sys.stderr, flush=True)

    def finish(self, job: Job) -> None:
        self.finished += self.costs[job]


def plan(args: argparse.Namespace) -> list[Job]:
    """What is run, in the order in which it is of use.

    The short form decodes every text with every model; the other regimes it runs with the
    first model and text, unless regimes or texts were asked for by name.
    """
    if args.smoke:
        return [Job("smollm2-135m", args.texts[0], "decode", 512)]
    lengths = {"smollm2-135m": 8192 if args.full else 4096,
               "gemma3-270m": 4096 if args.full else 2048, "qwen2.5-coder-1.5b": 2048}
    jobs = []
    for model in args.models:
        for regime in args.regimes:
            brief = regime != "decode" and not args.full
            if brief and not args.regimes_named and model != args.models[0]:
                continue
            chosen = args.texts[:1] if brief and not args.texts_named else args.texts
            length = args.tokens or lengths[model]
            if regime == "free":
                length = FREE_PROMPT + (1024 if args.full else 256)
            jobs += [Job(model, text, regime, length) for text in chosen]
    return jobs


def choose_methods(args: argparse.Namespace, connection: Connection) -> dict[str, object]:
    """Every method by name: kvarnd's presets, then the reference code's."""
    presets = [preset.name.decode() for preset in connection.presets()]
    presets += [name + PLAIN_K for name in presets if name.startswith(("kvarn", "tight"))
                and not name.endswith("_k4v4_g128")]
    codes = METHODS | VARIANTS
    known = presets + list(codes)
    if args.smoke and not args.methods:
        names = ["kvarn_k2v2_g128", "kivi_k2v2_g128"]
    elif args.methods:
        names = args.methods.replace("VARIANTS", ",".join(VARIANTS)).split(",")
    elif args.full:
        names = [name for name in presets + list(METHODS) if "_g64" not in name]
    else:
        names = [name for name in presets if name.endswith(SHORT_PRESETS)
                 and not name.startswith(("scalefree", "kvarn_k2v2_g128_"))] + list(SHORT)
    if wrong := [name for name in names if name not in known]:
        raise Missing(f"there is no method {wrong[0]}; known: {', '.join(known)}")
    return {name: codes[name] if name in codes else KvarndMethod(name, connection)
            for name in names}


def at_equal_memory(methods: dict[str, object], dim: int) -> list[object]:
    """More bits for fewer tokens, in the bytes of kvarn_k2v2_g128."""
    budget = methods.get("kvarn_k2v2_g128")
    return [Newest(methods[name], budget, dim) for name in ("kvarn_k4v4_g128", "kvarn_k8v8_ref")
            if budget and name in methods]


def run_free(job: Job, model: Model, methods: list, threads: int, tick) -> list[results.Row]:
    """KL over the fp16 model's continuation, where each method leaves it, and what the fp16
    model thinks of each method's own."""
    prompt = model.tokens(texts.load(job.text))[:FREE_PROMPT]
    count = job.length - FREE_PROMPT
    own = regimes.own_texts(model, prompt, methods, count, SEED, threads, tick)
    noise = regimes.gumbel(SEED, len(model.engine.w["token_embd.weight"]))
    run = regimes.teacher_forced(model, own[0], methods, threads=threads, tick=tick, noise=noise)
    found = []
    for track, text in zip(run.tracks, own[1:]):
        rows = Rows(run, track, job.text, job.regime)
        rows.first = FREE_PROMPT
        found += rows.all(regimes.smallest_tile(methods))
        alone = regimes.teacher_forced(model, text, [], threads=threads)
        found += rows.free(own[0], np.concatenate(alone.nll))
    return found


def run_job(job: Job, model: Model, methods: list, args, tick) -> list[results.Row]:
    if job.regime == "free":
        return run_free(job, model, methods, args.threads, tick)
    tokens = model.tokens(texts.load(job.text))
    if len(tokens) <= job.length:
        raise Missing(f"the text {job.text} has {len(tokens)} tokens, and {job.length + 1} are "
                      "wanted; use --tokens or a longer text")
    block = BLOCKS if job.regime == f"blocks{BLOCKS}" else 0
    run = regimes.teacher_forced(model, tokens[:job.length + 1], methods, block=block,
                                 static=job.regime == "static", threads=args.threads, tick=tick)
    block = block or regimes.smallest_tile(methods)
    return [row for track in run.tracks
            for row in Rows(run, track, job.text, job.regime).all(block)]


def summary(rows: list[results.Row]) -> None:
    """KL over all positions that see a tile, one line a method."""
    whole = [row for row in rows if row.measure == "kl"]
    widest = {}
    for row in whole:
        size = row.position_bin[1] - row.position_bin[0]
        if size > widest.get(row.method, (0, None))[0]:
            widest[row.method] = (size, row)
    for _, row in widest.values():
        print(f"  {row.method:32} {row.bytes_per_token:7.1f} B  KL {row.value:9.5f} "
              f"[{row.lo:.5f}, {row.hi:.5f}]", flush=True)


def parse() -> argparse.Namespace:
    ap = argparse.ArgumentParser(description=__doc__)
    size = ap.add_mutually_exclusive_group()
    size.add_argument("--short", action="store_true", help="under an hour on 2 cores (default)")
    size.add_argument("--smoke", action="store_true", help="a minute: 512 tokens, two methods")
    size.add_argument("--full", action="store_true", help="longer texts, all regimes on each")
    ap.add_argument("--methods", help="names with commas, VARIANTS for those of variants.py; "
                    "default: the 19 of the short form, with --full all others of 128 tokens")
    ap.add_argument("--texts", help=f"default: all of {', '.join(texts.SOURCES)}")
    usual = ",".join(name for name, spec in MODELS.items() if spec.by_default)
    ap.add_argument("--models", default=usual,
                    help=f"of {', '.join(MODELS)}; default: %(default)s")
    known = ["decode", "static", f"blocks{BLOCKS}", "free"]
    ap.add_argument("--regimes", help=f"of {', '.join(known)}; default: all of them")
    ap.add_argument("--tokens", type=int, help="positions of each text; free has its own")
    ap.add_argument("--json", type=Path, default=Path("accuracy.jsonl"),
                    help="where results are appended; default: %(default)s")
    ap.add_argument("--build", type=Path, default=ROOT / "build", help="of kvarnd")
    ap.add_argument("--kvarnd", default="spawn:", help="address of a running daemon instead")
    ap.add_argument("--threads", type=int, default=os.cpu_count())
    args = ap.parse_args()
    args.regimes_named, args.texts_named = bool(args.regimes), bool(args.texts)
    args.models = args.models.split(",")
    args.regimes = args.regimes.split(",") if args.regimes else known
    if wrong := set(args.regimes) - set(known):
        ap.error(f"there is no regime {wrong.pop()}; known: {', '.join(known)}")
    args.texts = args.texts.split(",") if args.texts else texts.names()
    return args


def main() -> None:
    args = parse()
    connection = Connection(args.build, args.kvarnd)
    methods = choose_methods(args, connection)
    jobs, model = plan(args), None
    progress = Progress(jobs, len(methods) + 1)
    for job in jobs:
        if model is None or model.spec.name != job.model:
            model = None             # the old weights go first
            model = Model(job.model)
        chosen = list(methods.values())
        if job.regime == "decode":
            chosen += at_equal_memory(methods, model.engine.shape.dim)
        done, units = 0.0, job.units(len(chosen) + 1)

        def tick(part: float, job=job, units=units) -> None:
            nonlocal done
            done += part / units
            progress.show(job, done)

        begun, cpu = time.monotonic(), time.process_time()
        rows = run_job(job, model, chosen, args, tick)
        results.write(args.json, rows)
        progress.finish(job)
        print(f"{job.model}, {job.text}, {job.regime}: {job.length} positions, "
              f"{time.monotonic() - begun:.0f} s, {time.process_time() - cpu:.0f} s of CPU",
              flush=True)
        summary(rows)
    connection.close()


if __name__ == "__main__":
    try:
        main()
    except Missing as error:
        sys.exit(f"accuracy: {error}")
