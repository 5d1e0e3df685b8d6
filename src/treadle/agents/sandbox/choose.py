"""Finds the best isolation that this machine has, by trying, and says in words what it is and what it lacks.

Leaves to others: the ways themselves (``bubblewrap``, ``nursery``, ``unisolated``), and what to do if there is none
(``unavailable``).
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from treadle.agents.sandbox import cgroups, seccomp
from treadle.agents.sandbox.bubblewrap import Bubblewrap
from treadle.agents.sandbox.launch import Launcher
from treadle.agents.sandbox.limits import SandboxLimits
from treadle.agents.sandbox.nursery import Nursery
from treadle.agents.sandbox.unavailable import explain
from treadle.agents.sandbox.unisolated import Unisolated
from treadle.agents.sandbox.wires import Wires
from treadle.errors import SandboxUnavailableError, UsageError

__all__ = ["Isolation", "choose"]


@dataclass(frozen=True)
class Isolation:
    """How calls are isolated, and the folders that end with the sandbox."""

    launcher: Launcher
    nursery: Nursery | None
    workspace: Path
    folders: Sequence[Path]
    layers: Sequence[str]

    @property
    def loose_folders(self) -> Sequence[str]:
        """Return the folders in memory whose number of files nothing bounds."""
        return () if self.nursery is not None else self.launcher.loose_folders


async def choose(
    workspace: Path,
    owned: list[Path],
    *,
    is_writable: bool,
    has_network: bool,
    environment: Mapping[str, str],
    packages: Sequence[Path],
    is_unsafe: bool,
) -> Isolation:
    """Return the isolation of calls in a workspace; what it makes for itself is added to the ``owned`` folders.

    Raises SandboxUnavailableError with the reason and the way out if there is none.
    """
    if is_unsafe:
        owned.append(Path(tempfile.mkdtemp(prefix="treadle-tmp-")))
        launcher = Unisolated(workspace, owned[-1], environment=environment, packages=packages)
        return Isolation(launcher, None, workspace, owned, [*launcher.layers, *_amounts()])
    program, lacks = _filter()
    reason: SandboxUnavailableError | None = None
    for has_proc in (True, False):
        bubblewrap = Bubblewrap(
            workspace,
            is_writable=is_writable,
            has_network=has_network,
            environment=environment,
            filter_program=program,
            packages=packages,
            has_proc=has_proc,
        )
        try:
            nursery = await _nursery(bubblewrap)
            if nursery is None:
                await _try(bubblewrap)
        except SandboxUnavailableError as error:
            reason = reason or error
            continue
        layers = [*bubblewrap.layers, *lacks, *_amounts()]
        if nursery is None:
            layers.append("no warm sandboxes: a call waits for the start of an interpreter")
        return Isolation(bubblewrap, nursery, workspace, owned, layers)
    assert reason is not None
    raise explain(reason) from reason


def _filter() -> tuple[bytes | None, Sequence[str]]:
    try:
        return seccomp.program(), ["seccomp: a filter of system calls"]
    except UsageError as error:
        return None, [f"no filter of system calls: {error}"]


def _amounts() -> Sequence[str]:
    lack = cgroups.why_not()
    if lack is None:
        return ["a control group: memory, processes and CPU time of all processes together", "resource limits"]
    return [
        f"no control group, so amounts of all processes together are watched, not walled: {lack}",
        "resource limits",
    ]


async def _nursery(bubblewrap: Bubblewrap) -> Nursery | None:
    """Return a nursery that has proved to work, None if there can be none."""
    try:
        nursery = await Nursery.start(bubblewrap)
    except SandboxUnavailableError:
        return None
    wires, far = Wires.make()
    try:
        nursery.bear(far, SandboxLimits())
        (await wires.connect(None)).let_go()
    except SandboxUnavailableError:
        await nursery.close()
        return None
    except BaseException:
        nursery.kill()
        raise
    finally:
        wires.close()
    return nursery


async def _try(bubblewrap: Bubblewrap) -> None:
    """Raise SandboxUnavailableError if no sandbox can be started."""
    wires, far = Wires.make()
    processes = await wires.connect(bubblewrap.prepare(far.control.fileno(), SandboxLimits().tmp_bytes).start(far))
    processes.kill()
    processes.collect()
    wires.close()
