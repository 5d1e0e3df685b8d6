"""Reads the arguments that a model wrote for a call: all of them as they were meant, or not at all.

Leaves to others: fitting values to the schema (``coercion``), and finding calls in an answer (``answer_calls``).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from treadle.agents.bounded_text import preview
from treadle.agents.coercion import fit
from treadle.agents.tool import ToolSpec
from treadle.errors import ToolError
from treadle.models.tool_dialects.call_json import DECODER

__all__ = ["canonical", "decode_arguments", "read_arguments", "usage_of"]

_MAX_USAGE_CHARS = 1000


def read_arguments(text: str, spec: ToolSpec) -> dict[str, Any]:
    """Return the arguments in ``text``, fitted to the schema of the tool without loss.

    Raw line ends and tabs in strings are taken as what they mean. No text at all, or ``null``, means no arguments,
    where none is required. Everything else that is no JSON object is refused.

    Raises:
        ToolError: They are not what the tool takes; the text is for the model.
    """
    value = decode_arguments(text, spec.parameters)
    if value is None:
        value = {}
    fitted, problems = fit(value, spec.parameters)
    if problems:
        raise ToolError(f"{'; '.join(problems)}. {usage_of(spec)}")
    return dict(fitted)


def decode_arguments(text: str, schema: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the object that ``text`` is, None if it says that there are no arguments.

    Raises:
        ToolError: It is no JSON object, or nothing where something is required.
    """
    stripped = text.strip()
    required = ", ".join(schema.get("required", ()))
    if not stripped or stripped == "null":
        if required:
            raise ToolError(f"the arguments are missing; required: {required}")
        return None
    try:
        value = DECODER.decode(stripped)
    except (ValueError, RecursionError) as error:
        raise ToolError(f"the arguments are not JSON: {_explain(error)}; found: {preview(text)}") from None
    if not isinstance(value, dict):
        raise ToolError(f"the arguments: expected an object with their names as keys, found: {preview(text)}")
    return value


def usage_of(spec: ToolSpec) -> str:
    """Return in a line what a tool takes."""
    schema = spec.parameters
    required = schema.get("required", ())
    entries = [
        f"{name} ({_kind(each)}{', required' if name in required else ''})"
        for name, each in schema.get("properties", {}).items()
    ]
    text = f"{spec.name} takes {', '.join(entries) or 'no arguments'}"
    return preview(text, _MAX_USAGE_CHARS)


def canonical(name: str, arguments: Mapping[str, Any] | str) -> str:
    """Return one text for all spellings of the same call: order of keys and white space do not count."""
    if isinstance(arguments, str):
        try:
            arguments = DECODER.decode(arguments)
        except (ValueError, RecursionError):
            return f"{name} {arguments}"
    return f"{name} {json.dumps(arguments, sort_keys=True, ensure_ascii=False)}"


def _kind(schema: Any) -> str:
    if not isinstance(schema, Mapping):
        return "anything"
    if "enum" in schema:
        return "one of " + ", ".join(json.dumps(each, ensure_ascii=False) for each in schema["enum"])
    if "type" in schema:
        kinds = schema["type"]
        return kinds if isinstance(kinds, str) else " or ".join(map(str, kinds))
    choices = schema.get("anyOf") or schema.get("oneOf")
    return " or ".join(_kind(each) for each in choices) if choices else "object" if "$ref" in schema else "anything"


def _explain(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "they are nested too deeply"
    text = str(error)
    # Where a value is written is no help to a model; what is wrong with it may be.
    return text + (r" (in JSON a backslash is written \\)" if "escape" in text else "")
