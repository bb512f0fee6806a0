#!/usr/bin/env python3
"""Puts measured results into the README, between its markers.

readme.py                  rewrites README.md from tests/bench/results/{rows.jsonl,gpu.jsonl,quickstart.txt}
readme.py --check          exit code 1 when the README does not show what the files hold

The files are made by
    tests/bench/run.sh --json tests/bench/results/rows.jsonl
    tests/gpu/run.sh --json tests/bench/results/gpu.jsonl
    deploy/quickstart.sh | tee tests/bench/results/quickstart.txt
"""
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from table import cells, load, with_share  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
RESULTS = ROOT / "tests/bench/results"


def markdown(lines) -> str:
    lines.insert(1, ["---"] * len(lines[0]))
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def bench_block() -> str:
    """The rows that have a figure to reach; all rows are in the file."""
    rows = [row for row in load(RESULTS / "rows.jsonl") if row["reach"] is not None]
    head = ["what", "measured", "unit", "baseline", "ratio", "should be", "reached"]
    table = markdown([head] + [cells(row) for row in rows])
    return f"{rows[0]['machine']}, 2 cores, commit {rows[0]['commit']}:\n\n{table}\n"


def gpu_block() -> str:
    """Our rows, each with its share of the copy ceiling: those with a figure to reach, then the others folded
    away; the peers alone are in the file."""
    rows = load(RESULTS / "gpu.jsonl")
    head = ["what", "measured", "unit", "peer", "ratio", "should be", "reached"]

    def table(chosen) -> str:
        return markdown(with_share(chosen, [head] + [cells(row) for row in chosen]))

    ours = [row for row in rows if "share" in row]
    aimed = rows[:1] + [row for row in ours if row["reach"] is not None]
    rest = [row for row in ours if row["reach"] is None]
    return (
        f"{rows[0]['machine']}, commit {rows[0]['commit']}:\n\n{table(aimed)}\n\n<details><summary>Other shapes, other"
        f" forms, and what an option costs</summary>\n\n{table(rest)}\n\n</details>\n"
    )


def quickstart_block() -> str:
    """The tables at the end of the quickstart's output, from the first model's name on."""
    text = (RESULTS / "quickstart.txt").read_text()
    lines = text.splitlines()
    first = next(i for i, line in enumerate(lines) if line.endswith(" decoded."))
    last = max(i for i, line in enumerate(lines) if line.rstrip().endswith(" us"))
    return "```\n" + "\n".join(line.rstrip() for line in lines[first : last + 1]) + "\n```\n"


def fill(text: str, name: str, block: str) -> str:
    begin, end = f"<!-- {name}:begin -->\n", f"<!-- {name}:end -->"
    head, rest = text.split(begin)
    return head + begin + block + end + rest.split(end)[1]


def main() -> int:
    readme = ROOT / "README.md"
    old = readme.read_text()
    new = old
    for name, block in [("bench", bench_block), ("gpu", gpu_block), ("quickstart", quickstart_block)]:
        new = fill(new, name, block())
    if "--check" in sys.argv:
        if new != old:
            print("README.md does not show tests/bench/results: run tests/bench/readme.py")
        return int(new != old)
    readme.write_text(new)
    return 0


if __name__ == "__main__":
    sys.exit(main())
