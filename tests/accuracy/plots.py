"""Plots of result rows: KL against position, bytes against KL, errors by layer and head."""
from __future__ import annotations

from io import BytesIO
from pathlib import Path

import matplotlib
import numpy as np
from PIL import Image

matplotlib.use("Agg")
from matplotlib import pyplot as plt  # noqa: E402

from report import PAPER, Results  # noqa: E402

OURS = ("kvarn", "scalefree", "tight")
MOST = 10                            # lines of a plot
NAME_WIDTH, NAME_HEIGHT = 150, 11    # pixels of a name beside a point


def save(figure, path: Path) -> Path:
    """As a PNG of 128 colours, which is a third of the bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    drawn = BytesIO()
    figure.savefig(drawn, dpi=90)
    plt.close(figure)
    with Image.open(drawn) as image:
        image.convert("RGB").quantize(128, dither=Image.Dither.NONE).save(path, optimize=True)
    return path


def alike(found: Results, model: str) -> list[str]:
    """Methods of about the bytes of the paper's K2V2, the best and the paper's among them."""
    methods = [m for m in found.complete(model) if not m.endswith("_newest")]
    size = found.bytes.get((model, PAPER))
    if size:
        methods = [m for m in methods if 0.8 * size <= found.bytes[model, m] <= 1.2 * size]
    text = found.texts(model)[0]
    rows = {m: row for m in methods if (row := found.whole(model, text, "decode", m, "kl"))}
    return sorted(rows, key=lambda m: (m != PAPER, rows[m].value))[:MOST]


def accumulation(found: Results, model: str, folder: Path) -> Path | None:
    """KL by position, a panel for each text, with intervals as bands."""
    texts, methods = found.texts(model), alike(found, model)
    figure, axes = plt.subplots(1, len(texts), figsize=(4 * len(texts) + 2.6, 3.6), sharey=True,
                                squeeze=False, layout="constrained")
    lines = {}
    for axis, text in zip(axes[0], texts):
        for i, method in enumerate(methods):
            bins = found.bins(model, text, "decode", method, "kl")
            if not bins:
                continue
            middle = [sum(row.position_bin) / 2 for row in bins]
            ours = method.startswith(OURS)
            lines[method], = axis.plot(middle, [row.value for row in bins], color=f"C{i}",
                                       lw=2 if ours else 1.2, ls="-" if ours else "--")
            axis.fill_between(middle, [row.lo for row in bins], [row.hi for row in bins],
                              color=f"C{i}", alpha=0.12, lw=0)
        axis.set(title=text, xlabel="position", yscale="log")
    axes[0, 0].set_ylabel("KL from fp16, nats")
    figure.legend(lines.values(), lines, loc="outside right center", fontsize=7, frameon=False)
    return save(figure, folder / f"accumulation_{model}.png") if lines else None


def bytes_and_kl(found: Results, model: str, folder: Path) -> Path | None:
    """Every method by its bytes and its KL (mean of the texts that all share), and the Pareto line."""
    texts = found.texts(model)
    points = {m: (found.bytes[model, m],
                  float(np.mean([found.whole(model, t, "decode", m, "kl").value for t in texts])))
              for m in found.complete(model)}
    if len(points) < 2:
        return None
    figure, axis = plt.subplots(figsize=(7.5, 5.6), layout="constrained")
    for method, (size, kl) in points.items():
        ours = method.startswith(OURS)
        axis.plot(size, kl, "o" if ours else "x", color="C0" if ours else "C7")
    best, line = np.inf, []
    for size, kl in sorted(points.values()):
        if kl < best:
            best = kl
            line.append((size, kl))
    axis.plot(*zip(*line), color="C1", lw=1, zorder=0)
    axis.set(xlabel="bytes per token and kv head, K and V", ylabel="KL from fp16, nats",
             yscale="log", title=f"{model}: mean of {', '.join(texts)}")
    figure.draw_without_rendering()
    name_points(axis, points)
    return save(figure, folder / f"bytes_{model}.png")


def name_points(axis, points: dict[str, tuple[float, float]]) -> None:
    """Each name to the right of its point, lower where another name stands already."""
    taken: list[tuple[float, float]] = []
    for method, point in sorted(points.items(), key=lambda item: -item[1][1]):
        x, y = axis.transData.transform(point)
        at = y
        for x2, y2 in sorted(taken, key=lambda place: -place[1]):
            if abs(x2 - x) < NAME_WIDTH and abs(y2 - at) < NAME_HEIGHT:
                at = y2 - NAME_HEIGHT
        taken.append((x, at))
        axis.annotate(method, point, textcoords="offset pixels", xytext=(7, at - y - 3), fontsize=6)


def heat_map(found: Results, model: str, folder: Path) -> Path | None:
    """Attention-output error by layer and head, a panel for each of a few methods."""
    if not (texts := found.texts(model)):
        return None
    wanted = [PAPER, "tight_k2v2_g128", "kivi_k2v2_g128", "turboquant_norm_k2v2"]
    maps = {m: values for m in wanted
            if (values := found.heads.get((model, texts[0], "decode", m, "attention_error")))}
    if not maps:
        return None
    layers, heads = (sorted({key[at] for values in maps.values() for key in values})
                     for at in (0, 1))
    grids = {m: np.array([[values.get((layer, head), np.nan) for layer in layers]
                          for head in heads]) for m, values in maps.items()}
    top = max(np.nanmax(grid) for grid in grids.values())
    figure, axes = plt.subplots(len(grids), 1, figsize=(7.5, 0.8 + 1.7 * len(grids)), sharex=True,
                                squeeze=False, layout="constrained")
    for axis, (method, grid) in zip(axes[:, 0], grids.items()):
        image = axis.imshow(grid, aspect="auto", vmin=0, vmax=top, cmap="magma",
                            interpolation="nearest")
        axis.set_title(method, fontsize=8)
        axis.set_ylabel("head", fontsize=7)
    axes[-1, 0].set_xticks(range(len(layers)), layers, fontsize=6)
    axes[-1, 0].set_xlabel("layer")
    figure.colorbar(image, ax=axes, label="relative error of the attention output")
    return save(figure, folder / f"heads_{model}.png")


def draw(found: Results, folder: Path) -> list[tuple[str, Path]]:
    """All plots that the rows allow, with their titles."""
    drawn = []
    for model in found.models():
        if not found.texts(model):
            continue
        for title, make in (("KL against position", accumulation),
                            ("bytes against KL", bytes_and_kl),
                            ("attention error by layer and head", heat_map)):
            if path := make(found, model, folder):
                drawn.append((f"{model}: {title}", path))
    return drawn
