"""Answers that must have a form: JSON schemas and tool calls, streamed and not."""

from __future__ import annotations

import json
import re
from typing import Any

import httpx
import jsonschema
import pytest
from test_chat_api import ask, events

pytestmark = pytest.mark.model

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 20}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
NOW = {"type": "function", "function": {"name": "now"}}
HELLO = [{"role": "user", "content": "hello"}]
LINKED_LIST = {
    "$defs": {
        "n": {
            "type": "object",
            "properties": {
                "v": {"type": "integer", "minimum": 0, "maximum": 9},
                "next": {"anyOf": [{"$ref": "#/$defs/n"}, {"type": "null"}]},
            },
            "required": ["v", "next"],
            "additionalProperties": False,
        }
    },
    "$ref": "#/$defs/n",
}


def function(name: str, parameters: Any = None) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


def schema_format(schema: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "f", "strict": True, "schema": schema}}


def force(text: str) -> dict[str, Any]:
    return schema_format({"type": "string", "enum": [text]})


def content_of(found: list[Any]) -> str:
    return "".join(event["choices"][0]["delta"].get("content") or "" for event in found[:-1])


@pytest.mark.parametrize("text", ["안녕하세요 😀 สวัสดี ďábel 🇰🇷", "alpha beta gamma delta", 'quote " \\ and\nline'])
def test_a_forced_answer_is_exact_in_both_modes(http: httpx.Client, text: str) -> None:
    fields = {"response_format": force(text), "max_tokens": 200}
    [choice] = ask(http, **fields).json()["choices"]
    assert json.loads(choice["message"]["content"]) == text
    assert choice["finish_reason"] == "stop"
    found = events(http, logprobs=True, top_logprobs=2, **fields)
    assert content_of(found) == choice["message"]["content"]
    entries = [
        entry for event in found[:-1] for entry in (event["choices"][0]["logprobs"] or {"content": []})["content"]
    ]
    assert bytes(byte for entry in entries for byte in entry["bytes"]).decode() == choice["message"]["content"]


def test_characters_are_never_cut_by_a_limit(http: httpx.Client) -> None:
    whole = ask(http, response_format=force("안녕 😀"), max_tokens=64).json()["choices"][0]["message"]["content"]
    for limit in range(1, 12):
        fields = {"response_format": force("안녕 😀"), "max_tokens": limit}
        [choice] = ask(http, **fields).json()["choices"]
        found = events(http, **fields)
        assert content_of(found) == choice["message"]["content"]
        assert whole.startswith(choice["message"]["content"].removesuffix("�"))
        assert all("�" not in json.dumps(event, ensure_ascii=False) for event in found[:-3])


@pytest.mark.parametrize(
    ("stop", "text"),
    [(["ta gam"], '"alpha be'), (["delta!"], '"alpha beta gamma delta"'), ("gamma", '"alpha beta '), ([], None)],
)
def test_stop_texts_cut_forced_answers(http: httpx.Client, stop: Any, text: str | None) -> None:
    fields = {"response_format": force("alpha beta gamma delta"), "stop": stop, "max_tokens": 64}
    [choice] = ask(http, **fields).json()["choices"]
    expected = '"alpha beta gamma delta"' if text is None else text
    assert (choice["message"]["content"], choice["finish_reason"]) == (expected, "stop")
    assert content_of(events(http, **fields)) == expected


@pytest.mark.parametrize(
    "response_format",
    [
        {"type": "json_schema", "schema": {"type": "integer", "minimum": 3, "maximum": 12}},
        schema_format(
            {
                "type": "object",
                "properties": {"a": {"enum": [1, "x", None]}},
                "required": ["a"],
                "additionalProperties": False,
            }
        ),
        schema_format(LINKED_LIST),
        schema_format({"anyOf": [{"enum": ["red"]}, {"enum": ["blue"]}]}),
        schema_format({"type": "string", "pattern": "^[a-z]{2}-[0-9]{3}$"}),
        schema_format({"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 4}),
    ],
)
def test_answers_satisfy_their_schema(http: httpx.Client, response_format: dict[str, Any]) -> None:
    schema = response_format.get("schema") or response_format["json_schema"]["schema"]
    most = 100 if schema is LINKED_LIST else 500
    for seed in range(3):
        fields = {"response_format": response_format, "temperature": 1.5, "seed": seed, "max_tokens": most}
        [choice] = ask(http, **fields).json()["choices"]
        if schema is LINKED_LIST and choice["finish_reason"] == "length":
            continue  # a list may be as long as the model likes
        assert choice["finish_reason"] == "stop"
        jsonschema.validate(json.loads(choice["message"]["content"]), schema)


def test_json_object_gives_an_object(http: httpx.Client) -> None:
    [choice] = ask(http, response_format={"type": "json_object"}, max_tokens=400, temperature=0).json()["choices"]
    assert choice["finish_reason"] == "length" or isinstance(json.loads(choice["message"]["content"]), dict)


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"not": {"type": "null"}}, "not"),
        ({"$ref": "#"}, "no JSON value"),
        ({"$ref": "#/nothing"}, "nothing"),
        ({"type": "array", "uniqueItems": True}, "uniqueItems"),
        ({"enum": []}, "enum"),
        ({"type": "string", "enum": ["x" * 300_000]}, "at most"),
        (False, "expected an object"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_what_cannot_be_enforced_is_refused(http: httpx.Client, schema: Any, reason: str, stream: bool) -> None:
    response = ask(http, response_format=schema_format(schema), stream=stream)
    assert response.status_code == 400
    assert reason in response.json()["error"]["message"] or reason == "enum"


@pytest.mark.parametrize(
    "response_format",
    [{"type": "json_schema"}, {"type": "json_schema", "json_schema": {"name": "f"}}, {"type": "xml"}, {"schema": {}}],
)
def test_a_format_without_its_schema(http: httpx.Client, response_format: dict[str, Any]) -> None:
    assert ask(http, response_format=response_format).status_code == 400


@pytest.mark.parametrize("server", ["native", "remote"], indirect=True)  # rounded in another way when known
@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "get_weather"}}])
@pytest.mark.parametrize("is_parallel", [True, False])
def test_forced_calls(http: httpx.Client, choice: Any, is_parallel: bool) -> None:
    tools = [WEATHER] if choice != "required" else [WEATHER, NOW]
    fields = {
        "messages": HELLO,
        "tools": tools,
        "tool_choice": choice,
        "parallel_tool_calls": is_parallel,
        "max_tokens": 300,
        "temperature": 1,
        "seed": 1,
    }
    [answer] = ask(http, **fields).json()["choices"]
    calls = answer["message"]["tool_calls"]
    assert answer["finish_reason"] in ("tool_calls", "length")
    assert calls
    assert is_parallel or len(calls) == 1
    for call in calls:
        if call["function"]["name"] == "get_weather":
            jsonschema.validate(json.loads(call["function"]["arguments"]), WEATHER["function"]["parameters"])
        else:
            assert choice == "required"
    assert len({call["id"] for call in calls}) == len(calls)
    deltas = [
        call for event in events(http, **fields)[:-1] for call in event["choices"][0]["delta"].get("tool_calls", [])
    ]
    assert [delta["index"] for delta in deltas] == list(range(len(deltas)))
    assert [delta["function"] for delta in deltas] == [call["function"] for call in calls]


@pytest.mark.parametrize("choice", ["none", "auto", None])
def test_calls_that_are_not_forced(http: httpx.Client, choice: Any) -> None:
    [answer] = ask(http, messages=HELLO, tools=[WEATHER], tool_choice=choice, max_tokens=20).json()["choices"]
    assert choice != "none" or "tool_calls" not in answer["message"]
    assert answer["finish_reason"] != "tool_calls" or answer["message"]["tool_calls"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [], "tool_choice": "required"}, "tool_choice"),
        ({"tools": [WEATHER], "tool_choice": {"type": "function", "function": {"name": "nothing"}}}, "tool_choice"),
        ({"tools": [WEATHER, WEATHER]}, "tools"),
        ({"tools": [function("a b")]}, "tools[0].function.name"),
        ({"tools": [function("f" * 65)]}, "tools[0].function.name"),
        ({"tools": [function("f", {"type": "string"})]}, "tools[0].function.parameters.type"),
        ({"tools": [function("f", {"properties": {"a": {"$ref": "#/no"}}})], "tool_choice": "required"}, "tools"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
    ],
)
def test_wrong_tools(direct: httpx.Client, fields: dict[str, Any], param: str) -> None:
    response = ask(direct, messages=HELLO, **fields)
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)


def test_no_tools_and_none_is_an_ordinary_request(http: httpx.Client) -> None:
    assert ask(http, messages=HELLO, tool_choice="none").status_code == 200


def test_a_schema_beside_tools_leaves_both_ways_open(http: httpx.Client) -> None:
    schema = {"type": "object", "properties": {"x": {"type": "integer", "maximum": 9}}, "required": ["x"]}
    for seed in range(4):
        [answer] = ask(
            http,
            messages=HELLO,
            tools=[WEATHER],
            response_format=schema_format({**schema, "additionalProperties": False}),
            temperature=1.5,
            seed=seed,
            max_tokens=300,
        ).json()["choices"]
        if answer["finish_reason"] == "length":
            continue
        if calls := answer["message"].get("tool_calls"):
            arguments = json.loads(calls[0]["function"]["arguments"])
            jsonschema.validate(arguments, WEATHER["function"]["parameters"])
        else:
            jsonschema.validate(json.loads(answer["message"]["content"]), schema)


def test_a_round_of_calls_comes_back_as_history(http: httpx.Client) -> None:
    def history(arguments: str) -> list[dict[str, Any]]:
        call = {"id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": arguments}}
        return [
            *HELLO,
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "rain"}]},
        ]

    tokens = http.post("/tokenize", json={"messages": history('{"city": "Köln"}')})
    assert tokens.status_code == 200
    assert ask(http, messages=history('{"city": "Köln"}'), tools=[WEATHER]).status_code == 200
    for arguments in ('{"city":', '{"a":1}{"a":1}', "null", "[1]"):
        response = ask(http, messages=history(arguments), tools=[WEATHER])
        assert response.status_code == 400
        assert "messages[1]" in response.json()["error"]["message"]


@pytest.mark.parametrize(
    ("wanted", "pattern"),
    [
        ({"regex": "[0-9]{2}/[0-9]{2}"}, r"\d\d/\d\d"),
        ({"choice": ["yes", "no", "maybe so"]}, "yes|no|maybe so"),
        ({"json": {"enum": [17, 4711]}}, "17|4711"),
    ],
)
def test_forms_in_the_words_of_vllm(http: httpx.Client, wanted: dict[str, Any], pattern: str) -> None:
    for seed in range(2):
        fields = {"structured_outputs": wanted, "temperature": 2, "seed": seed, "max_tokens": 40}
        [choice] = ask(http, **fields).json()["choices"]
        assert re.fullmatch(pattern, choice["message"]["content"])
        [choice] = http.post("/v1/completions", json={"prompt": "Now: ", **fields}).json()["choices"]
        assert re.fullmatch(pattern, choice["text"])


@pytest.mark.parametrize(
    ("fields", "place"),
    [
        ({"structured_outputs": {}}, "structured_outputs"),
        ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "structured_outputs"),
        ({"structured_outputs": {"choice": []}}, "structured_outputs.choice"),
        ({"structured_outputs": {"grammar": "root ::= a"}}, "structured_outputs.grammar"),
        ({"structured_outputs": {"regex": "a"}, "response_format": {"type": "json_object"}}, "structured_outputs"),
        ({"structured_outputs": {"regex": "(unclosed"}}, "structured_outputs"),
        ({"structured_outputs": {"json": False}}, "structured_outputs"),
        ({"response_format": schema_format({"$ref": "#"})}, "response_format"),
    ],
)
def test_forms_that_cannot_be(direct: httpx.Client, fields: dict[str, Any], place: str | None) -> None:
    response = ask(direct, **fields)
    assert (response.status_code, response.json()["error"]["param"]) == (400, place)


def allowed(mode: str, *names: str) -> dict[str, Any]:
    named = [{"type": "function", "function": {"name": name}} for name in names]
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": named}}


def test_only_allowed_tools_are_called(http: httpx.Client) -> None:
    tools = [WEATHER, NOW, function("stop", {"type": "object", "properties": {}, "additionalProperties": False})]
    for seed in range(3):
        fields = {"tools": tools, "tool_choice": allowed("required", "get_weather", "stop"), "seed": seed}
        [choice] = ask(http, temperature=1.5, max_tokens=200, **fields).json()["choices"]
        assert choice["message"]["tool_calls"]
        assert {call["function"]["name"] for call in choice["message"]["tool_calls"]} <= {"get_weather", "stop"}
    [choice] = ask(http, tools=tools, tool_choice=allowed("auto", "now"), max_tokens=8).json()["choices"]
    assert not choice["message"].get("tool_calls")


@pytest.mark.parametrize(
    "choice",
    [allowed("auto"), allowed("required", "other"), allowed("none", "now"), {"type": "allowed_tools", "mode": "auto"}],
)
def test_tools_that_cannot_be_allowed(direct: httpx.Client, choice: dict[str, Any]) -> None:
    response = ask(direct, tools=[NOW], tool_choice=choice)
    assert response.status_code == 400
    assert response.json()["error"]["param"].startswith("tool_choice")
