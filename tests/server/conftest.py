"""A real server with the small real model for every test of this folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from running_server import MODEL, RunningServer
from treadle.server.settings import ServerSettings


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


@pytest.fixture
def http(server: RunningServer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=60) as client:
        yield client
