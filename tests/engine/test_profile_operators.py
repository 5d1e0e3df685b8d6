"""What the core timed, as the average pass: over the workers that took part."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from treadle.engine.profile.operators import OperatorSums


def timings(seconds: float, **operators: tuple[list[float], list[float]]) -> Any:
    """Timings of steps in which each operator was called twice, with its busy and waiting seconds by worker."""
    found = [
        SimpleNamespace(name=name, num_calls=2, bytes=100, operations=300, busy_seconds=busy, wait_seconds=waits)
        for name, (busy, waits) in operators.items()
    ]
    return SimpleNamespace(seconds=seconds, operators=found)


def test_the_average_worker_counts() -> None:
    sums = OperatorSums(frozenset())
    sums.add(timings(5.0, qkv=([2.0, 1.0], [0.0, 1.0]), down=([2.0, 2.0], [1.0, 1.0])))
    qkv, down, end = sums.per_pass(1)
    assert (qkv.busy_seconds, qkv.wait_seconds, down.busy_seconds, down.wait_seconds) == (1.5, 0.5, 2.0, 1.0)
    assert (end.name, end.seconds) == ("end", 0.0)


def test_a_worker_that_sits_out_leaves_no_gap() -> None:
    """Both steps take 4 seconds, of which the second worker is there for one step."""
    sums = OperatorSums(frozenset())
    sums.add(timings(8.5, qkv=([6.0, 3.0], [0.0, 0.0]), down=([2.0, 1.0], [0.0, 0.0])))
    qkv, down, end = sums.per_pass(2)
    assert (qkv.seconds, down.seconds) == (3.0, 1.0)
    assert end.seconds == pytest.approx(0.25)


def test_passes_share_what_they_did_together() -> None:
    sums = OperatorSums(frozenset({"attention"}))
    for _ in range(2):
        sums.add(timings(4.0, attention=([4.0], [0.0])))
    attention, _ = sums.per_pass(4)
    assert (attention.num_calls, attention.num_bytes, attention.num_ops) == (1.0, 50.0, 150.0)
    assert (attention.seconds, attention.computes) == (2.0, "float")


def test_operators_that_a_model_does_not_have_are_left_out() -> None:
    sums = OperatorSums(frozenset())
    found = timings(1.0, qkv=([1.0], [0.0]), route=([0.0], [0.0]))
    found.operators[1].num_calls = 0
    sums.add(found)
    assert [each.name for each in sums.per_pass(1)] == ["qkv", "end"]
