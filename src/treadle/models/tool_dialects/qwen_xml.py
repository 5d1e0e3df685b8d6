"""The dialect of Qwen's coding models: one tag per argument, its value as plain text."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from treadle.models.tool_dialects.call_json import DECODER, call_from
from treadle.models.tool_dialects.hermes import CLOSING, OPENING
from treadle.models.tool_dialects.marked import MarkedParser
from treadle.models.tool_dialects.parts import AnswerParser, ToolCall, ToolSchemas

__all__ = ["qwen_xml_parser", "value_of"]

_CALL = re.compile(r"\s*<function=([^>\n]+)>(.*)</function>\s*", re.DOTALL)
_ARGUMENT = re.compile(r"\s*<parameter=([^>\n]+)>\n?(.*?)\n?</parameter>", re.DOTALL)


def qwen_xml_parser(tools: ToolSchemas) -> AnswerParser:
    """Read calls such as ``<tool_call><function=f><parameter=x>1</parameter></function></tool_call>``."""

    def read(body: str) -> list[ToolCall] | None:
        match = _CALL.fullmatch(body)
        if match is None:
            return None
        arguments = _arguments(match[2], tools.get(match[1], {}))
        call = None if arguments is None else call_from({"name": match[1], "arguments": arguments}, tools)
        return None if call is None else [call]

    return MarkedParser((OPENING,), CLOSING, read)


def _arguments(text: str, schema: Mapping[str, Any]) -> dict[str, Any] | None:
    properties = schema.get("properties", {})
    found: dict[str, Any] = {}
    at = 0
    while match := _ARGUMENT.match(text, at):
        found[match[1]] = value_of(match[2], properties.get(match[1], {}))
        at = match.end()
    return found if not text[at:].strip() else None


def value_of(text: str, schema: Any) -> Any:
    """Read a value as the type its schema asks for; text stays text."""
    kind = schema.get("type") if isinstance(schema, Mapping) else None
    if kind in (None, "string"):
        return text
    try:
        return DECODER.decode(text.strip())
    except (ValueError, RecursionError):
        return text
