"""The control group of a call: on described systems of either version, and live where this machine lets it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from patience import PATIENCE_SECONDS
from treadle.agents.sandbox import cgroup_places, cgroups
from treadle.agents.sandbox.cgroup_places import Place, find_place, group_prefix
from treadle.agents.sandbox.cgroups import CallGroup, why_not
from treadle.agents.sandbox.limits import SandboxLimits
from treadle.hardware.cpu_share import CpuShare

LIMITS = SandboxLimits(memory_bytes=64 << 20, num_processes=20)
PID = os.getpid()


def write(path: Path, text: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def v2_group(
    root: Path, group: str, *, controllers: str = "cpuset cpu memory pids", enabled: str = "", members: str = ""
) -> Path:
    folder = root / "sys/fs/cgroup" / group
    write(folder / "cgroup.controllers", controllers)
    write(folder / "cgroup.subtree_control", enabled)
    write(folder / "cgroup.procs", members)
    if group:
        write(folder / "cgroup.type", "domain")
    return folder


def v2_system(root: Path, group: str) -> None:
    write(root / "proc/self/cgroup", f"0::/{group}\n")
    write(root / "proc/self/mountinfo", "30 20 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n")


def v1_system(root: Path) -> dict[str, Path]:
    names = {"memory": "memory", "pids": "pids", "cpu": "cpu,cpuacct", "cpuset": "cpuset"}
    lines = [
        f"{at} 20 0:{at} / /sys/fs/cgroup/{name} rw - cgroup cgroup rw,{name}"
        for at, name in enumerate(names.values(), 40)
    ]
    write(root / "proc/self/mountinfo", "\n".join(lines))
    write(root / "proc/self/cgroup", "\n".join(f"{at}:{name}:/job" for at, name in enumerate(names.values(), 2)))
    folders = {key: root / "sys/fs/cgroup" / name / "job" for key, name in names.items()}
    for folder in folders.values():
        write(folder / "cgroup.procs", f"{PID}\n")
    write(folders["cpuset"] / "cpuset.mems", "0-1\n")
    return folders


def created(root: Path, share: CpuShare = CpuShare()) -> CallGroup:  # noqa: B008 - a frozen value
    group = CallGroup.create("call", LIMITS, share, root=root)
    assert group is not None
    return group


def set_values(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.iterdir()}


def test_version_2_bounds_everything_in_one_folder(tmp_path: Path) -> None:
    v2_system(tmp_path, "user/app")
    own = v2_group(tmp_path, "user/app", enabled="cpuset cpu memory pids")
    group = created(tmp_path, CpuShare(frozenset({1, 3}), nice=5))
    assert group.controllers == {"cpuset", "cpu", "memory", "pids"}
    folder = own / f"{group_prefix(tmp_path, pid=PID)}call"
    assert set_values(folder) == {
        "pids.max": str(20 + cgroups.NUM_KEEPERS),
        "memory.max": str(64 << 20),
        "memory.swap.max": "0",
        "memory.oom.group": "1",
        "cpu.weight": "33",  # 100 / 1.25**5, what the kernel makes of niceness 5
        "cpuset.cpus": "1,3",
    }
    group.add(4711)
    assert (folder / "cgroup.procs").read_text() == "4711"


def test_version_2_says_what_was_used(tmp_path: Path) -> None:
    v2_system(tmp_path, "app")
    own = v2_group(tmp_path, "app", enabled="memory pids")
    group = created(tmp_path)
    folder = own / f"{group_prefix(tmp_path, pid=PID)}call"
    assert (group.peak_bytes, group.cpu_seconds, group.was_oom) == (None, None, False)
    write(folder / "memory.peak", "123456\n")
    write(folder / "cpu.stat", "usage_usec 2500000\nuser_usec 2000000\n")
    write(folder / "memory.events", "low 0\nmax 9\noom 1\noom_kill 1\n")
    assert (group.peak_bytes, group.cpu_seconds, group.was_oom) == (123456, 2.5, True)


def pass_on(path: Path, text: str) -> None:
    """Write as the kernel's own files take it: words of subtree_control add up."""
    if path.name == "cgroup.subtree_control":
        text = f"{path.read_text()} {text.removeprefix('+')}"
    path.write_text(text)


def test_a_process_alone_in_its_group_steps_aside_so_that_limits_can_be_passed_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    v2_system(tmp_path, "run.scope")
    own = v2_group(tmp_path, "run.scope", members=f"{PID}\n77\n")
    write(tmp_path / "proc/77/status", f"Name:\tchild\nPPid:\t{PID}\n")
    monkeypatch.setattr(cgroup_places, "_try_write", pass_on)
    assert created(tmp_path).controllers == {"cpuset", "cpu", "memory", "pids"}
    aside = own / f"{group_prefix(tmp_path, pid=PID)}self"
    assert (aside / "cgroup.procs").read_text() == "77"  # the last one written
    assert int((aside / "cpu.weight").read_text()) == 100 * (os.cpu_count() or 1)


def test_the_root_of_the_hierarchy_needs_nobody_to_step_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    v2_system(tmp_path, "")
    top = v2_group(tmp_path, "", members="1\n2\n")
    monkeypatch.setattr(cgroup_places, "_try_write", lambda path, text: path.exists() and pass_on(path, text))
    assert created(tmp_path).controllers == {"cpuset", "cpu", "memory", "pids"}
    assert not (top / f"{group_prefix(tmp_path, pid=PID)}self").exists()


def test_a_group_that_others_share_is_left_as_it_is_and_an_ancestor_that_passes_on_serves(tmp_path: Path) -> None:
    v2_system(tmp_path, "app.slice/terminal.scope")
    own = v2_group(tmp_path, "app.slice/terminal.scope", members=f"{PID}\n1234\n")
    write(tmp_path / "proc/1234/status", "Name:\tbash\nPPid:\t1\n")
    parent = v2_group(tmp_path, "app.slice", enabled="memory pids")
    place = find_place(tmp_path)
    assert isinstance(place, Place)
    assert dict(place.folders) == {"": parent, "memory": parent, "pids": parent}
    assert sorted(path.name for path in own.iterdir()) == sorted(
        ["cgroup.controllers", "cgroup.subtree_control", "cgroup.procs", "cgroup.type"]
    )


def test_version_1_has_a_folder_for_each_controller(tmp_path: Path) -> None:
    folders = v1_system(tmp_path)
    group = created(tmp_path, CpuShare(frozenset({0}), nice=0))
    name = f"{group_prefix(tmp_path, pid=PID)}call"
    assert set_values(folders["pids"] / name) == {"pids.max": str(20 + cgroups.NUM_KEEPERS)}
    assert set_values(folders["memory"] / name) == {
        "memory.limit_in_bytes": str(64 << 20),
        "memory.memsw.limit_in_bytes": str(64 << 20),
    }
    assert set_values(folders["cpu"] / name) == {"cpu.shares": "1024"}
    assert set_values(folders["cpuset"] / name) == {"cpuset.mems": "0-1", "cpuset.cpus": "0"}
    assert group.controllers == {"memory", "pids", "cpu", "cpuacct", "cpuset"}
    write(folders["cpu"] / name / "cpuacct.usage", "1500000000\n")
    write(folders["memory"] / name / "memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n")
    assert (group.cpu_seconds, group.was_oom) == (1.5, True)


def test_version_1_without_chosen_cpus_needs_no_cpuset(tmp_path: Path) -> None:
    folders = v1_system(tmp_path)
    assert "cpuset" not in created(tmp_path).controllers
    assert [path.name for path in folders["cpuset"].iterdir() if path.is_dir()] == []


def test_a_system_without_the_memory_controller_still_bounds_processes(tmp_path: Path) -> None:
    v2_system(tmp_path, "app")
    v2_group(tmp_path, "app", controllers="cpu pids", enabled="cpu pids")
    group = created(tmp_path)
    assert group.controllers == {"cpu", "pids"}
    assert (group.peak_bytes, group.was_oom) == (None, False)


def nothing(root: Path) -> None:
    write(root / "proc/self/mountinfo", "20 1 0:20 / / rw - ext4 /dev/sda rw\n")


def without_pids(root: Path) -> None:
    v2_system(root, "job")
    v2_group(root, "job", controllers="cpu memory", enabled="cpu memory")


def shared(root: Path) -> None:
    v2_system(root, "session.scope")
    v2_group(root, "session.scope", members="1234\n")


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (nothing, ["shows no control groups", "mount cgroup2"]),
        (without_pids, ["/sys/fs/cgroup/job", "no pids controller"]),
        (shared, ["/sys/fs/cgroup/session.scope", "other processes", "systemd-run --user --scope -p Delegate=yes"]),
    ],
)
def test_where_none_can_be_made_the_reason_names_the_group_and_the_fix(
    tmp_path: Path, build: Callable[[Path], None], words: list[str]
) -> None:
    build(tmp_path)
    assert CallGroup.create("call", LIMITS, root=tmp_path) is None
    reason = why_not(tmp_path) or ""
    assert [word for word in words if word not in reason] == []


def test_a_group_of_somebody_else_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root may write anywhere, so the answer of the kernel is played here."""
    v2_system(tmp_path, "user.slice")
    v2_group(tmp_path, "user.slice", enabled="memory pids", members="1\n")
    monkeypatch.setattr(cgroup_places.os, "access", lambda *_: False)
    assert "may not be written by this user; start it in a group of its own" in (why_not(tmp_path) or "")


# --- live -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def group(request: pytest.FixtureRequest) -> Iterator[CallGroup]:
    reason = why_not()
    if reason is not None:
        pytest.skip(f"no live control group: {reason}")
    made = CallGroup.create(f"test-{request.node.name}"[:60].replace("/", "-"), LIMITS)
    assert made is not None
    yield made
    made.remove()


class Held:
    """A shell that waits until it is in its group before it runs what it was given."""

    def __init__(self, group: CallGroup, command: list[str]) -> None:
        self.process = subprocess.Popen(
            ["/bin/sh", "-c", 'read go; exec "$@"', "sh", *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        group.add(self.process.pid)

    def run(self) -> str:
        output, _ = self.process.communicate("go\n", timeout=PATIENCE_SECONDS)
        return output


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_memory_is_bounded_together_and_the_kill_is_told_apart(group: CallGroup) -> None:
    if "memory" not in group.controllers:
        pytest.skip("no memory controller")
    held = Held(group, [sys.executable, "-c", "block = bytearray(b'x') * (200 << 20); print(len(block))"])
    assert held.run() == ""
    assert held.process.returncode == -signal.SIGKILL
    assert group.was_oom
    peak = group.peak_bytes
    # The kernel lets what it kills go a little over the limit.
    assert peak is None or 32 << 20 < peak <= 72 << 20


def test_a_small_program_is_not_out_of_memory_and_its_cpu_time_is_counted(group: CallGroup) -> None:
    held = Held(group, [sys.executable, "-c", "sum(range(3_000_000))"])
    held.run()
    assert (held.process.returncode, group.was_oom) == (0, False)
    used = group.cpu_seconds
    assert used is None or used > 0.01


def test_processes_are_bounded_together(group: CallGroup) -> None:
    source = """
import os, time
made = 0
try:
    while True:
        if os.fork() == 0:
            time.sleep(1000)
        made += 1
except BlockingIOError:
    print(made, flush=True)
    os.abort()
"""
    held = Held(group, [sys.executable, "-c", source])
    held.process.stdin.write("go\n")  # type: ignore[union-attr]
    held.process.stdin.flush()  # type: ignore[union-attr]
    made = int(held.process.stdout.readline())  # type: ignore[union-attr]
    assert made == LIMITS.num_processes + cgroups.NUM_KEEPERS - 1
    group.kill()
    held.process.communicate(timeout=PATIENCE_SECONDS)
    until(lambda: not group.pids())


BOMB = "while True:\n    try:\n        os.fork()\n    except OSError:\n        pass"


@pytest.mark.parametrize("has_kill_file", [True, False], ids=["at-once", "one-by-one"])
def test_a_fork_bomb_is_killed_whole(group: CallGroup, has_kill_file: bool) -> None:
    folders = group._folders
    if not has_kill_file:
        left = folders.pop(cgroup_places.UNIFIED, None)
        if left is not None and left not in folders.values():
            left.rmdir()
    held = Held(group, [sys.executable, "-c", f"import os\nos.setsid()\nprint('up', flush=True)\n{BOMB}"])
    held.process.stdin.write("go\n")  # type: ignore[union-attr]
    held.process.stdin.flush()  # type: ignore[union-attr]
    assert held.process.stdout.readline() == "up\n"  # type: ignore[union-attr]
    until(lambda: len(group.pids()) == LIMITS.num_processes + cgroups.NUM_KEEPERS)
    group.kill()
    held.process.communicate(timeout=PATIENCE_SECONDS)
    assert held.process.returncode == -signal.SIGKILL
    until(lambda: not group.pids())
    group.remove()
    assert not any(folder.exists() for folder in folders.values())


def test_removing_kills_what_is_left_and_may_be_said_twice(group: CallGroup) -> None:
    held = Held(group, ["sleep", "1000"])
    group.remove()
    held.process.communicate(timeout=PATIENCE_SECONDS)
    group.remove()
    assert not any(folder.exists() for folder in group._folders.values())


def test_a_process_that_has_ended_cannot_be_added(group: CallGroup) -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    with pytest.raises(ProcessLookupError):
        group.add(ended.pid)


def test_groups_of_dead_processes_are_removed_and_those_of_the_living_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    place = find_place()
    if isinstance(place, str):
        pytest.skip(f"no live control group: {place}")
    ended = subprocess.Popen(["true"])
    ended.wait()
    alive = subprocess.Popen(["sleep", "1000"])
    orphan = subprocess.Popen(["sleep", "1000"])
    folder = place.folders["pids"]
    dead_group = folder / f"{group_prefix(pid=ended.pid)}left"
    live_group = folder / f"{group_prefix(pid=alive.pid)}mine"
    strange_group = folder / "treadle-1-1-other-namespace"
    made = [dead_group, live_group, strange_group]
    try:
        for left in made:
            left.mkdir()
        (dead_group / "cgroup.procs").write_text(str(orphan.pid))
        monkeypatch.setattr(cgroups, "_swept", set())
        next_group = CallGroup.create("after-the-dead", LIMITS)
        assert next_group is not None
        next_group.remove()
        assert orphan.wait(timeout=PATIENCE_SECONDS) == -signal.SIGKILL
        again = CallGroup.create("after-the-dead", LIMITS)
        assert again is not None
        again.remove()
        assert [left.exists() for left in made] == [False, True, True]
    finally:
        for process in (alive, orphan):
            process.kill()
            process.wait()
        for left in made:
            if left.exists():
                left.rmdir()
