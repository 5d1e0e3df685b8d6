"""Who gets in: keys, host names, pages of other sites; and what everybody may see."""

from __future__ import annotations

import asyncio

import httpx
import pytest
from starlette.responses import PlainTextResponse

from treadle.errors import UsageError
from treadle.server.auth import Gate
from treadle.server.keys import Keyring
from treadle.server.settings import ServerSettings

PAGE = "https://page.example"


def ask(settings: ServerSettings, path: str = "/v1/models", method: str = "GET", **headers: str) -> httpx.Response:
    async def run() -> httpx.Response:
        gate = Gate(PlainTextResponse("in"), settings, Keyring(settings.api_keys))
        transport = httpx.ASGITransport(gate)
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


@pytest.mark.parametrize(
    "host", ["127.0.0.1:8080", "localhost", "LOCALHOST:1", "localhost.:8080", "[::1]:8080", "[0:0:0:0:0:0:0:1]", "::1"]
)
def test_loopback_answers_to_its_names(host: str) -> None:
    assert ask(ServerSettings(), host=host).status_code == 200


@pytest.mark.parametrize(
    "host", ["rebound.example", "127.0.0.1.rebound.example", "localhost.rebound.example:8080", "rebound.example."]
)
def test_loopback_answers_to_no_other_name(host: str) -> None:
    response = ask(ServerSettings(), host=host)
    assert response.status_code == 403
    assert response.json()["error"]["code"] == "host_not_allowed"
    assert ask(ServerSettings(allowed_hosts=(host.partition(":")[0],)), host=host).status_code == 200


def test_a_public_server_answers_to_any_name_unless_told() -> None:
    assert ask(ServerSettings(host="0.0.0.0", api_keys=("k",)), host="any.example", x_api_key="k").status_code == 200
    named = ServerSettings(host="0.0.0.0", api_keys=("k",), allowed_hosts=("Mine.example:8080",))
    assert ask(named, host="any.example", x_api_key="k").status_code == 403
    assert ask(named, host="mine.example", x_api_key="k").status_code == 200


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("192.168.1.5:8080", 200),
        ("[fd00::1]", 200),
        ("gpu-box:8080", 200),
        ("rebound.example", 403),
        ("127.0.0.1.nip.io", 403),
    ],
)
def test_a_public_server_without_a_key_answers_to_no_name_that_strangers_may_give_it(host: str, status: int) -> None:
    assert ask(ServerSettings(host="0.0.0.0", allow_public=True), host=host).status_code == status


@pytest.mark.parametrize("host", ["*", "", "a b", "https://llm.example.com", "-a.example"])
def test_a_host_that_cannot_be_is_refused(host: str) -> None:
    with pytest.raises(UsageError, match="allowed host"):
        ServerSettings(allowed_hosts=(host,))


def test_two_names_at_once_are_refused() -> None:
    async def run() -> httpx.Response:
        transport = httpx.ASGITransport(Gate(PlainTextResponse("in"), ServerSettings(), Keyring()))
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            return await client.get("/", headers=[(b"host", b"127.0.0.1"), (b"host", b"rebound.example")])

    assert asyncio.run(run()).status_code == 400


@pytest.mark.parametrize(
    "origin", [PAGE, "null", "http://127.0.0.1:9", "http://127.0.0.1:8080.evil.example", "http://[", ""]
)
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


@pytest.mark.parametrize(
    ("given", "sent"),
    [
        ("https://Page.example/", PAGE),
        (" https://page.example", PAGE),
        ("http://localhost:3000", "http://localhost:3000"),
        ("null", "null"),
        ("app://obsidian.md", "app://obsidian.md"),
        ("*", "https://whoever.example"),
    ],
)
def test_an_origin_is_allowed_however_it_is_spelled(given: str, sent: str) -> None:
    response = ask(ServerSettings(cors_origins=(given,), api_keys=("k",)), origin=sent, x_api_key="k")
    assert response.status_code == 200
    assert response.headers["access-control-allow-origin"] == sent
    assert "access-control-allow-credentials" not in response.headers


@pytest.mark.parametrize("origin", ["page.example", "https://", "https://page.example/app", "https://[", ""])
def test_an_origin_that_no_browser_sends_is_refused(origin: str) -> None:
    with pytest.raises(UsageError, match="expected scheme and host"):
        ServerSettings(cors_origins=(origin,), api_keys=("k",))


def test_any_page_may_call_only_where_it_needs_a_key() -> None:
    with pytest.raises(UsageError, match="any page a browser shows could call this server"):
        ServerSettings(cors_origins=("*",))


def test_a_public_page_may_be_allowed_to_call_a_private_network() -> None:
    asks = {"access_control_request_method": "POST", "access_control_request_private_network": "true"}
    preflight = ask(ServerSettings(cors_origins=(PAGE,)), method="OPTIONS", origin=PAGE, **asks)
    assert preflight.headers["access-control-allow-private-network"] == "true"
