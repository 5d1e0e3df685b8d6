"""Reads the items of the Responses API into the messages of a conversation.

Leaves to others: the fields beside the input (``server.schema.responses``) and writing items (``response_output``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from treadle.engine.conversation import Conversation
from treadle.server.errors import ApiError

if TYPE_CHECKING:
    from treadle.server.schema.responses import InputTokensRequest

__all__ = ["Item", "input_items", "listed_items", "read_conversation"]

Item = Mapping[str, Any]

_COMMON = frozenset({"type", "id", "status"})
_FIELDS = {
    "message": _COMMON | {"role", "content", "phase"},
    "function_call": _COMMON | {"call_id", "name", "arguments"},
    "function_call_output": _COMMON | {"call_id", "output"},
    "reasoning": _COMMON | {"summary", "content", "encrypted_content"},
}
_TEXT_KINDS = ("input_text", "output_text", "text", "reasoning_text", "summary_text", "refusal")


def input_items(body: InputTokensRequest) -> list[Item]:
    """Return what a request adds to the conversation, as items."""
    if isinstance(body.input, str):
        return [{"type": "message", "role": "user", "content": body.input}]
    return list(body.input)


def listed_items(items: Sequence[Item], response_id: str) -> list[dict[str, Any]]:
    """Return items as the API lists them: each with an id, messages with parts."""
    listed = []
    for index, item in enumerate(items):
        shown: dict[str, Any] = {"type": "message", "id": f"item_{response_id}_{index}", "status": "completed", **item}
        if shown["type"] == "message" and isinstance(shown["content"], str):
            said: dict[str, Any] = {"type": "output_text", "annotations": []}
            part = said if shown["role"] == "assistant" else {"type": "input_text"}
            shown["content"] = [{**part, "text": shown["content"]}]
        listed.append(shown)
    return listed


def read_conversation(body: InputTokensRequest, items: Sequence[Item]) -> Conversation:
    """Return what ``body`` asks, after the ``items`` of the whole conversation.

    Raises:
        ApiError: An item is wrong, or of a kind this model cannot read; ``param`` is its place.
    """
    messages = [{"role": "system", "content": body.instructions}] if body.instructions else []
    offset = len(items) - len(input_items(body))  # places are those of the request, earlier items come from the store
    reader = _Reader(messages)
    for index, item in enumerate(items):
        reader.read(item, f"input[{index - offset}]" if index >= offset else "previous_response_id")
    effort = body.reasoning.effort if body.reasoning is not None else None
    return Conversation(
        messages=reader.messages,
        tools=[
            {
                "type": "function",
                "function": tool.model_dump(exclude={"type"}, exclude_none=True),
            }
            for tool in body.tools or ()
        ],
        choice=body.choice,
        functions=body.chosen_functions,
        is_parallel=body.parallel_tool_calls is not False,
        variables={} if effort is None else {"reasoning_effort": effort},
    )


class _Reader:
    """Adds items to messages: reasoning and calls belong to the turn of the assistant that they are part of."""

    def __init__(self, messages: list[dict[str, Any]]) -> None:
        self.messages = messages
        self._names: dict[str, str] = {}
        self._thought = ""

    def read(self, item: Item, place: str) -> None:
        kind = item.get("type", "message")
        if not isinstance(kind, str) or kind not in _FIELDS:
            _refuse(place, f"expected an item of type {', '.join(_FIELDS)}, found {kind!r:.80}")
        if unknown := {name for name, value in item.items() if value is not None} - _FIELDS[kind]:
            _refuse(f"{place}.{min(unknown):.80}", "unknown parameter")
        if kind == "message":
            self._message(item, place)
        elif kind == "function_call":
            self._call(item, place)
        elif kind == "function_call_output":
            self._output(item, place)
        else:
            self._thought += _text(item.get("content") or [], f"{place}.content")

    def _message(self, item: Item, place: str) -> None:
        role = item.get("role")
        if role not in ("user", "assistant", "system", "developer"):
            _refuse(f"{place}.role", f"expected user, assistant, system or developer, found {role!r:.80}")
        message = {"role": role, "content": _text(item.get("content"), f"{place}.content")}
        self.messages.append(self._with_thought(message) if role == "assistant" else message)

    def _call(self, item: Item, place: str) -> None:
        call_id, name, arguments = (_string(item, field, place) for field in ("call_id", "name", "arguments"))
        self._names[call_id] = name
        if not self.messages or self.messages[-1]["role"] != "assistant":
            self.messages.append(self._with_thought({"role": "assistant", "content": ""}))
        call = {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
        self.messages[-1].setdefault("tool_calls", []).append(call)

    def _output(self, item: Item, place: str) -> None:
        call_id = _string(item, "call_id", place)
        if call_id not in self._names:
            _refuse(f"{place}.call_id", f"no function_call before it has the call_id {call_id!r:.80}")
        content = _text(item.get("output"), f"{place}.output")
        self.messages.append(
            {"role": "tool", "tool_call_id": call_id, "name": self._names[call_id], "content": content}
        )

    def _with_thought(self, message: dict[str, Any]) -> dict[str, Any]:
        thought, self._thought = self._thought, ""
        return {**message, "reasoning_content": thought} if thought else message


def _text(content: Any, place: str) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        _refuse(place, f"expected text or a list of text parts, found {type(content).__name__}")
    texts = []
    for index, part in enumerate(content):
        kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
        if kind not in _TEXT_KINDS:
            _refuse(f"{place}[{index}]", f"this model reads text parts only, found one of type {kind!r:.80}")
        texts.append(_string(part, "refusal" if kind == "refusal" else "text", f"{place}[{index}]"))
    return "".join(texts)


def _string(item: Item, name: str, place: str) -> str:
    value = item.get(name)
    if not isinstance(value, str):
        _refuse(f"{place}.{name}", f"expected text, found {value!r:.80}")
    return value


def _refuse(place: str, problem: str) -> NoReturn:
    raise ApiError(400, f"{place}: {problem}", param=place, code="invalid_value")
