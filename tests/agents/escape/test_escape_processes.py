"""Attempts to outlive a call, to multiply without bound, and to reach the processes around the sandbox."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from host import Host, sleeping
from prison import Prison

import treadle
from patience import PATIENCE_SECONDS
from treadle.agents.sandbox.cgroups import NUM_KEEPERS
from treadle.agents.sandbox.limits import SandboxLimits
from treadle.agents.sandbox.outcome import Outcome
from treadle.agents.sandbox.sandbox import Sandbox

Attempt = Callable[..., Outcome]
Limits = Callable[..., SandboxLimits]

SHORT = 0.3  # wall seconds of what never ends by itself; how long it really takes is nowhere asked


def assert_few(outcome: Outcome) -> None:
    """The program was refused more processes and says how many it has got, or was killed where they are watched."""
    if outcome.status != "processes":
        assert outcome.status == "exited"
        assert 0 < int(outcome.stdout.text.split()[1]) <= 40 + NUM_KEEPERS


def test_sleepers_stop_at_the_limit(attempt: Attempt, limits: Limits) -> None:
    code = """
import os, time
made = 0
for _ in range(5000):
    try:
        if os.fork() == 0:
            time.sleep(1000)
    except BlockingIOError:
        break
    made += 1
print("made", made, flush=True)
"""
    assert_few(attempt(code, limits(num_processes=40)))


def test_threads_count_as_processes(attempt: Attempt, limits: Limits) -> None:
    code = """
import threading
made = 0
wait = threading.Event()
try:
    for _ in range(5000):
        threading.Thread(target=wait.wait, daemon=True).start()
        made += 1
except RuntimeError:
    pass
print("made", made, flush=True)
"""
    assert_few(attempt(code, limits(num_processes=40)))


@pytest.mark.parametrize(
    "shell",
    ["bomb() { bomb | bomb & }; bomb", "while :; do sleep 1000 & done", "while :; do setsid sh -c 'sleep 1000' & done"],
)
def test_a_fork_bomb_ends_with_its_time(prison: Prison, limits: Limits, shell: str) -> None:
    outcome = prison.shell(f"{shell}; wait", limits(num_processes=40, wall_seconds=SHORT))
    assert outcome.status in ("timeout", "exited", "signaled", "processes", "cpu")


def test_a_fork_bomb_from_code_ends_with_its_time(attempt: Attempt, limits: Limits) -> None:
    code = "import os\nwhile True:\n    try:\n        os.fork()\n    except OSError:\n        pass"
    outcome = attempt(code, limits(num_processes=40, wall_seconds=SHORT))
    assert outcome.status in ("timeout", "processes")


def test_zombies_count_as_processes(attempt: Attempt, limits: Limits) -> None:
    code = """
import os
made = 0
for _ in range(5000):
    try:
        if os.fork() == 0:
            os._exit(0)
    except BlockingIOError:
        break
    made += 1
print("made", made, flush=True)
"""
    assert_few(attempt(code, limits(num_processes=40)))


# Other runs of these tests on this machine sleep for other times.
SECONDS = 1_000_000 + os.getpid()
ORPHANS = {
    "background": f"sleep {SECONDS} & echo hi",
    "session": f"setsid sleep {SECONDS} & echo hi",
    "nohup": f"nohup sh -c 'sleep {SECONDS}' >/dev/null 2>&1 & echo hi",
    "closed": f"(exec <&- >&- 2>&-; trap '' TERM HUP INT; sleep {SECONDS}) & echo hi",
    "twice": f"(setsid sh -c 'sleep {SECONDS} & exit' & exit) ; echo hi",
    "nameless": f"setsid env -i sleep {SECONDS} & echo hi",
}


@pytest.mark.parametrize("kind", list(ORPHANS))
def test_what_stays_in_the_background_ends_with_the_program(prison: Prison, host: Host, kind: str) -> None:
    """Also when it holds the pipes of the program, which would be read for ever."""
    outcome = prison.shell(ORPHANS[kind])
    assert (outcome.status, outcome.exit_code, outcome.stdout.text) == ("exited", 0, "hi\n")
    assert not sleeping(SECONDS)


def test_a_program_that_waits_for_its_background_runs_out_of_time(prison: Prison, limits: Limits) -> None:
    assert prison.shell("sleep 1000 & wait", limits(wall_seconds=SHORT)).status == "timeout"


def test_a_late_writer_is_gone_before_it_writes(attempt: Attempt, prison: Prison, host: Host) -> None:
    """With the last process gone when the call returns, nobody is left to write."""
    code = """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        time.sleep(1000)
        open("late", "w").close()
    os._exit(0)
os.wait()
print("done")
"""
    outcome = attempt(code)
    assert (outcome.status, outcome.stdout.text) == ("exited", "done\n")
    assert host.marked() == []
    assert list(prison.workspace.iterdir()) == []


def test_signals_that_ask_are_not_needed(attempt: Attempt, limits: Limits) -> None:
    code = """
import signal, time
for number in set(range(1, signal.NSIG)) - {signal.SIGKILL, signal.SIGSTOP, 32, 33}:
    signal.signal(number, signal.SIG_IGN)
while True:
    time.sleep(1000)
"""
    assert attempt(code, limits(wall_seconds=SHORT)).status == "timeout"


@pytest.mark.parametrize(
    "code", ["import os, signal; os.kill(os.getpid(), signal.SIGSTOP)", "import os; os.read(os.pipe()[0], 1)"]
)
def test_what_does_not_run_runs_out_of_time(attempt: Attempt, limits: Limits, code: str) -> None:
    assert attempt(code, limits(wall_seconds=SHORT)).status == "timeout"


def test_cpu_time_runs_out(attempt: Attempt, limits: Limits) -> None:
    assert attempt("while True: pass", limits(cpu_seconds=0.5)).status == "cpu"


def test_cpu_time_runs_out_for_all_processes_together(attempt: Attempt, limits: Limits) -> None:
    """Each of them for itself stays far below the limit."""
    code = """
import os, time
while True:
    if os.fork() == 0:
        while time.process_time() < 0.1:
            pass
        os._exit(0)
    os.wait()
"""
    outcome = attempt(code, limits(cpu_seconds=0.5))
    assert outcome.status == "cpu"


def test_limits_are_not_raised(attempt: Attempt, limits: Limits) -> None:
    code = """
import resource
for name in "CPU DATA NPROC FSIZE NOFILE CORE".split():
    kind = getattr(resource, "RLIMIT_" + name)
    soft, hard = resource.getrlimit(kind)
    assert hard != resource.RLIM_INFINITY, name
    for wanted in (hard + 1, resource.RLIM_INFINITY):
        try:
            resource.setrlimit(kind, (wanted, wanted))
        except (ValueError, OSError):
            continue
        print(name, "raised")
print("done")
"""
    assert attempt(code, limits()).stdout.text == "done\n"


def test_nobody_outside_can_be_signalled(attempt: Attempt) -> None:
    """Process numbers of the machine mean nothing inside: there are only the sandbox's own."""
    # The parent of tests in a container may be process 1, which is somebody inside, too.
    outside = [pid for pid in (os.getpid(), os.getppid()) if pid > 50]
    code = f"""
import os, signal
for pid in {outside}:
    try:
        os.kill(pid, signal.SIGKILL)
        print("killed", pid)
    except ProcessLookupError:
        print("nobody")
print(sorted(int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) > 50))
"""
    assert attempt(code).stdout.text.split("\n") == [*["nobody"] * len(outside), "[]", ""]


@pytest.mark.parametrize("target", ["-1", "1", "os.getppid()"])
def test_killing_everything_in_reach_hurts_the_call_alone(prison: Prison, limits: Limits, target: str) -> None:
    code = f"""
import os, signal
if os.fork() == 0:
    signal.pause()
os.kill({target}, signal.SIGKILL)
signal.pause()
"""

    async def kill_and_go_on(sandbox: Sandbox) -> tuple[Outcome, Outcome]:
        return await sandbox.run_python(code, limits=limits(wall_seconds=SHORT)), await sandbox.run_python(
            "print(1)", limits=limits()
        )

    killed, after = prison.within(kill_and_go_on)
    assert killed.status in ("signaled", "timeout", "exited")  # the last one where Landlock refuses it
    assert after.stdout.text == "1\n"


def test_the_next_call_finds_nothing_of_the_last(prison: Prison) -> None:
    async def two(sandbox: Sandbox) -> Outcome:
        await sandbox.run_python(
            "import builtins, os; builtins.len = 1; os.environ['LEFT'] = '1'; open('/tmp/left', 'w'); left = 1"
        )
        return await sandbox.run_python(
            "import os; print(len('abc'), 'LEFT' in os.environ, os.listdir('/tmp'), 'left' in globals())"
        )

    assert prison.within(two).stdout.text == "3 False [] False\n"


SERVER = """
import asyncio, sys
from pathlib import Path
from treadle.agents.sandbox.sandbox import Sandbox
async def main():
    sandbox = await Sandbox.open(workspace=Path(sys.argv[1]), environment={"TREADLE_ESCAPE_MARK": sys.argv[2]})
    await asyncio.gather(sandbox.run(["sh", "-c", sys.argv[3]]), sandbox.run_python(sys.argv[4]))
asyncio.run(main())
"""


def test_a_killed_server_takes_its_sandboxes_along(prison: Prison, host: Host) -> None:
    shell = "setsid sh -c 'trap \"\" TERM HUP; touch one; sleep 1000; touch late' & sleep 1000"
    code = "import os, time\nif os.fork() == 0:\n    os.setsid()\n    open('two', 'w').close()\ntime.sleep(1000)"
    command = [sys.executable, "-c", SERVER, str(prison.workspace), host.mark, shell, code]
    environment = {**os.environ, "PYTHONPATH": str(Path(treadle.__file__).parents[1])}
    server = subprocess.Popen(command, env=environment)
    try:
        until = time.monotonic() + PATIENCE_SECONDS
        while len(list(prison.workspace.iterdir())) < 2:
            assert server.poll() is None
            assert time.monotonic() < until
            time.sleep(0.01)
        assert host.marked()
    finally:
        server.kill()
        server.wait()
    # That nothing of them is left is asked of the host when the test has ended; a group may stay until the next start.
    assert server.returncode == -signal.SIGKILL
