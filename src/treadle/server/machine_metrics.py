"""What the machine could do and what was kept from this process, read whenever Prometheus asks.

Leaves to others: measuring (``server.machine_watch``) and counting (``hardware.throttling``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from treadle.hardware.memory import resident_memory_bytes
from treadle.hardware.throttling import Throttling, read_throttling

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from treadle.server.machine_watch import MachineWatch

__all__ = ["MachineCollector"]


class MachineCollector(Collector):
    """Tells the figures of the machine; those the system does not tell have no sample."""

    def __init__(self, machine: MachineWatch, *, throttling: Callable[[], Throttling] = read_throttling) -> None:
        self._machine = machine
        self._throttling = throttling

    def describe(self) -> Iterator[Metric]:
        """Return nothing: what there is depends on the system."""
        yield from ()

    def collect(self) -> Iterator[Metric]:
        """Iterate over the metrics as they stand."""
        speed, denied = self._machine.speed, self._throttling()
        read_limit = int8_limit = None
        if speed is not None:
            read_limit, int8_limit = speed.read_bytes_per_second, speed.int8_ops_per_second or None
        for kind, name, text, value in (
            (GaugeMetricFamily, "resident_memory_bytes", "Memory of the whole process.", resident_memory_bytes()),
            (GaugeMetricFamily, "bandwidth_limit_bytes_per_second", "Memory read at best.", read_limit),
            (GaugeMetricFamily, "int8_limit_ops_per_second", "Int8 operations at best.", int8_limit),
            (
                CounterMetricFamily,
                "cpu_quota_periods",
                "Periods of CPU quotas with something to run.",
                denied.num_periods,
            ),
            (CounterMetricFamily, "cpu_throttled_periods", "Of these, those too short for it.", denied.num_throttled),
            (CounterMetricFamily, "cpu_throttled_seconds", "CPUs stood still for quotas.", denied.throttled_seconds),
            (CounterMetricFamily, "cpu_steal_seconds", "The host ran others on these CPUs.", denied.steal_seconds),
        ):
            family = kind(f"treadle:{name}", text)
            if value is not None:
                family.add_metric([], value)
            yield family
