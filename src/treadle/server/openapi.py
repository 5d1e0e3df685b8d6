"""The OpenAPI document: what the routes alone do not say of themselves, above all keys, failures and examples.

Leaves to others: what each route does (``server.routes``) and what a body may hold (``server.schema``).
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from treadle.server.auth import OPEN_PATHS
from treadle.server.errors import ANTHROPIC_PREFIX
from treadle.server.schema.adapters import LoadAdapterRequest, UnloadAdapterRequest
from treadle.server.schema.chat import ChatRequest, StoredChatUpdate
from treadle.server.schema.completions import CompletionRequest
from treadle.server.schema.embeddings import EmbeddingsRequest
from treadle.server.schema.messages import CountTokensRequest, MessagesRequest
from treadle.server.schema.rerank import RerankRequest
from treadle.server.schema.responses import InputTokensRequest, ResponsesRequest
from treadle.server.schema.tokenize import DetokenizeRequest, TokenizeRequest

__all__ = ["FAILURES", "openapi_document"]

_DESCRIPTION = (
    "Language models of this machine with the OpenAI and Anthropic APIs. Every response carries `x-request-id`; a "
    "client's own is kept."
)
_HELLO = [{"role": "user", "content": "Say hello."}]
_BODIES: dict[Any, dict[str, Any]] = {
    ChatRequest: {"messages": _HELLO, "max_tokens": 64, "stream": False},
    CompletionRequest: {"prompt": "Once upon a time", "max_tokens": 32},
    CountTokensRequest: {"model": "smollm2-135m", "messages": _HELLO},
    DetokenizeRequest: {"tokens": [1, 2, 3]},
    EmbeddingsRequest: {"input": ["red", "blue"]},
    InputTokensRequest: {"input": "Say hello."},
    LoadAdapterRequest: {"lora_name": "legal", "lora_path": "/models/legal.gguf"},
    MessagesRequest: {"model": "smollm2-135m", "max_tokens": 64, "messages": _HELLO},
    RerankRequest: {"query": "When is it due?", "documents": ["It is due on Friday.", "Our cat sleeps all day."]},
    ResponsesRequest: {"input": "Say hello.", "max_output_tokens": 64},
    StoredChatUpdate: {"metadata": {"project": "report"}},
    TokenizeRequest: {"prompt": "Say hello."},
    UnloadAdapterRequest: {"lora_name": "legal"},
}
# Those whose bodies may ask for server-sent events.
_STREAMING = frozenset({"/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses"})
_KEYS: dict[str, Any] = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "header": {"type": "apiKey", "in": "header", "name": "x-api-key"},
}
# Nothing is needed where the server has no keys.
_SECURITY: list[dict[str, list[str]]] = [{"bearer": []}, {"header": []}, {}]
_EVERYWHERE, _WITH_BODY, _WITH_MODEL = ("400", "403", "500"), ("408", "413", "415", "429"), ("404", "502", "503", "504")
FAILURES = {
    "400": "Something about the request is wrong; `param` names the field.",
    "401": "The key is missing or wrong.",
    "403": "The server does not answer to this host name, or to pages of this origin.",
    "404": "There is no such model, adapter or response.",
    "408": "The body took too long.",
    "413": "The body is too large.",
    "415": "The body is not JSON in UTF-8, or compressed.",
    "429": "Too many requests wait, or the key has used what it may; `Retry-After` says when to come again.",
    "500": "A bug of the server; its log has the traceback.",
    "502": "The engine elsewhere that this model is passed on to has failed.",
    "503": "The server shuts down, or there is no room for the request; see `Retry-After`.",
    "504": "The answer did not end in time.",
}
_ERROR = {
    "type": "object",
    "description": "A failure, as the OpenAI API tells it.",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}
_ANTHROPIC_ERROR = {
    "type": "object",
    "description": "A failure, as the Anthropic API tells it.",
    "required": ["type", "error"],
    "properties": {
        "type": {"const": "error"},
        "error": {
            "type": "object",
            "required": ["type", "message"],
            "properties": {"type": {"type": "string"}, "message": {"type": "string"}},
        },
    },
}


def openapi_document(app: FastAPI) -> dict[str, Any]:
    """Return the document of an application; it is made once."""
    if app.openapi_schema is None:
        document = get_openapi(title=app.title, version=_version(), description=_DESCRIPTION, routes=app.routes)
        _add_components(document["components"])
        document["security"] = _SECURITY
        for path, operations in document["paths"].items():
            for method, operation in operations.items():
                _complete(operation, path, method)
        app.openapi_schema = document
    return app.openapi_schema


def _version() -> str:
    try:
        return version("treadle")
    except PackageNotFoundError:  # run from its sources
        return "0"


def _add_components(components: dict[str, Any]) -> None:
    """Describe the bodies that the routes read themselves, failures and keys."""
    components["securitySchemes"] = _KEYS
    schemas = components["schemas"] = {"Error": _ERROR, "AnthropicError": _ANTHROPIC_ERROR}
    for body, example in _BODIES.items():
        schema = body.model_json_schema(ref_template="#/components/schemas/{model}")
        schemas.update(schema.pop("$defs", {}))
        schemas[body.__name__] = schema | {"examples": [example]}


def _complete(operation: dict[str, Any], path: str, method: str) -> None:
    responses = operation["responses"]
    responses.pop("422", None)  # the framework's own; ours are 400
    statuses = [*_EVERYWHERE]
    if path in OPEN_PATHS:
        operation["security"] = []
    else:
        statuses.append("401")
    if method == "post":
        statuses += [*_WITH_BODY, *_WITH_MODEL]
    elif "{" in path:
        statuses.append("404")
    if path == "/ready":
        responses["503"] = {**responses["200"], "description": "Not yet, or no more."}
    if path in _STREAMING and method == "post":
        responses["200"]["content"] = {
            "application/json": {"schema": {"type": "object"}},
            "text/event-stream": {"schema": {"type": "string", "description": 'With `"stream": true`.'}},
        }
    if path == "/metrics":
        responses["200"]["content"] = {"text/plain": {"schema": {"type": "string"}}}
    error = "AnthropicError" if path.startswith(ANTHROPIC_PREFIX) else "Error"
    content = {"application/json": {"schema": {"$ref": f"#/components/schemas/{error}"}}}
    for status in sorted(statuses):
        responses.setdefault(status, {"description": FAILURES[status], "content": content})
