"""What a judgement of a machine consists of.

Leaves to others: making one (``findings``, ``measured_findings``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

__all__ = ["LEVELS", "Finding", "Level", "format_size", "worst_level"]

Level = Literal["red", "amber", "green"]
LEVELS: tuple[Level, ...] = ("red", "amber", "green")  # the worst first


@dataclass(frozen=True)
class Finding:
    """One judgement; ``why`` and ``fix`` are empty for a green one, ``fix`` may take several lines.

    ``effect`` is about which share of the speed it can cost, 0 to 1; for limits on memory, how much of it they forbid.
    """

    name: str
    level: Level
    found: str
    why: str = ""
    fix: str = ""
    effect: float = 0.0


def worst_level(findings: Sequence[Finding]) -> Level:
    """Return the level of the worst finding, green if there is none."""
    return min((finding.level for finding in findings), key=LEVELS.index, default="green")


def format_size(num_bytes: int) -> str:
    """Return a size for people, such as 8.4 MB."""
    return f"{num_bytes / 1e9:.1f} GB" if num_bytes >= 1e9 else f"{num_bytes / 1e6:.0f} MB"
