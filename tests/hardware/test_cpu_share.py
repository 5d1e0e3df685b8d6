"""Holding a process to its share of the CPUs."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from treadle.hardware.cpu_share import CpuShare

pytestmark = pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system does not pin processes")


@pytest.fixture
def child() -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, text=True) as process:
        yield process
        process.kill()


def test_confines_a_child(child: subprocess.Popen[str]) -> None:
    cpu = min(os.sched_getaffinity(0))
    CpuShare(frozenset({cpu}), nice=3).confine(child.pid)
    assert os.sched_getaffinity(child.pid) == {cpu}
    assert os.getpriority(os.PRIO_PROCESS, child.pid) == min(19, os.getpriority(os.PRIO_PROCESS, 0) + 3)


def test_by_default_changes_nothing(child: subprocess.Popen[str]) -> None:
    before = os.sched_getaffinity(child.pid), os.getpriority(os.PRIO_PROCESS, child.pid)
    CpuShare().confine(child.pid)
    assert (os.sched_getaffinity(child.pid), os.getpriority(os.PRIO_PROCESS, child.pid)) == before


def test_passes_over_what_has_ended_or_cannot_be(child: subprocess.Popen[str]) -> None:
    CpuShare(frozenset({100_000})).confine(child.pid)
    child.kill()
    child.wait()
    CpuShare(frozenset({0}), nice=1).confine(child.pid)
