#!/usr/bin/env python3
"""kvarnd's presets on recorded data against codec_table.tsv: none may have become worse.

    check_codec.py BUILD             compare every preset of the build with its row; 1 if a measure
                                     is more than 2 % above it, or a row or a preset is missing
    check_codec.py BUILD --update    write the table anew, and say what changed
    check_codec.py --self-test       small changes of the codec, in reference code, are found

Each preset runs through COMPRESS and DECOMPRESS of a private kvarnd of the build, with K rotated
and as it comes (names that end in _plain_k).  Leaves itself out (77) where numpy is not installed.
"""
from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from pathlib import Path

try:
    import numpy as np
except ImportError:
    sys.exit(77)

import recorded
from kvarnd_cache import PLAIN_K, Connection, KvarndMethod
from methods import published
from paths import Missing
from variants import Encoder

TABLE = Path(__file__).with_name("codec_table.tsv")
SLACK = 1.02
NOTHING = 1e-7                       # below it a measure is rounding
KEY = ("source", "method")

Table = dict[tuple[str, str], dict[str, float]]


def measured(methods: list, sources: dict[str, list[recorded.Layer]]) -> Table:
    found = {}
    for name, layers in sources.items():
        dim = layers[0].k.shape[2]
        for method in methods:
            found[name, method.name] = {"bytes": method.bytes_per_token(dim),
                                        **recorded.errors(method, layers)}
    return found


def read(path: Path) -> Table:
    if not path.exists():
        return {}
    lines = [line.split("\t") for line in path.read_text().splitlines()]
    names, table = lines[0][len(KEY):], {}
    for source, method, *values in lines[1:]:
        table[source, method] = dict(zip(names, map(float, values)))
    return table


def write(path: Path, table: Table) -> None:
    names = list(next(iter(table.values())))
    lines = ["\t".join((*KEY, *names))]
    lines += ["\t".join((*key, *(f"{row[name]:.6g}" for name in names)))
              for key, row in table.items()]
    path.write_text("\n".join(lines) + "\n")


def worse(found: Table, table: Table) -> list[str]:
    """One line for each measure that is worse than the table has it, and for each gap."""
    lines = []
    for key, row in found.items():
        where = " ".join(key)
        if key not in table:
            lines.append(f"{where}: no row in {TABLE.name}; add it with --update")
            continue
        if gone := set(row) ^ set(table[key]):
            lines.append(f"{where}: measure {min(gone)} is on one side only; use --update")
            continue
        lines += [f"{where}: {name} is {value:.5g}, {value / max(table[key][name], 1e-30) - 1:+.1%} "
                  f"of {table[key][name]:.5g}"
                  for name, value in row.items()
                  if not value <= table[key][name] * SLACK + NOTHING]
    lines += [f"{' '.join(key)}: a row in {TABLE.name}, but no preset of that name"
              for key in table if key not in found]
    return lines


def changes(found: Table, table: Table) -> list[str]:
    """What --update changes by more than the digits that are written."""
    lines = [f"{' '.join(key)}: new" for key in found if key not in table]
    lines += [f"{' '.join(key)}: gone" for key in table if key not in found]
    for key, row in found.items():
        lines += [f"{' '.join(key)}: {name} {table[key][name]:.5g} -> {value:.5g}"
                  for name, value in row.items() if key in table
                  and abs(value - table[key].get(name, 0)) > 1e-4 * abs(value) + NOTHING]
    return lines


def presets(build: Path) -> tuple[Connection, list[KvarndMethod]]:
    connection = Connection(build)
    names = [preset.name.decode() for preset in connection.presets()]
    return connection, [KvarndMethod(name + end, connection)
                        for name in names for end in ("", PLAIN_K)]


# ------------------------------------------------------------------- changes that must be found
@dataclass(frozen=True)
class Coarser(Encoder):
    """Steps are larger than they need to be."""

    def __call__(self, t: np.ndarray) -> np.ndarray:
        return replace(Encoder(self.bits, scale_free=self.scale_free), share=1.06)(t)


@dataclass(frozen=True)
class Unbalanced(Encoder):
    """The loop that balances runs no more."""

    def __call__(self, t: np.ndarray) -> np.ndarray:
        return Encoder(self.bits, scale_free=self.scale_free, iterations=0)(t)


@dataclass(frozen=True)
class Longer(Encoder):
    """Everything comes back a little too long."""

    def __call__(self, t: np.ndarray) -> np.ndarray:
        return np.float32(1.03) * Encoder(self.bits, scale_free=self.scale_free)(t)


def changed(kind: type[Encoder], side: str):
    method = published(2, 2)
    return replace(method, name="kvarn_k2v2_g128",
                   **{side: kind(2, scale_free=False)} if side else {})


def self_test() -> None:
    """The reference code stands where kvarn_k2v2_g128 stands in the table, changed or not."""
    table = {key: row for key, row in read(TABLE).items() if key[1] == "kvarn_k2v2_g128"}
    assert len(table) == len(recorded.sources()) == 3
    for kind, side, found_in in ((Encoder, "", set()), (Coarser, "k", {"logit", "k_mse"}),
                                 (Coarser, "v", {"v_mse"}), (Unbalanced, "k", {"k_norm_p99"}),
                                 (Longer, "k", {"k_norm"})):
        lines = worse(measured([changed(kind, side)], recorded.sources()), table)
        named = {line.split(": ")[1].split()[0] for line in lines}
        what = f"{kind.__name__} {side}".strip()
        assert found_in <= named and bool(lines) == bool(side), f"{what}: {lines}"
        print(f"{what}: {len(lines)} measures worse")
    row = {("s", "m"): {"bytes": 10.0, "k_mse": 0.1}}
    assert not worse({("s", "m"): {"bytes": 10.0, "k_mse": 0.1019}}, row)
    assert len(worse({("s", "m"): {"bytes": 10.0, "k_mse": 0.1021}}, row)) == 1
    assert len(worse({("s", "m"): {"bytes": 10.0, "k_mse": float("nan")}}, row)) == 1
    assert len(worse({("s", "m"): {"bytes": 11.0, "k_mse": 0.1}}, row)) == 1
    assert len(worse({}, row)) == 1 and len(worse(row, {})) == 1


def main(arguments: list[str]) -> int:
    if arguments == ["--self-test"]:
        self_test()
        return 0
    if not arguments or len(arguments) > 2 or arguments[1:] not in ([], ["--update"]):
        print(__doc__, file=sys.stderr)
        return 2
    connection, methods = presets(Path(arguments[0]))
    found, table = measured(methods, recorded.sources()), read(TABLE)
    connection.close()
    if arguments[1:]:
        write(TABLE, found)
        print("\n".join(changes(found, table)) or "nothing changed")
        return 0
    lines = worse(found, table)
    print("\n".join(lines) or f"{len(found)} rows: nothing is more than 2 % worse")
    return 1 if lines else 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except Missing as error:
        sys.exit(f"check_codec: {error}")
