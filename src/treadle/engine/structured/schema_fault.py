"""Finds out what the grammar engine refuses in a grammar: which part of a schema, and in which words.

Leaves to others: what Treadle refuses by itself (``structured.json_schema``).
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from typing import Any

from treadle.engine.structured.schema_refs import child_path

__all__ = ["explain"]

_MAX_SECONDS = 2.0  # of CPU time: what is said must not depend on how busy the machine is
_RULE = re.compile(r"%json (?=\{)")
_PLACE = re.compile(r"^at \d+\(\d+\): |failed to compile JSON schema: ")
_CAUSE = re.compile(r"^error: (.+)$", re.MULTILINE)
_ONE_OF = "oneOf constraints are not supported"
_WITHIN_CALL = "#/properties/arguments", "#/properties/parameters"


def explain(rules: str, error: str) -> str:
    """Return what is wrong with ``rules``, of which the grammar engine says ``error``."""
    for match in _RULE.finditer(rules):
        schema, _ = json.JSONDecoder().raw_decode(rules, match.end())
        found = _error_of(schema)
        if found:
            path, found = _descend(schema, found)
            return f"{path}: {_in_short(found)}"
    return _in_short(error)


def _error_of(schema: Any) -> str:
    import llguidance  # noqa: PLC0415  only structured answers need it

    matcher = llguidance.LLMatcher
    return matcher.validate_grammar(matcher.grammar_from_lark(f"start: %json {json.dumps(schema)}"))


def _descend(schema: dict[str, Any], error: str) -> tuple[str, str]:
    """Return the path of the innermost part that is refused by itself, and why."""
    definitions, options = schema.get("$defs", {}), schema.get("x-guidance", {})
    deadline = time.thread_time() + _MAX_SECONDS
    path, node, seen = "#", schema, set[str]()
    while True:
        for child, part in _parts(node, path):
            if time.thread_time() > deadline:
                return _outside(path), error
            if not isinstance(part, dict) or child in seen:
                continue
            seen.add(child)
            found = _error_of({**part, "$defs": definitions, "x-guidance": options})
            if found:
                path, node, error = child, part, found
                break
        else:
            return _outside(path), error


def _outside(path: str) -> str:
    """Return a path as the caller knows it: arguments of a call are a schema of their own."""
    for frame in _WITHIN_CALL:
        if path.startswith(frame):
            return "#" + path.removeprefix(frame)
    definition, _, rest = path.removeprefix("#/$defs/").partition("/")
    if not path.startswith("#/$defs/"):
        return path
    return definition.replace("~1", "/").replace("~0", "~") + (f"/{rest}" if rest else "")


def _parts(node: dict[str, Any], path: str) -> Iterator[tuple[str, Any]]:
    for key in ("properties", "patternProperties", "$defs"):
        for name, each in node.get(key, {}).items():
            yield child_path(child_path(path, key), name), each
    for key in ("allOf", "anyOf", "oneOf", "prefixItems"):
        for index, each in enumerate(node.get(key, ())):
            yield child_path(child_path(path, key), index), each
    for key in ("items", "additionalProperties"):
        if key in node:
            yield child_path(path, key), node[key]


def _in_short(error: str) -> str:
    if _ONE_OF in error:
        return "'oneOf' can be enforced where no value satisfies two of its schemas; say 'anyOf' otherwise"
    cause = _CAUSE.search(error)
    first = error.strip().partition("\n")[0]
    text = _PLACE.sub("", _PLACE.sub("", first))
    return f"{text} {cause[1]}"[:300] if cause else text[:300]
