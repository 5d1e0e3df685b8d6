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
    """The text of one answer so far, cut before the first stop string.

    Released text is final: no later token can turn any of it into a part of a stop string.
    """

    def __init__(self, stream: TextStream, stop: Sequence[str] = ()) -> None:
        self._stream = stream
        self._stop = tuple(stop)
        self._held = ""
        self.stopped = False

    def push(self, token_id: int) -> str:
        """Add a token and return the text that may be shown now."""
        return self._release(self._stream.push(token_id))

    def finish(self) -> str:
        """Return the text still held back, once the answer has ended."""
        if self.stopped:
            return ""
        text = self._release(self._stream.finish())
        text, self._held = text + self._held, ""
        return text

    def _release(self, text: str) -> str:
        if not self._stop or not text:
            return text
        held = self._held + text
        # The match that ends first wins, so that the text does not depend on where the tokens were cut.
        matches = [(start + len(stop), start) for stop in self._stop if (start := held.find(stop)) >= 0]
        if matches:
            self.stopped = True
            self._held = ""
            return held[: min(matches)[1]]
        num_held = max(_overlap(held, stop) for stop in self._stop)
        self._held = held[len(held) - num_held :]
        return held[: len(held) - num_held]


def _overlap(text: str, stop: str) -> int:
    """Return the length of the longest end of ``text`` that begins ``stop``."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if stop.startswith(text[-length:]):
            return length
    return 0
