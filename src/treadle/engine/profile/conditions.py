"""Sums up what kept a process from its CPUs and memory while a cell was measured.

Leaves to others: the counters (``hardware.interference``) and what they mean (``verdict``).
"""

from __future__ import annotations

from typing import TypeVar

from treadle.engine.profile.record import Conditions
from treadle.hardware.interference import Interference

__all__ = ["add_conditions", "conditions_between"]

_Number = TypeVar("_Number", int, float)
_FIELDS = (
    "throttled_seconds",
    "num_periods",
    "num_throttled",
    "stolen_seconds",
    "queued_seconds",
    "swapped_in_bytes",
)


def conditions_between(before: Interference, after: Interference, num_cpus: int) -> Conditions:
    """Return what happened between two readings of so many CPUs."""
    own = after.own_seconds - before.own_seconds
    busy = _difference(before.busy_seconds, after.busy_seconds)
    found = {name: _difference(getattr(before, name), getattr(after, name)) for name in _FIELDS}
    return Conditions(
        num_cpus=num_cpus,
        seconds=after.now - before.now,
        own_seconds=own,
        other_seconds=None if busy is None else max(0.0, busy - own),
        **found,
    )


def add_conditions(one: Conditions, other: Conditions) -> Conditions:
    """Return the sums; what one of them does not know is not known."""
    names = ("other_seconds", *_FIELDS)
    return Conditions(
        num_cpus=one.num_cpus,
        seconds=one.seconds + other.seconds,
        own_seconds=one.own_seconds + other.own_seconds,
        **{name: _sum(getattr(one, name), getattr(other, name)) for name in names},
    )


def _difference(before: _Number | None, after: _Number | None) -> _Number | None:
    """A thread that ends, or a group that is left, takes its part of a counter along."""
    return None if before is None or after is None else max(after - before, type(after)(0))


def _sum(one: _Number | None, other: _Number | None) -> _Number | None:
    return None if one is None or other is None else one + other
