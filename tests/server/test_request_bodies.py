"""What a request may be, down to its bytes: paths, methods, headers, JSON, and which field is named when it is wrong."""

from __future__ import annotations

import gzip
import json
import socket
from typing import Any

import httpx
import pytest
from test_chat_api import ask

from running_server import RunningServer

pytestmark = pytest.mark.model

CHAT = "/v1/chat/completions"
HI: dict[str, Any] = {"role": "user", "content": "hi"}
CALL: dict[str, Any] = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}


def send(direct: httpx.Client, body: bytes, **headers: str) -> httpx.Response:
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    return direct.post(CHAT, content=body, headers={"content-type": "application/json", **names})


def body_with(field: str) -> bytes:
    return b'{"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1, %s}' % field.encode()


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": ["hi"]}, "messages[0]"),
        ({"messages": [{**HI, "name": 3}]}, "messages[0].name"),
        ({"messages": [HI, {"role": "assistant", "content": None, "refusal": None}]}, "messages[1].content"),
        ({"messages": [HI, {"role": "assistant", "function_call": {"name": "f"}}]}, "messages[1].function_call"),
        ({"messages": [HI, {"role": "tool", "tool_call_id": "c1", "content": "x"}]}, "messages[1].tool_call_id"),
        (
            {
                "messages": [
                    HI,
                    {"role": "assistant", "tool_calls": [CALL]},
                    {"role": "tool", "tool_call_id": "c2", "content": "x"},
                ]
            },
            "messages[2].tool_call_id",
        ),
        ({"n": 0}, "n"),
        ({"n": 17}, "n"),
        ({"n": 0, "stream": True}, "n"),
        ({"temperature": -1}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": 1e39}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"min_p": 2}, "min_p"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": "8"}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"max_completion_tokens": 0}, "max_completion_tokens"),
        ({"seed": 1.5}, "seed"),
        ({"seed": 2**64}, "seed"),
        ({"stream": 1}, "stream"),
        ({"stop": ["a"] * 17}, "stop"),
        ({"stop": [""]}, "stop[0]"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"n_keep": 3}, "n_keep"),
        ({"modalities": ["text", "audio"]}, "modalities[1]"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "x"}}}, "tool_choice"),
        *(
            ({name: {}}, name)
            for name in ("audio", "functions", "moderation", "prediction", "prompt_cache_options", "verbosity")
        ),
        ({"store": 1}, "store"),
        ({"web_search_options": {}}, "web_search_options"),
    ],
)
def test_wrong_requests_name_the_field(direct: httpx.Client, fields: dict[str, Any], param: str) -> None:
    response = ask(direct, **fields)
    assert response.headers["content-type"] == "application/json"
    error = response.json()["error"]
    assert (response.status_code, error["type"], error["param"]) == (400, "invalid_request_error", param)
    assert param in error["message"]
    assert error["code"] in ("invalid_value", "unknown_parameter", "unsupported_parameter")


def test_what_changes_nothing_is_taken(direct: httpx.Client) -> None:
    plain = ask(direct).json()
    labels = {"user": "u", "safety_identifier": "s", "prompt_cache_key": "k", "metadata": {"a": "b"}, "tools": []}
    same = {"store": False, "modalities": ["text"], "audio": None, "verbosity": None, "top_k": -1, "stop": None}
    forms = {"response_format": {"type": "text"}, "stream_options": None, "reasoning_effort": "low"}
    labelled = ask(direct, **labels, **same, **forms, service_tier="flex").json()
    assert labelled["choices"] == plain["choices"]
    assert (plain.get("service_tier"), labelled["service_tier"]) == (None, "default")


@pytest.mark.parametrize(
    ("spelled", "status"),
    [
        ('"seed": 3.0', 200),
        ('"top_k": 1e1', 200),
        ('"n": 1.0', 200),
        ('"temperature": 0', 200),
        ('"max_tokens": 1, "max_tokens": 1', 200),  # of a name given twice the last counts
        ('"top_k": ' + "9" * 100, 200),
        ('"seed": ' + "9" * 100, 400),
        ('"seed": ' + "9" * 5000, 400),
        ('"temperature": NaN', 400),
        ('"metadata": {"a": Infinity}', 400),
        ('"metadata": {"a": "NaN"}', 200),
        ('"response_format": {"type": "json_schema", "json_schema": {"name": "f", "schema": {"maximum": 1e999}}}', 400),
        ('"user": "\\ud83d\\ude00"', 200),
        ('"user": "\\ud83d"', 400),
        ('"us\\u0065r": "u"', 200),
    ],
)
def test_numbers_and_texts_however_they_are_spelled(direct: httpx.Client, spelled: str, status: int) -> None:
    response = send(direct, body_with(spelled))
    assert response.status_code == status, response.text


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[",
        b"nul",
        b'"text"',
        b"{}" * 2,
        b"[" * 100_000,
        b'{"messages": ' + b"[" * 5000 + b"]" * 5000 + b"}",
        b'{"messages": [{"role": "user", "content": "\xff"}]}',
        b'{"messages": [{"role": "user", "content": NaN}]}',
        b"\x00",
        body_with('"n": 1').decode().encode("utf-16"),
    ],
)
def test_hostile_bodies(direct: httpx.Client, body: bytes) -> None:
    response = send(direct, body)
    assert response.status_code == 400
    assert response.json()["error"]["message"]


def test_the_mark_before_a_text_is_no_part_of_it(direct: httpx.Client) -> None:
    assert send(direct, b"\xef\xbb\xbf" + body_with('"n": 1')).status_code == 200


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"content_type": "application/json; charset=UTF-8"}, 200),
        ({"content_type": 'application/json; charset="utf-8"; a=b'}, 200),
        ({"content_type": "application/json; charset=iso-8859-1"}, 415),
        ({"content_type": "text/plain"}, 415),
        ({"content_type": "application/x-www-form-urlencoded"}, 415),
        ({"content_encoding": "identity"}, 200),
        ({"content_encoding": "gzip"}, 415),
        ({"content_encoding": "br"}, 415),
    ],
)
def test_media_types(direct: httpx.Client, headers: dict[str, str], status: int) -> None:
    body = body_with('"n": 1')
    response = send(direct, gzip.compress(body) if headers.get("content_encoding") == "gzip" else body, **headers)
    assert response.status_code == status
    assert status == 200 or response.json()["error"]["code"] == "unsupported_media_type"


def test_too_large_a_body(direct: httpx.Client) -> None:
    for content in (b" " * (9 << 20), iter([b" " * (1 << 20)] * 9)):  # with a length, and in chunks
        response = direct.post(CHAT, content=content, headers={"content-type": "application/json"})
        assert (response.status_code, response.json()["error"]["code"]) == (413, "body_too_large")


@pytest.mark.parametrize(
    ("request_line", "status", "code", "words"),
    [
        ("GET /v1/nothing", 404, "unknown_url", "'/v1/nothing'"),
        ("POST /chat/completions", 404, "unknown_url", "did you mean /v1/chat/completions?"),
        ("POST /v1/chat/completions/", 404, "unknown_url", "did you mean /v1/chat/completions?"),
        ("GET /v1/v1/models", 404, "unknown_url", "did you mean /v1/models?"),
        ("GET /v1/" + "x" * 5000, 404, "unknown_url", "/v1/xx"),
        (f"PUT {CHAT}", 405, "method_not_allowed", "expected POST"),
        (f"OPTIONS {CHAT}", 405, "method_not_allowed", "expected POST"),
        ("DELETE /v1/models/smollm2", 405, "method_not_allowed", "expected GET"),
        ("GET /v1/models/%F0%9F%98%80%00", 404, "model_not_found", "smollm2"),
        ("GET /v1/responses/resp_0", 404, "response_not_found", "resp_0"),
        ("GET /v1/responses/resp_0?stream=maybe", 400, "invalid_value", "stream: "),
        ("GET /v1/responses/resp_0/input_items?limit=0", 400, "invalid_value", "limit: "),
        ("GET /v1/responses/resp_0?stream=true", 400, "unsupported_parameter", "stream"),
    ],
)
def test_paths_and_methods(direct: httpx.Client, request_line: str, status: int, code: str, words: str) -> None:
    method, _, path = request_line.partition(" ")
    response = direct.request(method, path)
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (status, code)
    assert words in error["message"]
    assert error["type"] == "invalid_request_error"
    assert status != 405 or response.headers["allow"]


def test_head_is_get_without_a_body(direct: httpx.Client) -> None:
    for path in ("/", "/health", "/ready", "/v1/models"):
        response = direct.head(path)
        assert (response.status_code, response.content) == (200, b"")
        assert int(response.headers["content-length"]) > 0
    assert direct.head("/v1/completions").status_code == 405
    assert direct.head("/v1/nothing").status_code == 404


def test_what_is_no_http_is_told_so_in_json(native_server: RunningServer) -> None:
    host, port = native_server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(b"FOO / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        received = b""
        while data := connection.recv(4096):
            received += data
    head, _, body = received.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400")
    assert json.loads(body)["error"]["type"] == "invalid_request_error"
