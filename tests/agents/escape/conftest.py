"""What every attempt to escape shares: a sandbox, ways into it, and a look at the machine before and after."""

from __future__ import annotations

import asyncio
import os
import tempfile
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from host import Host
from prison import Prison, amply

from patience import PATIENCE_SECONDS
from treadle.agents.sandbox import cgroups
from treadle.agents.sandbox.limits import SandboxLimits
from treadle.agents.sandbox.outcome import Outcome
from treadle.errors import SandboxUnavailableError


@pytest.fixture
def limits() -> Callable[..., SandboxLimits]:
    return amply


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Host]:
    """The machine, looked at before the test and compared after it."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    # A group that a busy machine does not empty sooner would be left for a later call to remove.
    monkeypatch.setattr(cgroups, "REMOVE_SECONDS", PATIENCE_SECONDS)
    # Secrets and handles that a program must not find.
    monkeypatch.setenv("TREADLE_TEST_SECRET", "secret-of-the-host")
    secret = tmp_path / "secret"
    secret.write_text("secret-of-the-host")
    host = Host(mark=uuid.uuid4().hex, secret=secret, temporary=temporary)
    with secret.open() as inherited:
        os.set_inheritable(inherited.fileno(), True)
        yield host
    host.assert_unaffected()


@pytest.fixture(scope="session")
def _isolation(tmp_path_factory: pytest.TempPathFactory) -> str | None:
    """Why there is no sandbox on this machine, asked once."""
    try:
        Prison(tmp_path_factory.mktemp("workspace"), "").within(lambda _: asyncio.sleep(0))
    except SandboxUnavailableError as error:
        return str(error)
    return None


@pytest.fixture
def prison(host: Host, tmp_path: Path, _isolation: str | None) -> Prison:
    if _isolation is not None:
        pytest.skip(f"no sandbox on this machine: {_isolation}")
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    return Prison(workspace, host.mark)


@pytest.fixture(params=["run", "run_python"])
def attempt(request: pytest.FixtureRequest, prison: Prison) -> Callable[..., Outcome]:
    """Runs Python code in the sandbox: as a program of its own, and in the warm interpreter."""

    def as_program(code: str, limits: SandboxLimits | None = None) -> Outcome:
        return prison.run("python3", "-c", code, limits=limits)

    return as_program if request.param == "run" else prison.python
