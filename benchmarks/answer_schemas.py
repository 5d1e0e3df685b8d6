"""Ten schemas that end whatever a model says: all strings and lists in them are bounded.

Leaves to others: asking for answers (``structured.py``, the tests of the server).
"""

from __future__ import annotations

from typing import Any

__all__ = ["SCHEMAS", "record"]

TEXT = {"type": "string", "maxLength": 12}
DIGIT = {"type": "integer", "minimum": 0, "maximum": 9}


def record(**properties: Any) -> dict[str, Any]:
    """Return the schema of an object with all of these properties and no other."""
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


SCHEMAS: list[dict[str, Any]] = [
    record(name=TEXT, age=DIGIT),
    record(tags={"type": "array", "items": TEXT, "maxItems": 4}),
    record(person=record(first=TEXT, last=TEXT), is_new={"type": "boolean"}),
    {"type": "array", "items": record(x=DIGIT, y=DIGIT), "minItems": 1, "maxItems": 3},
    {"anyOf": [record(error=TEXT), record(value=DIGIT)]},
    {"$defs": {"p": record(x=DIGIT)}, "type": "array", "items": {"$ref": "#/$defs/p"}, "minItems": 2, "maxItems": 2},
    record(level={"enum": ["low", "high", None, 3]}, note=TEXT),
    record(code={"type": "string", "pattern": "^[A-Z]{2}[0-9]{4}$"}),
    {"type": "object", "properties": {"a": TEXT, "b": DIGIT}, "required": ["b"], "additionalProperties": False},
    record(matrix={"type": "array", "items": {"type": "array", "items": DIGIT, "maxItems": 3}, "maxItems": 3}),
]
