"""An engine elsewhere for programs without an event loop."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler

import pytest
from scripted_engine import CHAT, DONE, FAST, Events, delta, models, usage

from local_server import LocalServer, status_answer
from patience import PATIENCE_SECONDS
from treadle.engine.remote.llm import RemoteLLM
from treadle.errors import RemoteError, UsageError

HELLO = [{"role": "user", "content": "hello"}]
GOOD = Events([delta(content="Hel"), delta(content="lo"), delta(finish_reason="stop"), usage(3, 2), DONE])


@pytest.fixture
def llm(server: LocalServer) -> Iterator[RemoteLLM]:
    server.routes[CHAT] = GOOD
    with RemoteLLM(f"{server.url}/v1", limits=FAST) as connected:
        yield connected


def test_a_chat_whole_and_in_chunks(llm: RemoteLLM, server: LocalServer) -> None:
    answer = llm.chat(HELLO, enable_thinking=False)
    assert (answer.text, answer.prompt_tokens, answer.answer_tokens) == ("Hello", 3, 2)
    assert json.loads(server.bodies[-1])["chat_template_kwargs"] == {"enable_thinking": False}
    with llm.stream(HELLO) as stream:
        chunks = list(stream)
    assert [chunk.text for chunk in chunks] == ["Hel", "lo", ""]
    assert chunks[-1].completion is not None
    with pytest.raises(UsageError, match="have no place in a text"):
        llm.chat(HELLO, tools=[{}])


def test_a_list_of_prompts_is_answered_in_its_order(llm: RemoteLLM, server: LocalServer) -> None:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        prompt = json.loads(handler.body)["prompt"]  # type: ignore[attr-defined]
        if prompt == "bad":
            status_answer(400)(handler)
        else:
            Events([{"choices": [{"index": 0, "text": prompt.upper(), "finish_reason": "stop"}]}, DONE])(handler)

    server.routes["/v1/completions"] = answer
    assert llm.generate("a").text == "A"
    found = llm.generate(["c", "bad", "b"])
    assert [(each.text, each.finish_reason) for each in found] == [("C", "stop"), ("", "error"), ("B", "stop")]
    assert isinstance(found[1].error, UsageError)
    with pytest.raises(UsageError):
        llm.generate("bad")


def test_leaving_a_stream_ends_the_request(llm: RemoteLLM, server: LocalServer) -> None:
    gate = threading.Event()
    server.routes[CHAT] = long = Events([delta(content="a"), *[delta(content="b" * 100_000)] * 200], gate=gate, gated=1)
    with llm.stream(HELLO) as stream:
        assert next(stream).text == "a"
    gate.set()
    assert long.gone.wait(PATIENCE_SECONDS)


def test_closing_and_failing(server: LocalServer) -> None:
    server.routes["/v1/models"] = status_answer(500)
    with pytest.raises(RemoteError):
        RemoteLLM(server.url, limits=FAST)
    server.routes["/v1/models"] = models("vllm", "m", max_model_len=100)
    llm = RemoteLLM(server.url, limits=FAST)
    assert (llm.name.partition(" ")[0], llm.context, llm.report) == ("m", 100, None)
    llm.close()
    llm.close()
    assert not any(thread.name == "treadle-remote" for thread in threading.enumerate())
    with pytest.raises(UsageError, match="was closed"):
        llm.chat(HELLO)
