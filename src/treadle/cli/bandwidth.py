"""Keeps what commands measure of the machine, for the closing lines of answers.

Leaves to others: the file (``engine.bandwidth_record``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from treadle.config import Settings
from treadle.engine.bandwidth_record import keep_bandwidth
from treadle.engine.outset import view_machine

if TYPE_CHECKING:
    from treadle.hardware.machine_speed import MachineSpeed

__all__ = ["remember_bandwidth"]


def remember_bandwidth(speeds: Mapping[int, Iterable[MachineSpeed]]) -> None:
    """Keep measurements by number of threads."""
    keep_bandwidth(Settings.from_environment().home, view_machine(), speeds)
