"""Reads the JSON in which most dialects write a call.

Leaves to others: where in the answer that JSON is (the dialects).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, NoReturn

from treadle.models.tool_dialects.parts import ToolCall, ToolSchemas

__all__ = ["DECODER", "call_from", "calls_in", "dump_arguments", "read_number"]


def _refuse_constant(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON value")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name occurs twice in one object, so that a value would be lost")
    return found


# Models put raw newlines and tabs into strings; read as what they plainly mean. Everything else stays strict.
DECODER = json.JSONDecoder(strict=False, parse_constant=_refuse_constant, object_pairs_hook=_object)


def calls_in(text: str, tools: ToolSchemas) -> list[ToolCall] | None:
    """Read one call, or a list of calls; ``None`` when the text is not that."""
    try:
        value = DECODER.decode(text.strip())
    except (ValueError, RecursionError):
        return None
    values = value if isinstance(value, list) else [value]
    calls = [call_from(each, tools) for each in values]
    return None if not calls or None in calls else [call for call in calls if call is not None]


def call_from(value: Any, tools: ToolSchemas) -> ToolCall | None:
    """Read an object with a name and ``arguments`` (or ``parameters``); ``None`` when it is no call.

    Arguments may be an object or its JSON text. Missing or empty ones mean none at all, which only a function that
    requires none may be called with; they never replace arguments that could not be read.
    """
    if not isinstance(value, Mapping):
        return None
    name = value.get("name")
    if not isinstance(name, str) or not name or ("arguments" in value and "parameters" in value):
        return None
    arguments = value.get("arguments", value.get("parameters"))
    if isinstance(arguments, str) and arguments.strip():
        try:
            arguments = DECODER.decode(arguments.strip())
        except (ValueError, RecursionError):
            return None
    elif arguments is None or arguments == "":
        if tools.get(name, {}).get("required"):
            return None
        arguments = {}
    if not isinstance(arguments, Mapping):
        return None
    return ToolCall(name, dump_arguments(arguments))


def dump_arguments(arguments: Mapping[str, Any]) -> str:
    """Return arguments as JSON text."""
    return json.dumps(arguments, ensure_ascii=False)


def read_number(word: str) -> int | float | None:
    """Read a number that JSON can hold, of any number of digits; ``None`` when it is none."""
    try:
        return int(word)
    except ValueError:
        pass
    try:
        number = float(word)
    except ValueError:
        return None
    return number if math.isfinite(number) else None
