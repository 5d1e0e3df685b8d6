"""Everything of the official client that makes objects of answers: its helpers, its types, its exceptions."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Literal

import httpx
import openai
import pydantic
import pytest
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response, ResponseStreamEvent

from running_server import MODEL, RunningServer

pytestmark = pytest.mark.model

CAPITAL: Any = [{"role": "user", "content": "Name the capital of Japan."}]


class Place(pydantic.BaseModel):
    """What answers are read into."""

    city: Literal["Tokyo", "Kyoto"]


CHAT_TOOL = openai.pydantic_function_tool(Place, name="look_up")
RESPONSE_TOOL: Any = {"type": "function", "name": "look_up", "parameters": Place.model_json_schema()}
CALLING: Any = {"tool_choice": "required", "parallel_tool_calls": False}


@pytest.fixture
def client(server: RunningServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def test_chats_become_objects(client: openai.OpenAI) -> None:
    fields: Any = {"model": MODEL, "messages": CAPITAL, "temperature": 0, "max_tokens": 40}
    parsed = client.chat.completions.parse(**fields, response_format=Place).choices[0].message.parsed
    assert isinstance(parsed, Place)
    with client.chat.completions.stream(**fields, response_format=Place) as stream:
        kinds = [event.type for event in stream]
        assert stream.get_final_completion().choices[0].message.parsed == parsed
    assert "content.done" in kinds
    [call] = client.chat.completions.parse(**fields, **CALLING, tools=[CHAT_TOOL]).choices[0].message.tool_calls or []
    assert isinstance(call.function.parsed_arguments, Place)
    with client.chat.completions.stream(**fields, **CALLING, tools=[CHAT_TOOL]) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_completion().choices[0]
    assert kinds[-1] == "tool_calls.function.arguments.done"
    assert final.finish_reason == "tool_calls"
    with pytest.raises(openai.LengthFinishReasonError):
        client.chat.completions.parse(**{**fields, "max_tokens": 2}, response_format=Place)
    raw = client.chat.completions.with_raw_response.create(**fields)
    assert raw.headers["x-request-id"] == raw.parse()._request_id


def test_responses_become_objects(client: openai.OpenAI) -> None:
    fields: Any = {"model": MODEL, "input": "Name the capital of Japan.", "temperature": 0, "max_output_tokens": 40}
    parsed = client.responses.parse(**fields, text_format=Place).output_parsed
    assert isinstance(parsed, Place)
    with client.responses.stream(**fields, text_format=Place) as stream:
        assert [event.type for event in stream][-1] == "response.completed"
        assert stream.get_final_response().output_parsed == parsed
    with client.responses.stream(**fields, **CALLING, tools=[RESPONSE_TOOL]) as stream:
        list(stream)
        final = stream.get_final_response()
    [call] = final.output
    assert call.type == "function_call"
    history: Any = [
        *CAPITAL,
        call.model_dump(),
        {"type": "function_call_output", "call_id": call.call_id, "output": "x"},
    ]
    assert client.responses.create(model=MODEL, input=history, max_output_tokens=1).output  # fields of none in it
    counted = client.responses.input_tokens.count(model=MODEL, input="Name the capital of Japan.")
    plain = client.responses.create(**fields)
    assert plain.usage is not None
    assert counted.input_tokens == plain.usage.input_tokens
    items = client.responses.input_items.list(
        client.responses.create(model=MODEL, input="And?", previous_response_id=plain.id, max_output_tokens=1).id,
        limit=1,
    )
    said = [item.content[0].text for item in items]  # type: ignore[union-attr]  # page after page, the last ones first
    assert said == ["And?", plain.output_text, "Name the capital of Japan."]


def test_logprobs_of_responses_spell_them(client: openai.OpenAI, http: httpx.Client) -> None:
    fields: Any = {"model": MODEL, "input": "Name the capital of Japan.", "temperature": 0, "max_output_tokens": 12}
    [message] = client.responses.create(**fields, top_logprobs=2).output
    assert message.type == "message"
    [part] = message.content
    assert part.type == "output_text"
    assert part.logprobs is not None
    assert bytes(byte for each in part.logprobs for byte in each.bytes).decode() == part.text
    assert all(len(each.top_logprobs) == 2 for each in part.logprobs)
    text = http.post("/v1/responses", json={**fields, "include": ["message.output_text.logprobs"], "stream": True}).text
    found = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: ")]
    streamed = [each for event in found if event["type"].endswith("text.delta") for each in event["logprobs"]]
    assert [each["token"] for each in streamed] == [each.token for each in part.logprobs]
    [done] = [event for event in found if event["type"].endswith("text.done")]
    assert done["logprobs"] == streamed


@pytest.mark.parametrize("server", ["native"], indirect=True)
def test_everything_is_of_the_types_of_the_client(http: httpx.Client) -> None:
    def lines(path: str, **fields: Any) -> list[str]:
        text = http.post(path, json={**fields, "stream": True}).text
        return [line[6:] for line in text.splitlines() if line.startswith("data: {")]

    chat: Any = {"messages": CAPITAL, "max_tokens": 30, "logprobs": True, "top_logprobs": 1, "service_tier": "fast"}
    ChatCompletion.model_validate_json(http.post("/v1/chat/completions", json=chat).text, strict=True)
    for line in lines("/v1/chat/completions", **chat, stream_options={"include_usage": True}):
        ChatCompletionChunk.model_validate_json(line, strict=True)
    for line in lines("/v1/chat/completions", messages=CAPITAL, **CALLING, tools=[CHAT_TOOL], max_tokens=40):
        ChatCompletionChunk.model_validate_json(line, strict=True)
    plain = {"prompt": "Once", "max_tokens": 2, "logprobs": 1}
    Completion.model_validate_json(http.post("/v1/completions", json=plain).text, strict=True)
    event: pydantic.TypeAdapter[Any] = pydantic.TypeAdapter(ResponseStreamEvent)
    for extra in ({"top_logprobs": 1, "service_tier": "auto"}, {**CALLING, "tools": [RESPONSE_TOOL]}):
        fields = {"input": "Name it.", "max_output_tokens": 40, **extra}
        Response.model_validate_json(http.post("/v1/responses", json=fields).text, strict=True)
        for line in lines("/v1/responses", **fields):
            event.validate_json(line, strict=True)


def test_failures_are_exceptions_of_their_own(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as not_found:
        client.chat.completions.create(model="nope", messages=CAPITAL)
    assert (not_found.value.code, not_found.value.param) == ("model_not_found", "model")
    with pytest.raises(openai.BadRequestError) as bad:
        client.embeddings.create(model=MODEL, input="word " * 2000)
    assert (bad.value.code, bad.value.param) == ("context_length_exceeded", "input")
    with pytest.raises(openai.BadRequestError) as bad:
        client.completions.create(model=MODEL, prompt="word " * 2000, stream=True)
    assert (bad.value.code, bad.value.param, bad.value.type) == (
        "context_length_exceeded",
        "prompt",
        "invalid_request_error",
    )


def test_tokens_that_are_no_text_are_shown_as_bytes(http: httpx.Client) -> None:
    wanted = "안😀"
    form = {"structured_outputs": {"choice": [wanted]}, "max_tokens": 20, "temperature": 0}
    [choice] = http.post("/v1/chat/completions", json={"messages": CAPITAL, **form, "logprobs": True}).json()["choices"]
    entries = choice["logprobs"]["content"]
    assert bytes(byte for entry in entries for byte in entry["bytes"]).decode() == wanted
    assert any(entry["token"].startswith("\\x") for entry in entries)
    for stream in (False, True):
        body = {"prompt": "Korean: ", **form, "logprobs": 1, "echo": None, "stream": stream}
        response = http.post("/v1/completions", json=body)
        events = [line[6:] for line in response.text.splitlines() if line.startswith("data: {")] or [response.text]
        parts = [part for event in events if (part := json.loads(event)["choices"][0]["logprobs"])]
        tokens, offsets, tops = (
            [each for part in parts for each in part[name]] for name in ("tokens", "text_offset", "top_logprobs")
        )
        assert "�" not in response.text
        assert any(token.startswith("bytes:\\x") for token in tokens)
        assert offsets == sorted(offsets)
        assert set(offsets) == {0, 1, 2}  # the last is that of the token that ends it
        assert all(token in top for token, top in zip(tokens, tops, strict=True))
