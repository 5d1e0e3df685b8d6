"""Fixtures and rules every test shares: where model files are, no network, fixed seeds.

What a single area needs stays beside its tests.
"""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable
from pathlib import Path

import hypothesis
import pytest

from treadle.models.store import ModelStore

SMOLLM2_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"

# How long it takes to make examples depends on what else the machine does.
_SLOW = [hypothesis.HealthCheck.too_slow]
hypothesis.settings.register_profile(
    "treadle", derandomize=True, database=None, deadline=None, suppress_health_check=_SLOW
)
hypothesis.settings.load_profile("treadle")

# Shells start what runs in the background deaf to Ctrl-C, and programs inherit that from the one that starts them.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the slow tests out unless -m chooses; pytest's summary counts them as deselected."""
    if config.option.markexpr:
        return
    slow = [item for item in items if item.get_closest_marker("slow")]
    if slow:
        config.hook.pytest_deselected(items=slow)
        items[:] = [item for item in items if item not in slow]


def _find_model(name: str) -> Path | None:
    folder = os.environ.get("TREADLE_TEST_MODELS")
    if folder is not None:
        candidate = Path(folder) / name
        return candidate if candidate.is_file() else None
    stored = (model.path for model in ModelStore().list())
    return next((path for path in stored if path.name == name and path.is_file()), None)


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """The default model; tests that ask for it carry the marker `model`."""
    path = _find_model(SMOLLM2_FILE)
    if path is None:
        pytest.fail(
            f"{SMOLLM2_FILE} is neither in TREADLE_TEST_MODELS ({os.environ.get('TREADLE_TEST_MODELS', 'not set')}) "
            "nor in the model store: type `treadle pull smollm2:135m`, or leave these tests out with -m 'not model'"
        )
    return path


@pytest.fixture(scope="session")
def model_path() -> Callable[[str], Path]:
    """A function that finds another model file by name, or skips the test and says which file it lacks."""

    def find(name: str) -> Path:
        path = _find_model(name)
        if path is None:
            pytest.skip(f"{name} is neither in TREADLE_TEST_MODELS nor in the model store")
        return path

    return find


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let sockets reach this machine only, so that a test which needs the network fails everywhere."""
    connect = socket.socket.connect

    def guarded(self: socket.socket, address: object) -> None:
        if self.family != socket.AF_UNIX and isinstance(address, tuple):
            host = str(address[0])
            if host not in ("localhost", "::1") and not host.startswith("127."):
                raise RuntimeError(f"a test tried to reach {address}; tests use no network")
        connect(self, address)  # type: ignore[arg-type]

    monkeypatch.setattr(socket.socket, "connect", guarded)
