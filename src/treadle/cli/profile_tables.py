"""Shows a profile as tables and sentences, and what changed since another one.

Leaves to others: the figures (``engine.profile``).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from treadle.cli.console import console
from treadle.cli.profile_facts import limit_name
from treadle.cli.table import print_rows, printable

if TYPE_CHECKING:
    from treadle.engine.profile.comparison import CellChange, Comparison
    from treadle.engine.profile.record import Cell, Operator, ProfileRecord

__all__ = ["print_comparison", "print_profile"]

_TABLE_WIDTH = 160
_LEAST_SHARE = 0.005  # of a pass; smaller operators are shown together
_OUTCOMES = {
    "same": "noise",
    "machine": "the machine",
    "faster": "faster",
    "slower": "slower",
}


def print_profile(record: ProfileRecord, model: str, *, shows_all: bool) -> None:
    """Print the cells, what bounds them, what would help, and the operators of the most telling cells, or of all."""
    for line in _headline(record):
        console.out(line)
    console.out("")
    _print_table([_CELL_COLUMNS, *map(_cell_row, record.cells)])
    console.out("")
    for cell in record.cells:
        if cell.verdict is None:
            console.out(f"{cell.name}: not known, for too little memory was free to measure the machine")
        else:
            console.out(f"{cell.name}: {cell.verdict.kind}: {cell.verdict.because}")
    for line in _advice(record, model):
        console.out(line)
    for cell in record.cells if shows_all else _telling(record.cells):
        console.out(f"\n{cell.name}, {_milliseconds(cell.pass_seconds)} ms a pass")
        _print_table([_OPERATOR_COLUMNS, *_operator_rows(cell)])
    _print_counts(record)


def print_comparison(comparison: Comparison, old: ProfileRecord) -> None:
    """Print what became faster or slower since ``old``."""
    console.out(f"\nsince {old.created}")
    _print_table([_CHANGE_COLUMNS, *map(_change_row, comparison.changes)])
    if comparison.missing:
        console.out(f"not compared: {', '.join(comparison.missing)}")
    for warning in comparison.warnings:
        console.warn(warning)


_CELL_COLUMNS = ("", "tok/s", "spread", "ms a pass", "GB/s", "of limit", "GOP/s", "of peak", "bound by")
_CHANGE_COLUMNS = ("", "before", "now", "ratio", "noise", "of its limit", "which is", "most of it")
_OPERATOR_COLUMNS = ("operator", "ms", "of the pass", "waiting", "GB/s", "GOP/s", "of its limit", "which is")


def _headline(record: ProfileRecord) -> Iterator[str]:
    settings, machine = record.settings, record.machine
    threads = _threads(len(settings.cpus))
    if len(settings.prompt_cpus) != len(settings.cpus):
        threads += f", {len(settings.prompt_cpus)} for prompts"
    yield f"{record.model.name}: {threads}, {settings.kernels}, KV cache {settings.kv_type}"
    quota = "" if machine.quota is None else f", a quota of {machine.quota:g} CPUs"
    yield f"{machine.processor}, {machine.num_cores} cores{quota}"
    for limits in dict.fromkeys(cell.limits for cell in record.cells):
        cached = "" if limits.cache_bytes is None else f", {limits.cache_bytes / 1e9:.1f} GB/s from the caches"
        ops = f", {limits.int8_ops / 1e9:,.0f} G int8 operations/s" if limits.int8_ops else ""
        if limits.memory_bytes:
            yield f"{_threads(limits.num_threads)}: {limits.memory_bytes / 1e9:.1f} GB/s from memory{cached}{ops}"


def _threads(count: int) -> str:
    return f"{count} thread{'' if count == 1 else 's'}"


def _cell_row(cell: Cell) -> Sequence[str]:
    seconds = cell.pass_seconds
    return (
        cell.name,
        f"{cell.rate:.1f}",
        _share(cell.spread),
        _milliseconds(seconds),
        f"{cell.num_bytes / seconds / 1e9:.1f}",
        _share(cell.read_share),
        f"{cell.num_ops / seconds / 1e9:,.0f}",
        _share(cell.ops_share),
        "not known" if cell.verdict is None else cell.verdict.kind.removesuffix("-bound"),
    )


def _operator_rows(cell: Cell) -> Iterator[Sequence[str]]:
    total, small = cell.timed_seconds, 0.0
    for operator in cell.operators:
        if operator.seconds / total < _LEAST_SHARE:
            small += operator.seconds
        else:
            yield _operator_row(operator, cell)
    for name, seconds in (("others", small), ("Python", cell.python_seconds)):
        yield name, _milliseconds(seconds), _share(seconds / total), "", "", "", "", ""


def _operator_row(operator: Operator, cell: Cell) -> Sequence[str]:
    rates = (operator.num_bytes / operator.seconds / 1e9, operator.num_ops / operator.seconds / 1e9)
    return (
        operator.name,
        _milliseconds(operator.seconds),
        _share(operator.seconds / cell.timed_seconds),
        _share(operator.wait_seconds / cell.timed_seconds),
        f"{rates[0]:.1f}" if operator.num_bytes else "",
        f"{rates[1]:,.0f}" if operator.num_ops else "",
        _share(operator.roofline_share(cell.limits)),
        limit_name(operator, cell),
    )


def _advice(record: ProfileRecord, model: str) -> Iterator[str]:
    """Each piece of advice once, with the cells it is for."""
    found: dict[str, list[str]] = {}
    for cell in record.cells:
        for text in cell.verdict.advice if cell.verdict is not None else ():
            found.setdefault(text, []).append(cell.name)
    if found:
        yield "\nwhat would help"
    for text, names in found.items():
        yield f"  {'; '.join(names)}"
        yield f"    $ {text.replace('MODEL', model)}"


def _telling(cells: Sequence[Cell]) -> list[Cell]:
    """The longest prompt, the fewest streams and the most."""
    prompts, decodes = ([cell for cell in cells if cell.kind == kind] for kind in ("prompt", "decode"))
    chosen = [*prompts[-1:], *decodes[:1], *decodes[-1:]]
    return [cell for cell in cells if cell in chosen]


def _print_counts(record: ProfileRecord) -> None:
    counted = dict.fromkeys(name for cell in record.cells for name in cell.counts if name != "task_clock_ns")
    known = [name for name in counted if any(cell.counts.get(name) is not None for cell in record.cells)]
    if known:
        console.out("\nevents per second")
        rows = [["", *(name.replace("_", " ") for name in known)]]
        rows += [[cell.name, *(_per_second(cell, name) for name in known)] for cell in record.cells]
        _print_table(rows)
    reasons: dict[str, list[str]] = {}
    for name, reason in record.uncounted.items():
        reasons.setdefault(reason, []).append(name.replace("_", " "))
    for reason, names in reasons.items():
        console.out(f"{', '.join(names)}: {reason}")
    for note in record.notes:
        console.out(f"events: {note}")


def _per_second(cell: Cell, name: str) -> str:
    count = cell.counts.get(name)
    return "" if count is None or not cell.conditions.seconds else f"{count / cell.conditions.seconds:,.0f}"


def _change_row(change: CellChange) -> Sequence[str]:
    operator = change.operator
    moved = (
        ""
        if operator is None or change.outcome in ("same", "machine")
        else (f"{operator.name} {_milliseconds(operator.old_seconds)} -> {_milliseconds(operator.new_seconds)} ms")
    )
    return (
        change.new.name,
        f"{change.old.rate:.1f}",
        f"{change.new.rate:.1f}",
        f"{change.ratio:.3f}",
        f"{change.noise:.1%}",
        f"{_share(change.old.limit_share)} -> {_share(change.new.limit_share)}",
        _OUTCOMES[change.outcome],
        moved,
    )


def _print_table(rows: Sequence[Sequence[str]]) -> None:
    """Print rows under the first one; figures to the right, with rules and bold type on a terminal."""
    clean = [[printable(cell) for cell in row] for row in rows]
    if sys.stdout is None or not sys.stdout.isatty():
        widths = [max(map(len, column)) for column in zip(*clean, strict=True)]
        print_rows([[row[0], *map(str.rjust, row[1:], widths[1:])] for row in clean])
        return
    from rich import box  # noqa: PLC0415  slow to import, not wanted in a pipe
    from rich.console import Console  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for index, name in enumerate(clean[0]):
        table.add_column(name, justify="right" if index else "left", no_wrap=True)
    for row in clean[1:]:
        table.add_row(*map(Text, row))
    Console(width=_TABLE_WIDTH).print(table)  # a narrow terminal wraps lines, which says more than cutting cells off


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.1%}"


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:,.2f}"
