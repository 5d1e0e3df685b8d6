"""How calls in a sandbox end that do not end well: limits, kills, and what is left then."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from sandboxes import AMPLE, within

import treadle
from patience import PATIENCE_SECONDS
from treadle.agents.sandbox import Outcome, Sandbox, SandboxLimits
from treadle.agents.sandbox.process import Processes


def run_python(code: str, limits: SandboxLimits) -> Outcome:
    return within(lambda sandbox: sandbox.run_python(code, limits=limits))


@pytest.mark.parametrize("is_unsafe", [False, True])
def test_a_call_that_is_late_is_killed_with_all_its_processes(is_unsafe: bool, tmp_path: Path) -> None:
    script = "echo begun; (trap '' TERM HUP; setsid sleep 1000) & sleep 1000 & wait"

    async def use(sandbox: Sandbox) -> Outcome:
        return await sandbox.run(["sh", "-c", script], limits=replace(AMPLE, wall_seconds=1))

    outcome = within(use, is_unsafe=is_unsafe, workspace=tmp_path)
    assert (outcome.status, outcome.exit_code) == ("timeout", None)
    wait_until_nothing_runs_in(tmp_path)


def running_in(folder: Path) -> list[str]:
    """The processes whose working directory is the folder, in whatever namespace."""
    found = []
    for process in Path("/proc").iterdir():
        try:
            if process.name.isdigit() and (process / "cwd").samefile(folder) and "Z" not in state(process):
                found.append((process / "cmdline").read_text())
        except OSError:
            continue
    return found


def wait_until_nothing_runs_in(folder: Path) -> None:
    until = time.monotonic() + PATIENCE_SECONDS
    while running_in(folder):
        assert time.monotonic() < until
        time.sleep(0.01)


def state(process: Path) -> str:
    return (process / "stat").read_text().rpartition(")")[2].split()[0]


@pytest.mark.parametrize("is_unsafe", [False, True])
def test_a_cancelled_call_is_killed(is_unsafe: bool, tmp_path: Path) -> None:
    async def use(sandbox: Sandbox) -> None:
        call = asyncio.create_task(sandbox.run(["sh", "-c", "touch begun; sleep 1000 & sleep 1000"]))
        while not (tmp_path / "begun").exists():
            await asyncio.sleep(0.01)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert (await sandbox.run(["true"])).exit_code == 0

    within(use, is_unsafe=is_unsafe, workspace=tmp_path)
    wait_until_nothing_runs_in(tmp_path)


def test_an_event_loop_that_ends_takes_open_sandboxes_along(tmp_path: Path) -> None:
    sandboxes = []

    async def leave_open(sandbox: Sandbox) -> None:
        sandboxes.append(sandbox)
        calls = [asyncio.create_task(sandbox.run(["sleep", "1000"])) for _ in range(2)]
        await asyncio.wait(calls, timeout=0.2)

    async def opened() -> None:
        await leave_open(await Sandbox.open(workspace=tmp_path, limits=AMPLE))

    within(lambda _: asyncio.sleep(0))
    asyncio.run(opened())
    sandboxes.clear()
    wait_until_nothing_runs_in(tmp_path)


SERVER = """
import asyncio, sys
from pathlib import Path
from treadle.agents.sandbox import Sandbox
async def main():
    sandbox = await Sandbox.open(workspace=Path(sys.argv[1]), is_unsafe=sys.argv[2] == "True")
    await sandbox.run(["sh", "-c", "(setsid sh -c 'touch begun; sleep 1000') & sleep 1000"])
asyncio.run(main())
"""


@pytest.mark.parametrize("is_unsafe", [False, True])
def test_a_killed_process_takes_its_sandboxes_along(is_unsafe: bool, tmp_path: Path) -> None:
    within(lambda _: asyncio.sleep(0))
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    environment = {
        **os.environ,
        "PYTHONPATH": str(Path(treadle.__file__).parents[1]),
        "TMPDIR": str(tmp_path),  # what the killed one cannot remove
    }
    with subprocess.Popen([sys.executable, "-c", SERVER, workspace, str(is_unsafe)], env=environment) as server:
        while not (workspace / "begun").exists():
            assert server.poll() is None
            time.sleep(0.01)
        server.kill()
    wait_until_nothing_runs_in(workspace)


def test_what_one_waits_for_another_may_collect() -> None:
    async def use() -> None:
        child = subprocess.Popen(["sleep", "300"])
        processes = Processes(child.pid, child)
        processes.kill()
        waiting = asyncio.create_task(processes.gone())
        await asyncio.sleep(0)
        processes.collect()
        await waiting
        assert not processes.is_alive

    asyncio.run(use())


def test_a_nursery_that_was_killed_is_renewed() -> None:
    async def use(sandbox: Sandbox) -> Outcome:
        nursery = sandbox._workers._nursery
        if nursery is None:
            pytest.skip("no nursery on this machine")
        nursery._processes.kill()
        await nursery._processes.gone()
        return await sandbox.run_python("1 + 1")

    assert within(use).stdout.text == "2\n"


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("while True: pass", "cpu"),
        ("import os\nos.fork()\nos.fork()\nwhile True: pass", "cpu"),
        ("bytearray(1 << 40)", "memory"),
        ("for n in range(100): open(f'{n}', 'wb').write(bytes(1 << 20))\nwhile True: pass", "disk"),
        ("for n in range(2000): open(f'{n}', 'wb').close()\nwhile True: pass", "disk"),
    ],
)
def test_limits_are_told_apart(code: str, status: str) -> None:
    limits = SandboxLimits(wall_seconds=600, cpu_seconds=1 if status == "cpu" else 300)
    outcome = run_python(code, replace(limits, workspace_bytes=30 << 20, num_files=500))
    assert (outcome.status, outcome.exit_code, outcome.signal) == (status, None, None)


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("open('/workspace/big', 'wb').write(bytes(3 << 20))", "File too large"),
        ("for n in range(9): open(f'/tmp/{n}', 'wb').write(bytes(1 << 20))", "No space left"),
        ("for n in range(9): open(f'/dev/shm/{n}', 'wb').write(bytes(1 << 20))", "No space left"),
        ("import os\nfiles = [os.open('.', 0) for _ in range(99)]", "Too many open files"),
    ],
)
def test_walls_are_errors_of_the_program(code: str, error: str) -> None:
    limits = replace(AMPLE, file_bytes=2 << 20, tmp_bytes=4 << 20, num_open_files=40)
    outcome = run_python(code, limits)
    assert (outcome.status, outcome.exit_code) == ("exited", 1)
    assert error in outcome.stderr.text


def test_a_flood_is_bounded_and_others_are_served_meanwhile() -> None:
    limits = replace(AMPLE, output_bytes=1000)

    async def use(sandbox: Sandbox) -> tuple[Outcome, int]:
        flood = asyncio.create_task(sandbox.run(["sh", "-c", "yes | head -c 30000000"], limits=limits))
        num_served = 0
        while not flood.done():
            await asyncio.sleep(0)
            num_served += 1
        return await flood, num_served

    outcome, num_served = within(use)
    assert (outcome.exit_code, outcome.stdout.num_bytes, outcome.stdout.is_cut) == (0, 30_000_000, True)
    assert len(outcome.stdout.text) < 1100
    assert num_served > 10
