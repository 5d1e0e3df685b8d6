"""The probe of the machine's limits: plausible rates, and clear words about settings it cannot use."""

from __future__ import annotations

import itertools
import threading
from functools import partial

import pytest
from kernel_cases import RUNNABLE_ISAS

from treadle import _native
from treadle.errors import UsageError

MIB = 1 << 20


def test_others_run_while_it_measures() -> None:
    def has_progress() -> bool:
        """Whether this thread comes any further while another is inside of the call."""
        turns = itertools.count()
        seen: list[object] = []
        # Called one after the other without a step of the interpreter between, where threads may take turns anyway.
        calls = [
            partial(repr, turns),
            partial(_native.LimitProbe([-1], 64 * MIB).measure, 1, 0.001),
            partial(repr, turns),
        ]
        thread = threading.Thread(target=lambda: seen.extend(map(partial.__call__, calls)))
        thread.start()
        while thread.is_alive():
            next(turns)
        return seen[0] != seen[2]

    assert any(has_progress() for _ in range(20))


@pytest.mark.parametrize("isa", RUNNABLE_ISAS)
def test_rates_are_those_of_a_computer(isa: str) -> None:
    probe = _native.LimitProbe(cpus=[-1, -1], num_bytes=16 * MIB, isa=isa)
    assert probe.isa == isa
    read, int8, floats = probe.measure(windows=3, seconds=0.002)
    assert 1e8 < read < 1e13
    assert 1e8 < int8 < 1e15
    assert 1e7 < floats < 1e15


def test_the_memory_is_taken_step_by_step() -> None:
    probe = _native.LimitProbe([-1, -1], 5 * MIB)
    assert [probe.fill() for _ in range(4)] == [True, True, False, False]


def test_the_best_kernels_are_measured_unless_others_are_asked_for() -> None:
    assert _native.LimitProbe([-1], MIB).isa == RUNNABLE_ISAS[0]
    with pytest.raises(UsageError, match=r'no kernels for instruction set "avx9" on this CPU, expected one of: .*ref'):
        _native.LimitProbe([-1], MIB, "avx9")


def test_loads_take_as_long_as_those_of_a_computer() -> None:
    probe = _native.LatencyProbe(cpu=-1, num_bytes=4 * MIB)
    for num_bytes in (4096, 4 * MIB, 4096):  # a circle through the old one must not be followed
        assert 1e-11 < probe.measure(num_bytes, 0.002) < 1e-3


@pytest.mark.parametrize("num_bytes", [0, 2048, 12288])
def test_memory_that_lines_cannot_form_a_circle_in_is_refused(num_bytes: int) -> None:
    with pytest.raises(UsageError, match="num_bytes must be a power of two, at least 4096"):
        _native.LatencyProbe(-1, num_bytes)


@pytest.mark.parametrize(
    ("num_bytes", "seconds", "expected"),
    [
        (2 * MIB, 0.01, "from 4096 to the memory of the probe"),
        (4097, 0.01, "from 4096 to the memory of the probe"),
        (4096, 0.0, "seconds must be above 0"),
        (4096, float("nan"), "seconds must be above 0"),
        (4096, 11.0, "seconds must be above 0"),
    ],
)
def test_a_latency_that_cannot_be_measured_is_refused(num_bytes: int, seconds: float, expected: str) -> None:
    with pytest.raises(UsageError, match=expected):
        _native.LatencyProbe(-1, MIB).measure(num_bytes, seconds)


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
