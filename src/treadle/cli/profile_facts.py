"""A profile, and what changed since another one, as the page takes it.

Leaves to others: the figures (``engine.profile``).
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from treadle.engine.profile.evidence import operator_bound
from treadle.engine.profile.record_file import record_dict

if TYPE_CHECKING:
    from treadle.engine.profile.comparison import CellChange, Comparison
    from treadle.engine.profile.record import Cell, Operator, ProfileRecord

__all__ = ["limit_name", "profile_facts"]


def profile_facts(
    record: ProfileRecord, model: str, comparison: Comparison | None, old: ProfileRecord | None
) -> dict[str, Any]:
    """Return what the page shows.

    Args:
        record: The profile.
        model: What stands for the model in commands that would help.
        comparison: What changed since ``old``, if there is one.
        old: The earlier profile.
    """
    facts = record_dict(record)
    for cell, described in zip(record.cells, facts["cells"], strict=True):
        described["limits"]["read_bytes"] = cell.limits.read_bytes
        for operator, values in zip(cell.operators, described["operators"], strict=True):
            values["derived"]["limit_name"] = limit_name(operator, cell)
        if cell.verdict is not None:
            described["verdict"]["advice"] = [text.replace("MODEL", model) for text in cell.verdict.advice]
    if comparison is not None and old is not None:
        facts["comparison"] = {
            "created": old.created,
            "changes": [_change(change) for change in comparison.changes],
            "missing": list(comparison.missing),
            "warnings": list(comparison.warnings),
        }
    return facts


def limit_name(operator: Operator, cell: Cell) -> str:
    """Return what bounds an operator: memory, caches, int8 or float; empty for what neither reads nor multiplies."""
    bound = operator_bound(operator, cell.limits)
    if bound == "reading":
        return "memory" if cell.limits.cache_bytes is None else "caches"
    return "" if bound is None else operator.computes


def _change(change: CellChange) -> dict[str, Any]:
    return {
        "name": change.new.name,
        "old_rate": change.old.rate,
        "new_rate": change.new.rate,
        "old_limit_share": change.old.limit_share,
        "new_limit_share": change.new.limit_share,
        "ratio": change.ratio,
        "noise": change.noise,
        "machine_ratio": change.machine_ratio,
        "outcome": change.outcome,
        "operator": None if change.operator is None else dataclasses.asdict(change.operator),
    }
