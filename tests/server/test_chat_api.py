"""The chat API over HTTP, with the official client and without."""

from __future__ import annotations

import json
import time
from typing import Any

import httpx
import openai
import pytest

from running_server import CONTEXT, MODEL, RunningServer

pytestmark = pytest.mark.model

CAPITAL = [{"role": "user", "content": "Name the capital of Japan."}]


def ask(http: httpx.Client, **fields: Any) -> httpx.Response:
    return http.post("/v1/chat/completions", json={"messages": CAPITAL, "temperature": 0, "max_tokens": 8, **fields})


def events(http: httpx.Client, **fields: Any) -> list[Any]:
    """The data of every event of a streamed answer; the end marker as text."""
    response = ask(http, stream=True, **fields)
    assert response.headers["content-type"].startswith("text/event-stream")
    lines = response.text.split("\n\n")
    assert lines.pop() == ""
    assert all(line.startswith("data: ") for line in lines)
    return [line if line == "[DONE]" else json.loads(line) for line in (line.removeprefix("data: ") for line in lines)]


def test_an_answer(http: httpx.Client) -> None:
    body = ask(http).json()
    [choice] = body["choices"]
    assert choice["message"] == {"role": "assistant", "content": "The capital of Japan is Tokyo.", "refusal": None}
    assert choice["finish_reason"] == "stop"
    assert body["usage"]["total_tokens"] == body["usage"]["prompt_tokens"] + body["usage"]["completion_tokens"]
    assert body["model"] == MODEL


def test_the_official_client(server: RunningServer) -> None:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none") as client:
        assert [model.id for model in client.models.list()] == [MODEL]
        whole = client.chat.completions.create(model=MODEL, messages=CAPITAL, temperature=0, max_tokens=8)
        stream = client.chat.completions.create(
            model=MODEL,
            messages=CAPITAL,
            temperature=0,
            max_tokens=8,
            stream=True,
            stream_options={"include_usage": True},
        )
        chunks = list(stream)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].usage == whole.usage or chunks[-1].usage.completion_tokens == whole.usage.completion_tokens


@pytest.mark.parametrize("options", [None, {}, {"include_usage": False}, {"include_usage": True}])
@pytest.mark.parametrize("n", [1, 2])
def test_the_shape_of_a_stream(http: httpx.Client, options: dict[str, bool] | None, n: int) -> None:
    found = events(http, stream_options=options, n=n)
    assert found.pop() == "[DONE]"
    if options and options["include_usage"]:
        last = found.pop()
        assert last["choices"] == []
        assert last["usage"]["completion_tokens"] == 8 * n
    assert all("usage" not in event or event["usage"] is None for event in found)
    assert len({(event["id"], event["created"], event["model"]) for event in found}) == 1
    for index in range(n):
        choices = [event["choices"][0] for event in found if event["choices"][0]["index"] == index]
        assert choices[0]["delta"] == {"role": "assistant", "content": ""}
        assert [choice["finish_reason"] for choice in choices] == [None] * (len(choices) - 1) + ["stop"]
        text = "".join(choice["delta"].get("content", "") for choice in choices)
        assert text == "The capital of Japan is Tokyo."


def test_logprobs_spell_the_answer(http: httpx.Client) -> None:
    [choice] = ask(http, logprobs=True, top_logprobs=2).json()["choices"]
    entries = choice["logprobs"]["content"]
    assert bytes(byte for entry in entries for byte in entry["bytes"]).decode() == choice["message"]["content"]
    assert all(len(entry["top_logprobs"]) == 2 for entry in entries)
    streamed = [event["choices"][0]["logprobs"] for event in events(http, logprobs=True, top_logprobs=2)[:-1]]
    assert [entry for part in streamed if part for entry in part["content"]] == entries


def test_content_in_parts_and_without_content(http: httpx.Client) -> None:
    parts = [{"type": "text", "text": "Name the capital "}, {"type": "text", "text": "of Japan."}]
    assert ask(http, messages=[{"role": "user", "content": parts}]).json()["choices"] == ask(http).json()["choices"]
    for content in ("", []):
        assert ask(http, messages=[{"role": "user", "content": content}]).status_code == 200


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"logit_bias": {"999999999": 5}}, "logit_bias"),
        ({"logit_bias": {"-1": 1}}, "logit_bias"),
        ({"logit_bias": {"5": 101}}, "logit_bias"),
        ({"messages": [{"role": "foo", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": ["a", {"type": "image_url"}]}]}, "messages[0].content[1]"),
        ({"chat_template_kwargs": {"chat_template": "{{ 7*7 }}"}}, "chat_template_kwargs"),
    ],
)
def test_what_the_engine_refuses_names_the_field(http: httpx.Client, fields: dict[str, Any], param: str) -> None:
    response = ask(http, **fields)
    error = response.json()["error"]
    assert (response.status_code, error["type"], error["param"]) == (400, "invalid_request_error", param)


def test_a_seed_may_be_negative(http: httpx.Client) -> None:
    assert ask(http, seed=-1, temperature=1).json()["choices"] == ask(http, seed=-1, temperature=1).json()["choices"]


@pytest.mark.parametrize("server", ["native", "remote"], indirect=True)
def test_an_answer_goes_on_with_a_message(http: httpx.Client) -> None:
    messages = [*CAPITAL, {"role": "assistant", "content": "The capital of"}]
    fields = {"messages": messages, "continue_final_message": True, "add_generation_prompt": False}
    body = ask(http, **fields).json()
    [choice] = body["choices"]
    assert (choice["message"]["content"], choice["finish_reason"]) == (" Japan is Tokyo.", "stop")
    assert http.post("/tokenize", json=fields).json()["count"] == body["usage"]["prompt_tokens"]
    assert ask(http, messages=messages).json()["usage"]["prompt_tokens"] > body["usage"]["prompt_tokens"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"continue_final_message": True}, "messages[0]"),
        ({"continue_final_message": True, "add_generation_prompt": True}, "add_generation_prompt"),
        ({"add_generation_prompt": False}, "add_generation_prompt"),
    ],
)
def test_messages_that_cannot_be_gone_on_with(direct: httpx.Client, fields: dict[str, Any], param: str) -> None:
    response = ask(direct, **fields)
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)


def test_an_unknown_model_is_not_found(http: httpx.Client) -> None:
    response = ask(http, model="nope")
    assert response.status_code == 404
    assert response.json()["error"]["code"] == "model_not_found"
    assert MODEL in response.json()["error"]["message"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_that_fills_the_context(http: httpx.Client, stream: bool) -> None:
    def of_length(num_tokens: int) -> httpx.Response:
        return http.post("/v1/completions", json={"prompt": [100] * num_tokens, "max_tokens": 2, "stream": stream})

    assert of_length(CONTEXT - 1).status_code == 200
    for length in (CONTEXT, CONTEXT + 1, 5000):
        response = of_length(length)
        assert response.status_code == 400
        assert response.json()["error"]["code"] == "context_length_exceeded"
        assert str(length) in response.json()["error"]["message"]


def test_an_answer_ends_with_the_context(http: httpx.Client) -> None:
    body = {"prompt": [100] * (CONTEXT - 4), "max_tokens": 100, "ignore_eos": True}
    response = http.post("/v1/completions", json=body).json()
    assert response["choices"][0]["finish_reason"] == "length"
    assert response["usage"]["total_tokens"] == CONTEXT


def test_max_completion_tokens_wins(http: httpx.Client) -> None:
    body = ask(http, max_completion_tokens=3, max_tokens=50).json()
    assert body["usage"]["completion_tokens"] == 3
    assert body["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize(
    ("stop", "text"),
    [(["tal of J"], "The capi"), (" capital", "The"), ([], None), (None, None), (["Kyoto"], None)],
)
def test_stop_texts_across_tokens(http: httpx.Client, stop: Any, text: str | None) -> None:
    expected = "The capital of Japan is Tokyo." if text is None else text
    [choice] = ask(http, stop=stop).json()["choices"]
    assert (choice["message"]["content"], choice["finish_reason"]) == (expected, "stop")
    streamed = "".join(event["choices"][0]["delta"].get("content", "") for event in events(http, stop=stop)[:-1])
    assert streamed == expected


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({f"field{number}": 1 for number in range(2000)}, "the body has 2001 mistakes"),
        ({"messages": [{"role": "user", "content": "a"}] * 16_385}, "at most 16384 items"),
        ({"messages": [{"role": "user", "content": "word " * 1_000_000}]}, "far more than 1024 tokens"),
        ({"messages": [{"role": "user", "content": "a" * 5_000_000}]}, "far more than 1024 tokens"),
    ],
)
def test_bodies_full_of_work(http: httpx.Client, body: dict[str, Any], message: str) -> None:
    began = time.process_time()  # of client and server
    response = http.post("/v1/chat/completions", json=body)
    assert response.status_code == 400
    assert message in response.json()["error"]["message"]
    assert time.process_time() - began < 10


def test_a_nul_character_is_text(http: httpx.Client) -> None:
    assert ask(http, messages=[{"role": "user", "content": "a\0b"}]).status_code == 200
