"""Commands over a model of another server: what is typed, what is printed, what is refused."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from command import environment, plain_numbers, treadle
from local_server import LocalServer, local_server, text_answer
from patience import PATIENCE_SECONDS


@pytest.fixture
def far() -> Iterator[LocalServer]:
    with local_server() as running:
        data = [{"id": "big", "owned_by": "acme"}]
        running.routes["/v1/models"] = text_answer(json.dumps({"data": data}))
        choice = {"index": 0, "message": {"content": "From afar."}, "finish_reason": "stop"}
        usage = {"prompt_tokens": 7, "completion_tokens": 3}
        running.routes["/v1/chat/completions"] = text_answer(json.dumps({"choices": [choice], "usage": usage}))
        yield running


def sent(far: LocalServer) -> Any:
    return json.loads(far.bodies[-1])


def test_run_asks_the_engine_at_a_url(far: LocalServer) -> None:
    result = treadle("run", "Hello", "-m", f"{far.url}/v1#big", "-s", "Be brief.", "--temperature", "0")
    assert (result.code, result.out) == (0, "From afar.\n")
    assert plain_numbers(result.err) == "prompt N tokens at N tok/s, answer N tokens\n"
    assert [message["content"] for message in sent(far)["messages"]] == ["Be brief.", "Hello"]
    assert (sent(far)["model"], sent(far)["temperature"], sent(far)["max_tokens"]) == ("big", 0, 512)


def test_the_engine_may_be_named_apart_from_the_model(far: LocalServer) -> None:
    for arguments, variables in (
        (("--engine", f"{far.url}/v1", "-m", "big"), {}),
        (("--engine", far.url), {}),
        ((), {"TREADLE_ENGINE": far.url}),
    ):
        facts = json.loads(treadle("run", "Hello", "--json", *arguments, **variables).out)
        assert (facts["text"], facts["completion_tokens"], facts["load_seconds"]) == ("From afar.", 3, None)
        assert facts["model"].startswith("big at 127.0.0.1:")


def test_chat_keeps_the_conversation(far: LocalServer) -> None:
    result = treadle("chat", "--engine", far.url, text="one\ntwo\n")
    assert (result.code, result.out) == (0, "From afar.\nFrom afar.\n")
    assert [message["content"] for message in sent(far)["messages"]] == ["one", "From afar.", "two"]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("-m", "{url}#small"), "has no model 'small'; it has big"),
        (("-m", "{url}", "--context", "512", "--threads", "2"), "--context, --threads: an engine elsewhere has"),
        (("-m", "{url}", "--engine", "native"), "'native' cannot compute what is at"),
        (("-m", "http://user:pw@host/v1"), "holds a user or a password"),
        (("--engine", "{url}#big", "-m", "small"), "it names the model 'big', but 'small' is asked for"),
    ],
)
def test_what_cannot_be_is_refused(far: LocalServer, arguments: tuple[str, ...], problem: str) -> None:
    far.routes["/v1/models"] = text_answer('{"data": [{"id": "big", "owned_by": "vllm"}]}')
    result = treadle("run", "Hello", *(argument.format(url=far.url) for argument in arguments))
    assert problem in result.err
    assert (result.code, result.out) == (1, "")


def test_a_server_passes_requests_on(far: LocalServer) -> None:
    command = [sys.executable, "-m", "treadle", "serve", f"other={far.url}/v1#big", f"{far.url}/v1#big", "-p", "0"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment())
    try:
        assert process.stderr is not None
        while (
            found := re.search(r"serving other, big at (http://[\d.:]+)", line := process.stderr.readline())
        ) is None:
            assert line, "the server ended before it was ready"
        body = {"messages": [{"role": "user", "content": "Hello"}], "model": "big"}
        answer = httpx.post(f"{found[1]}/v1/chat/completions", json=body, timeout=PATIENCE_SECONDS).json()
        assert answer["choices"][0]["message"]["content"] == "From afar."
        assert (answer["model"], answer["usage"]["completion_tokens"]) == ("big", 3)
        os.kill(process.pid, signal.SIGTERM)
        assert process.wait(PATIENCE_SECONDS) == 0
    finally:
        process.kill()
        process.wait()
        if process.stderr is not None:
            process.stderr.close()
