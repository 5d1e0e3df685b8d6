"""What servers say of their tools, made safe to show: names, descriptions and schemas, all of them bounded.

Leaves to others: talking to the servers (``mcp_client``).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping
from hashlib import blake2b
from typing import Any

from treadle.errors import ToolError

__all__ = ["bounded_schema", "bounded_text", "tool_name"]

_MAX_NAME_CHARS = 64
_MAX_DESCRIPTION_CHARS = 1000
_MAX_SCHEMA_CHARS = 16_000
_MAX_DEPTH = 12
_MAX_CHOICES = 200
_TYPES = frozenset({"string", "integer", "number", "boolean", "null", "array", "object"})
# Keywords by what their values are; others, and values of another kind, are left out: they say less than they cost.
_NUMBERS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
_COUNTS = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")
_LISTS = ("anyOf", "oneOf", "allOf")
_MAPS = ("properties", "$defs", "definitions")


def tool_name(server: str, tool: str, taken: Collection[str]) -> str:
    """Return a name for a tool of a server that no other has; characters that a name cannot have become ``_``."""
    plain = re.sub(r"[^A-Za-z0-9_-]", "_", f"{server}_{tool}")
    if len(plain) <= _MAX_NAME_CHARS and plain not in taken:
        return plain
    digest = blake2b(f"{server}\0{tool}".encode("utf-8", "replace"), digest_size=4).hexdigest()
    return f"{plain[: _MAX_NAME_CHARS - len(digest) - 1]}_{digest}"


def bounded_text(text: str, most: int = _MAX_DESCRIPTION_CHARS) -> str:
    """Return text of a server without control characters and characters that nobody sees, and not too much of it."""
    clean = "".join(char for char in text[: 2 * most] if char in "\n\t" or char.isprintable()).strip()
    return clean if len(clean) <= most else f"{clean[:most]}..."


def bounded_schema(schema: Any) -> dict[str, Any]:
    """Return a schema of arguments with nothing in it but keywords that are known and well-formed.

    Raises:
        ToolError: It is no schema of an object, too deep or too long.
    """
    if not isinstance(schema, Mapping) or schema.get("type", "object") != "object":
        raise ToolError("its arguments are no object")
    cleaned = {**_clean(schema, 0), "type": "object"}
    cleaned.setdefault("properties", {})
    if len(json.dumps(cleaned)) > _MAX_SCHEMA_CHARS:
        raise ToolError(f"the schema of its arguments has more than {_MAX_SCHEMA_CHARS:,} characters")
    return cleaned


def _clean(schema: Any, depth: int) -> dict[str, Any]:
    if depth > _MAX_DEPTH:
        raise ToolError(f"the schema of its arguments is nested deeper than {_MAX_DEPTH}")
    if not isinstance(schema, Mapping):
        return {}  # as `true` says: anything
    kept: dict[str, Any] = {}
    for key, value in schema.items():
        if key in _MAPS and isinstance(value, Mapping):
            kept[key] = {str(name)[:_MAX_DESCRIPTION_CHARS]: _clean(each, depth + 1) for name, each in value.items()}
        elif key in _LISTS and isinstance(value, list) and 0 < len(value) <= _MAX_CHOICES:
            kept[key] = [_clean(each, depth + 1) for each in value]
        elif key in ("items", "additionalProperties") and isinstance(value, Mapping):
            kept[key] = _clean(value, depth + 1)
        elif _is_sound(key, value):
            kept[key] = bounded_text(value) if key == "description" else value
    if "required" in kept:
        kept["required"] = [name for name in kept["required"] if name in kept.get("properties", {})]
    return kept


def _is_sound(key: str, value: Any) -> bool:
    """Tell whether a keyword that has no schemas in it is one that is known, with a value as it must be."""
    check = _SOUND.get(key)
    return check is not None and check(value)


def _is_type(value: Any) -> bool:
    return value in _TYPES if isinstance(value, str) else isinstance(value, list) and {*map(str, value)} <= _TYPES


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and _is_number(value) and value >= 0


_SOUND: Mapping[str, Callable[[Any], bool]] = {
    "type": _is_type,
    "$ref": lambda value: isinstance(value, str) and value.startswith("#/"),
    "required": lambda value: isinstance(value, list) and all(isinstance(each, str) for each in value),
    "enum": lambda value: isinstance(value, list) and 0 < len(value) <= _MAX_CHOICES,
    "description": lambda value: isinstance(value, str),
    "additionalProperties": lambda value: value is False,
    **dict.fromkeys(("const", "default"), lambda _: True),
    **dict.fromkeys(_NUMBERS, _is_number),
    **dict.fromkeys(_COUNTS, _is_count),
}
