"""Counters of what keeps a process from its CPUs, read from fixtures and from this machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from treadle.hardware.interference import read_interference
from treadle.hardware.memory import swapped_bytes

STAT = """cpu  1000 0 1000 5000 0 0 0 50 0 0
cpu0 100 20 30 4000 7 5 6 40 0 0
cpu1 200 0 0 4000 0 0 0 2 0 0
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "proc/self/task/1").mkdir(parents=True)
    (tmp_path / "proc/self/task/2").mkdir()
    (tmp_path / "proc/stat").write_text(STAT)
    (tmp_path / "proc/vmstat").write_text("nr_free_pages 7\npswpin 3\n")
    (tmp_path / "proc/self/task/1/schedstat").write_text("900000000 250000000 12\n")
    (tmp_path / "proc/self/task/2/schedstat").write_text("900000000 500000000 12\n")
    (tmp_path / "proc/self/status").write_text("Name:\tpython\nVmSwap:\t     120 kB\n")
    return tmp_path


def test_of_the_cpus_asked_about(root: Path) -> None:
    one = read_interference([0], root)
    assert one.busy_seconds == pytest.approx(1.61)  # user, nice, system, interrupts
    assert one.stolen_seconds == pytest.approx(0.40)
    both = read_interference([0, 1], root)
    assert both.busy_seconds == pytest.approx(3.61) and both.stolen_seconds == pytest.approx(0.42)


def test_of_all_threads(root: Path) -> None:
    assert read_interference([0], root).queued_seconds == pytest.approx(0.75)


def test_of_swap(root: Path) -> None:
    pages = read_interference([0], root).swapped_in_bytes
    assert pages is not None and pages % 3 == 0 and pages > 0
    assert swapped_bytes(root) == 120 * 1024


def test_what_the_system_does_not_tell_is_unknown(tmp_path: Path) -> None:
    found = read_interference([0], tmp_path)
    assert (found.busy_seconds, found.stolen_seconds, found.queued_seconds) == (None, None, None)
    assert (found.throttled_seconds, found.num_periods, found.num_throttled) == (None, None, None)
    assert found.swapped_in_bytes is None and swapped_bytes(tmp_path) is None
    assert found.own_seconds > 0


def test_a_cpu_that_is_not_there_is_unknown(root: Path) -> None:
    assert read_interference([0, 9], root).busy_seconds is None
