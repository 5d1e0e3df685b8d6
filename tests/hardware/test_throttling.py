"""Throttling and steal time on imaginary machines of both cgroup versions, and files that make no sense."""

from __future__ import annotations

import pytest
from machines import FakeRoot, v1, v2

from treadle.hardware.throttling import Throttling, read_throttling

STAT = "cpu  100 200 300 400 500 600 700 1234 0 0\ncpu0 50 100 150 200 250 300 350 600 0 0\nintr 5 6\n"


def test_version_2_counts_microseconds(fake_root: FakeRoot) -> None:
    text = "usage_usec 9\nnr_periods 40\nnr_throttled 7\nthrottled_usec 2500000\nnr_bursts 0\n"
    root = fake_root(v2("/job") | {"proc/stat": STAT, "sys/fs/cgroup/job/cpu.stat": text})
    assert read_throttling(root) == Throttling(40, 7, 2.5, 12.34)


def test_version_1_counts_nanoseconds(fake_root: FakeRoot) -> None:
    text = "nr_periods 40\nnr_throttled 7\nthrottled_time 2500000000\n"
    root = fake_root(v1("/job") | {"proc/stat": STAT, "sys/fs/cgroup/cpu,cpuacct/job/cpu.stat": text})
    assert read_throttling(root) == Throttling(40, 7, 2.5, 12.34)


def test_quotas_of_all_ancestors_add_up(fake_root: FakeRoot) -> None:
    files = {"sys/fs/cgroup/cpu.stat": "usage_usec 1\nuser_usec 1\n"}  # the root group has no quota
    for folder, number in (("a", 3), ("a/b", 4)):
        files[f"sys/fs/cgroup/{folder}/cpu.stat"] = (
            f"nr_periods {10 * number}\nnr_throttled {number}\nthrottled_usec {number}000000\n"
        )
    assert read_throttling(fake_root(v2("/a/b") | files)) == Throttling(70, 7, 7.0, None)


def test_groups_of_others_do_not_count(fake_root: FakeRoot) -> None:
    files = {"sys/fs/cgroup/other/cpu.stat": "nr_periods 1\nnr_throttled 1\nthrottled_usec 1\n"}
    assert read_throttling(fake_root(v2("/mine") | files)) == Throttling(None, None, None, None)


@pytest.mark.parametrize(
    "garbage",
    ["", "\n", "x", "cpu", "cpu -1 -1 -1 -1 -1 -1 -1 -1", "nr_throttled", "nr_periods -3", "\0" * 9, "9" * 99],
)
def test_garbage_reads_as_unknown(fake_root: FakeRoot, garbage: str) -> None:
    root = fake_root(v2("/") | {"proc/stat": garbage, "sys/fs/cgroup/cpu.stat": garbage})
    assert read_throttling(root) == Throttling(None, None, None, None)


def test_old_kernel_without_steal_time(fake_root: FakeRoot) -> None:
    assert read_throttling(fake_root({"proc/stat": "cpu  100 200 300 400 500 600 700\n"})).steal_seconds is None


def test_this_machine_only_counts_up() -> None:
    first, second = read_throttling(), read_throttling()
    for before, after in zip(vars(first).values(), vars(second).values(), strict=True):
        assert (before is None) == (after is None)
        assert before is None or 0 <= before <= after
