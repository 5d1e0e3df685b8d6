"""Who gets in: keys, host names, pages of other sites; and what everybody may see."""

from __future__ import annotations

import asyncio

import httpx
import pytest
from starlette.responses import PlainTextResponse

from treadle.server.auth import Gate
from treadle.server.settings import ServerSettings

PAGE = "https://page.example"


def ask(settings: ServerSettings, path: str = "/v1/models", method: str = "GET", **headers: str) -> httpx.Response:
    async def run() -> httpx.Response:
        transport = httpx.ASGITransport(Gate(PlainTextResponse("in"), settings))
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8080") as client:
            named = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
            return await client.request(method, path, headers=named)

    return asyncio.run(run())


KEYED = ServerSettings(api_keys=("first", "second", "schlüssel"))


@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": "Bearer first"},
        {"authorization": "bearer second"},
        {"x_api_key": "second"},
        {"x_api_key": "schlüssel"},
    ],
)
def test_a_key_opens(headers: dict[str, str]) -> None:
    assert ask(KEYED, **headers).text == "in"


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": "Bearer third"},
        {"authorization": "Bearer "},
        {"authorization": "Basic first"},
        {"authorization": "first"},
        {"x_api_key": "firs"},
        {"x_api_key": "\xe9"},
    ],
)
def test_anything_else_does_not(headers: dict[str, str]) -> None:
    response = ask(KEYED, **headers)
    assert response.status_code == 401
    assert response.headers["www-authenticate"] == "Bearer"
    assert response.json()["error"]["code"] == "invalid_api_key"


def test_the_anthropic_routes_refuse_in_their_own_shape() -> None:
    assert ask(KEYED, "/v1/messages", "POST").json()["error"]["type"] == "authentication_error"


@pytest.mark.parametrize("path", ["/health", "/ready", "/"])
def test_open_paths_need_no_key(path: str) -> None:
    assert ask(KEYED, path).status_code == 200
    assert ask(KEYED, path + "metrics").status_code == 401


def test_settings_do_not_show_keys() -> None:
    assert "first" not in repr(KEYED)


@pytest.mark.parametrize("host", ["127.0.0.1:8080", "localhost", "LOCALHOST:1", "[::1]:8080"])
def test_loopback_answers_to_its_names(host: str) -> None:
    assert ask(ServerSettings(), host=host).status_code == 200


@pytest.mark.parametrize("host", ["rebound.example", "127.0.0.1.rebound.example", "localhost.rebound.example:8080"])
def test_loopback_answers_to_no_other_name(host: str) -> None:
    response = ask(ServerSettings(), host=host)
    assert response.status_code == 403
    assert response.json()["error"]["code"] == "host_not_allowed"
    assert ask(ServerSettings(allowed_hosts=(host.partition(":")[0],)), host=host).status_code == 200


def test_a_public_server_answers_to_any_name_unless_told() -> None:
    assert ask(ServerSettings(host="0.0.0.0", api_keys=("k",)), host="any.example", x_api_key="k").status_code == 200
    named = ServerSettings(host="0.0.0.0", api_keys=("k",), allowed_hosts=("mine.example",))
    assert ask(named, host="any.example", x_api_key="k").status_code == 403


@pytest.mark.parametrize("origin", [PAGE, "null", "http://127.0.0.1:9", "http://127.0.0.1:8080.evil.example"])
def test_pages_of_other_sites_may_not_call(origin: str) -> None:
    response = ask(ServerSettings(), "/v1/chat/completions", "POST", origin=origin)
    assert response.status_code == 403
    assert "access-control-allow-origin" not in response.headers


def test_the_own_page_may_call() -> None:
    assert ask(ServerSettings(), origin="http://127.0.0.1:8080").status_code == 200


def test_an_allowed_page_may_call() -> None:
    settings = ServerSettings(cors_origins=(PAGE,), api_keys=("k",))
    preflight = ask(
        settings, method="OPTIONS", origin=PAGE, access_control_request_method="POST",
        access_control_request_headers="authorization, content-type",
    )  # fmt: skip
    assert preflight.status_code == 200
    assert preflight.headers["access-control-allow-headers"] == "authorization, content-type"
    assert "POST" in preflight.headers["access-control-allow-methods"]
    for response in (ask(settings, origin=PAGE, x_api_key="k"), ask(settings, origin=PAGE)):
        assert response.headers["access-control-allow-origin"] == PAGE
        assert response.headers["vary"] == "Origin"
