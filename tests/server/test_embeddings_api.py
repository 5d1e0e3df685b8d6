"""`/v1/embeddings` over HTTP: the official client, every form of input, refusals, limits, metrics."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import pytest
from numpy.typing import NDArray
from test_operation import leave, metrics, wait_until_idle

from patience import PATIENCE_SECONDS
from running_server import CONTEXT, RunningServer, access_log
from treadle.server.settings import ServerSettings

pytestmark = pytest.mark.model

TEXTS = ["The cat sat on the mat.", "Revenue rose by eleven percent.", "def add(a, b):"]
PATH = "/v1/embeddings"


def embed(http: httpx.Client, inputs: Any, **fields: Any) -> httpx.Response:
    return http.post(PATH, json={"model": "smollm2", "input": inputs, **fields})


def vectors(response: httpx.Response) -> list[NDArray[np.float32]]:
    assert response.status_code == 200, response.text
    items = response.json()["data"]
    assert [item["index"] for item in items] == list(range(len(items)))
    return [np.array(item["embedding"], dtype=np.float32) for item in items]


@pytest.fixture
def client(server: RunningServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def test_the_official_client(client: openai.OpenAI, http: httpx.Client) -> None:
    found = client.embeddings.create(model="smollm2", input=TEXTS, user="somebody")  # asks for base64 by itself
    assert (found.object, found.model) == ("list", "smollm2")
    assert [(item.object, item.index) for item in found.data] == [("embedding", 0), ("embedding", 1), ("embedding", 2)]
    assert found.usage.prompt_tokens == found.usage.total_tokens
    counts = [http.post("/tokenize", json={"prompt": text}).json()["count"] for text in TEXTS]
    assert found.usage.prompt_tokens == sum(counts)
    np.testing.assert_array_equal(
        np.array([item.embedding for item in found.data], np.float32), vectors(embed(http, TEXTS))
    )
    np.testing.assert_allclose(np.linalg.norm(found.data[0].embedding), 1, rtol=1e-6)
    short = client.embeddings.create(model="smollm2", input=TEXTS[0], dimensions=32)
    expected = np.array(found.data[0].embedding)[:32]
    np.testing.assert_allclose(short.data[0].embedding, expected / np.linalg.norm(expected), rtol=1e-5)


def test_base64_is_the_little_endian_form_of_the_floats(http: httpx.Client) -> None:
    item = embed(http, TEXTS[0], encoding_format="base64").json()["data"][0]["embedding"]
    decoded = np.frombuffer(base64.b64decode(item, validate=True), dtype="<f4")
    for fields in ({"encoding_format": "float"}, {}, {"encoding_format": None}):
        np.testing.assert_array_equal(vectors(embed(http, TEXTS[0], **fields))[0], decoded)


def test_every_form_of_input_means_the_same(http: httpx.Client) -> None:
    ids = [http.post("/tokenize", json={"prompt": text}).json()["tokens"] for text in TEXTS]
    expected = vectors(embed(http, TEXTS))
    for inputs in (TEXTS[0], [TEXTS[0]], ids[0], [ids[0]]):
        np.testing.assert_array_equal(vectors(embed(http, inputs)), expected[:1])
    np.testing.assert_array_equal(vectors(embed(http, ids)), expected)
    np.testing.assert_array_equal(vectors(http.post(PATH, json={"input": TEXTS})), expected)


def test_the_last_state_as_it_is(native_server: RunningServer) -> None:
    with httpx.Client(base_url=native_server.url, timeout=PATIENCE_SECONDS) as http:
        compare_poolings(http)


def compare_poolings(http: httpx.Client) -> None:
    [plain] = vectors(embed(http, TEXTS[0], pooling="last", normalize=False))
    [unit] = vectors(embed(http, TEXTS[0], pooling="last"))
    np.testing.assert_allclose(plain / np.linalg.norm(plain), unit, rtol=1e-5, atol=1e-7)
    assert abs(unit @ vectors(embed(http, TEXTS[0]))[0]) < 0.99


@pytest.mark.parametrize(
    ("body", "param", "word"),
    [
        ({"input": ""}, "input", "empty"),
        ({"input": []}, "input", "one or more"),
        ({"input": [[]]}, "input[0]", "not empty"),
        ({"input": ["a", ""]}, "input", "prompt 1 of the list"),
        ({"input": [-1]}, "input", "-1 is not a token id"),
        ({"input": [[1], [10**6]]}, "input", "prompt 1 of the list: prompt: 1000000 is not a token id"),
        ({"input": [1, "a"]}, "input[1]", "token id"),
        ({"input": [["a"]]}, "input[0][0]", "token id"),
        ({"input": [True]}, "input[0]", "token ids"),
        ({"input": None}, "input", ""),
        ({"input": 3}, "input", ""),
        ({}, "input", "required"),
        ({"input": "a", "encoding_format": "hex"}, "encoding_format", "float"),
        ({"input": "a", "dimensions": 0}, "dimensions", "greater"),
        ({"input": "a", "dimensions": 577}, "dimensions", "expected 1 to 576"),
        ({"input": "a", "pooling": "max"}, "pooling", "mean"),
        ({"input": "a", "stream": True}, "stream", "unknown parameter"),
    ],
)
def test_refusals_name_the_field(direct: httpx.Client, body: dict[str, Any], param: str, word: str) -> None:
    response = direct.post(PATH, json=body)
    error = response.json()["error"]
    assert (response.status_code, error["type"], error["param"]) == (400, "invalid_request_error", param)
    assert word in error["message"]


def test_a_text_longer_than_the_context(http: httpx.Client) -> None:
    assert vectors(embed(http, [5] * CONTEXT))[0].shape == (576,)
    response = embed(http, [[5], [5] * (CONTEXT + 1)])
    error = response.json()["error"]
    assert (response.status_code, error["code"], error["param"]) == (400, "context_length_exceeded", "input")
    assert f"{CONTEXT + 1} tokens" in error["message"]


def test_an_unknown_model(http: httpx.Client) -> None:
    assert http.post(PATH, json={"input": "a", "model": "other"}).status_code == 404


def test_many_inputs_beside_an_answer(
    server: RunningServer, http: httpx.Client, request: pytest.FixtureRequest
) -> None:
    """A list longer than what is queued at a time, and a stream that goes on meanwhile."""
    texts = [f"Text number {index} of many." for index in range(150)]
    body = {"prompt": "Once", "max_tokens": 40, "temperature": 0, "ignore_eos": True}
    expected = http.post("/v1/completions", json=body).json()["choices"]
    with httpx.Client(base_url=server.url, timeout=PATIENCE_SECONDS) as other:
        found: list[Any] = []
        thread = threading.Thread(target=lambda: found.append(other.post("/v1/completions", json=body).json()))
        thread.start()
        together = vectors(embed(http, texts))
        thread.join(PATIENCE_SECONDS)
    rounds = request.node.callspec.params["server"] == "llamacpp"  # otherwise in other company
    assert len(found[0]["choices"]) == 1
    assert rounds or found[0]["choices"] == expected
    for index in (0, 77, 149):
        [alone] = vectors(embed(http, texts[index]))
        np.testing.assert_allclose(alone, together[index], rtol=0, atol=0.02 if rounds else 0)


def test_what_metrics_count(http: httpx.Client) -> None:
    before = metrics(http)
    num_tokens = embed(http, TEXTS).json()["usage"]["prompt_tokens"]
    embed(http, ["a", ""])
    after = metrics(http)

    def grown(name: str) -> float:
        return after.get(name, 0) - before.get(name, 0)

    model = "{model_name=smollm2}"
    assert grown("vllm:request_success_total{engine=0}{finished_reason=stop}" + model) == 3
    assert grown("vllm:request_success_total{engine=0}{finished_reason=error}" + model) == 2
    assert grown("vllm:prompt_tokens_total{engine=0}" + model) == num_tokens
    assert grown("vllm:e2e_request_latency_seconds_count{engine=0}" + model) == 3
    assert grown("vllm:generation_tokens_total{engine=0}" + model) == 0
    assert grown("vllm:time_to_first_token_seconds_count{engine=0}" + model) == 0
    assert grown("treadle:http_requests_total{method=POST}{route=/v1/embeddings}{status=200}") == 1


def test_a_client_that_leaves_frees_the_blocks(native_server: RunningServer) -> None:
    leave(native_server, {"input": ["word " * 900] * 60}, 0.05, PATH)
    wait_until_idle(native_server)


@pytest.fixture(scope="module")
def strict(smollm2_path: Path) -> Iterator[RunningServer]:
    settings = ServerSettings(api_keys=("key",), max_embedding_inputs=2, max_tokens_per_minute_per_key=5)
    running = RunningServer(smollm2_path, settings)
    yield running
    running.close()


def test_keys_and_limits(strict: RunningServer) -> None:
    with httpx.Client(base_url=strict.url, timeout=PATIENCE_SECONDS) as http:
        assert embed(http, "a").status_code == 401
        http.headers["Authorization"] = "Bearer key"
        response = embed(http, ["a", "b", "c"])
        assert response.status_code == 400
        assert response.json()["error"]["message"] == "input: 3 inputs, expected at most 2"
        # So much more than the key may use that no pause of the machine makes up for it.
        assert embed(http, ["one two three " * 90, "four five six " * 90]).status_code == 200
        response = embed(http, "a")
        assert (response.status_code, response.json()["error"]["code"]) == (429, "key_tokens")


def test_the_log_tells_tokens_and_no_text(http: httpx.Client, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", logger="treadle.server.access"):
        http.post(PATH, json={"input": "a secret text"}, headers={"x-request-id": "embedding"})
        fields = access_log(caplog, "embedding").fields  # type: ignore[attr-defined]
    assert fields["route"] == PATH
    assert (fields["model"], fields["finish"], fields["answer_tokens"]) == ("smollm2", "stop", 0)
    assert fields["prompt_tokens"] > 0
    assert "secret" not in json.dumps(fields)
