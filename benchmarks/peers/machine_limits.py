"""Not an engine: what the machine gives at this moment, for the limits that engines are measured against."""

from __future__ import annotations

from typing import Any

from treadle import _native
from treadle.hardware.plan import plan_threads

READ_BYTES = 1 << 29
WINDOWS = 6
SECONDS = 0.025


class Engine:
    def __init__(self, path: str, threads: int) -> None:
        del path
        self.probe = _native.LimitProbe(plan_threads(threads).cpus, READ_BYTES)

    def facts(self) -> dict[str, Any]:
        return {"version": "native probe", "read_bytes": READ_BYTES}

    def measure(self) -> tuple[float, float]:
        """Bytes read and int8 operations per second, all threads together."""
        read, int8, _ = self.probe.measure(WINDOWS, SECONDS)
        return read, int8
