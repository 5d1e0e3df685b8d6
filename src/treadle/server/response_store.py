"""Keeps responses for later requests, within a bound on memory; the one used longest ago goes first.

Leaves to others: what a response is (``routes.responses``).
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["ResponseStore", "StoredResponse"]


@dataclass(frozen=True)
class StoredResponse:
    """A response with all the items of its conversation, its own output included."""

    response: dict[str, Any]
    items: Sequence[dict[str, Any]]


class ResponseStore:
    """Responses by id, as JSON text of at most ``max_bytes`` in all; 0 keeps none. For one event loop."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._texts: OrderedDict[str, bytes] = OrderedDict()
        self.num_bytes = 0

    def put(self, stored: StoredResponse) -> None:
        """Keep a response if it fits at all, and let go of others for it."""
        text = json.dumps([stored.response, list(stored.items)]).encode()
        if len(text) > self._max_bytes:
            return
        self._texts[stored.response["id"]] = text
        self.num_bytes += len(text)
        while self.num_bytes > self._max_bytes:
            _, oldest = self._texts.popitem(last=False)
            self.num_bytes -= len(oldest)

    def get(self, response_id: str) -> StoredResponse | None:
        """Return the response of that id, if it is still here."""
        text = self._texts.get(response_id)
        if text is None:
            return None
        self._texts.move_to_end(response_id)
        response, items = json.loads(text)
        return StoredResponse(response, items)

    def remove(self, response_id: str) -> bool:
        """Let go of a response; false if it was not here."""
        text = self._texts.pop(response_id, b"")
        self.num_bytes -= len(text)
        return bool(text)
