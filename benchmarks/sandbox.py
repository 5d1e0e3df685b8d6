"""What a call in the sandbox costs: warm, cold, beside a plain subprocess, and what many of them leave behind.

Prints latencies, the memory of this process before and after a flood of output, and of how much there is more after the
calls than before: processes, mounts, control groups, descriptors, files. Ends with status 1 when a limit is missed: 15
ms for a warm call of Python code, 150 ms for a cold one, nothing left.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from treadle.agents.sandbox import Sandbox, SandboxLimits
from treadle.agents.sandbox.inside.waiting import descendants

MOST_WARM_SECONDS = 0.015
MOST_COLD_SECONDS = 0.150
CODE = "1 + 1"
LITTER = "import os\nopen('/tmp/left', 'w').close()\nif os.fork() == 0:\n    os.setsid()\n    os.read(os.pipe()[0], 1)"
AMPLE = SandboxLimits(wall_seconds=600, cpu_seconds=300)
PAUSE_SECONDS = 0.05
MIB = 1 << 20


async def times(work: Callable[[], Awaitable[object]], num_calls: int, pause: float = 0.0) -> list[float]:
    """Seconds of each call, sorted."""
    seconds = []
    for _ in range(num_calls):
        await asyncio.sleep(pause)
        began = time.perf_counter()
        await work()
        seconds.append(time.perf_counter() - began)
    return sorted(seconds)


def told(name: str, seconds: list[float]) -> float:
    """Print quantiles and return the median."""
    quantiles = [seconds[min(int(part * len(seconds)), len(seconds) - 1)] for part in (0.5, 0.9, 0.99)]
    print(f"{name:48}" + "".join(f"{1e3 * each:9.1f}" for each in quantiles))
    return quantiles[0]


async def plain() -> None:
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", CODE, stdout=subprocess.DEVNULL)
    await process.wait()


async def cold() -> None:
    sandbox = await Sandbox.open(num_warm=1)
    await sandbox.run_python(CODE)
    await sandbox.close()


async def latencies() -> bool:
    print(f"{'milliseconds':48}{'p50':>9}{'p90':>9}{'p99':>9}")
    plain_seconds = told("plain subprocess, python -c", await times(plain, 40))
    cold_seconds = told("cold: open, run_python, close", await times(cold, 20))
    sandbox = await Sandbox.open(limits=AMPLE)
    warm_seconds = told(
        f"run_python, {1e3 * PAUSE_SECONDS:.0f} ms apart",
        await times(lambda: sandbox.run_python(CODE), 100, PAUSE_SECONDS),
    )
    told("run_python, back to back", await times(lambda: sandbox.run_python(CODE), 100))
    told(
        f"run true, {1e3 * PAUSE_SECONDS:.0f} ms apart", await times(lambda: sandbox.run(["true"]), 100, PAUSE_SECONDS)
    )
    await sandbox.close()
    print(
        f"beside a plain subprocess: warm {warm_seconds / plain_seconds:.2f}x, cold {cold_seconds / plain_seconds:.1f}x"
    )
    return warm_seconds <= MOST_WARM_SECONDS and cold_seconds <= MOST_COLD_SECONDS


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def flood(seconds: float) -> None:
    """Several programs that write without end."""
    sandbox = await Sandbox.open(limits=SandboxLimits(wall_seconds=seconds))
    before, began = resident_bytes(), time.process_time()
    outcomes = await asyncio.gather(*(sandbox.run(["yes"]) for _ in range(4)))
    spent = (time.process_time() - began) / seconds
    read = sum(outcome.stdout.num_bytes for outcome in outcomes)
    print(
        f"four floods of {seconds:.0f} s: {read / MIB:.0f} MiB read, "
        f"{(resident_bytes() - before) / MIB:.1f} MiB more memory here, {spent:.2f} cores of this process"
    )
    await sandbox.close()


def inventory(workspace: Path) -> dict[str, int]:
    """How many there are of what calls could leave behind."""
    groups = (Path(folder) for folder, _, _ in os.walk("/sys/fs/cgroup"))
    processes = (path for path in Path("/proc").iterdir() if path.name.isdigit())
    return {
        "processes": sum(is_in(process, workspace) for process in processes),
        "children": len(descendants(os.getpid())),
        "mounts": len(Path("/proc/self/mounts").read_text().splitlines()),
        "control groups": sum(f"-{os.getpid()}-call" in group.name for group in groups),
        "descriptors": len(list(Path("/proc/self/fd").iterdir())),
        "temporary files": len(list(Path(tempfile.gettempdir()).glob("treadle-*"))),
    }


def is_in(process: Path, workspace: Path) -> bool:
    """Whether the process works in the folder, whatever name its namespace has for it."""
    try:
        return (process / "cwd").samefile(workspace)
    except OSError:
        return False


async def leftovers(num_calls: int) -> bool:
    with tempfile.TemporaryDirectory() as folder:
        workspace = Path(folder)
        before = inventory(workspace)
        sandbox = await Sandbox.open(workspace=workspace, limits=AMPLE)
        for _ in range(num_calls):
            await sandbox.run_python(LITTER)
        await sandbox.close()
        more = {name: count - before[name] for name, count in inventory(workspace).items()}
    print(f"after {num_calls} calls there are more: " + ", ".join(f"{count} {name}" for name, count in more.items()))
    return not any(more.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=1000, help="how many calls to look for leftovers after")
    parser.add_argument("--flood-seconds", type=float, default=5.0)
    arguments = parser.parse_args()

    async def measure() -> bool:
        is_fast = await latencies()
        await flood(arguments.flood_seconds)
        return await leftovers(arguments.calls) and is_fast

    sys.exit(0 if asyncio.run(measure()) else 1)


if __name__ == "__main__":
    main()
