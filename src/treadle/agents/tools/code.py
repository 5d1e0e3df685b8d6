"""The tools that run Python code and shell commands of a model, in a sandbox.

Leaves to others: running them (``agents.sandbox``).
"""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from treadle.agents.sandbox.limits import SandboxLimits
from treadle.agents.sandbox.outcome import CappedText, Outcome
from treadle.agents.tool import ToolResult, ToolSpec
from treadle.agents.tools.local_tool import LocalTool, parameters
from treadle.agents.tools.text import size_text, without_fence
from treadle.errors import ToolError

__all__ = ["CodeRunner", "outcome_text", "python_tool", "shell_tool"]

# Of stdout, and of stderr: what the sandbox keeps for programs would fill the context of a small model.
_MAX_SHOWN_BYTES = 6000
_MAX_CODE_CHARS = 100_000
_SHELLS = ("/bin/bash", "/bin/sh")

_PYTHON = ToolSpec(
    "python",
    "Run Python code in the workspace and show what it prints. Each call starts afresh: variables are not kept from "
    "call to call, files are. There is no network, and there may be no packages beside Python's standard library.",
    parameters({"code": {"type": "string", "description": "The code. Print what you want to see."}}),
)
_SHELL = ToolSpec(
    "shell",
    "Run a shell command in the workspace and show what it prints. There is no network, and nobody to type answers.",
    parameters({"command": {"type": "string", "description": "The command, such as 'wc -l *.csv'."}}),
)


class CodeRunner(Protocol):
    """What the tools ask of a sandbox."""

    async def run(self, argv: Sequence[str], *, stdin: bytes = b"", limits: SandboxLimits | None = None) -> Outcome:
        """Run a program in the workspace and return how it ended."""

    async def run_python(self, code: str, *, limits: SandboxLimits | None = None) -> Outcome:
        """Run Python code in the workspace and return how it ended."""


def python_tool(runner: CodeRunner, limits: SandboxLimits | None = None) -> LocalTool:
    """Return the tool that runs Python code in a sandbox, which the caller closes."""
    shown = _shown(limits)

    async def call(arguments: Mapping[str, Any]) -> ToolResult:
        return _result(await runner.run_python(_read_code(arguments["code"]), limits=shown), shown)

    return LocalTool(_PYTHON, call)


def shell_tool(runner: CodeRunner, limits: SandboxLimits | None = None) -> LocalTool:
    """Return the tool that runs shell commands in a sandbox, which the caller closes."""
    shown = _shown(limits)
    shell = next((path for path in _SHELLS if Path(path).exists()), _SHELLS[-1])

    async def call(arguments: Mapping[str, Any]) -> ToolResult:
        return _result(await runner.run([shell, "-c", _read_code(arguments["command"])], limits=shown), shown)

    return LocalTool(_SHELL, call)


def outcome_text(outcome: Outcome, limits: SandboxLimits) -> str:
    """Return what a model is told of a call: how it ended, unless well, and what it wrote.

    No times, so that the same call with the same outcome is seen to be one.
    """
    parts = [] if _is_well(outcome) else [_end(outcome, limits)]
    parts += [
        f"{name}:\n{written.text.rstrip()}"
        for name, written in (("stdout", outcome.stdout), ("stderr", outcome.stderr))
        if written.text.strip()
    ]
    if _is_well(outcome) and not outcome.stdout.text.strip():
        parts.insert(0, "It ended well but printed nothing.")
    if len(parts) == 1 and _is_well(outcome) and outcome.stdout.text.strip():
        parts = [outcome.stdout.text.rstrip()]
    cut = [_cut(name, each) for name, each in (("stdout", outcome.stdout), ("stderr", outcome.stderr)) if each.is_cut]
    return "\n".join([*parts, *cut])


def _shown(limits: SandboxLimits | None) -> SandboxLimits:
    limits = limits or SandboxLimits()
    return replace(limits, output_bytes=min(limits.output_bytes, _MAX_SHOWN_BYTES))


def _read_code(code: str) -> str:
    if "\0" in code or len(code) > _MAX_CODE_CHARS:
        raise ToolError(f"code has at most {_MAX_CODE_CHARS:,} characters, none of them NUL; write long text to a file")
    return without_fence(code)


def _result(outcome: Outcome, limits: SandboxLimits) -> ToolResult:
    return ToolResult(outcome_text(outcome, limits), is_error=not _is_well(outcome))


def _is_well(outcome: Outcome) -> bool:
    return outcome.status == "exited" and outcome.exit_code == 0


def _end(outcome: Outcome, limits: SandboxLimits) -> str:
    if outcome.status == "exited":
        return f"It failed with exit code {outcome.exit_code}."
    if outcome.status == "signaled":
        return f"It was ended by {_signal_name(outcome.signal)}."
    return (
        "It was stopped because it "
        + {
            "timeout": f"took more than {limits.wall_seconds:g} seconds.",
            "cpu": f"took more than {limits.cpu_seconds:g} seconds of CPU time.",
            "memory": f"needed more than {limits.memory_bytes >> 20} MiB of memory.",
            "processes": f"needed more than {limits.num_processes} processes and threads.",
            "disk": f"wrote too much: the workspace may grow by {limits.workspace_bytes >> 20} MiB in a call.",
        }[outcome.status]
    )


def _signal_name(number: int | None) -> str:
    try:
        return signal.Signals(number or 0).name
    except ValueError:
        return f"signal {number}"


def _cut(name: str, written: CappedText) -> str:
    return f"[{name} was cut: it had {size_text(written.num_bytes)}; print less, or write to a file]"
