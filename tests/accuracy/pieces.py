"""SentencePiece vocabularies, for texts of any length."""
from __future__ import annotations

import heapq


class PieceTokenizer:
    """Joins the adjacent pair whose union scores highest, leftmost of equals first.

    The same tokens as llama_numpy.ScoreTokenizer gives after its start token, but with a
    heap of pairs, so that a whole text takes seconds.
    """

    def __init__(self, meta: dict):
        self.words = meta["tokenizer.ggml.tokens"]
        self.ids = {word: i for i, word in enumerate(self.words)}
        self.scores = meta["tokenizer.ggml.scores"]

    def encode(self, text: str) -> list[int]:
        parts = list(text.replace(" ", "\u2581"))
        after = list(range(1, len(parts) + 1))
        before = list(range(-1, len(parts) - 1))
        heap: list[tuple[float, int, str]] = []

        def offer(at: int) -> None:
            if at >= 0 and after[at] < len(parts):
                joined = parts[at] + parts[after[at]]
                if joined in self.ids:
                    heapq.heappush(heap, (-self.scores[self.ids[joined]], at, joined))

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
        return [self.ids[part] for part in parts if part]

    def decode(self, tokens: list[int]) -> str:
        return "".join(self.words[i] for i in tokens).replace("\u2581", " ")
