"""The resource limits of a sandboxed process: what they are set to, and that they hold in a child."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

from patience import PATIENCE_SECONDS
from treadle.agents.sandbox import rlimits
from treadle.agents.sandbox.limits import SandboxLimits

LIMITS = SandboxLimits(cpu_seconds=1.0, memory_bytes=256 << 20, num_processes=7, file_bytes=1 << 20, num_open_files=32)


def in_child(source: str, folder: Path, *, has_memory_group: bool = False) -> subprocess.CompletedProcess[str]:
    """Run Python code under the limits."""
    values = dict(rlimits.values(LIMITS, has_memory_group=has_memory_group))
    setup = f"import resource\nfor name, pair in {values!r}.items():\n    resource.setrlimit(getattr(resource, 'RLIMIT_' + name.upper()), pair)\n"
    environment = {"PATH": "/usr/bin:/bin"}
    command = [sys.executable, "-c", setup + source]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False
    )


def test_every_limit_is_set_hard_and_soft(tmp_path: Path) -> None:
    done = in_child(
        "import json, resource\n"
        "names = 'CPU DATA AS NPROC FSIZE NOFILE CORE NICE RTPRIO'.split()\n"
        "print(json.dumps({name: resource.getrlimit(getattr(resource, 'RLIMIT_' + name)) for name in names}))",
        tmp_path,
    )
    assert json.loads(done.stdout) == {
        "CPU": [1, 2],
        "DATA": [256 << 20] * 2,
        "AS": [256 << 20] * 2,
        "NPROC": [7, 7],
        "FSIZE": [1 << 20] * 2,
        "NOFILE": [32, 32],
        "CORE": [0, 0],
        "NICE": [0, 0],
        "RTPRIO": [0, 0],
    }


def test_part_of_a_cpu_second_is_not_none_at_all() -> None:
    assert rlimits.values(SandboxLimits(cpu_seconds=0.2), has_memory_group=True)["cpu"] == (1, 2)


def test_an_allocation_beyond_the_memory_fails_inside(tmp_path: Path) -> None:
    for has_memory_group in (False, True):
        done = in_child(
            "try:\n    bytearray(300 << 20)\nexcept MemoryError:\n    print('refused')",
            tmp_path,
            has_memory_group=has_memory_group,
        )
        assert (done.returncode, done.stdout) == (0, "refused\n")


RESERVE = "import mmap\nmmap.mmap(-1, 8 << 30, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=0)\nprint('reserved')"
SHARE = "import mmap\nmmap.mmap(-1, 8 << 30)\nprint('shared')"


def test_address_space_is_free_where_a_control_group_counts_the_memory(tmp_path: Path) -> None:
    assert in_child(RESERVE, tmp_path, has_memory_group=True).stdout == "reserved\n"
    assert "Cannot allocate memory" in in_child(RESERVE, tmp_path).stderr


def test_shared_memory_is_bounded_where_nothing_else_counts_it(tmp_path: Path) -> None:
    assert "Cannot allocate memory" in in_child(SHARE, tmp_path).stderr


def test_a_file_ends_at_its_limit(tmp_path: Path) -> None:
    done = in_child("open('big', 'wb').write(bytes(2 << 20))", tmp_path)
    assert "File too large" in done.stderr
    assert (tmp_path / "big").stat().st_size == 1 << 20


def test_descriptors_run_out(tmp_path: Path) -> None:
    assert "Too many open files" in in_child("files = [open('/dev/null') for _ in range(40)]", tmp_path).stderr


def test_cpu_time_ends(tmp_path: Path) -> None:
    assert in_child("while True: pass", tmp_path).returncode == -signal.SIGXCPU
