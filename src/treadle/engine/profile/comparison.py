"""Compares two profiles cell by cell: what became faster or slower beyond the noise, and what of it is the machine.

Leaves to others: reading them (``record_file``) and showing it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import log
from typing import Literal

from treadle.engine.profile.record import Cell, ProfileRecord
from treadle.errors import UsageError

__all__ = ["CellChange", "Comparison", "OperatorChange", "compare"]

# Medians of the same work differ by so much from one run to the next, whatever their turns say.
_LEAST_NOISE = 0.02
# Of a cell with a single turn, nothing is known of its noise.
_UNKNOWN_NOISE = 0.05


@dataclass(frozen=True)
class OperatorChange:
    """The operator whose time changed most, in seconds of a pass."""

    name: str
    old_seconds: float
    new_seconds: float


@dataclass(frozen=True)
class CellChange:
    """What became of a cell.

    ``ratio`` is the new rate over the old one, ``noise`` how far ratios of equals stray from 1, and ``machine_ratio``
    that of the limit that bounds the cell. ``outcome`` is ``machine`` for a change that this explains.
    """

    old: Cell
    new: Cell
    ratio: float
    noise: float
    machine_ratio: float
    outcome: Literal["same", "machine", "faster", "slower"]
    operator: OperatorChange | None


@dataclass(frozen=True)
class Comparison:
    """Two profiles side by side; ``warnings`` are what else differs, ``missing`` the cells that only one has."""

    changes: tuple[CellChange, ...]
    missing: tuple[str, ...]
    warnings: tuple[str, ...]


def compare(old: ProfileRecord, new: ProfileRecord) -> Comparison:
    """Compare two profiles.

    Raises:
        UsageError: They have no cell in common.
    """
    before, after = ({_key(cell): cell for cell in record.cells} for record in (old, new))
    common = [key for key in after if key in before]
    if not common:
        cells = ", ".join(cell.name for cell in old.cells)
        raise UsageError(
            f"the profiles have nothing in common to compare; the old one of {old.model.name} has {cells or 'nothing'}",
            hint="measure the same with --prompts, --streams and --context",
        )
    return Comparison(
        changes=tuple(_change(before[key], after[key]) for key in common),
        missing=tuple(cell.name for key, cell in {**before, **after}.items() if key not in common),
        warnings=tuple(_warnings(old, new)),
    )


def _key(cell: Cell) -> tuple[str, int, int]:
    return cell.kind, cell.num_tokens, cell.num_streams


def _change(old: Cell, new: Cell) -> CellChange:
    ratio, noise = new.rate / old.rate, _noise(old) + _noise(new)
    machine_ratio = _machine_ratio(old, new)
    outcome: Literal["same", "machine", "faster", "slower"] = "faster" if ratio > 1 else "slower"
    if _is_within(ratio, noise):
        outcome = "same"
    elif not _is_within(machine_ratio, _LEAST_NOISE) and _is_within(ratio / machine_ratio, noise):
        outcome = "machine"
    return CellChange(old, new, ratio, noise, machine_ratio, outcome, _operator_change(old, new))


def _noise(cell: Cell) -> float:
    return _UNKNOWN_NOISE if cell.spread is None else max(_LEAST_NOISE / 2, cell.spread)


def _is_within(ratio: float, noise: float) -> bool:
    return abs(log(ratio)) <= log(1 + noise)


def _machine_ratio(old: Cell, new: Cell) -> float:
    """How the limit changed that bounds the new cell; 1 where none does, or it is not known for as many threads."""
    if old.limits.num_threads != new.limits.num_threads:
        return 1.0
    kind = None if new.verdict is None else new.verdict.kind
    if kind == "compute-bound":
        before, after = old.limits.int8_ops, new.limits.int8_ops
    elif kind in ("DRAM-bound", "cache-bound"):
        before, after = old.limits.read_bytes, new.limits.read_bytes
    else:
        return 1.0
    return after / before if before > 0 and after > 0 else 1.0


def _operator_change(old: Cell, new: Cell) -> OperatorChange | None:
    before, after = ({each.name: each.seconds for each in cell.operators} for cell in (old, new))
    changes = [OperatorChange(name, before.get(name, 0.0), after.get(name, 0.0)) for name in {**before, **after}]
    return max(changes, key=lambda change: abs(change.new_seconds - change.old_seconds), default=None)


def _warnings(old: ProfileRecord, new: ProfileRecord) -> Iterator[str]:
    """Everything else that is not the same: whoever compares must know."""
    if (old.model.architecture, old.model.num_parameters) != (new.model.architecture, new.model.num_parameters):
        yield f"another model: {old.model.name} before, {new.model.name} now; rates are not comparable, shares are"
    elif old.model != new.model:
        yield f"another file of the model: {old.model.name} before, {new.model.name} now"
    for title, before, after, names in (
        ("machine", old.machine, new.machine, _MACHINE_WORDS),
        ("settings", old.settings, new.settings, _SETTINGS_WORDS),
    ):
        for name, words in names.items():
            one, other = getattr(before, name), getattr(after, name)
            if one != other:
                yield f"other {title}: {words} {_value(one)} before, {_value(other)} now"
    if old.treadle != new.treadle:
        yield f"another version of Treadle: {old.treadle} before, {new.treadle} now"
    yield from _speed_changes(old, new)


_MACHINE_WORDS = {
    "processor": "processor",
    "architecture": "architecture",
    "num_cores": "cores",
    "num_nodes": "memory nodes",
    "quota": "CPU quota",
    "kernel": "kernel",
    "huge_pages": "mode of huge pages",
    "hypervisor": "hypervisor",
    "container": "container",
}
_SETTINGS_WORDS = {
    "kernels": "kernels",
    "cpus": "CPUs of the threads",
    "prompt_cpus": "CPUs of the threads for prompts",
    "kv_type": "KV type",
    "huge_pages": "huge pages",
    "mlock": "mlock",
    "memory_nodes": "memory nodes",
    "batch_tokens": "tokens of a step",
}
_NOTABLE = 0.05


def _speed_changes(old: ProfileRecord, new: ProfileRecord) -> Iterator[str]:
    """What the machine gave, if that was something else."""
    if not old.cells or not new.cells:
        return
    one, other = old.cells[-1].limits, new.cells[-1].limits
    if one.num_threads != other.num_threads:
        return
    for words, before, after in (
        ("read", one.memory_bytes, other.memory_bytes),
        ("multiplied", one.int8_ops, other.int8_ops),
    ):
        if before > 0 and after > 0 and abs(log(after / before)) > log(1 + _NOTABLE):
            yield f"the machine {words} {after / before:.2f} times as fast as before"


def _value(value: object) -> str:
    if isinstance(value, tuple):
        return " ".join(map(str, value)) or "none"
    return "none" if value is None else str(value)
