"""Reads the Anthropic API's messages, made of blocks, into the one form of a conversation.

Leaves to others: the fields beside the messages (``server.schema.messages``) and the answer (``routes.messages``).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from treadle.engine.conversation import Conversation, ToolChoice
from treadle.server.errors import ApiError

if TYPE_CHECKING:
    from treadle.server.schema.messages import CountTokensRequest

__all__ = ["read_conversation"]

_CHOICES: Mapping[str, ToolChoice] = {"auto": "auto", "any": "required", "tool": "required", "none": "none"}
_CACHE = frozenset({"type", "cache_control"})  # a cache mark changes nothing: prompts are found by their content
_FIELDS = {
    "text": _CACHE | {"text", "citations"},
    "thinking": _CACHE | {"thinking", "signature"},
    "redacted_thinking": _CACHE | {"data"},
    "tool_use": _CACHE | {"id", "name", "input", "caller"},
    "tool_result": _CACHE | {"tool_use_id", "content", "is_error"},
    "document": _CACHE | {"source", "title", "context", "citations"},
    "search_result": _CACHE | {"source", "title", "content", "citations"},
}
_BLOCKS_OF = {
    "system": ("text",),
    "user": ("text", "tool_result", "document", "search_result"),
    "result": ("text", "document", "search_result"),
    "assistant": ("text", "thinking", "redacted_thinking", "tool_use"),
}
_ROLES = ("system", "user", "assistant")


def read_conversation(body: CountTokensRequest) -> Conversation:
    """Return what ``body`` asks.

    Raises:
        ApiError: A message or block is wrong, or of a kind this model cannot read; ``param`` is its place.
    """
    choice = body.tool_choice
    config = body.output_config
    variables: dict[str, Any] = {}
    if body.thinking is not None:
        variables["enable_thinking"] = body.thinking.type != "disabled"
    if config is not None and config.effort is not None:
        variables["reasoning_effort"] = config.effort
    messages = _Reader().read(body.system, body.messages)
    return Conversation(
        messages=messages,
        tools=[
            {
                "type": "function",
                "function": {
                    "name": tool.name,
                    **({"description": tool.description} if tool.description is not None else {}),
                    "parameters": tool.input_schema,
                    **({"strict": True} if tool.strict else {}),
                },
            }
            for tool in body.tools or ()
        ],
        choice="auto" if choice is None else _CHOICES[choice.type],
        functions=() if choice is None or choice.name is None else (choice.name,),
        is_parallel=choice is None or not choice.disable_parallel_tool_use,
        continues=messages[-1]["role"] == "assistant",
        variables=variables,
    )


class _Reader:
    """Reads one conversation; turns of the same role in a row become one, as the API has it."""

    def __init__(self) -> None:
        self._messages: list[dict[str, Any]] = []
        self._tool_names: dict[str, str] = {}

    def read(self, system: str | Sequence[Any] | None, messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        if system:
            self._turn("system", system, "system")
        for index, message in enumerate(messages):
            place = f"messages[{index}]"
            if unknown := set(message) - {"role", "content"}:
                _refuse(f"{place}.{min(unknown)}", "unknown parameter")
            role = message.get("role")
            if not isinstance(role, str) or role not in _ROLES:
                _refuse(f"{place}.role", f"expected {', '.join(_ROLES)}, found {role!r:.80}")
            self._turn(role, message.get("content"), f"{place}.content")
        if self._messages[-1]["role"] == "assistant":
            _check_begun(self._messages[-1])
        return self._messages

    def _turn(self, role: str, content: Any, place: str) -> None:
        blocks = _blocks(role, content, place)
        turn: dict[str, Any] = {"role": role, "content": ""}
        for block, where in blocks:
            kind = block["type"]
            if kind == "tool_result":
                self._add(turn)
                turn = {"role": role, "content": ""}
                self._messages.append(self._result(block, where))
            elif kind == "redacted_thinking":
                _string(block, "data", where)  # which only those who wrote it can read
            elif kind == "tool_use":
                turn.setdefault("tool_calls", []).append(self._call(block, where))
            else:
                key = "reasoning_content" if kind == "thinking" else "content"
                turn[key] = turn.get(key, "") + _words(block, where)
        self._add(turn, is_needed=not any(block["type"] == "tool_result" for block, _ in blocks))

    def _add(self, turn: dict[str, Any], *, is_needed: bool = False) -> None:
        if not is_needed and not turn["content"]:
            return
        last = self._messages[-1] if self._messages else None
        if last is None or last["role"] != turn["role"]:
            self._messages.append(turn)
            return
        last["content"] = "\n\n".join(text for text in (last["content"], turn["content"]) if text)
        if "reasoning_content" in turn:
            last["reasoning_content"] = last.get("reasoning_content", "") + turn["reasoning_content"]
        if "tool_calls" in turn:
            last.setdefault("tool_calls", []).extend(turn["tool_calls"])

    def _call(self, block: Mapping[str, Any], place: str) -> dict[str, Any]:
        name, arguments = _string(block, "name", place), block.get("input")
        if not isinstance(arguments, Mapping):
            _refuse(f"{place}.input", f"expected an object, found {arguments!r:.80}")
        call_id = _string(block, "id", place)
        self._tool_names[call_id] = name
        return {"id": call_id, "type": "function", "function": {"name": name, "arguments": dict(arguments)}}

    def _result(self, block: Mapping[str, Any], place: str) -> dict[str, Any]:
        call_id = _string(block, "tool_use_id", place)
        if call_id not in self._tool_names:
            _refuse(f"{place}.tool_use_id", f"no tool_use block before it has the id {call_id!r:.80}")
        content = block.get("content", "")
        text = "".join(_words(part, where) for part, where in _blocks("result", content, f"{place}.content"))
        if block.get("is_error"):  # templates know no failed results, so the words must tell
            text = f"Error: {text}"
        return {"role": "tool", "tool_call_id": call_id, "name": self._tool_names[call_id], "content": text}


def _check_begun(message: Mapping[str, Any]) -> None:
    """Refuse the beginning of an answer that the API does not go on with."""
    if message.get("tool_calls"):
        _refuse("messages", "the last message calls tools, so that their results must follow")
    if message["content"][-1:].isspace():
        _refuse("messages", "the answer that the last message begins must not end with white space")


def _blocks(role: str, content: Any, place: str) -> list[tuple[Mapping[str, Any], str]]:
    """Return the blocks of a turn of ``role``, each with its place."""
    if isinstance(content, str):
        return [({"type": "text", "text": content}, place)]
    if not isinstance(content, list):
        _refuse(place, f"expected text or a list of blocks, found {type(content).__name__}")
    found = []
    for index, block in enumerate(content):
        where = f"{place}[{index}]"
        kind = block.get("type") if isinstance(block, Mapping) else type(block).__name__
        allowed = _BLOCKS_OF[role]
        if kind not in allowed:
            _refuse(where, f"this model reads blocks of type {', '.join(allowed)} here, found {kind!r:.80}")
        if unknown := set(block) - _FIELDS[kind]:
            _refuse(f"{where}.{min(unknown):.80}", "unknown parameter")
        found.append((block, where))
    return found


def _words(block: Mapping[str, Any], place: str) -> str:
    """Return what a block says: its text, or that of a document with its title and where it comes from around it."""
    kind = block["type"]
    if kind not in ("document", "search_result"):
        return _string(block, kind, place)
    citations = block.get("citations")
    if isinstance(citations, Mapping) and citations.get("enabled"):
        _refuse(f"{place}.citations", "this server cannot enforce citations; leave them out")
    if kind == "search_result":
        about = {"title": _string(block, "title", place), "source": _string(block, "source", place)}
        content, where = block.get("content"), f"{place}.content"
    else:
        about = {name: _string(block, name, place) for name in ("title", "context") if block.get(name) is not None}
        content, where = _document(block.get("source"), f"{place}.source")
    text = "".join(_string(part, "text", at) for part, at in _blocks("system", content, where))
    attributes = "".join(f" {name}={json.dumps(value, ensure_ascii=False)}" for name, value in about.items())
    return f"<document{attributes}>\n{text}\n</document>\n"


def _document(source: Any, place: str) -> tuple[Any, str]:
    """Return the content of a document and its place; only text can be read."""
    kind = source.get("type") if isinstance(source, Mapping) else type(source).__name__
    if kind == "text":
        return _string(source, "data", place), f"{place}.data"
    if kind != "content":
        _refuse(place, f"this model reads documents of type text or content, found {kind!r:.80}")
    return source.get("content"), f"{place}.content"


def _string(block: Mapping[str, Any], name: str, place: str) -> str:
    value = block.get(name)
    if not isinstance(value, str):
        _refuse(f"{place}.{name}", f"expected text, found {value!r:.80}")
    return value


def _refuse(place: str, problem: str) -> NoReturn:
    raise ApiError(400, f"{place}: {problem}", param=place)
