"""Turns the tokens of one answer into text, holding back what may still become a stop string.

Leaves to others: which token comes next (sampling) and where a character ends (the tokenizer's stream).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

__all__ = ["TextOutput", "TextStream"]


class TextStream(Protocol):
    """What the tokenizer offers to decode one answer token by token."""

    def push(self, token_id: int) -> str:
        """Return the text that ``token_id`` completes; never half a character."""

    def finish(self) -> str:
        """Return what is left when no more tokens come."""


class TextOutput:
    """The text of one answer so far, cut before the first stop string; ``stop`` is that one once it came.

    Released text is final: no later token can turn any of it into a part of a stop string. Stop strings are looked for
    in what comes from token number ``min_tokens`` on.
    """

    def __init__(self, stream: TextStream, stop: Sequence[str] = (), *, min_tokens: int = 0) -> None:
        self._stream = stream
        self._stops = tuple(stop)
        self._num_missing = min_tokens
        self._held = ""
        self.stop: str | None = None

    def push(self, token_id: int) -> str:
        """Add a token and return the text that may be shown now."""
        text = self._stream.push(token_id)
        self._num_missing -= 1
        return text if self._num_missing > 0 else self._release(text)

    def finish(self) -> str:
        """Return the text still held back, once the answer has ended."""
        if self.stop is not None:
            return ""
        text = self._release(self._stream.finish())
        text, self._held = text + self._held, ""
        return text

    def _release(self, text: str) -> str:
        if not self._stops or not text:
            return text
        held = self._held + text
        # The match that ends first wins, so that the text does not depend on where the tokens were cut.
        matches = [(start + len(stop), start, stop) for stop in self._stops if (start := held.find(stop)) >= 0]
        if matches:
            _, start, self.stop = min(matches)
            self._held = ""
            return held[:start]
        num_held = max(_overlap(held, stop) for stop in self._stops)
        self._held = held[len(held) - num_held :]
        return held[: len(held) - num_held]


def _overlap(text: str, stop: str) -> int:
    """Return the length of the longest end of ``text`` that begins ``stop``."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if stop.startswith(text[-length:]):
            return length
    return 0
