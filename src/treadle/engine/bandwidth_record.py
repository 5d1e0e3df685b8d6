"""How fast this machine was measured to read, kept as a file, so that shares of it can be told without measuring again.

Leaves to others: measuring (``hardware.machine_speed``) and when (the commands).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from treadle.engine.private_file import write_private
from treadle.engine.tuning import describe_setup

if TYPE_CHECKING:
    from treadle.engine.execution_plan import MachineView
    from treadle.hardware.machine_speed import MachineSpeed

__all__ = ["keep_bandwidth", "known_bandwidth"]

_FORMAT = 1
# Of each number of threads. What a shared machine gives changes, so the latest count.
_NUM_KEPT = 9


def keep_bandwidth(home: Path, machine: MachineView, speeds: Mapping[int, Iterable[MachineSpeed]]) -> None:
    """Keep what was measured with so many threads, beside earlier measurements of this machine.

    A folder that cannot be written to keeps nothing: no result depends on it.
    """
    setup = describe_setup(machine)
    rates = _read(home, setup)
    for num_threads, found in speeds.items():
        earlier = rates.get(str(num_threads), [])
        rates[str(num_threads)] = [*earlier, *(speed.read_bytes_per_second for speed in found)][-_NUM_KEPT:]
    with suppress(OSError):
        home.mkdir(parents=True, exist_ok=True)
        content = {"format": _FORMAT, "setup": setup, "read_bytes_per_second": rates}
        write_private(_path(home), json.dumps(content).encode())


def known_bandwidth(home: Path, machine: MachineView, num_threads: int) -> float | None:
    """Return how many bytes a second so many threads usually read; None if that was never measured on this setup."""
    rates = _read(home, describe_setup(machine)).get(str(num_threads))
    return median(rates) if rates else None


def _read(home: Path, setup: dict[str, Any]) -> dict[str, list[float]]:
    """Read the record; one that is damaged, of another release or another setup counts as none."""
    with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
        found = json.loads(_path(home).read_text(encoding="utf-8"))
        if found["format"] == _FORMAT and found["setup"] == setup:
            rates = found["read_bytes_per_second"]
            return {str(count): [_rate(value) for value in values] for count, values in rates.items()}
    return {}


def _rate(value: float) -> float:
    if not 0 < value < float("inf"):
        raise ValueError(value)
    return float(value)


def _path(home: Path) -> Path:
    return home / "machine.json"
