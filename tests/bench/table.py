#!/usr/bin/env python3
"""Prints benchmark rows (one JSON object per line) as a table; exit code 1 when a row misses its reach.

table.py ROWS             for a terminal
table.py --markdown ROWS  for the README
"""
import json
import sys


def cells(row):
    number = lambda x: "" if x is None else f"{x:.3g}" if x < 1000 else f"{x:.0f}"
    ratio = "" if row["ratio"] is None else f"{row['ratio']:.3g}x"
    verdict = "" if row["reach"] is None else ("yes" if row["ok"] else "NO")
    return [row["name"], number(row["value"]), row["unit"], number(row["baseline"]), ratio, row["reach"] or "", verdict]


def main():
    markdown = "--markdown" in sys.argv
    path = [a for a in sys.argv[1:] if not a.startswith("--")][0]
    with open(path) as file:
        rows = [json.loads(line) for line in file if line.strip()]
    head = ["what", "value", "unit", "baseline", "ratio", "reach", "reached"]
    table = [head] + [cells(row) for row in rows]
    if markdown:
        table.insert(1, ["---"] * len(head))
        print("\n".join("| " + " | ".join(line) + " |" for line in table))
        print(f"\n{rows[0]['machine']}, commit {rows[0]['commit']}")
    else:
        widths = [max(len(line[i]) for line in table) for i in range(len(head))]
        for line in table:
            print("  ".join(c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(line, widths))))
    missed = [row["name"] for row in rows if not row["ok"]]
    if missed and not markdown:
        print(f"\n{len(missed)} not reached: {', '.join(missed)}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
