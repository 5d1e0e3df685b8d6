"""Counters of CPU time on imaginary machines, and on this one."""

from __future__ import annotations

from pathlib import Path

import pytest
from machines import FakeRoot, v1, v2

from treadle.hardware.cpu_time import read_cpu_time


def test_version_2(fake_root: FakeRoot) -> None:
    stat = "usage_usec 2500000\nnr_periods 10\nnr_throttled 5\nthrottled_usec 1500000\n"
    files = {"sys/fs/cgroup/a/cpu.max": "150000 100000", "sys/fs/cgroup/a/cpu.stat": stat}
    found = read_cpu_time(fake_root(v2("/a/b") | files))
    assert (found.quota_cpus, found.group_seconds, found.throttled_seconds) == (1.5, 2.5, 1.5)


def test_version_1_tells_the_usage_where_both_controllers_share_a_hierarchy(fake_root: FakeRoot) -> None:
    folder = "sys/fs/cgroup/cpu,cpuacct/job"
    files = {f"{folder}/cpu.cfs_quota_us": "100000", f"{folder}/cpu.cfs_period_us": "50000"}
    files[f"{folder}/cpu.stat"] = "nr_periods 1\nnr_throttled 1\nthrottled_time 250000000\n"
    root = fake_root(v1("/job") | files)
    assert read_cpu_time(root).group_seconds is None
    (root / folder / "cpuacct.usage").write_text("3000000000\n")
    found = read_cpu_time(root)
    assert (found.quota_cpus, found.group_seconds, found.throttled_seconds) == (2.0, 3.0, 0.25)


def test_stolen_time(fake_root: FakeRoot) -> None:
    found = read_cpu_time(fake_root({"proc/stat": "cpu  100 20 30 4000 500 6 7 80 9 9\ncpu0 1 1 1 1\n"}))
    assert (found.wanted_seconds, found.stolen_seconds) == (pytest.approx(2.43), 0.8)


def test_nothing_is_known_without_files(tmp_path: Path) -> None:
    found = read_cpu_time(tmp_path)
    assert (found.wanted_seconds, found.stolen_seconds, found.throttled_seconds) == (0.0, 0.0, 0.0)
    assert found.quota_cpus is None and found.group_seconds is None


def test_this_process_uses_time() -> None:
    first = read_cpu_time()
    assert sum(range(10**6))
    second = read_cpu_time()
    assert second.now > first.now and second.own_seconds > first.own_seconds
