"""Cuts long texts to what a model should be shown, and says so in the text.

Leaves to others: how long that is (the agent's settings).
"""

from __future__ import annotations

__all__ = ["bounded", "preview"]

_PREVIEW_CHARS = 200


def bounded(text: str, max_chars: int) -> str:
    """Return ``text`` with its middle left out if it is longer than ``max_chars``; two thirds are its head.

    The note that says so comes on top of that. What no encoding can carry, such as halves of surrogate pairs, is
    written with backslashes.
    """
    if not text.isascii():
        text = text.encode("utf-8", "backslashreplace").decode()
    if len(text) <= max_chars:
        return text
    head = max_chars * 2 // 3
    tail = max_chars - head
    omitted = len(text) - max_chars
    end = text[len(text) - tail :] if tail else ""
    return f"{text[:head]}\n[... {omitted} of {len(text)} characters left out ...]\n{end}"


def preview(text: str, max_chars: int = _PREVIEW_CHARS) -> str:
    """Return the beginning of ``text`` in one line, for messages."""
    line = " ".join(text[: max_chars + 1].split())
    return line if len(text) <= max_chars else f"{line[:max_chars]}... ({len(text)} characters)"
