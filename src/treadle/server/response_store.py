"""Keeps answers for later requests, within a bound on memory; the one used longest ago goes first.

Leaves to others: what is kept (``routes.responses``, ``routes.chat``).
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

__all__ = ["ResponseStore", "StoredResponse"]


@dataclass(frozen=True)
class StoredResponse:
    """A response, or a chat completion, with all the items or messages of its conversation.

    Those of a response hold its own output, those of a chat completion do not.
    """

    response: dict[str, Any]
    items: Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class _Kept:
    """What is kept as text, and what it can be found by."""

    text: bytes
    owner: str
    kind: str
    number: int
    model: str
    metadata: Mapping[str, Any]
    item_ids: Sequence[str]


class ResponseStore:
    """Answers by id, as JSON text of at most ``max_bytes`` in all; 0 keeps none. For one event loop."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._kept: OrderedDict[str, _Kept] = OrderedDict()
        self._by_item: dict[str, str] = {}
        self._numbers = count()
        self.num_bytes = 0

    def put(self, stored: StoredResponse, owner: str = "") -> None:
        """Keep an answer if it fits at all, in the place of one with its id, and let go of others for it.

        Ids cannot be guessed, so that whoever has one may ask; only lists are the ``owner``'s, as told by the API key.
        """
        response = stored.response
        text = json.dumps([response, list(stored.items)]).encode()
        before = self._kept.get(response["id"])
        self.remove(response["id"])
        if len(text) > self._max_bytes:
            return
        items = [item["id"] for item in response.get("output", ())]
        metadata = response.get("metadata") or {}
        kind, model = response["object"], response["model"]
        number = next(self._numbers) if before is None else before.number
        self._kept[response["id"]] = _Kept(text, owner, kind, number, model, metadata, items)
        self._by_item |= dict.fromkeys(items, response["id"])
        self.num_bytes += len(text)
        while self.num_bytes > self._max_bytes:
            self.remove(next(iter(self._kept)))

    def get(self, response_id: str, kind: str) -> StoredResponse | None:
        """Return the answer of that id and kind ("response" or "chat.completion"), if it is still here."""
        kept = self._kept.get(response_id)
        if kept is None or kept.kind != kind:
            return None
        self._kept.move_to_end(response_id)
        response, items = json.loads(kept.text)
        return StoredResponse(response, items)

    def item(self, item_id: str) -> Mapping[str, Any] | None:
        """Return the item of that id of a response's output, if that is still here."""
        response_id = self._by_item.get(item_id)
        stored = None if response_id is None else self.get(response_id, "response")
        output = () if stored is None else stored.response["output"]
        return next((item for item in output if item["id"] == item_id), None)

    def find(self, owner: str, kind: str, model: str | None, metadata: Mapping[str, str]) -> list[str]:
        """Return the ids of an owner's answers of that kind and model, with all of these labels, the oldest first."""
        found = [
            (kept.number, response_id)
            for response_id, kept in self._kept.items()
            if (kept.owner, kept.kind) == (owner, kind)
            and model in (None, kept.model)
            and all(kept.metadata.get(name) == value for name, value in metadata.items())
        ]
        return [response_id for _, response_id in sorted(found)]

    def remove(self, response_id: str) -> bool:
        """Let go of an answer; false if it was not here."""
        kept = self._kept.pop(response_id, None)
        if kept is None:
            return False
        self.num_bytes -= len(kept.text)
        for item_id in kept.item_ids:
            self._by_item.pop(item_id, None)
        return True
