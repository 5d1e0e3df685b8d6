"""`/v1/rerank` over HTTP: every form of documents, the order of the results, refusals, limits, metrics, a remote one."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from test_operation import metrics

from oracles.tiny_encoder import TinyEncoder
from oracles.tiny_model import TinyModel
from patience import PATIENCE_SECONDS
from running_server import RunningServer, access_log
from treadle import LLM
from treadle.engine.remote.engine import RemoteEngine
from treadle.server.settings import ServerSettings

PATH = "/v1/rerank"
QUERY = "the inn"
DOCUMENTS = ["cat", "the river sat", "", "inn, inn."]


@pytest.fixture(scope="module")
def ranker_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return TinyEncoder(ranks=True, pooling=None).write(tmp_path_factory.mktemp("ranker") / "ranker.gguf")


@pytest.fixture(scope="module")
def ranker(ranker_path: Path) -> Iterator[RunningServer]:
    folder = ranker_path.parent
    others = {
        "embedder": str(TinyEncoder().write(folder / "bert.gguf")),
        "writer": str(TinyModel().write(folder / "llama.gguf")),
    }
    running = RunningServer(ranker_path, ServerSettings(max_embedding_inputs=64), others=others, context=64)
    yield running
    running.close()


@pytest.fixture(scope="module")
def client(ranker: RunningServer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=ranker.url, timeout=PATIENCE_SECONDS) as http:
        yield http


@pytest.fixture(scope="module")
def expected(ranker_path: Path) -> list[tuple[int, float]]:
    with LLM(ranker_path, threads=1) as llm:
        return [(each.index, each.score) for each in llm.rerank(QUERY, DOCUMENTS)]


def rerank(http: httpx.Client, documents: Any = DOCUMENTS, path: str = PATH, **fields: Any) -> httpx.Response:
    return http.post(path, json={"query": QUERY, "documents": documents, **fields})


def results(response: httpx.Response) -> list[tuple[int, float]]:
    assert response.status_code == 200, response.text
    return [(each["index"], each["relevance_score"]) for each in response.json()["results"]]


@pytest.mark.parametrize("path", [PATH, "/v2/rerank", "/rerank"])
def test_the_answer_that_clients_expect(client: httpx.Client, expected: list[tuple[int, float]], path: str) -> None:
    response = rerank(client, path=path, model="smollm2")
    assert results(response) == expected
    body = response.json()
    assert (body["object"], body["model"]) == ("list", "smollm2")
    assert body["id"].startswith("rerank-")
    assert [each["document"] for each in body["results"]] == [{"text": DOCUMENTS[index]} for index, _ in expected]
    assert body["usage"]["prompt_tokens"] == body["usage"]["total_tokens"] > 4 * len(DOCUMENTS)


def test_forms_of_documents_and_of_results(client: httpx.Client, expected: list[tuple[int, float]]) -> None:
    mixed = [DOCUMENTS[0], *({"text": text} for text in DOCUMENTS[1:])]
    response = rerank(client, mixed, top_n=2.0, return_documents=False)
    assert results(response) == expected[:2]
    assert all("document" not in each for each in response.json()["results"])
    assert response.json()["usage"] == rerank(client).json()["usage"]
    logits = dict(results(rerank(client, normalize=False)))
    assert [index for index, _ in expected] == sorted(logits, key=lambda index: -logits[index])


def test_long_documents(client: httpx.Client) -> None:
    long = "cat " * 100
    error = rerank(client, ["cat", long]).json()["error"]
    assert (error["code"], error["param"]) == ("context_length_exceeded", "documents[1]")
    response = rerank(client, ["cat", long], truncate_prompt_tokens=-1)
    assert response.json()["usage"]["total_tokens"] == 6 + 64


@pytest.mark.parametrize(
    ("body", "param", "word"),
    [
        ({}, "query", "required"),
        ({"query": "", "documents": ["a"]}, "query", "at least 1"),
        ({"query": "a"}, "documents", "required"),
        ({"query": "a", "documents": []}, "documents", "one or more documents"),
        ({"query": "a", "documents": "text"}, "documents", "list of one or more"),
        ({"query": "a", "documents": ["a", 5]}, "documents[1]", "expected text"),
        ({"query": "a", "documents": [{"title": "a"}]}, "documents[0]", "expected text"),
        ({"query": "a", "documents": [{"text": 1}]}, "documents[0].text", "expected text"),
        ({"query": "a", "documents": ["a"], "top_n": 0}, "top_n", "greater"),
        ({"query": "a", "documents": ["a"], "truncate_prompt_tokens": 65}, "truncate_prompt_tokens", "1 to 64"),
        ({"query": "a", "documents": ["a"], "rank_fields": ["text"]}, "rank_fields", "unknown parameter"),
        ({"query": "a", "documents": ["a"] * 65}, "documents", "65 documents, expected at most 64"),
        ({"query": "a", "documents": ["a"], "model": "embedder"}, "model", "no head that scores a text"),
        ({"query": "a", "documents": ["a"], "model": "writer"}, "model", "no head that scores a text"),
    ],
)
def test_refusals_name_the_field(client: httpx.Client, body: dict[str, Any], param: str, word: str) -> None:
    response = client.post(PATH, json=body)
    error = response.json()["error"]
    assert (response.status_code, error["type"], error["param"]) == (400, "invalid_request_error", param)
    assert word in error["message"]


def test_other_routes_say_what_a_ranker_is_for(client: httpx.Client) -> None:
    refused = client.post("/v1/embeddings", json={"input": "cat"}).json()["error"]
    assert "ranks documents and gives no vectors" in refused["message"]
    for path, body in (
        ("completions", {"prompt": "a"}),
        ("chat/completions", {"messages": [{"role": "user", "content": "a"}]}),
    ):
        response = client.post(f"/v1/{path}", json=body)
        assert response.status_code == 400
        assert "ranks documents and gives no answers" in response.json()["error"]["message"]


def test_what_is_counted_and_told(client: httpx.Client, caplog: pytest.LogCaptureFixture) -> None:
    before = metrics(client)
    with caplog.at_level("INFO", logger="treadle.server.access"):
        body = {"query": "a secret", "documents": DOCUMENTS}
        response = client.post(PATH, json=body, headers={"x-request-id": "ranking"})
        fields = access_log(caplog, "ranking").fields  # type: ignore[attr-defined]
    num_tokens = response.json()["usage"]["total_tokens"]
    assert (fields["route"], fields["model"], fields["finish"]) == (PATH, "smollm2", "stop")
    assert fields["prompt_tokens"] == num_tokens
    assert "secret" not in json.dumps(fields)
    after = metrics(client)
    model = "{engine=0}{model_name=smollm2}"
    assert after[f"vllm:prompt_tokens_total{model}"] - before.get(f"vllm:prompt_tokens_total{model}", 0) == num_tokens
    facts = client.get("/stats").json()
    served = next(each for each in facts["models"] if each["name"] == "smollm2")
    assert served["ranks"] is True
    assert served["requests"][0]["kind"] == "ranking"


def test_an_engine_elsewhere_ranks(ranker: RunningServer, expected: list[tuple[int, float]]) -> None:
    async def run() -> None:
        engine = await RemoteEngine.connect(f"{ranker.url}/v1", "smollm2")
        try:
            heard: list[int] = []
            found = await engine.rerank(
                QUERY, DOCUMENTS, top_n=3, on_embedding=lambda embedding: heard.append(embedding.num_tokens)
            )
        finally:
            await engine.close()
        assert [(each.index, each.score) for each in found] == expected[:3]
        assert len(heard) == len(DOCUMENTS)
        assert sum(heard) > 4 * len(DOCUMENTS)

    asyncio.run(run())


def test_texts_to_embed_may_be_cut(client: httpx.Client) -> None:
    body = {"model": "embedder", "input": ["cat " * 100, "cat"]}
    assert client.post("/v1/embeddings", json=body).json()["error"]["code"] == "context_length_exceeded"
    for fields, num_tokens in (({"truncate": True}, 64), ({"truncate_prompt_tokens": 10}, 10)):
        response = client.post("/v1/embeddings", json={**body, **fields})
        assert response.json()["usage"]["prompt_tokens"] == num_tokens + 3
    cut = client.post("/v1/embeddings", json={**body, "truncate_prompt_tokens": 10}).json()["data"][0]
    whole = client.post("/v1/embeddings", json={"model": "embedder", "input": "cat " * 8}).json()["data"][0]
    assert cut["embedding"] == whole["embedding"]
    for wrong in (0, -2, 65):
        error = client.post("/v1/embeddings", json={**body, "truncate_prompt_tokens": wrong}).json()["error"]
        assert error["param"] == "truncate_prompt_tokens"
