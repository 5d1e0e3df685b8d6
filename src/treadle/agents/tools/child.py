"""Does the work of a tool in a process of its own, which may take so much CPU time and memory and no more.

Not for code that a model wrote, which belongs into the sandbox: this is our own code at work on hostile patterns,
queries and documents. A thread could not be stopped, and would keep the interpreter from everybody else meanwhile.

Leaves to others: the work itself, a module with a function ``work``.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from treadle.agents.gate import OpenGate, ToolGate
from treadle.agents.tool import ToolResult
from treadle.agents.trace import charge_cpu
from treadle.errors import ToolError

__all__ = ["ChildLimits", "run_child"]

_PROGRAM = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from treadle.agents.tools.child import main; main()"
)


@dataclass(frozen=True)
class ChildLimits:
    """What one piece of work may take; a child that waits for nothing is bound by its CPU time."""

    cpu_seconds: int = 10
    wall_seconds: float = 60.0
    memory_bytes: int = 2 << 30


async def run_child(
    module: str,
    request: Mapping[str, Any],
    *,
    name: str,
    fds: Sequence[int] = (),
    limits: ChildLimits | None = None,
    gate: ToolGate | None = None,
) -> ToolResult:
    """Return what ``work(request)`` of a module returns, done in a process of its own.

    Args:
        module: Its full name.
        request: What JSON can say.
        name: What the work is called, at the gate and in messages.
        fds: Descriptors that the work may use, by the same numbers.
        limits: What it may take.
        gate: What it passes before it starts.

    Raises:
        ToolError: The work failed, or took more than it may.
    """
    limits = limits or ChildLimits()
    order = {"module": module, "request": request, "cpu": limits.cpu_seconds, "memory": limits.memory_bytes}
    async with (gate or OpenGate()).enter("cpu", name) as share:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", "-S", "-c", _PROGRAM, json.dumps(sys.path)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            pass_fds=fds,
        )
        try:
            share.confine(process.pid)
            work = process.communicate(json.dumps(order).encode())
            answer, problem = await asyncio.wait_for(work, limits.wall_seconds)
        except asyncio.TimeoutError:
            raise ToolError(f"{name} took longer than {limits.wall_seconds:g} s and was stopped") from None
        finally:
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
    return _read_answer(name, process.returncode, answer, problem, limits)


def _read_answer(name: str, code: int | None, answer: bytes, problem: bytes, limits: ChildLimits) -> ToolResult:
    if code == 0:
        told = json.loads(answer)
        charge_cpu(told["cpu_seconds"])
        if "error" in told:
            raise ToolError(told["error"])
        return ToolResult(told["text"])
    if code == -signal.SIGXCPU:
        raise ToolError(f"{name} took more than {limits.cpu_seconds} s of CPU time and was stopped; ask for less")
    last = problem.decode("utf-8", "replace").strip().rpartition("\n")[2]
    if code == -signal.SIGKILL or "MemoryError" in last:
        raise ToolError(f"{name} needed more than {limits.memory_bytes >> 20} MiB of memory and was stopped")
    raise ToolError(f"{name} failed: {last[:300] or f'its process ended with {code}'}")


def main() -> None:
    """Take an order from stdin, keep to its limits, do the work and write what came of it to stdout."""
    import resource  # noqa: PLC0415  not on every system that imports the module

    order = json.loads(sys.stdin.buffer.read())
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (order["cpu"], order["cpu"] + 1))
    resource.setrlimit(resource.RLIMIT_AS, (order["memory"], order["memory"]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's business, which ends us
    try:
        answer = {"text": importlib.import_module(order["module"]).work(order["request"])}
    except ToolError as error:
        answer = {"error": str(error)}
    sys.stdout.write(json.dumps({**answer, "cpu_seconds": time.process_time()}))
