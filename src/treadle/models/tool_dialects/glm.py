"""The dialect of GLM: the name between ``<tool_call>`` tags, then a pair of tags for each argument."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from treadle.models.tool_dialects.call_json import call_from
from treadle.models.tool_dialects.hermes import CLOSING, OPENING
from treadle.models.tool_dialects.marked import MarkedParser
from treadle.models.tool_dialects.parts import AnswerParser, ToolCall, ToolSchemas
from treadle.models.tool_dialects.qwen_xml import value_of

__all__ = ["CONTROL_TOKENS", "glm_parser"]

CONTROL_TOKENS = (OPENING, CLOSING, "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>")
_NAME = re.compile(r"\s*([^\s<]+)\s*")
_ARGUMENT = re.compile(r"\s*<arg_key>([^<]+)</arg_key>\s*<arg_value>(.*?)</arg_value>\s*", re.DOTALL)


def glm_parser(tools: ToolSchemas) -> AnswerParser:
    """Read calls such as ``<tool_call>f<arg_key>x</arg_key><arg_value>1</arg_value></tool_call>``."""

    def read(body: str) -> list[ToolCall] | None:
        name = _NAME.match(body)
        if name is None:
            return None
        arguments = _arguments(body, name.end(), tools.get(name[1], {}))
        call = None if arguments is None else call_from({"name": name[1], "arguments": arguments}, tools)
        return None if call is None else [call]

    return MarkedParser((OPENING,), CLOSING, read)


def _arguments(text: str, at: int, schema: Mapping[str, Any]) -> dict[str, Any] | None:
    properties = schema.get("properties", {})
    found: dict[str, Any] = {}
    while match := _ARGUMENT.match(text, at):
        name = match[1].strip()
        if name in found:  # one of the values would be lost
            return None
        found[name] = value_of(match[2], properties.get(name, {}))
        at = match.end()
    return found if at == len(text) else None
