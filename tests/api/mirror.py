#!/usr/bin/env python3
"""Every source file has the test file of its name; the exceptions are listed here, each with the tests that cover it.

A file is tested by tests/<top folder>/test_<name>.c or .sh. The table below names other files for sources that are
tested through a seam (all variants of a kernel by one test; one rpc file per operation by the rpc tests). An entry
for a source that is gone, or that has its own test by now, fails too, so that the table stays true.
"""
import fnmatch
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]

# source pattern -> test files that cover it
COVERED = {
}


def main() -> int:
    sources = sorted(p.relative_to(ROOT).as_posix() for top in ("proto", "kernels", "server", "client")
                     for p in (ROOT / top).rglob("*.c"))
    wrong, used = [], set()
    for source in sources:
        top, name = source.split("/")[0], pathlib.Path(source).stem
        own = [f"tests/{top}/test_{name}.c", f"tests/{top}/test_{name}.sh"]
        has_own = any((ROOT / path).is_file() for path in own)
        entries = [pattern for pattern in COVERED if fnmatch.fnmatch(source, pattern)]
        used.update(entries if not has_own else ())
        if not has_own and not entries:
            wrong.append(f"{source}: no {own[0]}, and not in the table of {pathlib.Path(__file__).name}")
    for pattern, tests in COVERED.items():
        if pattern not in used:
            wrong.append(f"'{pattern}': matches no source that lacks a test of its own")
        wrong += [f"'{pattern}': {test} does not exist" for test in tests if not (ROOT / test).is_file()]
    print("\n".join(wrong) or f"mirror: {len(sources)} sources, each with its tests")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
