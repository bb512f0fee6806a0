#!/usr/bin/env python3
"""Prints benchmark rows (one JSON object per line) as a table; exit code 1 when a row misses its reach.

table.py ROWS
"""
import json
import sys


def load(path):
    with open(path) as file:
        return [json.loads(line) for line in file if line.strip()]


def cells(row):
    def number(value):
        return "" if value is None else f"{value:.3g}" if value < 1000 else f"{value:.0f}"

    ratio = "" if row["ratio"] is None else f"{row['ratio']:.3g}x"
    verdict = "" if row["reach"] is None else ("yes" if row["ok"] else "NO")
    return [row["name"], number(row["value"]), row["unit"], number(row["baseline"]), ratio, row["reach"] or "", verdict]


def with_share(rows, table):
    """Rows of a GPU have one column more: the share of what a copy would move in that time."""
    if any("share" in row for row in rows):
        table[0].insert(5, "of copy")
        for row, line in zip(rows, table[1:]):
            line.insert(5, f"{100 * row['share']:.0f} %" if "share" in row else "")
    return table


def main():
    rows = load(sys.argv[1])
    table = [["what", "value", "unit", "baseline", "ratio", "reach", "reached"]] + [cells(row) for row in rows]
    table = with_share(rows, table)
    widths = [max(len(line[i]) for line in table) for i in range(len(table[0]))]
    for line in table:
        print("  ".join(c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(line, widths))))
    missed = [row["name"] for row in rows if not row["ok"]]
    if missed:
        print(f"\n{len(missed)} not reached: {', '.join(missed)}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
