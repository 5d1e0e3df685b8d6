"""Finds out what the machine could do, while nobody needs it, so that shares of that can be told.

Leaves to others: measuring (``hardware.machine_speed``) and what was used (``EngineStats``).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from treadle.errors import TreadleError
from treadle.hardware.machine_speed import MachineSpeed, measure_speed
from treadle.hardware.throttling import Throttling, read_throttling

if TYPE_CHECKING:
    from treadle.engine.load import LoadReport
    from treadle.engine.statistics import EngineStats
    from treadle.server.hub import ModelHub
    from treadle.server.limits import Limits

__all__ = ["MachineWatch", "Measure", "Shares"]

_log = logging.getLogger("treadle.server")
_TICK_SECONDS = 1.0
_FIRST_QUIET_SECONDS = 1.0
_QUIET_SECONDS = 10.0
_AGAIN_SECONDS = 900.0
_DENIED_SECONDS = 1.0


class Measure(Protocol):
    """What ``hardware.machine_speed.measure_speed`` does."""

    def __call__(self, cpus: Sequence[int], *, isa: str, goes_on: Callable[[], bool]) -> MachineSpeed | None:
        """Measure until ``goes_on`` says no."""


class Shares:
    """Which share of what the machine could do, 0 to 1, an engine used; None while that is not known."""

    def __init__(self, speed: MachineSpeed | None, stats: EngineStats) -> None:
        self.bandwidth = self.int8 = None
        if speed is not None:
            self.bandwidth = _share(stats.steps.decode_read_rate, speed.read_bytes_per_second)
            self.int8 = _share(stats.steps.prompt_int8_rate, speed.int8_ops_per_second)


class MachineWatch:
    """Measures the machine when the server was idle for a while, a fraction of a second each quarter of an hour.

    ``speed`` is the best that was ever measured, as disturbances only ever lower it.

    Args:
        hub: The models, whose threads the measurement imitates.
        limits: Tells whether anything runs.
        measure: Measures.
        clock: A monotonic clock in seconds.
    """

    speed: MachineSpeed | None = None

    def __init__(
        self,
        hub: ModelHub,
        limits: Limits,
        *,
        measure: Measure = measure_speed,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._hub = hub
        self._limits = limits
        self._measure = measure
        self._clock = clock
        self._measured_at: float | None = None
        self._denied: Throttling | None = None
        self._denied_at = 0.0

    @property
    def denied(self) -> Throttling:
        """Return what was kept from this process, as of the last second: to ask the system takes longer than the rest
        of what a page asks for, and many pages may ask."""
        now = self._clock()
        if self._denied is None or now - self._denied_at >= _DENIED_SECONDS:
            self._denied, self._denied_at = read_throttling(), now
        return self._denied

    async def run(self) -> None:
        """Measure now and then until cancelled."""
        while True:
            await asyncio.sleep(_TICK_SECONDS)
            await self.measure_if_idle()

    async def measure_if_idle(self) -> None:
        """Measure if it is time to and nothing runs; a request that comes meanwhile ends the measurement."""
        first = self._measured_at is None
        if self._limits.idle_seconds < (_FIRST_QUIET_SECONDS if first else _QUIET_SECONDS):
            return
        if self._measured_at is not None and self._clock() - self._measured_at < _AGAIN_SECONDS:
            return
        report = self._computing()
        if report is None:
            return
        isa = report.isa if report.engine.name == "native" else ""  # llama.cpp has no kernel table
        speed, disturbed = None, False

        def goes_on() -> bool:  # whoever disturbed it may be gone before it ends
            nonlocal disturbed
            disturbed = disturbed or not self._is_idle()
            return not disturbed

        try:
            speed = await asyncio.to_thread(self._measure, report.thread_plan.cpus, isa=isa, goes_on=goes_on)
        except TreadleError as error:  # nothing depends on it
            _log.warning("the machine's limits could not be measured: %s", error)
        if speed is not None:
            self.speed = speed if self.speed is None else self.speed.best_of(speed)
        if speed is not None or not disturbed:
            self._measured_at = self._clock()

    def _computing(self) -> LoadReport | None:
        """Return how a model in this process was loaded, None if there is no such model."""
        reports = [model.engine.report for model in self._hub.loaded if model.engine is not None]
        return next((report for report in reports if report is not None), None)

    def _is_idle(self) -> bool:
        return self._limits.num_requests == 0 and not self._hub.is_closing


def _share(rate: float, limit: float) -> float | None:
    return rate / limit if limit > 0 else None
