"""Calls in a sandbox: what comes back of them, and that each is alone."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from sandboxes import within

from treadle.agents.sandbox import Outcome, Sandbox, SandboxLimits
from treadle.agents.trace import Trace
from treadle.errors import UsageError
from treadle.hardware.cpu_share import CpuShare


def run(*argv: str, stdin: bytes = b"", limits: SandboxLimits | None = None) -> Outcome:
    return within(lambda sandbox: sandbox.run(argv, stdin=stdin, limits=limits))


def run_python(code: str, limits: SandboxLimits | None = None) -> Outcome:
    return within(lambda sandbox: sandbox.run_python(code, limits=limits))


def test_a_program_gets_its_stdin_and_gives_its_output_and_exit_code() -> None:
    outcome = run("sh", "-c", "cat; echo trouble >&2; exit 3", stdin=b"some text")
    assert (outcome.status, outcome.exit_code, outcome.signal) == ("exited", 3, None)
    assert outcome.stdout.text == "some text"
    assert outcome.stderr.text == "trouble\n"
    assert 0 <= outcome.start_seconds <= outcome.wall_seconds
    assert outcome.cpu_seconds > 0
    assert outcome.peak_bytes is not None


def test_stdin_may_be_longer_than_a_pipe_and_left_unread() -> None:
    text = b"line of text\n" * 200_000
    assert run("wc", "-c", stdin=text).stdout.text.strip() == str(len(text))
    assert run("true", stdin=text).exit_code == 0


def test_an_exit_code_above_128_is_no_signal() -> None:
    assert run("sh", "-c", "exit 137").exit_code == 137
    outcome = run("sh", "-c", "kill -SEGV $$")
    assert (outcome.status, outcome.exit_code, outcome.signal) == ("signaled", None, 11)


@pytest.mark.parametrize(("name", "exit_code"), [("no-such-program", 127), ("/workspace", 126)])
def test_a_program_that_cannot_be_run_ends_as_in_a_shell(name: str, exit_code: int) -> None:
    outcome = run(name)
    assert (outcome.status, outcome.exit_code) == ("exited", exit_code)
    assert outcome.stderr.text.startswith(f"{name}: ")


@pytest.mark.parametrize("argv", [[], ["echo", "a\0b"]])
def test_a_command_line_that_no_program_can_have_is_refused(argv: Sequence[str]) -> None:
    with pytest.raises(UsageError):
        run(*argv)


@pytest.mark.parametrize(
    ("code", "printed"),
    [
        ("print('a')\n[1, 2][-1]", "a\n2\n"),
        ("x = 5", ""),
        ("None", ""),
        ("'text'", "'text'\n"),
        ("print('no value')", "no value\n"),
        ("import sys; sys.stdout.write('unfinished')", "unfinished10\n"),
        ("if __name__ == '__main__':\n    print(__name__)", "__main__\n"),
        ("import threading\nthreading.Timer(0.01, print, ['later']).start()", "later\n"),
        ("import atexit\natexit.register(print, 'at the end'); None", "at the end\n"),
        ("", ""),
    ],
)
def test_code_runs_like_a_cell_of_a_notebook(code: str, printed: str) -> None:
    outcome = run_python(code)
    assert (outcome.status, outcome.exit_code, outcome.stderr.text) == ("exited", 0, "")
    assert outcome.stdout.text == printed


def test_a_traceback_shows_the_code_s_own_lines_alone() -> None:
    outcome = run_python("import json\ndef read():\n    return json.loads('{')\n\nread()")
    assert outcome.exit_code == 1
    lines = outcome.stderr.text.splitlines()
    assert [line for line in lines if line.startswith("  File")] == [
        '  File "<code>", line 5, in <module>',
        '  File "<code>", line 3, in read',
    ]
    assert "    return json.loads('{')" in lines
    assert lines[-1].startswith("json.decoder.JSONDecodeError: ")


@pytest.mark.parametrize(
    ("code", "exit_code", "said"),
    [
        ("x = (", 1, "SyntaxError"),
        ("import sys; sys.exit('why')", 1, "why"),
        ("import sys; sys.exit(300)", 300 & 0xFF, ""),
        ("import sys; sys.exit()", 0, ""),
        ("def f():\n    f()\nf()", 1, "RecursionError"),
        ("'\ud800'", 1, "UnicodeEncodeError"),
        ("input()", 1, "EOFError"),
        ("import treadle", 1, "ModuleNotFoundError"),
        ("import waiting", 1, "ModuleNotFoundError"),
    ],
)
def test_code_that_fails_says_so_on_stderr(code: str, exit_code: int, said: str) -> None:
    outcome = run_python(code)
    assert (outcome.status, outcome.exit_code) == ("exited", exit_code)
    assert said in outcome.stderr.text


def test_code_that_is_too_long_is_refused() -> None:
    assert run_python("#" * (1 << 20)).exit_code == 0
    with pytest.raises(UsageError, match="1048577 bytes"):
        run_python("#" * ((1 << 20) + 1))


def test_nothing_of_a_call_is_left_for_the_next_but_files_in_the_workspace(tmp_path: Path) -> None:
    litter = """
import builtins, os, socket, sys
builtins.left = sys.left = True
for path in ("/workspace/left", "/tmp/left", "/dev/shm/left"):
    open(path, "w").close()
if os.fork() == 0:
    os.setsid()
    listener = socket.create_server(("127.0.0.1", 8000))
    socket.create_server("\\0left", family=socket.AF_UNIX)
    os.read(os.pipe()[0], 1)
"""
    look = """
import builtins, os, socket, sys
socket.create_server(("127.0.0.1", 8000))
socket.create_server("\\0left", family=socket.AF_UNIX)
found = [hasattr(builtins, "left"), hasattr(sys, "left"), *map(os.listdir, ("/workspace", "/tmp", "/dev/shm"))]
print(found, sorted(name for name in os.listdir("/proc") if name.isdigit()))
"""

    async def use(sandbox: Sandbox) -> Outcome:
        assert (await sandbox.run_python(litter)).exit_code == 0
        return await sandbox.run_python(look)

    assert within(use, workspace=tmp_path).stdout.text == "[False, False, ['left'], [], []] ['1', '2']\n"


def test_calls_at_the_same_time_are_apart() -> None:
    code = "import os, time\nopen('/tmp/{}', 'w').close()\ntime.sleep(0.2)\nprint(os.listdir('/tmp'))"

    async def use(sandbox: Sandbox) -> list[Outcome]:
        return await asyncio.gather(*(sandbox.run_python(code.format(number)) for number in range(4)))

    assert [outcome.stdout.text for outcome in within(use)] == [f"['{number}']\n" for number in range(4)]


def test_the_environment_is_what_was_allowed() -> None:
    async def use(sandbox: Sandbox) -> Outcome:
        return await sandbox.run(["env"])

    names = {line.partition("=")[0] for line in within(use, environment={"COLOUR": "blue"}).stdout.text.splitlines()}
    assert "COLOUR" in names
    assert names <= {"COLOUR", "HOME", "LANG", "PATH", "PWD", "PYTHONDONTWRITEBYTECODE", "PYTHONUNBUFFERED", "TMPDIR"}


def test_packages_that_were_given_can_be_imported(tmp_path: Path) -> None:
    (tmp_path / "found.py").write_text("value = 7")

    async def use(sandbox: Sandbox) -> Outcome:
        return await sandbox.run_python("import found\nfound.value, found.__file__")

    assert within(use, packages=[tmp_path]).stdout.text == "(7, '/packages/0/found.py')\n"


def test_a_workspace_may_be_for_reading_alone(tmp_path: Path) -> None:
    (tmp_path / "given").write_text("text")

    async def use(sandbox: Sandbox) -> Outcome:
        return await sandbox.run_python("print(open('given').read())\nopen('new', 'w')")

    outcome = within(use, workspace=tmp_path, is_writable=False)
    assert outcome.stdout.text == "text\n"
    assert "Read-only file system" in outcome.stderr.text


def test_a_workspace_of_the_sandbox_s_own_is_removed() -> None:
    async def use(sandbox: Sandbox) -> Path:
        # Deeper than any path may be long, and closed to its owner.
        code = "import os\nfor _ in range(1200):\n    os.mkdir('d'), os.chdir('d')\nos.mkdir('shut', 0)"
        assert (await sandbox.run_python(code)).exit_code == 0
        assert sandbox.workspace.is_dir()
        return sandbox.workspace

    assert not within(use).exists()


def test_a_workspace_that_is_no_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="not a folder"):
        within(lambda _: asyncio.sleep(0), workspace=tmp_path / "missing")


class Gate:
    """Notes who enters, and lends CPU 0 at a low priority."""

    def __init__(self) -> None:
        self.entered: list[tuple[str, str]] = []

    @asynccontextmanager
    async def enter(self, work: str, name: str) -> AsyncIterator[CpuShare]:
        self.entered.append((work, name))
        yield CpuShare(frozenset({min(os.sched_getaffinity(0))}), nice=3)


def test_a_call_passes_the_gate_and_keeps_to_its_share() -> None:
    gate = Gate()
    code = "import os\nlen(os.sched_getaffinity(0)), os.nice(0)"

    async def use(sandbox: Sandbox) -> Outcome:
        return await sandbox.run_python(code)

    assert within(use, gate=gate).stdout.text == f"(1, {min(os.nice(0) + 3, 19)})\n"
    assert gate.entered == [("cpu", "run_python")]


def test_a_trace_tells_the_start_and_the_program_s_cpu_time() -> None:
    async def use(sandbox: Sandbox) -> Outcome:
        return await sandbox.run_python("sum(range(10**6))")

    with Trace.open("task") as trace:
        outcome = within(use)
    spans = {span.name: span for span in trace.spans if span.kind == "sandbox"}
    assert spans["program"].cpu_seconds == outcome.cpu_seconds
    assert spans["start"].seconds == pytest.approx(outcome.start_seconds)
    assert spans["run_python"].attributes["status"] == "exited"
    assert {spans["start"].parent_id, spans["program"].parent_id} == {spans["run_python"].span_id}


def test_without_isolation_that_is_said_and_programs_are_as_this_user(tmp_path: Path) -> None:
    async def use(sandbox: Sandbox) -> Outcome:
        assert sandbox.layers[0].startswith("no isolation, as asked")
        return await sandbox.run_python("import os\nos.getcwd(), os.getuid()")

    outcome = within(use, is_unsafe=True, workspace=tmp_path)
    assert outcome.stdout.text == f"({str(tmp_path)!r}, {os.getuid()})\n"
