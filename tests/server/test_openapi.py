"""The OpenAPI document against the server: every route is in it, and nothing it allows breaks the server."""

from __future__ import annotations

import itertools
import re
from typing import Any

import httpx
import hypothesis
import pytest
import schemathesis

from patience import PATIENCE_SECONDS
from running_server import MODEL, RunningServer
from treadle.server.app import create_app
from treadle.server.hub import ModelHub
from treadle.server.settings import ServerSettings

pytestmark = pytest.mark.model

GENERATING = ("/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses")


def references(node: Any) -> set[str]:
    if isinstance(node, dict):
        own = {node["$ref"]} if isinstance(node.get("$ref"), str) else set()
        return own.union(*(references(value) for value in node.values()))
    return set().union(*(references(value) for value in node)) if isinstance(node, list) else set()


def test_the_document_is_complete(http: httpx.Client) -> None:
    document = http.get("/openapi.json").json()
    schemas = document["components"]["schemas"]
    for reference in references(document):
        assert reference.removeprefix("#/components/schemas/") in schemas
    for path in (*GENERATING, "/v1/embeddings", "/v1/messages/count_tokens", "/tokenize", "/detokenize"):
        content = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]
        name = re.sub(".*/", "", content["schema"]["$ref"])
        assert schemas[name]["additionalProperties"] is False
        assert schemas[name]["properties"]
        [example] = schemas[name]["examples"]
        assert set(example) <= set(schemas[name]["properties"])


def test_the_document_tells_of_keys_and_failures() -> None:
    document = create_app(ModelHub({"m": "m"}, load=None), ServerSettings()).openapi()  # type: ignore[arg-type]
    assert document["security"] == [{"bearer": []}, {"header": []}, {}]
    assert {*document["security"][0], *document["security"][1]} == set(document["components"]["securitySchemes"])
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            is_open = path in ("/", "/health", "/ready")
            assert ("401" in operation["responses"]) != is_open
            assert (operation.get("security") == []) == is_open
            assert "422" not in operation["responses"]
            assert {"400", "500"} <= set(operation["responses"])
            assert method != "post" or {"413", "429", "503"} <= set(operation["responses"])
            error = operation["responses"]["403"]["content"]["application/json"]["schema"]["$ref"]
            assert error.endswith("/AnthropicError") == path.startswith("/v1/messages")


def test_every_example_is_answered(native_server: RunningServer) -> None:
    with httpx.Client(base_url=native_server.url, timeout=PATIENCE_SECONDS) as client:
        document = client.get("/openapi.json").json()
        for path, operations in document["paths"].items():
            if "post" not in operations or any(part in path for part in ("lora", "{", "rerank")):
                # There is no such adapter, no such chat, and the model does not rank.
                continue
            reference = operations["post"]["requestBody"]["content"]["application/json"]["schema"]["$ref"]
            [example] = document["components"]["schemas"][reference.rpartition("/")[2]]["examples"]
            response = client.post(path, json=example | {"model": MODEL})
            assert response.status_code == 200, response.text


@pytest.mark.slow
def test_nothing_in_the_document_breaks_the_server(server: RunningServer, native_server: RunningServer) -> None:
    api = schemathesis.openapi.from_url(f"{server.url}/openapi.json")
    # What comes before the engine is the same code for each.
    most = 25 if server is native_server else 6

    num_tried = 0
    modes = (schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE)
    for result, mode in itertools.product(api.get_all_operations(), modes):
        operation = result.ok()
        if mode is schemathesis.GenerationMode.NEGATIVE and not operation.body:
            continue  # nothing that could be wrong

        @hypothesis.settings(
            max_examples=most, deadline=None, derandomize=True, suppress_health_check=list(hypothesis.HealthCheck)
        )
        @hypothesis.given(case=operation.as_strategy(generation_mode=mode))
        def try_one(case: Any) -> None:
            nonlocal num_tried
            if isinstance(case.body, dict) and case.path in GENERATING:
                limit = "max_output_tokens" if case.path == "/v1/responses" else "max_tokens"
                case.body[limit] = 1
                case.body.pop("max_completion_tokens", None)
            response = case.call(timeout=PATIENCE_SECONDS)
            num_tried += 1
            assert response.status_code < 500, response.text
            assert str(response.status_code) in {*case.operation.definition.raw["responses"], "405"}

        try_one()
    assert num_tried > 4 * most
    assert httpx.get(f"{server.url}/health", timeout=PATIENCE_SECONDS).status_code == 200
