"""Fifty answers at a high temperature, by ten schemas: each must be valid, as an independent validator sees it."""

from __future__ import annotations

import json
from typing import Any

import httpx
import jsonschema
import pytest
from test_chat_api import ask
from test_structured import schema_format

TEXT = {"type": "string", "maxLength": 12}
DIGIT = {"type": "integer", "minimum": 0, "maximum": 9}


def record(**properties: Any) -> dict[str, Any]:
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


@pytest.mark.model
@pytest.mark.slow
@pytest.mark.parametrize("schema", SCHEMAS, ids=range(len(SCHEMAS)))
def test_answers_are_valid_however_wild(http: httpx.Client, schema: dict[str, Any]) -> None:
    for seed in range(5):
        fields = {"response_format": schema_format(schema), "temperature": 1.5, "seed": seed, "max_tokens": 300}
        [choice] = ask(http, **fields).json()["choices"]
        assert choice["finish_reason"] == "stop"
        jsonschema.validate(json.loads(choice["message"]["content"]), schema)
