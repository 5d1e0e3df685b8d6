"""Writes an answer as the output items and events of the Responses API.

Leaves to others: the response around them (``routes.responses``).
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from copy import deepcopy
from typing import TYPE_CHECKING, Any

from treadle.models.tool_dialects import Content, Part, ToolCall
from treadle.server.logprobs import token_logprobs

if TYPE_CHECKING:
    from treadle.engine.completion import TokenLogprob

__all__ = ["ResponseOutput"]

Event = dict[str, Any]

_KINDS = {"message": ("msg", "output_text"), "reasoning": ("rs", "reasoning_text")}


class ResponseOutput:
    """The items as far as they have come; what is added to them is also told in events, not yet numbered."""

    def __init__(self) -> None:
        self.items: list[dict[str, Any]] = []
        self._logprobs: list[dict[str, Any]] = []
        self._is_open = False

    def add(self, parts: Sequence[Part], logprobs: Sequence[TokenLogprob] = ()) -> list[Event]:
        """Add parts of the answer and return their events; log-probabilities wait for the text of their tokens."""
        events: list[Event] = []
        self._logprobs += token_logprobs(logprobs)
        for part in parts:
            if isinstance(part, ToolCall):
                events += self._add_call(part)
            else:
                events += self._add_text("message" if isinstance(part, Content) else "reasoning", part.text)
        return events

    def finish(self, *, is_complete: bool) -> list[Event]:
        """End the item that is open, if one is."""
        return self._close("completed" if is_complete else "incomplete")

    def _add_call(self, call: ToolCall) -> list[Event]:
        events = self._close("completed")
        self._logprobs.clear()  # of tokens that are no text
        item = {
            "type": "function_call",
            "id": f"fc_{secrets.token_hex(12)}",
            "call_id": f"call_{secrets.token_hex(12)}",
            "name": call.name,
            "arguments": "",
            "status": "in_progress",
        }
        events += self._open(item)
        item["arguments"] = call.arguments
        events.append(self._event("function_call_arguments.delta", delta=call.arguments))
        events.append(self._event("function_call_arguments.done", name=call.name, arguments=call.arguments))
        return [*events, *self._close("completed")]

    def _add_text(self, kind: str, text: str) -> list[Event]:
        events = []
        prefix, part_kind = _KINDS[kind]
        if not self._is_open or self.items[-1]["type"] != kind:
            events = self._close("completed")
            item: dict[str, Any] = {"type": kind, "id": f"{prefix}_{secrets.token_hex(12)}", "status": "in_progress"}
            item |= {"role": "assistant", "content": []} if kind == "message" else {"summary": [], "content": []}
            events += self._open(item)
            part: dict[str, Any] = {"type": part_kind, "text": ""}
            part |= {"annotations": [], "logprobs": []} if kind == "message" else {}
            item["content"] = [part]
            events.append(self._event("content_part.added", content_index=0, part=deepcopy(part)))
        self.items[-1]["content"][0]["text"] += text
        fields = self._take_logprobs()
        return [*events, self._event(f"{part_kind}.delta", content_index=0, delta=text, **fields)]

    def _take_logprobs(self) -> dict[str, Any]:
        """Return the field for those that waited, empty for reasoning, which has none."""
        taken, self._logprobs = self._logprobs, []
        if self.items[-1]["type"] != "message":
            return {}
        self.items[-1]["content"][0]["logprobs"] += taken
        return {"logprobs": taken}

    def _open(self, item: dict[str, Any]) -> list[Event]:
        self._is_open = True
        self.items.append(item)
        return [{"type": "response.output_item.added", "output_index": len(self.items) - 1, "item": dict(item)}]

    def _close(self, status: str) -> list[Event]:
        if not self._is_open:
            return []
        self._is_open = False
        item = self.items[-1]
        item["status"] = status
        events = []
        if item["type"] in _KINDS:
            [part] = item["content"]
            self._take_logprobs()
            fields = {"logprobs": part["logprobs"]} if item["type"] == "message" else {}
            events = [
                self._event(f"{part['type']}.done", content_index=0, text=part["text"], **fields),
                self._event("content_part.done", content_index=0, part=part),
            ]
        return [*events, {"type": "response.output_item.done", "output_index": len(self.items) - 1, "item": item}]

    def _event(self, kind: str, **fields: Any) -> Event:
        index = len(self.items) - 1
        return {"type": f"response.{kind}", "item_id": self.items[index]["id"], "output_index": index, **fields}
