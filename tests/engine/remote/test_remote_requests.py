"""What is asked of us becomes a request that the server behind the URL takes, or one clear refusal."""

from __future__ import annotations

import json
from typing import Any

import pytest
from scripted_engine import models, with_engine

from local_server import LocalServer, text_answer
from treadle.engine.conversation import Conversation
from treadle.engine.prompt import EncodedPrompt
from treadle.engine.remote.engine import RemoteEngine
from treadle.engine.remote.request import write_request
from treadle.engine.remote.server import _KINDS, _OPENAI, RemoteServer
from treadle.engine.sampling import SamplingParams
from treadle.engine.structured.form import ChoiceForm, JsonForm, RegexForm
from treadle.errors import RemoteError, UsageError

HELLO = Conversation([{"role": "user", "content": "hello"}])
PING = {"type": "function", "function": {"name": "ping", "parameters": {"type": "object"}}}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
KINDS = {**_KINDS, "openai": _OPENAI}


def written(kind: str, prompt: Any, **settings: Any) -> dict[str, Any]:
    """The fields beyond those every request has."""
    priority = settings.pop("priority", "interactive")
    server = RemoteServer(KINDS[kind], "m")
    _, body = write_request(server, prompt, SamplingParams(max_tokens=None, **settings), priority)
    assert body.pop("stream") and body.pop("stream_options")["include_usage"] and body.pop("model") == "m"
    json.dumps(body)
    return body


def test_what_is_at_its_default_is_left_to_the_server() -> None:
    assert written("openai", "text") == {"prompt": "text"}
    assert written("openai", HELLO) == {"messages": HELLO.messages}


def test_settings_of_the_openai_api() -> None:
    settings = {"temperature": 0.0, "top_p": 0.5, "presence_penalty": 1.0, "frequency_penalty": 1.0, "seed": 3, "n": 2}
    body = written("openai", [1, 2], **settings, stop="x", logit_bias={5: -100}, logprobs=3)
    assert body == {**settings, "prompt": [1, 2], "stop": ["x"], "logit_bias": {"5": -100.0}, "logprobs": 3}
    body = written("openai", HELLO, logprobs=0)
    assert (body["logprobs"], body["top_logprobs"]) == (True, 0)


def test_settings_that_some_servers_add() -> None:
    extra = {"top_k": 5, "min_p": 0.1, "repetition_penalty": 1.5, "ignore_eos": True}
    more = {"min_tokens": 2, "stop_token_ids": [7]}
    assert written("vllm", "a", **extra, **more) == {"prompt": "a", **extra, **more}
    renamed = {"top_k": 5, "min_p": 0.1, "repeat_penalty": 1.5, "ignore_eos": True}
    assert written("llamacpp", "a", **extra) == {"prompt": "a", **renamed}
    assert written("treadle", "a", priority="batch")["priority"] == "batch"
    assert "priority" not in written("vllm", "a", priority="batch")
    for name, value in {**extra, **more}.items():
        with pytest.raises(UsageError, match=f"cannot set {name}"):
            written("openai", "a", **{name: value})
    with pytest.raises(UsageError, match=r"llama\.cpp, which cannot set min_tokens"):
        written("llamacpp", "a", min_tokens=2)


def test_forms() -> None:
    strict = {"name": "answer", "schema": SCHEMA, "strict": True}
    for kind in KINDS:
        response_format = written(kind, HELLO, form=JsonForm(SCHEMA))["response_format"]
        assert response_format == {"type": "json_schema", "json_schema": strict}
        assert written(kind, HELLO, form=JsonForm())["response_format"] == {"type": "json_object"}
    for kind in ("vllm", "treadle"):
        assert written(kind, HELLO, form=RegexForm("a+"))["structured_outputs"] == {"regex": "a+"}
        assert written(kind, "a", form=ChoiceForm(("x", "y")))["structured_outputs"] == {"choice": ["x", "y"]}
        assert written(kind, "a", form=JsonForm(SCHEMA))["structured_outputs"] == {"json": SCHEMA}
    for prompt, form in ((HELLO, RegexForm("a")), (HELLO, ChoiceForm(["a"])), ("a", JsonForm())):
        with pytest.raises(UsageError, match="cannot hold an answer to"):
            written("openai", prompt, form=form)


def test_tools() -> None:
    messages = HELLO.messages
    assert written("openai", Conversation(messages, [PING]))["tool_choice"] == "auto"
    body = written("openai", Conversation(messages, [PING], "required", ("ping",), is_parallel=False))
    assert body["tool_choice"] == {"type": "function", "function": {"name": "ping"}}
    assert body["tools"] == [PING] and body["parallel_tool_calls"] is False
    assert written("openai", Conversation(messages, [PING], "none"))["tool_choice"] == "none"
    with pytest.raises(UsageError, match="needs at least one tool"):
        written("openai", Conversation(messages, choice="required"))


def test_some_of_the_tools() -> None:
    other = {"type": "function", "function": {"name": "other"}}
    some = Conversation(
        HELLO.messages, [PING, other, {**PING, "function": {"name": "third"}}], "auto", ("ping", "other")
    )
    body = written("vllm", some)
    assert (body["tools"], body["tool_choice"]) == ([PING, other], "auto")
    body = written("treadle", some)
    assert len(body["tools"]) == 3  # so that the prompt is the one that is known
    named = [{"type": "function", "function": {"name": name}} for name in ("ping", "other")]
    assert body["tool_choice"] == {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": named}}


def test_a_message_to_go_on_with() -> None:
    begun = Conversation([*HELLO.messages, {"role": "assistant", "content": "I"}], continues=True)
    for kind in ("vllm", "treadle"):
        body = written(kind, begun)
        assert (body["continue_final_message"], body["add_generation_prompt"]) == (True, False)
    assert "continue_final_message" not in written("llamacpp", begun)
    with pytest.raises(UsageError, match="cannot go on with a message"):
        written("openai", begun)


def test_messages_are_sent_as_the_api_has_them() -> None:
    image = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}
    turn = {
        "role": "assistant",
        "content": "",
        "tool_calls": [
            {"id": "1", "type": "function", "function": {"name": "ping", "arguments": {"ü": 1}}},
            {"id": "2", "type": "function", "function": {"name": "ping", "arguments": "{}"}},
        ],
    }
    body = written("openai", Conversation([image, turn]))
    assert body["messages"][0] == image
    assert [each["function"]["arguments"] for each in body["messages"][1]["tool_calls"]] == ['{"ü": 1}', "{}"]
    assert turn["tool_calls"][0]["function"]["arguments"] == {"ü": 1}  # what the caller holds stays as it was
    for wrong in ([], "text", [1], {"role": "user"}):
        with pytest.raises(UsageError, match="messages"):
            written("openai", Conversation(wrong))  # type: ignore[arg-type]


def test_template_variables() -> None:
    variables = {"reasoning_effort": "low", "enable_thinking": False}
    body = written("vllm", Conversation(HELLO.messages, variables=variables))
    assert (body["reasoning_effort"], body["chat_template_kwargs"]) == ("low", {"enable_thinking": False})
    with pytest.raises(UsageError, match="cannot set enable_thinking of the chat template"):
        written("openai", Conversation(HELLO.messages, variables=variables))


def test_an_encoded_prompt_is_of_another_model() -> None:
    with pytest.raises(UsageError, match="not an EncodedPrompt"):
        written("vllm", EncodedPrompt([1, 2]))


def test_tokens_where_the_server_tells_them(server: LocalServer) -> None:
    async def both(engine: RemoteEngine) -> tuple[list[int], str]:
        return await engine.tokenize("text"), await engine.detokenize([1, 2])

    server.routes["/tokenize"] = text_answer('{"tokens": [1, 2], "count": 2}')
    server.routes["/detokenize"] = text_answer('{"prompt": "text", "content": "text"}')
    for owner in ("vllm", "llamacpp"):
        server.routes["/v1/models"] = models(owner)
        assert with_engine(server, both) == ([1, 2], "text")
    assert [sorted(json.loads(body)) for body in server.bodies] == [
        ["model", "prompt"],
        ["model", "tokens"],
        ["add_special", "content", "model"],
        ["model", "tokens"],
    ]
    server.routes["/tokenize"] = text_answer('{"tokens": ["a"]}')
    with pytest.raises(RemoteError, match="expected token ids"):
        with_engine(server, both)

    async def conversation(engine: RemoteEngine) -> list[int]:
        return await engine.tokenize(HELLO)

    with pytest.raises(UsageError, match=r"llama\.cpp, which cannot count or show the tokens"):
        with_engine(server, conversation)
    server.routes["/v1/models"] = models("openai")
    with pytest.raises(UsageError, match="cannot count or show the tokens"):
        with_engine(server, both)


def test_embeddings(server: LocalServer) -> None:
    answer = {
        "data": [{"index": 1, "embedding": [0, 2]}, {"index": 0, "embedding": [3, 4]}],
        "usage": {"prompt_tokens": 5},
    }
    server.routes["/v1/embeddings"] = text_answer(json.dumps(answer))
    heard = []

    async def embed(engine: RemoteEngine) -> Any:
        return await engine.embed(["a", "b"], dimensions=2, on_embedding=heard.append)

    found = with_engine(server, embed)
    assert [each.vector.tolist() for each in found] == [[pytest.approx(0.6), pytest.approx(0.8)], [0, 1]]
    assert [each.num_tokens for each in found] == [3, 2]
    assert heard == found
    assert json.loads(server.bodies[-1]) == {
        "model": "m",
        "input": ["a", "b"],
        "encoding_format": "float",
        "dimensions": 2,
    }
    for wrong in ({"data": []}, {"data": [{"index": 0}]}, [], {"data": [{"index": 0, "embedding": "x"}] * 2}):
        server.routes["/v1/embeddings"] = text_answer(json.dumps(wrong))
        with pytest.raises(RemoteError, match="expected 2 embeddings"):
            with_engine(server, embed)

    async def pooled(engine: RemoteEngine) -> None:
        await engine.embed(["a"], pooling="last")

    with pytest.raises(UsageError, match="pooled by it"):
        with_engine(server, pooled)
