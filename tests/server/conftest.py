"""A real server with the small real model for every test of this folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from running_server import RunningServer
from treadle.server.settings import ServerSettings


@pytest.fixture(scope="session")
def server(smollm2_path: Path) -> Iterator[RunningServer]:
    running = RunningServer(smollm2_path, ServerSettings())
    yield running
    running.close()


@pytest.fixture
def http(server: RunningServer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=60) as client:
        yield client
