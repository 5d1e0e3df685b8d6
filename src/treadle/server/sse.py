"""Encodes server-sent events.

Leaves to others: what is in them (the routes) and sending them (``server.disconnect``).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

__all__ = ["DONE", "TextEvents", "event", "named_event"]

DONE = b"data: [DONE]\n\n"
_PLACE = "text"
_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def event(content: Any) -> bytes:
    """Return one event; text beyond ASCII stays readable, and what UTF-8 cannot carry is escaped."""
    return b"data: " + _json(content) + b"\n\n"


def named_event(name: str, content: Any) -> bytes:
    """Return one event with a name, as the Anthropic and Responses APIs use them."""
    return b"event: " + name.encode() + b"\n" + event(content)


class TextEvents:
    """Events that differ in one text only, encoded but for it: each token of every stream is one.

    Args:
        make: Returns the content of an event with a given text; that text is the last of its kind in it.
    """

    def __init__(self, make: Callable[[str], Any]) -> None:
        self._opening, _, self._closing = event(make(_PLACE)).rpartition(_json(_PLACE))

    def event(self, text: str) -> bytes:
        """Return the event with ``text``."""
        return self._opening + _json(text) + self._closing


def _json(content: Any) -> bytes:
    try:
        return _encode(content).encode()
    except UnicodeEncodeError:
        return json.dumps(content, separators=(",", ":")).encode()
