"""The Anthropic API over HTTP, with the official client and without."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Literal

import anthropic
import httpx
import jsonschema
import pydantic
import pytest

from running_server import CONTEXT, MODEL, RunningServer

pytestmark = pytest.mark.model

CAPITAL = [{"role": "user", "content": "Name the capital of Japan."}]
TOKYO = "The capital of Japan is Tokyo."
WEATHER = {
    "name": "get_weather",
    "description": "Tell the weather.",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 20}},
        "required": ["city"],
        "additionalProperties": False,
    },
}
NOW = {"name": "now", "input_schema": {"type": "object", "properties": {}, "additionalProperties": False}}
BEGUN = {"role": "assistant", "content": "The capital of"}
CALLED = {"type": "tool_use", "id": "t", "name": "now"}
ANY_OBJECT = {"type": "json_schema", "schema": {"type": "object"}}
CITED = {
    "type": "document",
    "source": {"type": "text", "media_type": "text/plain", "data": "x"},
    "citations": {"enabled": True},
}
PIXEL = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}}


def ask(http: httpx.Client, **fields: Any) -> httpx.Response:
    body = {"model": MODEL, "messages": CAPITAL, "max_tokens": 12, "temperature": 0, **fields}
    return http.post("/v1/messages", json=body)


def events(http: httpx.Client, **fields: Any) -> list[dict[str, Any]]:
    """The data of every event of a streamed answer, each of which must carry its type as its name."""
    response = ask(http, stream=True, **fields)
    assert response.headers["content-type"].startswith("text/event-stream")
    lines = response.text.split("\n\n")
    assert lines.pop() == ""
    found = []
    for line in lines:
        name, data = line.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
    return found


@pytest.fixture
def client(server: RunningServer) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=server.url, api_key="none") as client:
        yield client


def test_the_official_client(client: anthropic.Anthropic) -> None:
    fields: dict[str, Any] = {"model": MODEL, "messages": CAPITAL, "max_tokens": 12, "extra_body": {"temperature": 0}}
    whole = client.messages.create(**fields)
    assert [block.text for block in whole.content if block.type == "text"] == [TOKYO]
    assert whole._request_id
    assert (whole.role, whole.model, whole.stop_reason, whole.stop_sequence) == ("assistant", MODEL, "end_turn", None)
    with client.messages.stream(**fields) as stream:
        assert "".join(stream.text_stream) == TOKYO
        streamed = stream.get_final_message()
    assert streamed.usage.output_tokens == whole.usage.output_tokens
    assert streamed.stop_reason == "end_turn"
    count = client.messages.count_tokens(model=MODEL, messages=CAPITAL)
    for usage in (whole.usage, streamed.usage):
        assert usage.input_tokens + (usage.cache_read_input_tokens or 0) == count.input_tokens


def test_the_order_of_events(http: httpx.Client) -> None:
    kinds = [event["type"] for event in events(http)]
    assert kinds[:3] == ["message_start", "ping", "content_block_start"]
    assert set(kinds[3:-3]) == {"content_block_delta"}
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]


def test_an_answer_goes_on_with_what_the_assistant_has_begun(client: anthropic.Anthropic, http: httpx.Client) -> None:
    messages: Any = [*CAPITAL, BEGUN]
    whole = ask(http, messages=messages).json()
    assert whole["content"] == [{"type": "text", "text": TOKYO.removeprefix("The capital of")}]
    with client.messages.stream(model=MODEL, messages=messages, max_tokens=12, extra_body={"temperature": 0}) as stream:
        assert "".join(stream.text_stream) == whole["content"][0]["text"]
    count = client.messages.count_tokens(model=MODEL, messages=messages).input_tokens
    assert count == whole["usage"]["input_tokens"] + whole["usage"]["cache_read_input_tokens"]


@pytest.mark.parametrize("source", [{"type": "text", "media_type": "text/plain", "data": "It rains."}, "content"])
def test_documents_are_read_as_text(http: httpx.Client, source: Any) -> None:
    if source == "content":
        source = {"type": "content", "content": [{"type": "text", "text": "It "}, {"type": "text", "text": "rains."}]}
    document = {"type": "document", "title": 'A "report"', "source": source, "citations": {"enabled": False}}
    asked = {"type": "text", "text": "What is the weather?"}
    body = {"model": MODEL, "messages": [{"role": "user", "content": [document, asked]}]}
    shown = '<document title="A \\"report\\"">\nIt rains.\n</document>\nWhat is the weather?'
    expected = http.post("/tokenize", json={"messages": [{"role": "user", "content": shown}]}).json()["count"]
    assert http.post("/v1/messages/count_tokens", json=body).json() == {"input_tokens": expected}


def test_search_results_are_read_as_text(http: httpx.Client) -> None:
    found = {"type": "search_result", "source": "s", "title": "t", "content": [{"type": "text", "text": "rain"}]}
    turns = [
        *CAPITAL,
        {"role": "assistant", "content": [{**CALLED, "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": [found]}]},
    ]
    plain = [*turns[:2], {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": ""}]}]
    plain[2]["content"][0]["content"] = '<document title="t" source="s">\nrain\n</document>\n'
    counts = [
        http.post("/v1/messages/count_tokens", json={"model": MODEL, "messages": each, "tools": [NOW]}).json()
        for each in (turns, plain)
    ]
    assert counts[0] == counts[1]


def test_the_client_need_not_keep_conversations_here(client: anthropic.Anthropic, direct: httpx.Client) -> None:
    error = ask(direct, thread={"type": "create"}).json()["error"]
    assert error["details"] == {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}

    @anthropic.beta_tool
    def now() -> str:
        """Tell the time."""
        return "noon"

    runner = client.beta.messages.tool_runner(model=MODEL, max_tokens=12, messages=CAPITAL, tools=[now])  # type: ignore[arg-type]
    assert [block.type for block in runner.until_done().content] == ["text"]


def test_the_client_lists_models(client: anthropic.Anthropic) -> None:
    [model] = client.models.list()
    assert (model.id, model.type, model.display_name, model.created_at.tzinfo is not None) == (
        MODEL,
        "model",
        MODEL,
        True,
    )
    assert client.models.retrieve(MODEL) == model


def test_what_is_known_already_is_not_read_again(http: httpx.Client) -> None:
    fields = {"system": "Answer truthfully. " * 100}
    ask(http, **fields)
    usage = ask(http, **fields).json()["usage"]
    assert usage["cache_read_input_tokens"] > 0
    assert usage["input_tokens"] >= 1
    started = events(http, **fields)[0]["message"]["usage"]
    assert {**started, "output_tokens": usage["output_tokens"]} == usage


@pytest.mark.parametrize("system", ["Be brief.", [{"type": "text", "text": "Be "}, {"type": "text", "text": "brief."}]])
def test_the_prompt_is_that_of_the_chat_api(http: httpx.Client, system: Any) -> None:
    body = {
        "model": MODEL,
        "system": system,
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}]},
            {"role": "user", "content": "b"},
            {"role": "assistant", "content": "c"},
            {"role": "user", "content": [{"type": "text", "text": "d"}, {"type": "text", "text": "e"}]},
        ],
    }
    chat = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "a\n\nb"},
        {"role": "assistant", "content": "c"},
        {"role": "user", "content": "de"},
    ]
    expected = http.post("/tokenize", json={"messages": chat}).json()["count"]
    assert http.post("/v1/messages/count_tokens", json=body).json() == {"input_tokens": expected}


def test_why_an_answer_ends(http: httpx.Client) -> None:
    body = ask(http, stop_sequences=["tal of J"]).json()
    assert (body["content"], body["stop_reason"], body["stop_sequence"]) == (
        [{"type": "text", "text": "The capi"}],
        "stop_sequence",
        "tal of J",
    )
    delta = events(http, stop_sequences=["tal of J"])[-2]["delta"]
    assert delta == {"stop_reason": "stop_sequence", "stop_sequence": "tal of J"}
    assert ask(http, max_tokens=2).json()["stop_reason"] == "max_tokens"
    long = [{"role": "user", "content": "a " * (CONTEXT - 60)}]
    schema = {"type": "json_schema", "schema": {"enum": ["word " * 200]}}
    full = ask(http, messages=long, max_tokens=2000, output_config={"format": schema}).json()
    assert full["stop_reason"] == "model_context_window_exceeded"


@pytest.mark.parametrize("server", ["native", "remote"], indirect=True)  # rounded in another way when known
@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "get_weather"}])
@pytest.mark.parametrize("is_single", [True, False])
def test_forced_tools(client: anthropic.Anthropic, choice: dict[str, Any], is_single: bool) -> None:
    fields: dict[str, Any] = {
        "model": MODEL,
        "messages": CAPITAL,
        "max_tokens": 300,
        "tools": [WEATHER, NOW],
        "tool_choice": {**choice, "disable_parallel_tool_use": is_single},
        "extra_body": {"temperature": 0},
    }
    whole = client.messages.create(**fields)
    with client.messages.stream(**fields) as stream:
        streamed = stream.get_final_message()
    calls = [block for block in whole.content if block.type == "tool_use"]
    assert calls
    assert not is_single or len(calls) == 1
    assert whole.stop_reason == streamed.stop_reason
    assert whole.stop_reason == "tool_use" or not is_single
    # A reader that is slower than the model gets the call and the token that would end the answer at once.
    assert abs(whole.usage.output_tokens - streamed.usage.output_tokens) <= is_single
    assert min(whole.usage.input_tokens, streamed.usage.input_tokens) >= 0
    assert [(block.name, block.input) for block in streamed.content if block.type == "tool_use"] == [
        (call.name, call.input) for call in calls
    ]
    for call in calls:
        if call.name == "get_weather":
            jsonschema.validate(call.input, WEATHER["input_schema"])
        else:
            assert choice["type"] == "any"


def test_answers_are_read_into_a_class(client: anthropic.Anthropic) -> None:
    class Answer(pydantic.BaseModel):
        city: Literal["Tokyo"]
        size: Literal[1, 2]

    for messages in (client.messages, client.beta.messages):
        answer: Any = messages.parse(model=MODEL, messages=CAPITAL, max_tokens=60, output_format=Answer)  # type: ignore[attr-defined]
        assert answer.parsed_output in [Answer(city="Tokyo", size=size) for size in (1, 2)]  # type: ignore[arg-type]


def test_what_a_coding_agent_sends_along(http: httpx.Client) -> None:
    thoughts = [
        {"type": "redacted_thinking", "data": "abc"},
        {"type": "thinking", "thinking": "Japan.", "signature": "x"},
        {"type": "text", "text": "Tokyo."},
    ]
    response = ask(
        http,
        messages=[*CAPITAL, {"role": "assistant", "content": thoughts}, *CAPITAL],
        metadata={"user_id": json.dumps({"device_id": "a" * 64, "session_id": "b" * 200})},
        thinking={"type": "adaptive", "display": "omitted"},
        context_management={"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        output_config={"effort": "high"},
        service_tier="standard_only",
    )
    assert response.status_code == 200
    schema = {"enum": [7]}
    body = ask(http, output_format={"type": "json_schema", "schema": schema}).json()
    assert body["content"] == [{"type": "text", "text": "7"}]


def test_a_round_of_tools(client: anthropic.Anthropic) -> None:
    tools: Any = [WEATHER]
    first = client.messages.create(
        model=MODEL, messages=CAPITAL, max_tokens=300, tools=tools, tool_choice={"type": "tool", "name": "get_weather"}
    )
    [call] = [block for block in first.content if block.type == "tool_use"][:1]
    result = {"type": "tool_result", "tool_use_id": call.id, "content": [{"type": "text", "text": "rain"}]}
    history: Any = [*CAPITAL, {"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]
    second = client.messages.create(model=MODEL, messages=history, max_tokens=8, tools=tools)
    assert second.usage.output_tokens > 0
    plain = client.messages.count_tokens(model=MODEL, messages=history, tools=tools).input_tokens
    result["is_error"] = True
    assert client.messages.count_tokens(model=MODEL, messages=history, tools=tools).input_tokens > plain


def test_none_means_no_tools(http: httpx.Client) -> None:
    kinds = {block["type"] for block in ask(http, tools=[WEATHER], tool_choice={"type": "none"}).json()["content"]}
    assert kinds <= {"text"}


def test_an_answer_with_a_schema(http: httpx.Client) -> None:
    schema = {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"], "additionalProperties": False}
    body = ask(http, output_config={"format": {"type": "json_schema", "schema": schema}}, max_tokens=40).json()
    jsonschema.validate(json.loads(body["content"][0]["text"]), schema)


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, "bash_20250124"),
        ({"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}}, "context_management"),
        (
            {
                "output_format": {"type": "json_schema", "schema": {}},
                "output_config": {"format": {"type": "json_schema", "schema": {}}},
            },
            "output_format",
        ),
        (
            {"tools": [{"name": "f", "input_schema": {"type": "string"}}], "tool_choice": {"type": "any"}},
            "object",
        ),
        (
            {
                "tools": [{"name": "f", "input_schema": {"properties": {"a": {"not": {}}}}}],
                "tool_choice": {"type": "any"},
            },
            "'f': the schema cannot be enforced: #/properties/a/not",
        ),
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": [], "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [PIXEL]}]}, "image"),
        ({"messages": [{"role": "user", "content": [{"type": "document"}]}]}, "documents of type text"),
        ({"messages": [{"role": "user", "content": [CITED]}]}, "citations"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "a", "b": 1}]}]}, "content[0].b"),
        ({"messages": [*CAPITAL, {"role": "assistant", "content": "The "}]}, "white space"),
        ({"messages": [*CAPITAL, {"role": "assistant", "content": [{**CALLED, "input": {}}]}]}, "results"),
        ({"messages": [*CAPITAL, BEGUN], "tools": [NOW], "tool_choice": {"type": "any"}}, "messages"),
        ({"messages": [*CAPITAL, BEGUN], "output_config": {"format": ANY_OBJECT}}, "messages"),
        (
            {"messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "x"}]}]},
            "tool_use_id",
        ),
        ({"system": [PIXEL]}, "system[0]"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0]"),
        ({"tools": [WEATHER, WEATHER]}, "same name"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"tools": [WEATHER], "tool_choice": {"type": "tool", "name": "other"}}, "other"),
        ({"tools": [WEATHER], "tool_choice": {"type": "tool"}}, "tool_choice"),
        ({"thinking": {"type": "enabled", "budget_tokens": 4096}}, "budget_tokens"),
        ({"mcp_servers": [{"type": "url"}]}, "mcp_servers"),
        ({"n": 2}, "n"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_wrong_requests(http: httpx.Client, fields: dict[str, Any], word: str, stream: bool) -> None:
    response = ask(http, stream=stream, **fields)
    assert response.status_code == 400
    body = response.json()
    assert (body["type"], body["error"]["type"]) == ("error", "invalid_request_error")
    assert word in body["error"]["message"]
    assert body["request_id"] == response.headers["request-id"] == response.headers["x-request-id"]


def test_errors_are_those_of_the_client(client: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.NotFoundError):
        client.messages.create(model="nope", messages=CAPITAL, max_tokens=1)
    too_long: Any = [{"role": "user", "content": "a " * 5000}]
    with pytest.raises(anthropic.BadRequestError, match="context"):
        client.messages.create(model=MODEL, messages=too_long, max_tokens=1)


@pytest.mark.parametrize("thinking", [{"type": "disabled"}, {"type": "adaptive"}])
def test_thinking_is_no_error_for_a_model_that_does_not(http: httpx.Client, thinking: dict[str, str]) -> None:
    assert ask(http, thinking=thinking).json()["content"] == [{"type": "text", "text": TOKYO}]
