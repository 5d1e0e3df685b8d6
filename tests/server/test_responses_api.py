"""The OpenAI responses API over HTTP, with the official client and without."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import jsonschema
import openai
import pytest

from running_server import MODEL, RunningServer
from treadle.server.response_store import ResponseStore, StoredResponse

TOKYO = "The capital of Japan is Tokyo."
CAPITAL = "Name the capital of Japan."
WEATHER = {
    "type": "function",
    "name": "get_weather",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 20}},
        "required": ["city"],
        "additionalProperties": False,
    },
}


def ask(http: httpx.Client, **fields: Any) -> httpx.Response:
    return http.post("/v1/responses", json={"input": CAPITAL, "temperature": 0, "max_output_tokens": 12, **fields})


def events(http: httpx.Client, **fields: Any) -> list[dict[str, Any]]:
    """The data of every event of a streamed answer, numbered one after the other."""
    lines = ask(http, stream=True, **fields).text.split("\n\n")
    assert lines.pop() == ""
    found = [json.loads(line.split("\ndata: ")[1]) for line in lines]
    assert [line.split("\n")[0] for line in lines] == [f"event: {event['type']}" for event in found]
    assert [event["sequence_number"] for event in found] == list(range(len(found)))
    return found


@pytest.fixture
def client(server: RunningServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none") as client:
        yield client


@pytest.mark.model
def test_the_official_client(client: openai.OpenAI) -> None:
    fields: Any = {"model": MODEL, "input": CAPITAL, "temperature": 0, "max_output_tokens": 12}
    whole = client.responses.create(**fields)
    assert (whole.output_text, whole.status, whole.model, whole.error) == (TOKYO, "completed", MODEL, None)
    with client.responses.stream(**fields) as stream:
        text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        final = stream.get_final_response()
    assert text == final.output_text == TOKYO
    assert whole.usage is not None
    assert final.usage is not None
    assert whole.usage.input_tokens == final.usage.input_tokens
    assert whole.usage.output_tokens == final.usage.output_tokens


@pytest.mark.model
def test_the_order_of_events(http: httpx.Client) -> None:
    found = events(http)
    kinds = [event["type"].removeprefix("response.") for event in found]
    assert kinds[:4] == ["created", "in_progress", "output_item.added", "content_part.added"]
    assert set(kinds[4:-4]) == {"output_text.delta"}
    assert kinds[-4:] == ["output_text.done", "content_part.done", "output_item.done", "completed"]
    assert found[0]["response"]["status"] == "in_progress"
    assert found[-1]["response"]["output"] == [found[-2]["item"]]
    assert found[2]["item"]["id"] == found[-2]["item"]["id"]


@pytest.mark.model
def test_a_stored_response_is_gone_on_with(client: openai.OpenAI, http: httpx.Client) -> None:
    first = client.responses.create(model=MODEL, input=CAPITAL, instructions="Be brief.", max_output_tokens=12)
    assert client.responses.retrieve(first.id) == first
    again = ask(http, input="And of France?", previous_response_id=first.id).json()
    history = [
        {"role": "user", "content": CAPITAL},
        *[item.model_dump(exclude_unset=True) for item in first.output],
        {"role": "user", "content": [{"type": "input_text", "text": "And of France?"}]},
    ]
    stateless = ask(http, input=history, store=False).json()
    assert stateless["output"][0]["content"] == again["output"][0]["content"]
    assert stateless["usage"]["input_tokens"] == again["usage"]["input_tokens"]
    client.responses.delete(first.id)
    for response in (http.get(f"/v1/responses/{first.id}"), http.delete(f"/v1/responses/{stateless['id']}")):
        assert response.status_code == 404
    third = ask(http, input="And of Italy?", previous_response_id=again["id"])  # needs the deleted one no more
    assert third.json()["usage"]["input_tokens"] > again["usage"]["input_tokens"]
    lost = ask(http, previous_response_id=first.id)
    assert lost.status_code == 400
    assert lost.json()["error"]["code"] == "previous_response_not_found"


@pytest.mark.model
def test_a_streamed_response_is_stored(http: httpx.Client) -> None:
    last = events(http)[-1]["response"]
    assert http.get(f"/v1/responses/{last['id']}").json() == last


def response(response_id: str, length: int, **fields: Any) -> StoredResponse:
    return StoredResponse({"id": response_id, "object": "response", "model": "m", "text": "x" * length, **fields}, [])


def test_the_store_forgets_the_oldest() -> None:
    store = ResponseStore(600)  # three of them
    for number in range(4):
        store.put(response(f"r{number}", 100))
        store.get("r0", "response")
    assert [store.get(f"r{number}", "response") is not None for number in (1, 2, 3, 0)] == [False, True, True, True]
    assert store.num_bytes <= 600
    store.put(response("large", 600))
    assert store.get("large", "response") is None
    assert store.get("r0", "response") == response("r0", 100)
    assert store.get("r0", "chat.completion") is None
    store.put(response("r0", 50))
    assert store.get("r0", "response") == response("r0", 50)
    assert store.remove("r0")
    assert not store.remove("r0")
    nothing = ResponseStore(0)
    nothing.put(response("r", 1))
    assert nothing.get("r", "response") is None
    assert nothing.num_bytes == 0


def test_items_are_found_as_long_as_their_response_is_here() -> None:
    store = ResponseStore(1000)
    item = {"id": "msg_1", "type": "message"}
    store.put(response("r1", 1, output=[item]))
    assert store.item("msg_1") == item
    assert store.item("msg_2") is None
    store.remove("r1")
    assert store.item("msg_1") is None


def test_lists_are_of_one_owner() -> None:
    store = ResponseStore(1000)
    for owner, number in (("a", 1), ("a", 2), ("b", 3)):
        store.put(response(f"r{number}", 1, metadata={"n": str(number)}), owner)
    store.put(response("r1", 2, metadata={"n": "1"}), "a")  # which makes it no younger
    assert store.find("a", "response", None, {}) == ["r1", "r2"]
    assert store.find("a", "response", "m", {"n": "1"}) == ["r1"]
    assert store.find("a", "response", "other", {}) == store.find("", "response", None, {}) == []


@pytest.mark.model
def test_an_item_may_be_referred_to(client: openai.OpenAI) -> None:
    fields: Any = {"model": MODEL, "temperature": 0, "max_output_tokens": 8}
    first = client.responses.create(input=CAPITAL, **fields)
    question: Any = {"role": "user", "content": CAPITAL}
    reference: Any = {"type": "item_reference", "id": first.output[0].id}
    by_id = client.responses.create(input=[question, reference, question], **fields)
    whole = client.responses.create(input=[question, first.output[0].model_dump(exclude_none=True), question], **fields)
    assert by_id.output_text == whole.output_text
    assert by_id.usage is not None and whole.usage is not None
    assert by_id.usage.input_tokens == whole.usage.input_tokens
    with pytest.raises(openai.BadRequestError, match="no stored item 'msg_0'"):
        client.responses.create(input=[{"type": "item_reference", "id": "msg_0"}, question], **fields)


@pytest.mark.model
def test_a_round_of_calls(client: openai.OpenAI, http: httpx.Client) -> None:
    fields: Any = {"model": MODEL, "input": CAPITAL, "tools": [WEATHER], "parallel_tool_calls": False}
    choice: Any = {"type": "function", "name": "get_weather"}
    first = client.responses.create(**fields, tool_choice=choice, temperature=0, max_output_tokens=300)
    [call] = first.output
    assert call.type == "function_call"
    jsonschema.validate(json.loads(call.arguments), WEATHER["parameters"])
    assert first.usage is not None
    assert first.usage.output_tokens > 0
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "rain"}
    stored = ask(http, input=[result], previous_response_id=first.id, tools=[WEATHER]).json()
    history = [{"role": "user", "content": CAPITAL}, call.model_dump(exclude_unset=True), result]
    stateless = ask(http, input=history, tools=[WEATHER]).json()
    assert stored["usage"]["input_tokens"] == stateless["usage"]["input_tokens"]
    found = events(http, tools=[WEATHER], tool_choice="required", parallel_tool_calls=False, max_output_tokens=300)
    kinds = [event["type"].removeprefix("response.") for event in found[2:-1]]
    assert kinds == [
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
    ]
    assert found[-1]["response"]["output"][0]["arguments"] == found[3]["delta"]


@pytest.mark.model
def test_an_answer_with_a_schema(http: httpx.Client) -> None:
    schema = {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"], "additionalProperties": False}
    wanted = {"format": {"type": "json_schema", "name": "f", "schema": schema, "strict": True}}
    body = ask(http, text=wanted, max_output_tokens=40).json()
    jsonschema.validate(json.loads(body["output"][0]["content"][0]["text"]), schema)
    assert body["text"] == wanted


@pytest.mark.model
def test_an_answer_that_was_cut(http: httpx.Client) -> None:
    body = ask(http, max_output_tokens=2).json()
    assert (body["status"], body["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert body["output"][0]["status"] == "incomplete"
    assert events(http, max_output_tokens=2)[-1]["type"] == "response.incomplete"


@pytest.mark.model
@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": []}, "input"),
        ({"input": "word " * 2000}, "input"),
        (
            {"input": [{"role": "assistant", "content": [{"type": "refusal", "refusal": 3}]}]},
            "input[0].content[0].refusal",
        ),
        ({"input": [{"role": "robot", "content": "x"}]}, "input[0].role"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}, "input[0].content[0]"),
        ({"input": [{"type": "web_search_call", "id": "x"}]}, "input[0]"),
        ({"input": [{"role": "user", "content": "x", "y": 1}]}, "input[0].y"),
        ({"input": [{"type": "function_call_output", "call_id": "c", "output": "x"}]}, "input[0].call_id"),
        ({"previous_response_id": "resp_0"}, "previous_response_id"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"type": "function", "name": "f", "parameters": {"type": "string"}}]}, "tools[0].parameters.type"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [WEATHER], "tool_choice": {"type": "function", "name": "other"}}, "tool_choice"),
        ({"text": {"format": {"type": "json_schema", "name": "f"}}}, "text.format.schema"),
        ({"text": {"format": {"type": "json_schema", "name": "f", "schema": {"$ref": "#"}}}}, "text.format"),
        ({"background": True}, "background"),
        ({"conversation": "c"}, "conversation"),
        ({"truncation": "middle"}, "truncation"),
        ({"truncation": "auto", "input": "a " * 4000}, "input"),
        ({"include": ["everything"]}, "include[0]"),
        ({"reasoning": {"summary": "detailed"}}, "reasoning.summary"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"messages": []}, "messages"),
    ],
)
def test_wrong_requests_name_the_field(direct: httpx.Client, fields: dict[str, Any], param: str) -> None:
    response = ask(direct, stream=len(fields) % 2 == 1, **fields)
    error = response.json()["error"]
    assert (response.status_code, error["type"], error["param"]) == (400, "invalid_request_error", param)


@pytest.mark.model
def test_only_allowed_tools_are_called(client: openai.OpenAI) -> None:
    choice: Any = {
        "type": "allowed_tools",
        "mode": "required",
        "tools": [{"type": "function", "name": "get_weather"}],
    }
    tools: Any = [{"type": "function", "name": "now"}, WEATHER]
    fields: Any = {"model": MODEL, "input": CAPITAL, "tools": tools, "tool_choice": choice, "max_output_tokens": 200}
    answer = client.responses.create(**fields)
    assert {item.name for item in answer.output if item.type == "function_call"} == {"get_weather"}
    assert answer.tool_choice.model_dump(exclude_none=True) == choice


@pytest.mark.model
@pytest.mark.parametrize("server", ["native", "remote"], indirect=True)
def test_the_oldest_turns_are_left_out_if_that_is_allowed(client: openai.OpenAI) -> None:
    old: Any = [{"role": role, "content": "word " * 200} for _ in range(4) for role in ("user", "assistant")]
    last: Any = [{"role": "user", "content": CAPITAL}]
    fields: Any = {"model": MODEL, "temperature": 0, "max_output_tokens": 12, "instructions": "Be truthful."}
    with pytest.raises(openai.BadRequestError):
        client.responses.create(input=[*old, *last], **fields)
    answer = client.responses.create(input=[*old, *last], truncation="auto", **fields)
    shorter = client.responses.create(input=[*old[-4:], *last], **fields)
    assert answer.truncation == "auto"
    assert answer.usage is not None and shorter.usage is not None
    assert answer.usage.input_tokens == shorter.usage.input_tokens
    assert answer.output_text == shorter.output_text
    counted = client.responses.input_tokens.count(
        model=MODEL, input=[*old, *last], instructions="Be truthful.", truncation="auto"
    )
    assert counted.input_tokens <= answer.usage.input_tokens  # the room for an answer of any length is larger
    again = client.responses.create(input="And of France?", previous_response_id=answer.id, truncation="auto", **fields)
    assert again.usage is not None
