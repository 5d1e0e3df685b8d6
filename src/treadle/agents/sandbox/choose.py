"""Finds the best isolation that this machine has, by trying, and says in words what it is and what it lacks.

Leaves to others: the ways themselves (``bubblewrap``, ``nursery``, ``unisolated``), and what to do if there is none
(``unavailable``).
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from treadle.agents.sandbox import cgroups, landlock, seccomp
from treadle.agents.sandbox.bubblewrap import Bubblewrap
from treadle.agents.sandbox.launch import Launcher
from treadle.agents.sandbox.limits import SandboxLimits
from treadle.agents.sandbox.nursery import Nursery
from treadle.agents.sandbox.own_folder import OwnFolder
from treadle.agents.sandbox.unavailable import explain, said_by
from treadle.agents.sandbox.unisolated import Unisolated, landlock_walls
from treadle.agents.sandbox.wires import Wires
from treadle.errors import SandboxUnavailableError, UsageError

__all__ = ["Isolation", "Wish", "choose"]


@dataclass(frozen=True)
class Isolation:
    """How calls are isolated, and the folders that end with the sandbox."""

    launcher: Launcher
    nursery: Nursery | None
    workspace: Path
    folders: Sequence[OwnFolder]
    layers: Sequence[str]

    @property
    def loose_folders(self) -> Sequence[str]:
        """Return the folders in memory whose number of files nothing bounds."""
        return () if self.nursery is not None else self.launcher.loose_folders


@dataclass(frozen=True)
class Wish:
    """What programs shall see; see ``Sandbox.open``."""

    workspace: Path
    is_writable: bool
    has_network: bool
    environment: Mapping[str, str]
    packages: Sequence[Path]


async def choose(wish: Wish, owned: list[OwnFolder], *, is_unsafe: bool) -> Isolation:
    """Return the isolation of calls; what it makes for itself is added to the ``owned`` folders.

    Raises SandboxUnavailableError with the reason and the way out if there is none.
    """
    if sys.platform != "linux":
        raise SandboxUnavailableError(f"code can be run on Linux alone, this is {sys.platform}")
    if is_unsafe:
        return _among_others(wish, owned, None)
    try:
        return await _bubblewrap(wish, owned)
    except SandboxUnavailableError as error:
        if landlock.abi() < landlock.HOLDS_SIGNALS or wish.has_network:
            raise explain(error) from error
        isolation = _among_others(wish, owned, error)
        try:
            await _try(isolation.launcher)
        except SandboxUnavailableError:
            raise explain(error) from error
        return isolation


async def _bubblewrap(wish: Wish, owned: Sequence[OwnFolder]) -> Isolation:
    filter_program, said = _filter()
    reason: SandboxUnavailableError | None = None
    for has_proc in (True, False):
        bubblewrap = Bubblewrap(
            wish.workspace,
            is_writable=wish.is_writable,
            has_network=wish.has_network,
            environment=wish.environment,
            filter_program=filter_program,
            packages=wish.packages,
            has_proc=has_proc,
        )
        try:
            nursery = await _nursery(bubblewrap)
            if nursery is None:
                await _try(bubblewrap)
        except SandboxUnavailableError as error:
            reason = reason or error
            continue
        layers = [*bubblewrap.layers, said, *_amounts()]
        if nursery is None:
            layers.append("no warm sandboxes: a call waits for the start of an interpreter")
        return Isolation(bubblewrap, nursery, wish.workspace, owned, layers)
    assert reason is not None
    raise reason


def _among_others(wish: Wish, owned: list[OwnFolder], reason: SandboxUnavailableError | None) -> Isolation:
    """Without bubblewrap for a reason, behind walls; without one, bare."""
    folder = OwnFolder()
    owned.append(folder)
    tmp = folder.path
    walls, layers = None, []
    if reason is not None:
        program = seccomp.program(has_shared_memory=cgroups.why_not() is None, has_namespaces=False)
        walls = landlock_walls(wish.workspace, tmp, program, is_writable=wish.is_writable, packages=wish.packages)
        layers = [f"no bubblewrap: {said_by(reason)}"]
    launcher = Unisolated(wish.workspace, tmp, environment=wish.environment, packages=wish.packages, walls=walls)
    return Isolation(launcher, None, wish.workspace, owned, [*launcher.layers, *layers, *_amounts()])


def _filter() -> tuple[bytes | None, str]:
    try:
        # Memory that no process maps is counted by a control group alone.
        return seccomp.program(has_shared_memory=cgroups.why_not() is None), "seccomp: a filter of system calls"
    except UsageError as error:
        return None, f"no filter of system calls: {error}"


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
        await wires.begin()
    except SandboxUnavailableError:
        await nursery.close()
        return None
    except BaseException:
        nursery.kill()
        raise
    finally:
        wires.close()
    return nursery


async def _try(launcher: Launcher) -> None:
    """Raise SandboxUnavailableError if no sandbox can be started."""
    wires, far = Wires.make()
    starter = launcher.prepare(far.control.fileno(), SandboxLimits().tmp_bytes).start(far)
    processes = await wires.connect(starter, has_namespace=launcher.has_namespace)
    try:
        await wires.begin()
    finally:
        processes.kill()
        processes.collect()
        wires.close()
