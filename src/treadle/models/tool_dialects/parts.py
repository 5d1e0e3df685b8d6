"""The parts an answer is read into, and what every parser of a dialect offers.

Leaves to others: the dialects themselves, and ids and indexes of calls (the API that reports them).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

__all__ = ["AnswerParser", "Content", "Part", "Reasoning", "ToolCall", "ToolSchemas", "overlap"]

# The JSON schema of each function's arguments, by the function's name.
ToolSchemas = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Content:
    """Text for the reader."""

    text: str


@dataclass(frozen=True)
class Reasoning:
    """Text the model wrote to itself."""

    text: str


@dataclass(frozen=True)
class ToolCall:
    """One whole call; ``arguments`` is the text of a JSON object."""

    name: str
    arguments: str


Part = Content | Reasoning | ToolCall


class AnswerParser(Protocol):
    """Reads one answer piece by piece; the parts do not depend on where the pieces were cut.

    A call is reported once it is complete. What looked like one and is not (malformed, or cut off by a limit) comes
    out as content, exactly as the model wrote it: nothing is repaired by guessing and nothing is lost.
    """

    def push(self, text: str) -> list[Part]:
        """Read more text and return the parts that are now certain."""

    def finish(self) -> list[Part]:
        """Return what was held back, once the answer has ended."""


def overlap(text: str, marker: str) -> int:
    """Return the length of the longest end of ``text`` that begins ``marker`` and is shorter than it."""
    for length in range(min(len(text), len(marker) - 1), 0, -1):
        if marker.startswith(text[-length:]):
            return length
    return 0
