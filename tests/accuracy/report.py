#!/usr/bin/env python3
"""Tables from result rows, in Markdown, between the accuracy markers of a README.

    report.py RESULTS.jsonl...                    prints the block
    report.py RESULTS.jsonl... --into README.md   replaces what stands between
                                                  <!-- accuracy:begin --> and <!-- accuracy:end -->
    --plots FOLDER                                also draws the plots there (matplotlib), and shows them
    --brief                                       one table of each model, the methods below 1.3 times the bytes

Later files replace rows of earlier ones.  Every sentence and figure comes from the rows.
"""
from __future__ import annotations

import argparse
import os
import re
from collections import defaultdict
from pathlib import Path

import numpy as np

import results
from results import Row

PAPER, BEGIN, END = "kvarn_k2v2_g128", "<!-- accuracy:begin -->\n", "<!-- accuracy:end -->"
RIVALS = ("kivi_k2v2_g128", "hadamard_kivi_k2v2_g128", "turboquant_k2v2", "turboquant_norm_k2v2",
          "nsnquant_k2v2")


class Results:
    """Rows by what they measure."""

    def __init__(self, rows: list[Row]):
        self.groups: dict[tuple, dict[tuple[int, int], Row]] = defaultdict(dict)
        self.heads: dict[tuple, dict[tuple[int, int], float]] = defaultdict(dict)
        self.bytes: dict[tuple[str, str], float] = {}
        for row in rows:
            key = (row.model, row.text, row.regime, row.method, row.measure)
            if row.layer is None:
                self.groups[key][row.position_bin] = row
            else:
                self.heads[key][row.layer, row.head] = row.value
            self.bytes[row.model, row.method] = row.bytes_per_token

    def whole(self, *key: str) -> Row | None:
        """Over all positions: the row of the widest span."""
        found = self.groups.get(key)
        return max(found.values(), key=lambda r: r.position_bin[1] - r.position_bin[0]) if found else None

    def bins(self, *key: str) -> list[Row]:
        """By position, in order; all of it where there is one bin only."""
        found = sorted(self.groups.get(key, {}).values(), key=lambda r: r.position_bin)
        whole = self.whole(*key)
        return [row for row in found if row is not whole] or found

    def names(self, index: int, **fixed: str) -> list[str]:
        """Different values of one part of the keys, in the order of the rows."""
        where = [(("model", "text", "regime", "method", "measure").index(name), value)
                 for name, value in fixed.items()]
        return list(dict.fromkeys(key[index] for key in self.groups
                                  if all(key[at] == value for at, value in where)))

    def models(self) -> list[str]:
        return self.names(0)

    def texts(self, model: str, regime: str = "decode") -> list[str]:
        return self.names(1, model=model, regime=regime)

    def methods(self, model: str, regime: str = "decode") -> list[str]:
        """From few bytes to many."""
        found = self.names(3, model=model, regime=regime)
        return sorted(found, key=lambda method: (self.bytes[model, method], method))

    def length(self, model: str, text: str) -> int:
        """Last position of the text's longest decoding run."""
        return max(row.position_bin[1] for method in self.methods(model)
                   if (row := self.whole(model, text, "decode", method, "kl")))

    def complete(self, model: str) -> list[str]:
        """Methods that decoded every text to the end of its longest run."""
        def there(method: str, text: str) -> bool:
            row = self.whole(model, text, "decode", method, "kl")
            return row is not None and row.position_bin[1] == self.length(model, text)

        texts = self.texts(model)
        return [m for m in self.methods(model) if all(there(m, text) for text in texts)]


def table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] + ["---:"] * (len(head) - 1), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def mean_of(found: Results, model: str, method: str, measure: str) -> float | None:
    """Over the texts that have it."""
    values = [row.value for text in found.texts(model)
              if (row := found.whole(model, text, "decode", method, measure))]
    return float(np.mean(values)) if values else None


def number(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def interval(row: Row | None) -> str:
    return "" if row is None else f"{row.value:.4f} [{row.lo:.4f}, {row.hi:.4f}]"


def decoding(found: Results, model: str, methods: list[str]) -> str:
    """KL of every text under true decoding, and the means of the other measures."""
    texts = found.texts(model)
    rows = [[f"`{method}`", f"{found.bytes[model, method]:.1f}",
             *(interval(found.whole(model, text, "decode", method, "kl")) for text in texts),
             number(mean_of(found, model, method, "kl_p99"), ".3f"),
             number(mean_of(found, model, method, "top1"), ".1%"),
             number(mean_of(found, model, method, "perplexity_ratio"), ".4f"),
             number(mean_of(found, model, method, "attention_error"), ".1%"),
             number(mean_of(found, model, method, "k_norm_error"), ".2%"),
             number(mean_of(found, model, method, "magnitude_share_worst"), ".1%")]
            for method in methods]
    return table(["method", "bytes", *(f"KL {text}" for text in texts), "KL p99", "top-1",
                  "ppl ratio", "attention error", "K norm error", "E_M of worst 1 %"], rows)


def regimes(found: Results, model: str) -> str:
    """The same method and text under every regime that has been run."""
    names = [name for name in ("static", "blocks512", "decode", "free")
             if found.methods(model, name)]
    if len(names) < 2:
        return ""
    rows = []
    for text in found.texts(model):
        for method in found.methods(model):
            cells = [found.whole(model, text, name, method, "kl") for name in names]
            if sum(cell is not None for cell in cells) > 1:
                rows.append([f"`{method}`, {text}", *map(interval, cells)])
    return table(["KL by regime", *names], rows) if rows else ""


def free_running(found: Results, model: str) -> str:
    """Where each method's samples leave fp16's, and what fp16 thinks of its own continuation."""
    rows = []
    for text in found.texts(model, "free"):
        for method in found.methods(model, "free"):
            step, own = (found.whole(model, text, "free", method, measure)
                         for measure in ("divergence_step", "own_perplexity"))
            if step and own:
                rows.append([f"`{method}`, {text}", f"{step.value:.0f} of {step.n}",
                             f"{own.value:.2f} [{own.lo:.2f}, {own.hi:.2f}]"])
    return table(["free-running", "tokens until the first other one",
                  "fp16's perplexity of what the method wrote"], rows) if rows else ""


def settings(method: str) -> str:
    """The method without its bits: settings of one method have the same name."""
    return re.sub(r"_k\d+v\d+", "", method)


def at_bytes(points: list[tuple[float, float]], wanted: float) -> float | None:
    """Log-linear interpolation between the settings of a method; None outside them."""
    points = sorted(points)
    if not points or not points[0][0] <= wanted <= points[-1][0]:
        return None
    sizes, values = zip(*points)
    return float(np.exp(np.interp(wanted, sizes, np.log(values))))


def equal_bytes(found: Results, model: str) -> str:
    """KL at the bytes of the paper's K2V2, between settings of each method."""
    if (model, PAPER) not in found.bytes:
        return ""
    wanted, texts = found.bytes[model, PAPER], found.texts(model)
    points = defaultdict(list)
    for method in found.complete(model):
        if method.endswith("_newest"):
            continue
        for text in texts:
            if row := found.whole(model, text, "decode", method, "kl"):
                points[settings(method), text].append((row.bytes_per_token, row.value))
    rows = []
    for name in dict.fromkeys(key[0] for key in points):
        values = [at_bytes(points[name, text], wanted) for text in texts]
        if any(value is not None for value in values):
            rows.append([f"`{name}`", *(number(value, ".4f") for value in values)])
    return table([f"KL at {wanted:g} bytes", *texts], rows)


def versus(found: Results, model: str, ours: str, other: str) -> str | None:
    """One method against another on every text: ratio, intervals, growth with position."""
    cells = []
    for text in found.texts(model):
        a, b = (found.whole(model, text, "decode", m, "kl") for m in (ours, other))
        if not a or not b or a.position_bin != b.position_bin:
            continue
        apart = "apart" if a.hi < b.lo or b.hi < a.lo else "overlap"
        cell = f"{text} {a.value / b.value - 1:+.0%} (intervals {apart}"
        bins = [found.bins(model, text, "decode", m, "kl") for m in (ours, other)]
        if len(bins[0]) == len(bins[1]) > 3:
            early, late = (np.mean([y.value - x.value for x, y in list(zip(*bins))[part]])
                           for part in (slice(0, 2), slice(-2, None)))
            cell += f"; gap {early:.3f} over the first two bins, {late:.3f} over the last two"
        cells.append(cell + ")")
    return f"* KL of `{ours}` against `{other}`: {'; '.join(cells)}." if cells else None


def comparisons(found: Results, model: str) -> list[str]:
    methods = found.complete(model)
    if PAPER not in methods:
        return []
    size = found.bytes[model, PAPER]
    improved = [m for m in methods if found.bytes[model, m] == size and m != PAPER
                and not m.endswith(("_newest", "_ref"))]
    pairs = [(PAPER, "kivi_k2v2_g128")]
    pairs += [(m, PAPER) for m in improved]
    best = min(improved, key=lambda m: mean_of(found, model, m, "kl") or np.inf, default=None)
    pairs += [(best, rival) for rival in RIVALS if best]
    return [line for pair in pairs if (line := versus(found, model, *pair))]


def partial(found: Results, model: str) -> str:
    """Methods that ran on some of the texts, or not to their end; only like lengths compare."""
    complete = found.complete(model)
    rows = []
    for text in found.texts(model):
        runs = [row for method in found.methods(model) if method not in complete
                and (row := found.whole(model, text, "decode", method, "kl"))]
        rows += [[f"`{row.method}`", text, f"{row.position_bin[0]} to {row.position_bin[1]}",
                  f"{row.bytes_per_token:.1f}", interval(row)]
                 for row in sorted(runs, key=lambda row: (-row.position_bin[1], row.value))]
    return table(["on part of the texts", "text", "positions", "bytes", "KL"], rows) if rows else ""


def positions(found: Results, model: str) -> str:
    spans = [row.position_bin for text in found.texts(model) for method in found.complete(model)
             if (row := found.whole(model, text, "decode", method, "kl"))]
    return f"positions {min(s[0] for s in spans)} to {max(s[1] for s in spans)}"


def block(found: Results, brief: bool, plots: list[tuple[str, str]]) -> str:
    parts = []
    for model in found.models():
        methods = found.complete(model)
        if not methods:
            continue
        if brief and PAPER in methods:
            methods = [m for m in methods
                       if found.bytes[model, m] <= 1.3 * found.bytes[model, PAPER]]
        parts.append(f"**{model}**, decoding, {positions(found, model)}; bytes are K and V of a token and "
                     "kv head, KL in nats with its 95 % interval:")
        parts.append(decoding(found, model, methods))
        if not brief:
            parts += [partial(found, model), equal_bytes(found, model), "\n".join(comparisons(found, model)),
                      regimes(found, model), free_running(found, model)]
    parts += [f"![{title}]({path})" for title, path in plots]
    return "\n\n".join(part for part in parts if part) + "\n"


def fill(text: str, new: str) -> str:
    if text.count(BEGIN) != 1 or text.count(END) != 1:
        raise SystemExit(f"report: the file needs the markers {BEGIN.strip()} and {END}, once each")
    head, rest = text.split(BEGIN)
    return head + BEGIN + new + END + rest.split(END)[1]


def main() -> None:
    ap = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    ap.add_argument("results", nargs="+", type=Path)
    ap.add_argument("--into", type=Path)
    ap.add_argument("--plots", type=Path)
    ap.add_argument("--brief", action="store_true")
    args = ap.parse_args()
    found = Results([row for path in args.results for row in results.read(path)])
    drawn = []
    if args.plots:
        import plots                 # matplotlib is needed for nothing else
        base = args.into.parent if args.into else Path()
        drawn = [(title, os.path.relpath(path, base)) for title, path in plots.draw(found, args.plots)]
    new = block(found, args.brief, drawn[:2] if args.brief else drawn)
    if args.into:
        args.into.write_text(fill(args.into.read_text(), new))
    else:
        print(new, end="")


if __name__ == "__main__":
    main()
