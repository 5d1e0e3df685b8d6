"""Brings chat messages into the one form templates are given, and refuses what no template could show truthfully.

Roles and fields are those of the OpenAI API; what a template makes of them is ``chat_template``'s concern.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from treadle.errors import UsageError

__all__ = ["normalise_messages", "normalise_tools"]

_ROLES = ("system", "user", "assistant", "tool")
# Fields of the API that say what no text can, or in a way that is not read here.
_OTHER_KINDS = {
    "audio": "this model reads text only",
    "function_call": "the API of before tools is not supported; send tool_calls",
}
_INSTEAD_OF_CONTENT = ("tool_calls", "reasoning_content", "reasoning")


def normalise_messages(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Check messages and bring them into one form.

    ``developer`` becomes ``system``. Content becomes a string: text parts are put together in order, and an assistant
    may leave it out. Tool calls become ``{"type": "function", "function": {"name", "arguments"}}`` with arguments as
    a mapping, whether they came as JSON text or not; empty text means no arguments. A refusal is what the assistant
    said. All other fields stay, for templates that know them.

    Raises:
        UsageError: There is no message, or one cannot be shown truthfully; the text gives its index.
    """
    if isinstance(messages, (str, bytes, Mapping)) or not isinstance(messages, Sequence):
        raise UsageError(f"messages: expected a list, found {type(messages).__name__}", field="messages")
    if not messages:
        raise UsageError("messages: expected at least one, found none", field="messages")
    return [_normalise_message(index, message) for index, message in enumerate(messages)]


def normalise_tools(tools: Sequence[Mapping[str, Any]] | None) -> list[dict[str, Any]] | None:
    """Check tool definitions; none at all is the same as an empty list.

    Raises:
        UsageError: They are not a list of mappings.
    """
    if tools is not None and (isinstance(tools, (str, bytes, Mapping)) or not isinstance(tools, Sequence)):
        raise UsageError(f"tools: expected a list, found {type(tools).__name__}", field="tools")
    for index, tool in enumerate(tools or ()):
        if not isinstance(tool, Mapping):
            raise UsageError(f"tools[{index}]: expected a mapping, found {type(tool).__name__}", field="tools")
    return [dict(tool) for tool in tools] if tools else None


def _normalise_message(index: int, message: Mapping[str, Any]) -> dict[str, Any]:
    place = f"messages[{index}]"
    if not isinstance(message, Mapping):
        _refuse(place, f"expected a mapping, found {type(message).__name__}")
    role = message.get("role")
    if role == "developer":
        role = "system"
    if role not in _ROLES:
        _refuse(f"{place}.role", f"expected {', '.join(_ROLES)} or developer, found {role!r:.80}")
    for name, problem in _OTHER_KINDS.items():
        if message.get(name) is not None:
            _refuse(f"{place}.{name}", problem)
    for name in ("name", "tool_call_id"):
        if not isinstance(message.get(name), str | None):
            _refuse(f"{place}.{name}", f"expected text, found {message[name]!r:.80}")
    normal = {**message, "role": role, "content": _content(place, role, message)}
    calls = message.get("tool_calls")
    if calls is None:
        normal.pop("tool_calls", None)
    elif isinstance(calls, (str, bytes)) or not isinstance(calls, Sequence):
        _refuse(f"{place}.tool_calls", f"expected a list, found {type(calls).__name__}")
    else:
        normal["tool_calls"] = [_normalise_call(f"{place}.tool_calls[{i}]", call) for i, call in enumerate(calls)]
    return normal


def _content(place: str, role: str, message: Mapping[str, Any]) -> str:
    content = message.get("content")
    if isinstance(content, str):
        return content
    if content is None:
        if role != "assistant":
            _refuse(f"{place}.content", f"a message of role {role} needs content")
        refusal = message.get("refusal")
        if not isinstance(refusal, str | None):
            _refuse(f"{place}.refusal", f"expected text, found {refusal!r:.80}")
        if refusal is None and not any(message.get(name) for name in _INSTEAD_OF_CONTENT):
            _refuse(f"{place}.content", "an assistant that calls no tool needs content")
        return refusal or ""
    if isinstance(content, Mapping) or not isinstance(content, Sequence):
        _refuse(f"{place}.content", f"expected text or a list of text parts, found {type(content).__name__}")
    return "".join([_part_text(f"{place}.content[{index}]", role, part) for index, part in enumerate(content)])


def _part_text(place: str, role: str, part: Any) -> str:
    if isinstance(part, str):
        return part
    kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
    if role == "assistant" and kind == "refusal" and isinstance(part.get("refusal"), str):
        return str(part["refusal"])  # what it said instead of an answer
    if kind != "text":
        _refuse(place, f"this model reads text parts only, found one of type {kind!r:.80}")
    if not isinstance(part.get("text"), str):
        _refuse(f"{place}.text", f"expected text, found {part.get('text')!r:.80}")
    text: str = part["text"]
    return text


def _normalise_call(place: str, call: Any) -> dict[str, Any]:
    function = call.get("function", call) if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        _refuse(place, "expected a function with a name")
    if not isinstance(call.get("id"), str | None):
        _refuse(f"{place}.id", f"expected text, found {call['id']!r:.80}")
    arguments = _parse_arguments(f"{place}.function.arguments", function["name"], function.get("arguments"))
    return {
        **(call if "function" in call else {}),
        "type": "function",
        "function": {**function, "arguments": arguments},
    }


def _parse_arguments(place: str, name: str, arguments: Any) -> dict[str, Any]:
    if arguments is None or (isinstance(arguments, str) and not arguments.strip()):
        return {}
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments, parse_constant=_refuse_constant)
        except (ValueError, RecursionError) as error:
            _refuse(place, f"the arguments of the call to {name!r:.80} are not JSON: {error}")
    if not isinstance(arguments, Mapping):
        _refuse(place, f"the arguments of the call to {name!r:.80} expected as an object, found {arguments!r:.80}")
    return dict(arguments)


def _refuse_constant(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON value")


def _refuse(place: str, problem: str) -> NoReturn:
    raise UsageError(f"{place}: {problem}", field=place)
