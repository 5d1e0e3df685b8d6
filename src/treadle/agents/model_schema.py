"""Makes of the JSON schema that pydantic writes one for language models.

Leaves to others: what the schema is of (``signature``, ``answer_shape``).
"""

from __future__ import annotations

from typing import Any

__all__ = ["for_model"]

_VALUES = ("default", "const", "enum", "examples")


def for_model(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema without the titles that only repeat names, and with its objects closed.

    Pydantic ignores keys that it does not know unless it is told what to do with them. A model that may write them
    does so, and they would be lost.
    """
    tidied: dict[str, Any] = _tidied(schema)
    return tidied


def _tidied(schema: Any, *, is_names: bool = False) -> Any:
    """Tidy what is below a keyword; ``is_names``: the keys are names, not keywords."""
    if isinstance(schema, list):
        return [_tidied(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    if is_names:
        return {name: _tidied(each) for name, each in schema.items()}
    found = {
        key: value if key in _VALUES else _tidied(value, is_names=key in ("properties", "$defs"))
        for key, value in schema.items()
        if key != "title"
    }
    if "properties" in found:
        found.setdefault("additionalProperties", False)
    return found
