"""Finds known tokens in text by their spelling.

Which tokens may be looked for in which text is the tokenizer's decision.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping

__all__ = ["TokenSplitter"]


class TokenSplitter:
    """Cuts text at the leftmost, then longest, occurrences of a set of spellings."""

    def __init__(self, ids: Mapping[str, int]) -> None:
        self._ids = ids
        lengths: defaultdict[str, set[int]] = defaultdict(set)
        for text in ids:
            lengths[text[:2]].add(len(text))
        # Looking at two characters first keeps common starts such as a space or "<" cheap.
        self._lengths = {start: sorted(found, reverse=True) for start, found in lengths.items()}
        first_characters = "".join(sorted({text[0] for text in ids}))
        self._start = re.compile(f"[{re.escape(first_characters)}]") if ids else None

    def split(self, text: str) -> Iterator[str | int]:
        """The text between tokens as strings, none empty, and the tokens as ids."""
        begin = at = 0
        while self._start is not None:
            match = self._start.search(text, at)
            if match is None:
                break
            at = match.start()
            token = self._longest_at(text, at)
            if not token:
                at += 1
                continue
            if at > begin:
                yield text[begin:at]
            yield self._ids[token]
            begin = at = at + len(token)
        if begin < len(text):
            yield text[begin:]

    def starts(self, text: str) -> Iterator[int]:
        """Every place where a token's spelling begins, overlapping ones included."""
        if self._start is not None:
            for match in self._start.finditer(text):
                if self._longest_at(text, match.start()):
                    yield match.start()

    def _longest_at(self, text: str, at: int) -> str:
        for length in self._lengths.get(text[at : at + 2], ()):
            candidate = text[at : at + length]
            if candidate in self._ids:
                return candidate
        return text[at] if text[at] in self._ids else ""
