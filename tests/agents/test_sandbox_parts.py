"""The parts of the sandbox that need no sandbox: kept output, verdicts, the workspace's growth, what is missing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sandboxes import AMPLE, within

from treadle.agents.sandbox import Outcome, Sandbox, SandboxLimits, choose, watch
from treadle.agents.sandbox.cgroups import CallGroup
from treadle.agents.sandbox.output import HeadAndTail
from treadle.agents.sandbox.verdict import Ending, Report, tell
from treadle.agents.sandbox.watch import held_bytes, tree_usage
from treadle.agents.sandbox.workspace import Contents, WorkspaceMeter, measure, remove_tree
from treadle.errors import UsageError


@given(parts=st.lists(st.text(st.characters(codec="utf-8"), max_size=30).map(str.encode)), limit=st.integers(0, 60))
def test_head_and_tail_of_output_are_kept_with_whole_characters(parts: list[bytes], limit: int) -> None:
    kept = HeadAndTail(limit)
    for part in parts:
        kept.add(part)
    whole = b"".join(parts)
    text = kept.text()
    assert text.num_bytes == len(whole)
    assert text.is_cut == (len(whole) > limit)
    if not text.is_cut:
        assert text.text.encode() == whole
        return
    assert "\ufffd" not in text.text or b"\xef\xbf\xbd" in whole
    head, said, tail = (
        text.text.rpartition("\n[")[0],
        *text.text.rpartition("\n[")[2].partition(" bytes left out]\n")[::2],
    )
    assert whole.startswith(head.encode())
    assert whole.endswith(tail.encode())
    assert int(said) == len(whole) - len(head.encode()) - len(tail.encode())
    assert limit - 6 <= len(head.encode()) + len(tail.encode()) <= limit


def test_output_that_is_no_text_becomes_replacement_characters() -> None:
    kept = HeadAndTail(100)
    kept.add(b"a\xff\xfeb")
    assert kept.text().text == "a\ufffd\ufffdb"


@pytest.mark.parametrize("name", ["wall_seconds", "memory_bytes", "output_bytes"])
@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf")])
def test_a_limit_is_above_zero_and_finite(name: str, value: float) -> None:
    with pytest.raises(UsageError, match=name):
        replace(SandboxLimits(), **{name: value})


def line(**changes: object) -> bytes:
    return json.dumps({"status": 0, "cpu_seconds": 0.1, "peak_bytes": 5, "reason": "", **changes}).encode()


@pytest.mark.parametrize(
    "bad", [b"", b"[]", b"{}", b"\xff", b"[" * 100_000, line(status="x"), line(cpu_seconds=None), line(peak_bytes=[1])]
)
def test_a_report_that_is_none_is_passed_over(bad: bytes) -> None:
    assert Report.parse(bad) is None


def test_a_report_is_held_to_what_can_be() -> None:
    report = Report.parse(line(status=1 << 70, cpu_seconds=-5, peak_bytes=1 << 80))
    assert report == Report(0, 0.0, 1 << 62, "")
    assert Report.parse(line(cpu_seconds=float("nan"))).cpu_seconds == 0  # type: ignore[union-attr]


KILLED, OVERTIME = int(signal.SIGKILL), int(signal.SIGXCPU)


@pytest.mark.parametrize(
    ("ending", "told"),
    [
        (Ending(None, Report(0, 1, 1, ""), False), ("exited", 0, None)),
        (Ending(None, Report(3 << 8, 1, 1, ""), False), ("exited", 3, None)),
        (Ending(None, Report(11, 1, 1, ""), False), ("signaled", None, 11)),
        (Ending(None, Report(OVERTIME, 1, 1, ""), False), ("cpu", None, None)),
        (Ending(None, Report(KILLED, 20, 1, ""), False), ("cpu", None, None)),
        (Ending(None, Report(KILLED, 1, 1, ""), False), ("signaled", None, KILLED)),
        (Ending(None, Report(KILLED, 1, 1, ""), True), ("memory", None, None)),
        (Ending(None, Report(1 << 8, 1, 1, "memory"), False), ("memory", None, None)),
        (Ending(None, Report(0, 1, 1, ""), True), ("exited", 0, None)),
        (Ending(None, None, False), ("signaled", None, KILLED)),
        (Ending(None, None, True), ("memory", None, None)),
        (Ending("timeout", None, False), ("timeout", None, None)),
    ],
)
def test_why_a_call_ended(ending: Ending, told: tuple[str, int | None, int | None]) -> None:
    assert tell(ending, SandboxLimits(cpu_seconds=20)) == told


def test_a_folder_is_measured_without_following_links(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    (folder / "inner").mkdir(parents=True)
    (folder / "inner" / "file").write_bytes(bytes(100_000))
    os.link(folder / "inner" / "file", folder / "same")
    (folder / "out").symlink_to("/usr")
    contents = measure(folder)
    assert contents.num_files == 3
    assert 100_000 <= contents.num_bytes < 200_000


def test_growth_counts_from_what_was_there_at_first(tmp_path: Path) -> None:
    limits = SandboxLimits(workspace_bytes=50_000, num_files=5)
    (tmp_path / "old").write_bytes(bytes(200_000))
    meter = WorkspaceMeter(tmp_path)
    allowed = meter.allowed(limits)
    assert meter.last.fits(allowed)
    (tmp_path / "new").write_bytes(bytes(20_000))
    assert measure(tmp_path).fits(allowed)
    (tmp_path / "more").write_bytes(bytes(40_000))
    assert not measure(tmp_path).fits(allowed)
    # What is too much already may stay, or be removed step by step.
    meter.last = measure(tmp_path)
    assert meter.last.fits(meter.allowed(limits))
    assert not Contents(0, 0, num_hidden=1).fits(allowed)


def test_a_hostile_folder_is_removed(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    (folder / "shut").mkdir(parents=True)
    (folder / "shut" / "file").touch()
    (folder / "shut").chmod(0)
    (folder / "out").symlink_to(tmp_path / "kept")
    (tmp_path / "kept").mkdir()
    remove_tree(folder)
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]


def test_usage_of_a_tree_counts_descendants() -> None:
    code = "import os, sys\nif os.fork() == 0: os.fork()\ntext = b'x' * (30 << 20)\nprint('.', flush=True)\nsys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as tree:
        assert tree.stdout is not None
        for _ in range(3):
            tree.stdout.readline()
        usage = tree_usage(tree.pid)
        held = held_bytes(tree.pid)
        tree.communicate()
    assert usage.num_threads == 3
    assert usage.resident_bytes > 90 << 20
    assert 90 << 20 < held < usage.resident_bytes
    assert usage.cpu_seconds >= 0


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (
            "import os, time\nfor _ in range(4):\n    if os.fork() == 0: break\nx = bytearray(90 << 20)\ntime.sleep(600)",
            "memory",
        ),
        ("import os\nos.fork()\nos.fork()\nwhile True: pass", "cpu"),
        (
            "import threading, time\nfor _ in range(30): threading.Thread(target=time.sleep, args=[600]).start()",
            "processes",
        ),
    ],
)
def test_sums_are_watched_where_no_control_group_can_be_made(
    code: str, status: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CallGroup, "create", lambda *_: None)
    # The wall that a normal user has instead, but not root.
    monkeypatch.setattr("treadle.agents.sandbox.resource_limits._counts_per_namespace", lambda: False)
    bounds = {"memory": {"memory_bytes": 256 << 20}, "cpu": {"cpu_seconds": 1}, "processes": {"num_processes": 20}}
    limits = replace(AMPLE, **bounds[status])

    async def use(sandbox: Sandbox) -> Outcome:
        return await sandbox.run_python(code, limits=limits)

    assert within(use).status == status


def test_files_of_memory_are_watched_where_the_mount_does_not_bound_them(monkeypatch: pytest.MonkeyPatch) -> None:
    async def none(_: object) -> None:
        return None

    monkeypatch.setattr(choose, "_nursery", none)
    code = "for n in range(2000): open(f'/tmp/{n}', 'wb').close()\nwhile True: pass"

    async def use(sandbox: Sandbox) -> list[str]:
        assert any(layer.startswith("no warm sandboxes") for layer in sandbox.layers)
        outcomes = [await sandbox.run_python("1 + 1"), await sandbox.run_python(code)]
        return [outcome.status for outcome in outcomes]

    assert within(use, limits=replace(AMPLE, num_files=500)) == ["exited", "disk"]


def test_a_look_at_a_process_that_has_gone_finds_nothing() -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    assert watch.tree_usage(gone.pid) == watch.TreeUsage(0, 0, 0)
