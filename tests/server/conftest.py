"""A real server with the small real model for every test of this folder."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from patience import PATIENCE_SECONDS
from running_server import MODEL, RunningServer
from treadle.server.settings import ServerSettings

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page


sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))  # for the schemas that one of them asks for

_BROWSER_MS = 1000 * PATIENCE_SECONDS


@pytest.fixture(scope="session")
def native_server(smollm2_path: Path) -> Iterator[RunningServer]:
    """A server that computes with the core."""
    running = RunningServer(smollm2_path, ServerSettings())
    yield running
    running.close()


@pytest.fixture(scope="session")
def remote_server(native_server: RunningServer) -> Iterator[RunningServer]:
    """A server that passes everything on to the other one."""
    running = RunningServer(f"{native_server.url}/v1#{MODEL}", ServerSettings())
    yield running
    running.close()


@pytest.fixture(scope="session")
def llamacpp_server(smollm2_path: Path) -> Iterator[RunningServer]:
    """A server that computes with llama.cpp."""
    running = RunningServer(smollm2_path, ServerSettings(), engine="llamacpp")
    yield running
    running.close()


@pytest.fixture(scope="session", params=["native", "remote", pytest.param("llamacpp", marks=pytest.mark.slow)])
def server(request: pytest.FixtureRequest) -> RunningServer:
    """A server over each engine there is: clients must not see which it is."""
    running: RunningServer = request.getfixturevalue(f"{request.param}_server")
    return running


@pytest.fixture(scope="session")
def direct(native_server: RunningServer) -> Iterator[httpx.Client]:
    """For what is answered before any engine hears of it, whichever that is."""
    # No connection rests between tests: the server closes one that does, perhaps just when it is used again.
    limits = httpx.Limits(max_keepalive_connections=0)
    with httpx.Client(base_url=native_server.url, timeout=PATIENCE_SECONDS, limits=limits) as client:
        yield client


@pytest.fixture
def http(server: RunningServer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=PATIENCE_SECONDS) as client:
        yield client


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Chromium without a window; for a module, since no event loop can run in this thread meanwhile."""
    from playwright.sync_api import expect, sync_playwright  # noqa: PLC0415 (an extra; its tests are skipped without it)

    path = shutil.which("chromium") or shutil.which("chromium-browser")
    if path is None:
        pytest.skip("needs chromium: apt-get install chromium")
    expect.set_options(timeout=_BROWSER_MS)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"], timeout=_BROWSER_MS)
        yield browser
        browser.close()


@pytest.fixture
def open_page(browser: Browser, native_server: RunningServer) -> Iterator[Callable[..., Page]]:
    """Opens the server's page; at the end nothing may have been complained about and nothing asked of another server.

    A test that ``expects_failure`` lets the browser complain that a request failed.
    """
    complaints: list[str] = []
    addresses: list[str] = []
    contexts = []

    def open_one(*, expects_failure: bool = False, **options: Any) -> Page:
        context = browser.new_context(**{"viewport": {"width": 1280, "height": 860}, **options})
        contexts.append(context)
        context.set_default_timeout(_BROWSER_MS)
        page = context.new_page()
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("dialog", lambda dialog: (complaints.append(dialog.message), dialog.dismiss()))
        page.on("request", lambda request: addresses.append(request.url))
        if not expects_failure:
            page.on("console", lambda message: complaints.append(message.text) if message.type != "log" else None)
        page.goto(native_server.url)
        page.wait_for_selector("#connection[data-state=ok]")
        return page

    yield open_one
    for context in contexts:
        context.close()
    assert complaints == []
    assert all(address.startswith(f"{native_server.url}/") for address in addresses)
