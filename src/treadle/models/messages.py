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


def normalise_messages(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Check messages and bring them into one form.

    ``developer`` becomes ``system``. Content becomes a string: text parts are put together in order, and an assistant
    may leave it out. Tool calls become ``{"type": "function", "function": {"name", "arguments"}}`` with arguments as
    a mapping, whether they came as JSON text or not; empty text means no arguments. All other fields stay.

    Raises:
        UsageError: There is no message, or one cannot be shown truthfully; the text gives its index.
    """
    if isinstance(messages, (str, bytes, Mapping)) or not isinstance(messages, Sequence):
        raise UsageError(f"messages: expected a list, found {type(messages).__name__}")
    if not messages:
        raise UsageError("messages: expected at least one, found none")
    return [_normalise_message(index, message) for index, message in enumerate(messages)]


def normalise_tools(tools: Sequence[Mapping[str, Any]] | None) -> list[dict[str, Any]] | None:
    """Check tool definitions; none at all is the same as an empty list.

    Raises:
        UsageError: They are not a list of mappings.
    """
    if tools is not None and (isinstance(tools, (str, bytes, Mapping)) or not isinstance(tools, Sequence)):
        raise UsageError(f"tools: expected a list, found {type(tools).__name__}")
    for index, tool in enumerate(tools or ()):
        if not isinstance(tool, Mapping):
            raise UsageError(f"tools[{index}]: expected a mapping, found {type(tool).__name__}")
    return [dict(tool) for tool in tools] if tools else None


def _normalise_message(index: int, message: Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        _refuse(index, f"expected a mapping, found {type(message).__name__}")
    role = message.get("role")
    if role == "developer":
        role = "system"
    if role not in _ROLES:
        _refuse(index, f"expected role {', '.join(_ROLES)} or developer, found {role!r:.80}")
    normal = {**message, "role": role, "content": _join_content(index, role, message.get("content"))}
    calls = message.get("tool_calls")
    if calls is None:
        normal.pop("tool_calls", None)
    elif isinstance(calls, (str, bytes)) or not isinstance(calls, Sequence):
        _refuse(index, f"tool_calls: expected a list, found {type(calls).__name__}")
    else:
        normal["tool_calls"] = [_normalise_call(index, call) for call in calls]
    return normal


def _join_content(index: int, role: str, content: Any) -> str:
    if isinstance(content, str):
        return content
    if content is None:
        if role == "assistant":
            return ""
        _refuse(index, f"a message of role {role} needs content")
    if isinstance(content, Mapping) or not isinstance(content, Sequence):
        _refuse(index, f"content: expected text or a list of text parts, found {type(content).__name__}")
    return "".join([_part_text(index, role, part) for part in content])


def _part_text(index: int, role: str, part: Any) -> str:
    if isinstance(part, str):
        return part
    kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
    if role == "assistant" and kind == "refusal" and isinstance(part.get("refusal"), str):
        return str(part["refusal"])  # what it said instead of an answer
    if kind != "text" or not isinstance(part.get("text"), str):
        _refuse(index, f"content: this model reads text parts only, found one of type {kind!r:.80}")
    text: str = part["text"]
    return text


def _normalise_call(index: int, call: Any) -> dict[str, Any]:
    function = call.get("function", call) if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        _refuse(index, "tool_calls: expected a function with a name in each")
    arguments = _parse_arguments(index, function["name"], function.get("arguments"))
    return {
        **(call if "function" in call else {}),
        "type": "function",
        "function": {**function, "arguments": arguments},
    }


def _parse_arguments(index: int, name: str, arguments: Any) -> dict[str, Any]:
    if arguments is None or (isinstance(arguments, str) and not arguments.strip()):
        return {}
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments, parse_constant=_refuse_constant)
        except (ValueError, RecursionError) as error:
            _refuse(index, f"the arguments of the call to {name!r:.80} are not JSON: {error}")
    if not isinstance(arguments, Mapping):
        _refuse(index, f"the arguments of the call to {name!r:.80} expected as an object, found {arguments!r:.80}")
    return dict(arguments)


def _refuse_constant(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON value")


def _refuse(index: int, problem: str) -> NoReturn:
    raise UsageError(f"messages[{index}]: {problem}")
