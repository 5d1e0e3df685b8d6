"""Fits a JSON value to a schema without loss, or says where it does not fit.

What is changed says the same in another spelling: ``"3"`` where an integer is asked, JSON text where an object is. No
key is added or left out, no number rounded.

Leaves to others: reading the text that the value comes from (``arguments``), and what a tool checks itself: patterns,
formats, and keywords that are not known here.
"""

from __future__ import annotations

import json
import math
import operator
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

from treadle.agents.bounded_text import preview
from treadle.models.tool_dialects.call_json import DECODER

__all__ = ["fit"]

_MAX_DEPTH = 64
_TOP = "the arguments"
_MAX_PROBLEMS = 5
_EXACT_FLOAT = 2**53  # above this a float may stand for other integers, too
_WORDS = {"true": True, "false": False, "True": True, "False": False}
_NAMES = {
    "string": "a string",
    "integer": "an integer",
    "number": "a number",
    "boolean": "true or false",
    "null": "null",
    "array": "a list",
    "object": "an object",
}
_RANGES = (
    ("minimum", "at least", operator.ge),
    ("maximum", "at most", operator.le),
    ("exclusiveMinimum", "more than", operator.gt),
    ("exclusiveMaximum", "less than", operator.lt),
)
_NOTHING = object()


def fit(value: Any, schema: Mapping[str, Any]) -> tuple[Any, list[str]]:
    """Return the value as the schema asks for it, and what does not fit, each with its place; at most five."""
    fitting = _Fitting(schema)
    fitted = fitting.fit(value, schema, "", 0)
    return fitted, fitting.problems[:_MAX_PROBLEMS]


class _Fitting:
    def __init__(self, root: Mapping[str, Any], *, coerces: bool = True) -> None:
        self._root = root
        self._coerces = coerces
        self.problems: list[str] = []

    def fit(self, value: Any, schema: Any, path: str, depth: int) -> Any:
        if schema is True or schema == {}:
            return value
        if not isinstance(schema, Mapping) or depth > _MAX_DEPTH:
            return self._problem(path, "nothing that could fit" if schema is False else "a simpler value", value)
        if "$ref" in schema:
            value = self.fit(value, self._resolve(schema["$ref"]), path, depth + 1)
        for each in schema.get("allOf", ()):
            value = self.fit(value, each, path, depth + 1)
        for keyword in ("anyOf", "oneOf"):
            if keyword in schema:
                value = self._one_of(value, schema[keyword], path, depth)
        if "type" in schema:
            value = self._typed(value, schema["type"], path)
        if "enum" in schema:
            value = self._listed(value, schema["enum"], path)
        if "const" in schema:
            value = self._listed(value, [schema["const"]], path)
        return self._inner(value, schema, path, depth)

    def _inner(self, value: Any, schema: Mapping[str, Any], path: str, depth: int) -> Any:
        if isinstance(value, dict):
            return self._object(value, schema, path, depth)
        if isinstance(value, list):
            return self._array(value, schema, path, depth)
        if isinstance(value, str):
            self._bounds(len(value), schema, ("minLength", "maxLength"), path, "characters")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            self._range(value, schema, path)
        return value

    def _object(self, value: dict[str, Any], schema: Mapping[str, Any], path: str, depth: int) -> dict[str, Any]:
        properties = schema.get("properties", {})
        for name in schema.get("required", ()):
            if name not in value:
                self.problems.append(f"{_at(path, name)}: is required and missing")
        rest = schema.get("additionalProperties", True)
        if "patternProperties" in schema:
            rest = True
        fitted = {}
        for name, each in value.items():
            if name in properties or rest is not False:
                fitted[name] = self.fit(each, properties.get(name, rest), _at(path, name), depth + 1)
            else:
                known = ", ".join(map(str, properties)) or "none"
                self.problems.append(f"{_at(path, name)}: is unknown, expected only: {known}")
        return fitted

    def _array(self, value: list[Any], schema: Mapping[str, Any], path: str, depth: int) -> list[Any]:
        first = schema.get("prefixItems", ())
        rest = schema.get("items", True)
        self._bounds(len(value), schema, ("minItems", "maxItems"), path, "items")
        schemas = [first[index] if index < len(first) else rest for index in range(len(value))]
        return [
            self.fit(each, inner, f"{path}[{index}]", depth + 1)
            for index, (each, inner) in enumerate(zip(value, schemas, strict=True))
        ]

    def _one_of(self, value: Any, schemas: Sequence[Any], path: str, depth: int) -> Any:
        """Take the value as it is if a schema takes it so, else in the only way in which any of them does."""
        found: list[Any] = []
        problems: list[str] = []
        for coerces in (False, True) if self._coerces else (False,):
            for schema in schemas:
                attempt = _Fitting(self._root, coerces=coerces)
                fitted = attempt.fit(value, schema, path, depth + 1)
                if not attempt.problems:
                    found.append(fitted)
                else:
                    problems += [each for each in attempt.problems if each not in problems]
            if found:
                break
        if found and all(_is_same(each, found[0]) for each in found):
            return found[0]
        self.problems.append(f"{path or _TOP}: can be meant in more than one way" if found else "; or ".join(problems))
        return value

    def _typed(self, value: Any, kinds: Any, path: str) -> Any:
        kinds = [kinds] if isinstance(kinds, str) else list(kinds)
        for kind in kinds:
            if _is_a(value, kind):
                return int(value) if kind == "integer" and isinstance(value, float) else value
        found = [each for kind in kinds if (each := _coerced(value, kind)) is not _NOTHING] if self._coerces else []
        if found and all(_is_same(each, found[0]) for each in found):
            return found[0]
        return self._problem(path, " or ".join(_NAMES.get(kind, str(kind)) for kind in kinds), value)

    def _listed(self, value: Any, choices: Sequence[Any], path: str) -> Any:
        if any(_is_same(value, each) for each in choices):
            return value
        if self._coerces:
            found = [each for each in choices if _is_same(_coerced(value, _kind_of(each)), each)]
            if len(found) == 1:
                return found[0]
        return self._problem(path, f"one of {', '.join(_json(each) for each in choices)}", value)

    def _bounds(self, length: int, schema: Mapping[str, Any], names: tuple[str, str], path: str, what: str) -> None:
        least, most = schema.get(names[0], 0), schema.get(names[1], length)
        if not least <= length <= most:
            wanted = f"at least {least}" if length < least else f"at most {most}"
            self.problems.append(f"{path or _TOP}: expected {wanted} {what}, found {length}")

    def _range(self, value: float, schema: Mapping[str, Any], path: str) -> None:
        for keyword, words, holds in _RANGES:
            limit = schema.get(keyword)
            if isinstance(limit, int | float) and not isinstance(limit, bool) and not holds(value, limit):
                self._problem(path, f"{words} {limit}", value)

    def _resolve(self, reference: Any) -> Any:
        """Return what a reference into the schema itself points at; all others are left to the tool."""
        if not isinstance(reference, str) or not reference.startswith("#"):
            return True
        found: Any = self._root
        for part in reference[1:].strip("/").split("/") if reference != "#" else ():
            key = part.replace("~1", "/").replace("~0", "~")
            found = found.get(key, True) if isinstance(found, Mapping) else True
        return found

    def _problem(self, path: str, expected: str, value: Any) -> Any:
        self.problems.append(f"{path or _TOP}: expected {expected}, found {preview(_json(value), 80)}")
        return value


def _is_a(value: Any, kind: str) -> bool:
    if isinstance(value, bool):
        return kind == "boolean"
    if isinstance(value, int):
        return kind in ("integer", "number")
    if isinstance(value, float):
        if kind == "integer":
            return value.is_integer() and abs(value) < _EXACT_FLOAT
        return kind == "number" and math.isfinite(value)
    return kind == _kind_of(value)


def _kind_of(value: Any) -> str:
    if isinstance(value, bool):
        return "boolean"
    kinds = {int: "integer", float: "number", str: "string", list: "array", dict: "object", type(None): "null"}
    return kinds.get(type(value), "unknown")


def _coerced(value: Any, kind: str) -> Any:
    """Return the value in another spelling, ``_NOTHING`` where that would lose or guess something."""
    if kind == "string":
        return str(value) if isinstance(value, int) and not isinstance(value, bool) else _NOTHING
    if not isinstance(value, str):
        return _NOTHING
    if kind == "boolean":
        return _WORDS.get(value.strip(), _NOTHING)
    read = _read_json(value.strip())
    if not _is_a(read, kind):
        return _NOTHING
    return int(read) if kind == "integer" else read


def _read_json(text: str) -> Any:
    """Return the value that ``text`` writes, ``_NOTHING`` if it is no JSON or a number that a float only comes near."""
    try:
        read = DECODER.decode(text)
    except (ValueError, RecursionError):
        return _NOTHING
    if isinstance(read, float) and Decimal(text) != Decimal(repr(read)):
        return _NOTHING
    return read


def _is_same(one: Any, other: Any) -> bool:
    """Compare as JSON does: 1.0 is 1, and true is not."""
    return isinstance(one, bool) == isinstance(other, bool) and bool(one == other)


def _at(path: str, name: str) -> str:
    return f"{path}.{name}" if path else str(name)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)
