"""What a cell met, as the difference of counters, and summed over its turns."""

from __future__ import annotations

from dataclasses import replace

from treadle.engine.profile.conditions import add_conditions, conditions_between
from treadle.hardware.interference import Interference

BEFORE = Interference(
    now=10.0,
    own_seconds=1.0,
    throttled_seconds=0.5,
    num_periods=10,
    num_throttled=2,
    busy_seconds=100.0,
    stolen_seconds=3.0,
    queued_seconds=0.25,
    swapped_in_bytes=4096,
)
AFTER = Interference(
    now=12.0,
    own_seconds=4.0,
    throttled_seconds=1.0,
    num_periods=30,
    num_throttled=7,
    busy_seconds=103.5,
    stolen_seconds=3.5,
    queued_seconds=0.5,
    swapped_in_bytes=8192,
)


def test_the_difference_of_two_readings() -> None:
    met = conditions_between(BEFORE, AFTER, 2)
    assert (met.num_cpus, met.seconds, met.own_seconds, met.other_seconds) == (2, 2.0, 3.0, 0.5)
    assert (met.throttled_seconds, met.num_periods, met.num_throttled) == (0.5, 20, 5)
    assert (met.stolen_seconds, met.queued_seconds, met.swapped_in_bytes) == (0.5, 0.25, 4096)


def test_what_one_reading_lacks_is_unknown() -> None:
    met = conditions_between(replace(BEFORE, stolen_seconds=None), replace(AFTER, busy_seconds=None), 2)
    assert met.stolen_seconds is None and met.other_seconds is None and met.num_periods == 20


def test_counters_that_shrink_count_nothing() -> None:
    """A thread that ends takes its waiting along; clock ticks may lag behind the own time."""
    met = conditions_between(BEFORE, replace(AFTER, queued_seconds=0.0, busy_seconds=101.0), 2)
    assert met.queued_seconds == 0.0 and met.other_seconds == 0.0


def test_the_sum_of_two_turns() -> None:
    met = conditions_between(BEFORE, AFTER, 2)
    both = add_conditions(met, met)
    assert (both.seconds, both.other_seconds, both.num_throttled) == (4.0, 1.0, 10)
    assert add_conditions(met, replace(met, other_seconds=None)).other_seconds is None
