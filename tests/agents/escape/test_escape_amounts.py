"""Attempts to fill what the machine has: memory, disk, inodes, descriptors, and the reader of the output."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from host import Host
from prison import Prison

from treadle.agents.sandbox import cgroups, workspace
from treadle.agents.sandbox.limits import SandboxLimits
from treadle.agents.sandbox.outcome import Outcome
from treadle.agents.sandbox.sandbox import Sandbox

Attempt = Callable[..., Outcome]
Limits = Callable[..., SandboxLimits]

MB = 1 << 20
SMALL = {
    "memory_bytes": 128 * MB,
    "file_bytes": 4 * MB,
    "tmp_bytes": 4 * MB,
    "workspace_bytes": 16 * MB,
    "num_files": 500,
}


@pytest.fixture
def small(limits: Limits) -> SandboxLimits:
    return limits(**SMALL)


# How much a program can write before the next look at its workspace depends on the load of the machine.
STAY = "import time\ntime.sleep(1000)"


def size_of(folder: Path) -> int:
    return sum(path.stat().st_blocks * 512 for path in folder.rglob("*"))


MEMORY = {
    "private": "block = bytearray(b'x') * (8 << 30)",
    "bit by bit": "blocks = []\nwhile True:\n    blocks.append(bytearray(b'x') * (1 << 20))",
    "shared": "import mmap\nm = mmap.mmap(-1, 8 << 30)\nfor at in range(0, 8 << 30, 4096):\n    m[at] = 1",
    "shared bit by bit": "import mmap\nmaps = []\nwhile True:\n    m = mmap.mmap(-1, 1 << 20)\n    m.write(bytes(1 << 20))\n    maps.append(m)",
    "memfd": """
import os
files = []
while True:
    files.append(os.memfd_create("hidden"))
    os.write(files[-1], bytes(3 << 20))
""",
    "System V": """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
libc.shmat.restype = ctypes.c_void_p
for _ in range(100):
    segment = libc.shmget(0, 4 << 20, 0o1600)
    address = libc.shmat(segment, None, 0)
    assert segment >= 0 and address not in (None, (1 << 64) - 1), ctypes.get_errno()
    ctypes.memset(address, 1, 4 << 20)
    libc.shmdt(ctypes.c_void_p(address))
""",
    "processes": """
import os, time
for _ in range(20):
    if os.fork() == 0:
        block = bytearray(b'x') * (60 << 20)
        time.sleep(1000)
while True:
    pid, status = os.wait()
    if status:
        print(status)
        raise SystemExit(9)
""",
}


@pytest.mark.parametrize("kind", list(MEMORY))
def test_memory_is_refused_or_costs_the_call(attempt: Attempt, small: SandboxLimits, kind: str) -> None:
    outcome = attempt(MEMORY[kind], small)
    assert (outcome.status, outcome.exit_code) != ("exited", 0)
    assert outcome.status in ("memory", "exited", "signaled")
    if cgroups.why_not() is None:
        # The kernel lets what it kills go a little over the limit.
        assert outcome.peak_bytes is None or outcome.peak_bytes <= 144 * MB


def test_a_file_has_an_end(prison: Prison, small: SandboxLimits) -> None:
    outcome = prison.shell("fallocate -l 10G f; head -c 1G /dev/zero > g; truncate -s 1T h; ls -s", small)
    assert outcome.status in ("exited", "signaled", "disk")
    assert size_of(prison.workspace) <= 8 * MB


def test_a_sparse_file_has_the_same_end(attempt: Attempt, prison: Prison, small: SandboxLimits) -> None:
    outcome = attempt("f = open('f', 'wb')\nf.seek(1 << 40)\nf.write(b'x')\nf.flush()", small)
    assert "File too large" in outcome.stderr.text
    assert max(path.stat().st_size for path in prison.workspace.iterdir()) <= 4 * MB


def test_many_files_have_an_end_together(attempt: Attempt, prison: Prison, small: SandboxLimits) -> None:
    code = f"block = bytes(4 << 20)\nfor number in range(20):\n    with open(f'{{number}}', 'wb') as file:\n        file.write(block)\n{STAY}"
    assert attempt(code, small).status == "disk"
    assert size_of(prison.workspace) <= 80 * MB


def test_empty_files_have_an_end(attempt: Attempt, small: SandboxLimits) -> None:
    code = f"import os\nos.mkdir('d')\nfor number in range(2000):\n    os.close(os.open(f'd/{{number}}', os.O_CREAT | os.O_WRONLY))\n{STAY}"
    assert attempt(code, small).status == "disk"


@pytest.mark.parametrize("folder", ["/tmp", "/dev/shm"])
def test_private_files_have_an_end_together(attempt: Attempt, small: SandboxLimits, folder: str) -> None:
    code = f"""
written = 0
block = bytes(1 << 20)
try:
    for number in range(1000):
        with open(f"{folder}/{{number}}", "wb", buffering=0) as file:
            written += file.write(block)
except OSError as error:
    print(error.strerror, written >> 20)
"""
    outcome = attempt(code, small)
    assert (outcome.status, outcome.stdout.text) == ("exited", "No space left on device 4\n")


@pytest.mark.parametrize("folder", ["/tmp", "/dev/shm"])
def test_private_empty_files_have_an_end(attempt: Attempt, small: SandboxLimits, folder: str) -> None:
    code = f"import os\nfor number in range(1_000_000):\n    os.close(os.open(f'{folder}/{{number}}', os.O_CREAT | os.O_WRONLY))"
    outcome = attempt(code, small)
    assert (outcome.status, outcome.exit_code) != ("exited", 0)


def test_no_other_folder_takes_files(attempt: Attempt, small: SandboxLimits) -> None:
    code = """
import os
for folder, folders, files in os.walk("/"):
    folders[:] = [name for name in folders if os.path.join(folder, name) not in ("/workspace", "/tmp", "/dev/shm", "/proc", "/usr")]
    try:
        os.close(os.open(os.path.join(folder, "new"), os.O_CREAT | os.O_WRONLY))
        print(folder)
    except OSError:
        pass
"""
    assert attempt(code, small).stdout.text == ""


def test_descriptors_have_an_end(attempt: Attempt, limits: Limits) -> None:
    outcome = attempt("files = []\nwhile True:\n    files.append(open('/dev/null'))", limits(num_open_files=64))
    assert "Too many open files" in outcome.stderr.text


@pytest.mark.parametrize("stream", [1, 2])
def test_a_flood_of_output_is_cut_and_does_not_stop_the_program(attempt: Attempt, limits: Limits, stream: int) -> None:
    code = f"""
import os
block = b"x" * (1 << 16)
for _ in range(100):
    left = len(block)
    while left:
        left -= os.write({stream}, block[:left])
left = os.write({stream}, b"end")
"""
    outcome = attempt(code, limits(output_bytes=10_000))
    text = outcome.stdout if stream == 1 else outcome.stderr
    assert (outcome.status, outcome.exit_code) == ("exited", 0)
    assert (text.num_bytes, text.is_cut) == (100 * (1 << 16) + 3, True)
    assert len(text.text) < 11_000
    assert text.text.endswith("end")


def test_a_flood_without_end_runs_out_of_time(prison: Prison, limits: Limits) -> None:
    outcome = prison.shell("yes & yes >&2 & wait", limits(wall_seconds=0.5))
    assert outcome.status in ("timeout", "cpu")
    assert len(outcome.stdout.text) + len(outcome.stderr.text) < 70_000


def test_input_that_nobody_reads_holds_nothing_up(prison: Prison) -> None:
    outcome = prison.run("/bin/sh", "-c", "exec <&-; echo done", stdin=bytes(100 * MB))
    assert (outcome.status, outcome.stdout.text) == ("exited", "done\n")


def test_input_that_is_read_arrives_whole(prison: Prison) -> None:
    assert prison.run("wc", "-c", stdin=bytes(5 * MB)).stdout.text.strip() == str(5 * MB)


def test_a_crash_leaves_no_core(attempt: Attempt, prison: Prison) -> None:
    outcome = attempt("import os; os.abort()")
    assert outcome.status == "signaled"
    assert list(prison.workspace.iterdir()) == []


@pytest.mark.parametrize("at", ["inner", "inner/deep"])
def test_the_look_at_the_workspace_cannot_be_led_out_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    """A program swaps a folder for a link just when the next look is about to enter it."""
    for folder in ("workspace/inner/deep", "outside/deep"):
        (tmp_path / folder).mkdir(parents=True)
    for folder in ("outside", "outside/deep"):
        (tmp_path / folder / "file").write_text("not ours")
    inner, swapped = tmp_path / "workspace/inner", str(tmp_path / "workspace" / at)
    opened = os.open

    def swap_and_open(path: str, flags: int) -> int:
        if path == swapped:
            inner.rename(tmp_path / "moved")
            inner.symlink_to(tmp_path / "outside")
        return opened(path, flags)

    monkeypatch.setattr(workspace.os, "open", swap_and_open)
    assert workspace.measure(tmp_path / "workspace").num_files == at.count("/") + 1


def test_a_deep_tree_can_be_removed(prison: Prison, host: Host, limits: Limits) -> None:
    """The sandbox's own workspace, which it removes: folders within folders, and some that may not be entered."""
    code = """
import os
os.mkdir("locked")
os.mkdir("locked/inner")
os.chmod("locked", 0)
try:
    for _ in range(1000):
        os.mkdir("deep")
        os.chdir("deep")
except OSError:
    pass
"""

    async def use() -> Outcome:
        sandbox = await Sandbox.open(environment={"TREADLE_ESCAPE_MARK": host.mark}, limits=limits())
        try:
            return await sandbox.run_python(code)
        finally:
            await sandbox.close()

    assert asyncio.run(use()).status in ("exited", "disk")  # what cannot be looked through counts as too much
    assert list(host.temporary.iterdir()) == []
