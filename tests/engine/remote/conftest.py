"""A scripted server for every test of this folder, and no waiting between attempts."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from scripted_engine import models

from local_server import LocalServer, local_server
from treadle.engine.remote import retry


@pytest.fixture
def server() -> Iterator[LocalServer]:
    with local_server() as running:
        running.routes["/v1/models"] = models()
        yield running


@pytest.fixture(autouse=True)
def _no_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "FIRST_DELAY_SECONDS", 0.0)
