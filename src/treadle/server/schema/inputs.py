"""Texts and token ids, one or several, as completions and embeddings take them.

Leaves to others: how many there may be (each route) and what the ids stand for (the engine).
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import PlainValidator, WithJsonSchema

from treadle.server.schema.base import mistake

__all__ = ["Inputs"]

_IDS = {"type": "array", "items": {"type": "integer"}, "minItems": 1}
_SCHEMA = {
    "anyOf": [
        {"type": "string"},
        _IDS,
        {"type": "array", "items": {"anyOf": [{"type": "string"}, _IDS]}, "minItems": 1},
    ]
}


def _read(value: Any) -> list[str | list[int]]:
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list) or not value:
        raise mistake("", "expected text, a list of token ids, or a list of one or more of either")
    if type(value[0]) is int:
        return [_ids(value, "")]
    return [each if isinstance(each, str) else _ids(each, f"[{index}]") for index, each in enumerate(value)]


def _ids(value: Any, place: str) -> list[int]:
    if not isinstance(value, list) or not value:
        raise mistake(place, "expected text or a list of token ids that is not empty")
    for index, each in enumerate(value):
        if type(each) is not int:
            raise mistake(f"{place}[{index}]", "expected a token id, an integer, as those before it")
    return value


# What to read, one entry each, in whatever of its forms it was sent.
Inputs = Annotated[list[str | list[int]], PlainValidator(_read), WithJsonSchema(_SCHEMA)]
