"""Where things lie, and how what is not there is reported."""
from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CACHE = Path(os.environ.get("KVARN_ACCURACY_CACHE", ROOT / ".cache" / "accuracy"))


class Missing(Exception):
    """Something that the harness needs is not there; the text says how to get it."""
