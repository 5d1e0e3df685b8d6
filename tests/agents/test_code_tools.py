"""The tools that run code: what a model is told of how it ended."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from treadle.agents.sandbox.limits import SandboxLimits
from treadle.agents.sandbox.outcome import CappedText, Outcome
from treadle.agents.tool import ToolResult
from treadle.agents.tools.code import outcome_text, python_tool, shell_tool
from treadle.agents.tools.local_tool import LocalTool
from treadle.errors import ToolError


def outcome(stdout: str = "", stderr: str = "", is_cut: bool = False, **end: Any) -> Outcome:
    end = {"status": "exited", "exit_code": 0, "signal": None, **end}
    written = [
        CappedText(text, 10 * len(text) if is_cut else len(text), is_cut and bool(text)) for text in (stdout, stderr)
    ]
    return Outcome(
        stdout=written[0], stderr=written[1], wall_seconds=1.5, cpu_seconds=1, start_seconds=0, peak_bytes=None, **end
    )


class Runner:
    """Notes what it is to run, and says how that ended."""

    def __init__(self, ended: Outcome) -> None:
        self._ended = ended
        self.ran: list[Any] = []
        self.limits: list[SandboxLimits | None] = []

    async def run(self, argv: Sequence[str], *, stdin: bytes = b"", limits: SandboxLimits | None = None) -> Outcome:
        assert not stdin
        self.ran.append(list(argv))
        self.limits.append(limits)
        return self._ended

    async def run_python(self, code: str, *, limits: SandboxLimits | None = None) -> Outcome:
        self.ran.append(code)
        self.limits.append(limits)
        return self._ended


def result(tool: LocalTool, **arguments: str) -> ToolResult:
    return asyncio.run(tool.call(arguments))


LIMITS = SandboxLimits()


def test_what_went_well_is_what_was_printed() -> None:
    assert outcome_text(outcome("42\n"), LIMITS) == "42"
    assert outcome_text(outcome("42\n", "careful\n"), LIMITS) == "stdout:\n42\nstderr:\ncareful"
    assert outcome_text(outcome(), LIMITS) == "It ended well but printed nothing."
    assert outcome_text(outcome(" \n", "careful"), LIMITS) == "It ended well but printed nothing.\nstderr:\ncareful"


@pytest.mark.parametrize(
    ("end", "told"),
    [
        ({"exit_code": 3}, "It failed with exit code 3."),
        ({"status": "signaled", "exit_code": None, "signal": 11}, "It was ended by SIGSEGV."),
        ({"status": "signaled", "exit_code": None, "signal": 99}, "It was ended by signal 99."),
        ({"status": "timeout", "exit_code": None}, "It was stopped because it took more than 30 seconds."),
        ({"status": "cpu", "exit_code": None}, "It was stopped because it took more than 20 seconds of CPU time."),
        ({"status": "memory", "exit_code": None}, "It was stopped because it needed more than 1024 MiB of memory."),
        (
            {"status": "processes", "exit_code": None},
            "It was stopped because it needed more than 64 processes and threads.",
        ),
        (
            {"status": "disk", "exit_code": None},
            "It was stopped because it wrote too much: the workspace may grow by 256 MiB in a call.",
        ),
    ],
)
def test_every_bad_end_is_an_error_with_a_reason(end: dict[str, Any], told: str) -> None:
    tool = python_tool(Runner(outcome("half\n", "broken\n", **end)))
    assert result(tool, code="x") == ToolResult(f"{told}\nstdout:\nhalf\nstderr:\nbroken", is_error=True)


def test_a_cut_is_told() -> None:
    told = outcome_text(outcome("x" * 100, is_cut=True), LIMITS)
    assert told.endswith("[stdout was cut: it had 1.0 kB; print less, or write to a file]")


@pytest.mark.parametrize(
    ("given", "run"),
    [
        ("print(1)", "print(1)"),
        ("```python\nprint(1)\nprint(2)\n```", "print(1)\nprint(2)"),
        ("\n```\nprint(1)```\n", "print(1)"),
        ('print("""\n```\nx\n```\n""")', 'print("""\n```\nx\n```\n""")'),
        ("```not closed", "```not closed"),
    ],
)
def test_a_fence_around_code_is_left_out_and_nothing_else(given: str, run: str) -> None:
    runner = Runner(outcome("1"))
    result(python_tool(runner), code=given)
    assert runner.ran == [run]
    result(shell_tool(runner), command=given)
    assert runner.ran[1][1:] == ["-c", run]


def test_a_model_is_shown_less_than_programs_are() -> None:
    runner = Runner(outcome("1"))
    result(shell_tool(runner, SandboxLimits(wall_seconds=5)), command="ls")
    result(python_tool(runner, SandboxLimits(output_bytes=100)), code="1")
    assert runner.limits == [SandboxLimits(wall_seconds=5, output_bytes=6000), SandboxLimits(output_bytes=100)]


@pytest.mark.parametrize("code", ["a\0b", "x" * 200_000])
def test_what_can_be_no_code_is_refused(code: str) -> None:
    with pytest.raises(ToolError, match="at most 100,000 characters"):
        result(shell_tool(Runner(outcome())), command=code)
