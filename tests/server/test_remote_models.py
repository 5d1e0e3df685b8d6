"""Models of other servers beside one of this process: who answers, what clients hear when the other one fails."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from test_operation import LONG, leave, wait_until_idle

from local_server import LocalServer, local_server, status_answer, text_answer
from patience import PATIENCE_SECONDS
from running_server import MODEL, RunningServer
from treadle.server.settings import ServerSettings

ASK = {"messages": [{"role": "user", "content": "Name the capital of Japan."}], "temperature": 0, "max_tokens": 8}
CHAT = "/v1/chat/completions"


@pytest.fixture(scope="module")
def far() -> Iterator[LocalServer]:
    """A server with a model of its own, without any extra."""
    with local_server() as running:
        data = [{"id": "far-model", "object": "model", "owned_by": "acme"}]
        running.routes["/v1/models"] = text_answer(json.dumps({"data": data}))
        yield running


@pytest.fixture(scope="module")
def mixed(smollm2_path: Path, far: LocalServer) -> Iterator[RunningServer]:
    """A server with the small model in this process, and the far one."""
    running = RunningServer(smollm2_path, ServerSettings(), others={"far": f"{far.url}/v1"})
    yield running
    running.close()


@pytest.fixture
def client(mixed: RunningServer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=mixed.url, timeout=PATIENCE_SECONDS) as client:
        yield client


def answer(text: str) -> Any:
    choice = {"index": 0, "message": {"content": text}, "finish_reason": "stop"}
    return text_answer(json.dumps({"choices": [choice], "usage": {"prompt_tokens": 3, "completion_tokens": 2}}))


@pytest.mark.model
def test_the_name_of_the_model_says_who_answers(client: httpx.Client, far: LocalServer) -> None:
    far.routes[CHAT] = answer("from afar")
    texts = [
        client.post(CHAT, json={**ASK, **fields}).json()["choices"][0]["message"]["content"]
        for fields in ({}, {"model": MODEL}, {"model": "far"})
    ]
    assert texts == ["The capital of Japan is Tokyo."] * 2 + ["from afar"]
    sent = json.loads(far.bodies[-1])
    assert (sent["model"], sent["messages"], sent["temperature"]) == ("far-model", ASK["messages"], 0)
    assert [model["id"] for model in client.get("/v1/models").json()["data"]] == [MODEL, "far"]


@pytest.mark.model
def test_what_is_elsewhere_is_counted_here(client: httpx.Client, far: LocalServer) -> None:
    far.routes[CHAT] = answer("x")
    client.post(CHAT, json={**ASK, "model": "far"})
    stats = {model["name"]: model for model in client.get("/stats").json()["models"]}
    assert stats["far"]["is_loaded"] and "memory" not in stats["far"]
    newest = stats["far"]["requests"][0]
    assert (newest["prompt_tokens"], newest["answer_tokens"], newest["state"]) == (3, 2, "stop")
    metrics = client.get("/metrics").text
    assert 'vllm:generation_tokens_total{engine="0",model_name="far"}' in metrics
    assert 'vllm:kv_cache_usage_perc{engine="0",model_name="far"}' not in metrics


@pytest.mark.model
@pytest.mark.parametrize("stream", [False, True])
def test_clients_hear_whose_failure_it_is(client: httpx.Client, far: LocalServer, stream: bool) -> None:
    fields = {**ASK, "model": "far", "stream": stream}
    far.routes[CHAT] = status_answer(429, Retry_After="3600")
    busy = client.post(CHAT, json=fields)
    assert (busy.status_code, busy.json()["error"]["code"]) == (503, "capacity")
    assert int(busy.headers["retry-after"]) > 0
    far.routes[CHAT] = status_answer(500)
    failed = client.post(CHAT, json=fields)
    assert (failed.status_code, failed.json()["error"]["code"]) == (502, "engine_failed")
    far.routes[CHAT] = status_answer(400)
    assert client.post(CHAT, json=fields).status_code == 400


@pytest.mark.model
@pytest.mark.parametrize(
    ("path", "body", "reason"),
    [
        ("/tokenize", {"prompt": "a"}, "cannot count or show the tokens"),
        ("/detokenize", {"tokens": [1]}, "cannot turn tokens into text"),
        (CHAT, {**ASK, "top_k": 5}, "cannot set top_k"),
        (CHAT, {**ASK, "chat_template_kwargs": {"a": 1}}, "cannot set a of the chat template"),
        ("/v1/completions", {"prompt": "a", "min_tokens": 3}, "cannot set min_tokens"),
    ],
)
def test_what_the_other_server_lacks_is_refused(client: httpx.Client, path: str, body: Any, reason: str) -> None:
    response = client.post(path, json={**body, "model": "far"})
    assert response.status_code == 400
    assert reason in response.json()["error"]["message"]


@pytest.mark.model
@pytest.mark.parametrize("stream", [True, False])
def test_nothing_works_over_there_for_a_client_that_left(
    remote_server: RunningServer, native_server: RunningServer, stream: bool
) -> None:
    leave(remote_server, {**LONG, "stream": stream}, 0.3)
    wait_until_idle(native_server)
