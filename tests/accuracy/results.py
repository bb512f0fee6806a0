"""Results: one JSON object a line."""
from __future__ import annotations

import gzip
import json
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass
class Row:
    model: str
    text: str
    regime: str                      # static, decode, blocks512, free
    method: str
    bytes_per_token: float           # K and V of one kv head; 0: not stored at all
    position_bin: tuple[int, int]    # first position, one past the last
    measure: str
    value: float
    lo: float | None                 # 95 % interval; None: not drawn
    hi: float | None
    n: int                           # positions or tokens behind it
    layer: int | None = None         # rows of a heat map
    head: int | None = None


def write(path: Path, rows: list[Row]) -> None:
    """Append rows; figures are rounded to six digits."""
    with path.open("a") as f:
        for row in rows:
            entry = {key: float(f"{value:.6g}") if isinstance(value, float) else value
                     for key, value in asdict(row).items() if value is not None}
            f.write(json.dumps(entry) + "\n")


def read(path: Path) -> list[Row]:
    """Rows of a file, which may be packed (.gz)."""
    raw = path.read_bytes()
    text = (gzip.decompress(raw) if path.suffix == ".gz" else raw).decode()
    rows = []
    for line in text.splitlines():
        entry = json.loads(line)
        entry["position_bin"] = tuple(entry["position_bin"])
        rows.append(Row(**{"lo": None, "hi": None, **entry}))
    return rows
