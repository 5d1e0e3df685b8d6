"""Tools that other processes must be able to find."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from treadle.agents.function_tool import tool
from treadle.errors import ToolError


@tool(in_process=True)
def add(first: int, second: int) -> int:
    """Add two numbers."""
    return first + second


@tool(in_process=True)
def own_pid() -> int:
    """Tell the process."""
    return os.getpid()


@tool(in_process=True)
def cpus() -> list[int]:
    """Tell the CPUs that the process may run on."""
    return sorted(os.sched_getaffinity(0))


@tool(in_process=True)
def refuse(reason: str) -> str:
    """Refuse."""
    raise ToolError(reason)


@tool(in_process=True)
def die(code: int) -> str:
    """End the process that answers."""
    os._exit(code)


@tool(in_process=True)
def flood(chars: int) -> str:
    """Say a lot."""
    return "x" * chars


@tool(in_process=True)
def sleep_with_child(path: str) -> str:
    """Start a process that sleeps, write down both ids, and sleep, too."""
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    part = Path(f"{path}.part")
    part.write_text(f"{os.getpid()} {child.pid}")
    part.rename(path)
    time.sleep(600)
    return "woke up"
