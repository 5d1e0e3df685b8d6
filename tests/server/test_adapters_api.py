"""Adapters over HTTP: models by their names, loaded and unloaded while the server runs if that is allowed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from gguf import GGMLQuantizationType as Format

from oracles.tiny_adapter import TinyAdapter
from oracles.tiny_model import TinyModel
from patience import PATIENCE_SECONDS
from running_server import MODEL, RunningServer
from treadle.errors import UsageError
from treadle.server.hub import AdapterSource, ModelHub
from treadle.server.settings import ServerSettings

TINY = TinyModel(format=Format.Q8_0, context_length=1024)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("adapters")
    TINY.write(folder / "tiny.gguf")
    for seed, name in enumerate(("law", "medicine")):
        TinyAdapter(seed=seed).write(folder / f"{name}.gguf", TINY)
    return folder


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[RunningServer]:
    law = AdapterSource("law", str(folder / "law.gguf"))
    running = RunningServer(folder / "tiny.gguf", ServerSettings(allow_adapter_loading=True), adapters=[law])
    yield running
    running.close()


@pytest.fixture
def http(server: RunningServer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=PATIENCE_SECONDS) as client:
        yield client


def answer(http: httpx.Client, model: str) -> dict[str, Any]:
    body = {"model": model, "prompt": "the inn in the", "max_tokens": 8, "temperature": 0, "ignore_eos": True}
    response = http.post("/v1/completions", json=body)
    return {"status": response.status_code, **response.json()}


def text(found: dict[str, Any]) -> str:
    assert found["status"] == 200, found
    return str(found["choices"][0]["text"])


def test_an_adapter_is_a_model_of_its_own(http: httpx.Client, folder: Path) -> None:
    plain, law = answer(http, MODEL), answer(http, "law")
    assert (plain["model"], law["model"]) == (MODEL, "law")
    assert text(plain) != text(law)
    listed = http.get("/v1/models").json()["data"]
    assert [(each["id"], each.get("parent")) for each in listed] == [(MODEL, None), ("law", MODEL)]
    assert http.get("/v1/models/law").json()["root"] == str(folder / "law.gguf")
    body = {"model": "law", "max_tokens": 4, "messages": [{"role": "user", "content": "hi"}]}
    for path in ("/v1/chat/completions", "/v1/messages"):
        assert http.post(path, json=body).json()["model"] == "law"
    assert http.post("/tokenize", json={"model": "law", "prompt": "hi"}).json()["count"] == 2
    refused = http.post("/v1/embeddings", json={"model": "law", "input": "hi"})
    assert (refused.status_code, "is an adapter" in refused.text) == (400, True)


def test_loading_and_unloading(http: httpx.Client, folder: Path) -> None:
    assert answer(http, "medicine")["status"] == 404
    body = {"lora_name": "medicine", "lora_path": str(folder / "medicine.gguf")}
    assert http.post("/v1/load_lora_adapter", json=body).json()["parent"] == MODEL
    assert text(answer(http, "medicine")) != text(answer(http, "law"))
    for name in ("medicine", MODEL):
        twice = http.post("/v1/load_lora_adapter", json={**body, "lora_name": name})
        assert (twice.status_code, "already" in twice.text) == (400, True)
    assert http.post("/v1/unload_lora_adapter", json={"lora_name": "medicine"}).status_code == 200
    assert answer(http, "medicine")["status"] == 404
    for name in ("medicine", MODEL):
        assert http.post("/v1/unload_lora_adapter", json={"lora_name": name}).status_code == 404


@pytest.mark.parametrize(
    ("path", "words"), [("missing.gguf", "No such file"), ("tiny.gguf", "general.type is 'model'")]
)
def test_a_file_that_is_no_adapter(http: httpx.Client, folder: Path, path: str, words: str) -> None:
    refused = http.post("/v1/load_lora_adapter", json={"lora_name": "x", "lora_path": str(folder / path)})
    assert refused.status_code == 400
    assert words in refused.json()["error"]["message"]
    assert answer(http, "x")["status"] == 404


def test_only_if_the_operator_allows_it(folder: Path) -> None:
    running = RunningServer(folder / "tiny.gguf", ServerSettings())
    try:
        for path in ("load", "unload"):
            refused = httpx.post(
                f"{running.url}/v1/{path}_lora_adapter",
                json={"lora_name": "a", "lora_path": "b"},
                timeout=PATIENCE_SECONDS,
            )
            assert refused.status_code == 403
            assert "--allow-adapter-loading" in refused.json()["error"]["message"]
    finally:
        running.close()


def test_names_are_given_once() -> None:
    async def load(source: str) -> Any:
        raise AssertionError(source)

    with pytest.raises(UsageError, match="called m already"):
        ModelHub({"m": "m.gguf"}, load, adapters=[AdapterSource("m", "a.gguf")])
