"""Fifty answers at a high temperature, by ten schemas: each must be valid, as an independent validator sees it."""

from __future__ import annotations

import json
from typing import Any

import httpx
import jsonschema
import pytest
from answer_schemas import SCHEMAS
from test_chat_api import ask
from test_structured import schema_format


@pytest.mark.model
@pytest.mark.slow
@pytest.mark.parametrize("schema", SCHEMAS, ids=range(len(SCHEMAS)))
def test_answers_are_valid_however_wild(http: httpx.Client, schema: dict[str, Any]) -> None:
    for seed in range(5):
        fields = {"response_format": schema_format(schema), "temperature": 1.5, "seed": seed, "max_tokens": 300}
        [choice] = ask(http, **fields).json()["choices"]
        assert choice["finish_reason"] == "stop"
        jsonschema.validate(json.loads(choice["message"]["content"]), schema)
