"""Finds calls that follow one marker, to the end of the answer.

Leaves to others: the marker and the reading of what follows it (the dialects).
"""

from __future__ import annotations

from collections.abc import Callable

from treadle.models.tool_dialects.parts import Content, Part, ToolCall, overlap

__all__ = ["TailParser"]


class TailParser:
    """Content up to the marker; what follows is read when the answer has ended.

    Args:
        opening: The marker.
        read: Reads what follows it; nothing, or ``None``, when there is no call.
    """

    def __init__(self, opening: str, read: Callable[[str], list[ToolCall] | None]) -> None:
        self._opening = opening
        self._read = read
        self._held = ""
        self._is_tail = False

    def push(self, text: str) -> list[Part]:
        """Read more text and return the parts that are now certain."""
        self._held += text
        if self._is_tail:
            return []
        start = self._held.find(self._opening)
        self._is_tail = start >= 0
        kept = len(self._held) - start if self._is_tail else overlap(self._held, self._opening)
        content, self._held = self._held[: len(self._held) - kept], self._held[len(self._held) - kept :]
        return [Content(content)] if content else []

    def finish(self) -> list[Part]:
        """Return the calls, or what was held back."""
        text, self._held = self._held, ""
        calls: list[Part] = []
        if self._is_tail:
            calls += self._read(text.removeprefix(self._opening)) or ()
        return calls or ([Content(text)] if text else [])
