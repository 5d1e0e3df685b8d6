"""Encodes server-sent events.

Leaves to others: what is in them (the routes) and sending them (``server.disconnect``).
"""

from __future__ import annotations

import json
from typing import Any

__all__ = ["DONE", "event", "named_event"]

DONE = b"data: [DONE]\n\n"


def event(content: Any) -> bytes:
    """Return one event; text beyond ASCII stays readable, and what UTF-8 cannot carry is escaped."""
    return b"data: " + _json(content) + b"\n\n"


def named_event(name: str, content: Any) -> bytes:
    """Return one event with a name, as the Anthropic and Responses APIs use them."""
    return b"event: " + name.encode() + b"\n" + event(content)


def _json(content: Any) -> bytes:
    try:
        return json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode()
    except UnicodeEncodeError:
        return json.dumps(content, separators=(",", ":")).encode()
