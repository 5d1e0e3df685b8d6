"""The probe of the machine's limits: plausible rates, and clear words about settings it cannot use."""

from __future__ import annotations

import itertools
import threading
from functools import partial
from pathlib import Path

import pytest

from treadle import _native
from treadle.errors import UsageError

MIB = 1 << 20


def test_others_run_while_the_memory_is_written() -> None:
    def has_progress() -> bool:
        """Whether this thread comes any further while another is inside of the constructor."""
        turns = itertools.count()
        seen: list[object] = []
        # Called one after the other without a step of the interpreter between, where threads may take turns anyway.
        calls = [
            partial(repr, turns),
            partial(_native.LimitProbe, cpus=[-1], num_bytes=64 * MIB),
            partial(repr, turns),
        ]
        thread = threading.Thread(target=lambda: seen.extend(map(partial.__call__, calls)))
        thread.start()
        while thread.is_alive():
            next(turns)
        return seen[0] != seen[2]

    assert any(has_progress() for _ in range(20))


def test_rates_are_those_of_a_computer() -> None:
    read, int8 = _native.LimitProbe(cpus=[-1, -1], num_bytes=16 * MIB).measure(windows=3, seconds=0.002)
    assert 1e8 < read < 1e13
    flags = Path("/proc/cpuinfo").read_text().split() if Path("/proc/cpuinfo").exists() else []
    if "avx512_vnni" in flags:
        assert 1e9 < int8 < 1e15
    else:
        assert int8 == 0


@pytest.mark.parametrize(
    ("cpus", "num_bytes", "expected"),
    [([], MIB, "cpus must name one CPU per thread"), ([-1], MIB - 1, "num_bytes must be at least 1 MiB")],
)
def test_a_probe_that_cannot_measure_is_refused(cpus: list[int], num_bytes: int, expected: str) -> None:
    with pytest.raises(UsageError, match=expected):
        _native.LimitProbe(cpus, num_bytes)


@pytest.mark.parametrize(
    ("windows", "seconds", "expected"),
    [
        (0, 0.01, "windows must be 1 to 1000"),
        (1001, 0.01, "windows must be 1 to 1000"),
        (1, 0.0, "seconds must be above 0"),
        (1, float("nan"), "seconds must be above 0"),
        (1, 11.0, "seconds must be above 0"),
    ],
)
def test_windows_that_never_end_are_refused(windows: int, seconds: float, expected: str) -> None:
    probe = _native.LimitProbe([-1], MIB)
    with pytest.raises(UsageError, match=expected):
        probe.measure(windows, seconds)
