"""The events that are counted, with their names in the kernel's interface and in the program ``perf``; what they yield.

Leaves to others: counting them (``counters_kernel``, ``counters_program``, ``counters_files``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, get_args

__all__ = [
    "EVENTS",
    "HARDWARE_EVENTS",
    "SOFTWARE_EVENTS",
    "TYPE_HARDWARE",
    "TYPE_SOFTWARE",
    "Count",
    "Counts",
    "Event",
    "KernelEvent",
    "Reading",
]

Event = Literal[
    "cycles",
    "instructions",
    "cache_references",
    "cache_misses",
    "llc_load_misses",
    "stalled_cycles_frontend",
    "stalled_cycles_backend",
    "dtlb_load_misses",
    "minor_faults",
    "major_faults",
    "context_switches",
    "cpu_migrations",
    "task_clock_ns",
]

TYPE_HARDWARE, TYPE_SOFTWARE, _TYPE_CACHE = 0, 1, 3
# Cache, read accesses, those that miss: a byte each, see perf_event_open(2).
_LLC_LOAD_MISSES, _DTLB_LOAD_MISSES = 2 | 1 << 16, 3 | 1 << 16


@dataclass(frozen=True)
class KernelEvent:
    """How perf_event_open(2) and ``perf`` know an event; it is counted in the same moments as its ``partner``."""

    type: int
    config: int
    perf_name: str
    partner: Event | None = None


EVENTS: Mapping[Event, KernelEvent] = {
    "cycles": KernelEvent(TYPE_HARDWARE, 0, "cycles"),
    "instructions": KernelEvent(TYPE_HARDWARE, 1, "instructions", "cycles"),
    "cache_references": KernelEvent(TYPE_HARDWARE, 2, "cache-references"),
    "cache_misses": KernelEvent(TYPE_HARDWARE, 3, "cache-misses", "cache_references"),
    "llc_load_misses": KernelEvent(_TYPE_CACHE, _LLC_LOAD_MISSES, "LLC-load-misses"),
    "stalled_cycles_frontend": KernelEvent(TYPE_HARDWARE, 7, "stalled-cycles-frontend"),
    "stalled_cycles_backend": KernelEvent(TYPE_HARDWARE, 8, "stalled-cycles-backend"),
    "dtlb_load_misses": KernelEvent(_TYPE_CACHE, _DTLB_LOAD_MISSES, "dTLB-load-misses"),
    "minor_faults": KernelEvent(TYPE_SOFTWARE, 5, "minor-faults"),
    "major_faults": KernelEvent(TYPE_SOFTWARE, 6, "major-faults"),
    "context_switches": KernelEvent(TYPE_SOFTWARE, 3, "context-switches"),
    "cpu_migrations": KernelEvent(TYPE_SOFTWARE, 4, "cpu-migrations"),
    "task_clock_ns": KernelEvent(TYPE_SOFTWARE, 1, "task-clock"),
}
assert tuple(EVENTS) == get_args(Event)

SOFTWARE_EVENTS: tuple[Event, ...] = tuple(name for name, event in EVENTS.items() if event.type == TYPE_SOFTWARE)
HARDWARE_EVENTS: tuple[Event, ...] = tuple(name for name in EVENTS if name not in SOFTWARE_EVENTS)


@dataclass(frozen=True)
class Reading:
    """A counter as it stands: it counted during ``running_ns`` of the ``enabled_ns`` that its thread ran."""

    value: int
    enabled_ns: int = 0
    running_ns: int = 0

    def minus(self, earlier: Reading) -> Reading:
        """Return what was counted since then."""
        return Reading(
            self.value - earlier.value, self.enabled_ns - earlier.enabled_ns, self.running_ns - earlier.running_ns
        )

    @property
    def was_off(self) -> bool:
        """Tell whether the thread ran and the counter never did."""
        return self.running_ns == 0 < self.enabled_ns

    @property
    def is_scaled(self) -> bool:
        """Tell whether the counter shared its place in the processor with others."""
        return 0 < self.running_ns < self.enabled_ns

    @property
    def scaled(self) -> float:
        """Return the value for all the time the thread ran."""
        return self.value * self.enabled_ns / self.running_ns if self.is_scaled else self.value


@dataclass(frozen=True)
class Count:
    """What was counted over all threads, or in ``why_not`` a sentence why it was not.

    ``is_scaled`` says that the processor counted only part of the time, since more events were wanted than it has
    counters, and that the value was raised to all of it.
    """

    value: int | None
    why_not: str | None = None
    is_scaled: bool = False


class Counts:
    """The counts of all events at a moment, or between two moments."""

    def __init__(self, readings: Mapping[Event, Mapping[int, Reading]], why_not: Mapping[Event, str]) -> None:
        """Hold the readings of each event by thread, and for the events without any the reason."""
        self._readings = readings
        self._why_not = why_not

    def __getitem__(self, event: Event) -> Count:
        readings = self._readings.get(event)
        if readings is None:
            return Count(None, self._why_not[event])
        if any(reading.was_off for reading in readings.values()):
            return Count(None, "not available, because other programs hold the processor's counters")
        is_scaled = any(reading.is_scaled for reading in readings.values())
        return Count(round(sum(reading.scaled for reading in readings.values())), None, is_scaled)

    def items(self) -> Iterator[tuple[Event, Count]]:
        """Yield each event with its count."""
        return ((event, self[event]) for event in EVENTS)

    def minus(self, earlier: Counts) -> Counts:
        """Return what was counted since an earlier reading of the same counters.

        A thread that is new counts in full, one that has ended is left out.
        """
        readings: dict[Event, dict[int, Reading]] = {}
        for event, threads in self._readings.items():
            before = earlier._readings.get(event, {})
            readings[event] = {key: now.minus(before.get(key, Reading(0))) for key, now in threads.items()}
        return Counts(readings, self._why_not)

    def ratio(self, event: Event, base: Event) -> float | None:
        """Return an event's count per count of another one; None where either is unknown or the other is 0."""
        value, per = self[event].value, self[base].value
        return None if value is None or not per else value / per
