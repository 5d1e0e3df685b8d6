"""How many pieces of one kind of work are worth running at a time, learned from how long they take.

More at a time only help as long as together they get more done: a cap stays if it gets a tenth more done than half of
it, as the one of COMB in arXiv 2511.00739. Leaves to others: which pieces run (``CoSchedule``).
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["ClassCap"]

_LEAST_GAIN = 1.1
# The pieces of a kind differ; means of fewer say little.
_NUM_SAMPLES = 8
# What was true of so many pieces may no longer be so: then more at a time get another chance.
_NUM_BEFORE_RETRIAL = 128


@dataclass
class _Samples:
    """Of pieces that ran while about as many did."""

    number: int = 0
    num_running: int = 0
    seconds: float = 0.0

    def add(self, num_running: int, seconds: float) -> None:
        self.number += 1
        self.num_running += num_running
        self.seconds += seconds

    @property
    def is_enough(self) -> bool:
        return self.number >= _NUM_SAMPLES and self.seconds > 0

    @property
    def rate(self) -> float:
        """Pieces a second, of all that ran together."""
        return self.num_running / self.seconds


class ClassCap:
    """The cap of one kind of work, at first ``most`` and never above it."""

    def __init__(self, most: int) -> None:
        self.cap = self._most = most
        self._full, self._half = _Samples(), _Samples()
        self._num_since = 0

    def ended(self, num_running: int, seconds: float) -> None:
        """Take note that a piece took so long while so many of its kind ran, itself included."""
        self._num_since += 1
        if 4 * num_running > 3 * self.cap:
            self._full.add(num_running, seconds)
        elif 8 * abs(num_running - self.cap // 2) <= self.cap:
            self._half.add(num_running, seconds)
        if self._full.is_enough and self._half.is_enough and self._full.rate <= _LEAST_GAIN * self._half.rate:
            self._change(self.cap // 2)
        elif self.cap < self._most and self._num_since >= _NUM_BEFORE_RETRIAL:
            self._change(min(self._most, 2 * self.cap))

    def _change(self, cap: int) -> None:
        self.cap = cap
        self._full, self._half = _Samples(), _Samples()
        self._num_since = 0
