"""Draws the spans of a task as bars below each other, for a terminal or a pipe of any width.

Leaves to others: the spans and their critical path (``agents.trace``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.cells import cell_len, set_cell_size

from treadle.agents.trace import children_of, critical_path, group_spans
from treadle.cli.console import console

if TYPE_CHECKING:
    from treadle.agents.trace import Group, Span, SpanKind, Trace

__all__ = ["label_of", "print_waterfall", "show_seconds"]

_COLOURS: Mapping[Group, str] = {"model": "cyan", "tools": "yellow", "waiting": "red", "own": "magenta"}

_MIN_BAR = 10
_TIME_WIDTH = 8
_DECIDES, _BESIDE = "█", "░"


@dataclass(frozen=True)
class _Row:
    """A span at its depth, or those within one that have no row, on one line."""

    label: str
    seconds: float
    start_ns: int
    end_ns: int
    group: Group
    on_path: bool


def show_seconds(seconds: float) -> str:
    """Return a time in two or three digits, in milliseconds if it is short."""
    if seconds < 0.0995:
        return f"{1000 * seconds:.1f} ms" if seconds < 0.00995 else f"{1000 * seconds:.0f} ms"
    return f"{seconds:.2f} s" if seconds < 99.5 else f"{seconds:.0f} s"


def label_of(kind: SpanKind, name: str) -> str:
    """Return what spans of a kind and name are called, on one line."""
    # Names come from models and files: no line ends, and nothing that steers a terminal.
    clean = "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in name)
    return clean if name.startswith(kind) else f"{kind} {clean}".rstrip()


def print_waterfall(trace: Trace, *, width: int, max_rows: int) -> None:
    """Print a line for each of the longest spans of a task, within those around them; solid where they decided.

    Args:
        trace: The task.
        width: Of a line, in cells.
        max_rows: How many spans have a line of their own; the others share one with those they lie beside.
    """
    rows = list(_rows(trace, max_rows))
    root = trace.root
    label_width = min(max(cell_len(row.label) for row in rows), max(12, width // 2 - _TIME_WIDTH))
    bar_width = max(_MIN_BAR, width - label_width - _TIME_WIDTH - 4)
    total_ns = max(1, root.end_ns - root.start_ns)
    for row in rows:
        first = _cell(row.start_ns - root.start_ns, total_ns, bar_width)
        last = _cell(row.end_ns - root.start_ns, total_ns, bar_width)
        bar = (_DECIDES if row.on_path else _BESIDE) * max(1, last - first)
        label = set_cell_size(row.label, label_width)
        time = show_seconds(row.seconds).rjust(_TIME_WIDTH)
        console.painted((f"{label}  {time}  {' ' * min(first, bar_width - 1)}", ""), (bar, _COLOURS[row.group]))


def _cell(nanoseconds: int, total_ns: int, width: int) -> int:
    return min(width, max(0, round(nanoseconds * width / total_ns)))


def _rows(trace: Trace, max_rows: int) -> Iterator[_Row]:
    children, groups = children_of(trace.spans), group_spans(trace.spans)
    on_path = _with_those_around(trace, {step.span.span_id for step in critical_path(trace.root, trace.spans)})
    longest = sorted(trace.spans, key=lambda span: -span.seconds)[:max_rows]
    shown = _with_those_around(trace, {span.span_id for span in longest} | {trace.root.span_id})
    waiting: list[tuple[Span | _Row, int]] = [(trace.root, 0)]
    while waiting:
        item, depth = waiting.pop()
        if isinstance(item, _Row):
            yield item
            continue
        yield _Row(
            "  " * min(depth, 12) + label_of(item.kind, item.name),
            item.seconds,
            item.start_ns,
            item.end_ns,
            groups[item.span_id],
            item.span_id in on_path,
        )
        inner = sorted(children.get(item.span_id, ()), key=lambda span: span.start_ns)
        hidden = [span for span in inner if span.span_id not in shown]
        if hidden:
            waiting.append((_folded(hidden, depth + 1, groups, on_path), depth + 1))
        waiting += [(span, depth + 1) for span in reversed(inner) if span.span_id in shown]


def _folded(hidden: list[Span], depth: int, groups: Mapping[int, Group], on_path: set[int]) -> _Row:
    names = ", ".join(dict.fromkeys(label_of(span.kind, span.name) for span in hidden[:3]))
    return _Row(
        "  " * min(depth, 12) + f"{len(hidden)} more: {names}",
        sum(span.seconds for span in hidden),
        min(span.start_ns for span in hidden),
        max(span.end_ns for span in hidden),
        groups[hidden[0].span_id],
        any(span.span_id in on_path for span in hidden),
    )


def _with_those_around(trace: Trace, span_ids: set[int]) -> set[int]:
    around = {span.span_id: span.parent_id for span in trace.spans}
    found: set[int] = set()
    for span_id in span_ids:
        each: int | None = span_id
        while each is not None and each not in found:
            found.add(each)
            each = around.get(each)
    return found
