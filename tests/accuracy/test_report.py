#!/usr/bin/env python3
"""Measures, result rows and tables, with values worked out by hand.

Leaves itself out (77) where numpy is not installed.
"""
from __future__ import annotations

import gzip
import math
import sys
import tempfile
from pathlib import Path

try:
    import numpy as np
except ImportError:
    sys.exit(77)

import measures
import report
import results


def test_predictions() -> None:
    half, skew = np.log([[.5, .5]]), np.log([[.25, .75]])
    got = measures.kl(half, skew)[0]
    assert math.isclose(got, .5 * math.log(2) + .5 * math.log(2 / 3)), got
    assert measures.kl(skew, skew)[0] == 0
    assert measures.top1(np.array([[0, 1], [0, 1]]), np.array([[0, 2], [3, 1]])).tolist() == [1, 0]
    assert np.allclose(measures.nll(skew, np.array([1])), -math.log(.75))


def test_keys() -> None:
    """(3, 4) as (4, 3): all of the error is direction; as (6, 8): all of it is length."""
    k = np.array([[3., 4.], [3., 4.], [3., 4.]])
    got = np.array([[4., 3.], [6., 8.], [3., 4.]])
    magnitude, direction = measures.magnitude_direction(k, got)
    assert np.allclose(magnitude, [0, 25, 0]) and np.allclose(direction, [2, 0, 0])
    assert np.allclose(measures.k_norm_error(k, got), [0, 1, 0])
    assert math.isclose(measures.worst_share(magnitude, direction, 1.0), 25 / 27)
    assert math.isclose(measures.worst_share(magnitude, direction), 1)
    assert np.allclose(measures.attention_error(np.array([4., 0]), np.array([16., 1])), [.5, 0])


def test_interval() -> None:
    """Of a constant it is a point; of noise it holds the mean and shrinks with the root of n."""
    assert measures.interval(np.full(100, 2.)) == (2, 2, 2)
    rng = np.random.default_rng(0)
    widths = []
    for n in (400, 6400):
        value, low, high = measures.interval(rng.standard_normal(n))
        assert low < value < high and low < 0.2 and high > -0.2
        widths.append(high - low)
    assert 3 < widths[0] / widths[1] < 5.5, widths
    assert measures.interval(np.arange(50.)) == measures.interval(np.arange(50.))


def row(method: str, size: float, span: tuple[int, int], value: float, text: str = "t",
        **more) -> results.Row:
    return results.Row("m", text, more.pop("regime", "decode"), method, size, span, more.pop("measure", "kl"), value,
                       round(value - .01, 6), round(value + .01, 6), 1, **more)


def sample() -> list[results.Row]:
    rows = [row("kvarn_k2v2_g128", 41, (0, 4), .1), row("kivi_k2v2_g128", 38, (0, 4), .4),
            row("kivi_k4v2_g128", 54, (0, 4), .025), row("tight_k2v2_g128", 41, (0, 4), .05)]
    for method, values in (("kvarn_k2v2_g128", (.1, .1, .1, .1)), ("kivi_k2v2_g128", (.2, .2, .4, .8))):
        rows += [row(method, 0, (i, i + 1), value) for i, value in enumerate(values)]
    for entry in rows:
        entry.bytes_per_token = {"kvarn_k2v2_g128": 41., "kivi_k2v2_g128": 38.}.get(
            entry.method, entry.bytes_per_token)
    return [*rows, row("kvarn_k2v2_g128", 41, (0, 4), .3, measure="attention_error", layer=2, head=1)]


def test_rows() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.jsonl"
        results.write(path, sample()[:3])
        results.write(path, sample()[3:])
        assert results.read(path) == sample()
        packed = path.with_suffix(".gz")
        packed.write_bytes(gzip.compress(path.read_bytes()))
        assert results.read(packed) == sample()


def test_interpolation() -> None:
    points = [(38., .4), (54., .025)]
    assert math.isclose(report.at_bytes(points, 46), .1)       # halfway in the logarithm
    assert math.isclose(report.at_bytes(points, 38), .4)
    assert report.at_bytes(points, 37) is None and report.at_bytes([], 41) is None
    assert report.settings("kivi_k2v2_g32") == report.settings("kivi_k4v2_g32") == "kivi_g32"


def test_tables() -> None:
    found = report.Results(sample())
    assert found.methods("m") == ["kivi_k2v2_g128", "kvarn_k2v2_g128", "tight_k2v2_g128",
                                  "kivi_k4v2_g128"]
    assert len(found.bins("m", "t", "decode", "kivi_k2v2_g128", "kl")) == 4
    assert found.heads["m", "t", "decode", "kvarn_k2v2_g128", "attention_error"] == {(2, 1): .3}
    line = report.versus(found, "m", "kvarn_k2v2_g128", "kivi_k2v2_g128")
    assert "t -75% (intervals apart; gap 0.100 over the first two bins, 0.500 over the last two)" in line
    near = report.Results([row("a", 1, (0, 4), .1), row("b", 1, (0, 4), .11)])
    assert "+10% (intervals overlap)" in report.versus(near, "m", "b", "a")
    assert report.versus(near, "m", "a", "c") is None
    block = report.block(found, False, [("a plot", "p.png")])
    assert "| `kivi_g128` | 0.2378 |" in block                 # 0.4 (0.025 / 0.4)^(3 / 16)
    assert "0.1000 [0.0900, 0.1100]" in block and "![a plot](p.png)" in block
    brief = report.block(found, True, [])
    assert "`kivi_k4v2_g128`" in block and "`kivi_k4v2_g128`" not in brief and "`kivi_k2v2" in brief


def test_partial_runs() -> None:
    """A method that ran shorter, or on some texts only, is not compared with the others."""
    rows = [*sample(), row("kvarn_k2v2_g128", 41, (0, 4), .1, "u"),
            row("tight_k2v2_g128", 41, (0, 4), .05, "u"), row("tight_flips", 41, (0, 2), .01),
            row("tight_flips", 41, (0, 4), .01, "u"), row("kvarn_k3v3_ref", 57, (0, 4), .02, "u")]
    found = report.Results(rows)
    assert found.length("m", "t") == found.length("m", "u") == 4
    assert found.complete("m") == ["kvarn_k2v2_g128", "tight_k2v2_g128"]
    assert not any("flips" in line for line in report.comparisons(found, "m"))
    line = report.versus(found, "m", "tight_flips", "kvarn_k2v2_g128")
    assert "u -90%" in line and "t -" not in line
    lines = report.partial(found, "m").splitlines()
    assert lines[4] == "| `tight_flips` | t | 0 to 2 | 41.0 | 0.0100 [0.0000, 0.0200] |"
    assert "flips" in report.block(found, False, [])
    assert not report.partial(report.Results(sample()), "m")


def test_free_running() -> None:
    rows = [row("a", 1, (768, 1024), value, measure=measure, regime="free")
            for measure, value in (("divergence_step", 12.), ("own_perplexity", 5.))]
    text = report.free_running(report.Results(rows), "m")
    assert text.endswith("| `a`, t | 12 of 1 | 5.00 [4.99, 5.01] |")
    assert not report.free_running(report.Results(sample()), "m")


def test_fill() -> None:
    text = f"a\n{report.BEGIN}old\n{report.END}\nz\n"
    assert report.fill(text, "new\n") == f"a\n{report.BEGIN}new\n{report.END}\nz\n"
    try:
        report.fill("nothing", "new")
    except SystemExit as error:
        assert "markers" in str(error)
    else:
        raise AssertionError("a file without markers was taken")


if __name__ == "__main__":
    for test in [value for name, value in sorted(globals().items()) if name.startswith("test_")]:
        test()
        print(f"{test.__name__[5:]}: ok")
