"""What is said of a field that is wrong: what was expected, and what was found."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import ValidationError

from treadle.server.errors import ApiError, invalid_body
from treadle.server.schema.chat import ChatRequest


def refusal(body: str) -> ApiError:
    with pytest.raises(ValidationError) as caught:
        ChatRequest.model_validate_json(body)
    return invalid_body(caught.value)


@pytest.mark.parametrize(
    ("field", "value", "sentence"),
    [
        ("temperature", 3, "temperature: expected a number less than or equal to 2, found 3"),
        ("n", 0, "n: expected a number greater than or equal to 1, found 0"),
        ("max_tokens", "many", "max_tokens: expected a valid integer, found 'many'"),
        ("stop", [1], "stop[0]: expected a valid string, found 1"),
        ("tools", {}, "tools: expected a valid array, found an object"),
        ("tools", "x" * 500, "tools: expected a valid array, found 'xxx"),
        (
            "response_format",
            {"type": "xml"},
            "response_format.type: expected 'text', 'json_object' or 'json_schema', found",
        ),
        ("tool_choice", None, None),
        ("tool_choice", [], "found a list; or expected an object, found a list"),
    ],
)
def test_expected_and_found(field: str, value: Any, sentence: str | None) -> None:
    body = json.dumps({"messages": [{"role": "user", "content": "x"}], field: value})
    if sentence is None:
        ChatRequest.model_validate_json(body)
        return
    error = refusal(body)
    assert sentence in str(error)
    assert len(str(error)) < 200
    assert error.param == sentence.partition(":")[0] or field == "tool_choice"


def test_what_is_no_json() -> None:
    assert refusal('{"messages": [').message.startswith("the body is not JSON: EOF while parsing a list at line 1")
    assert refusal("[1]").message == "expected an object, found a list"
