"""The chain of spans that decided how long a task took: had one of them been quicker, so had the task.

Leaves to others: how the time of all spans divides (``summary``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from treadle.agents.trace.spans import Span

__all__ = ["PathStep", "children_of", "critical_path"]


@dataclass(frozen=True)
class PathStep:
    """A stretch of the critical path, and the innermost span that the task waited for meanwhile."""

    span: Span
    start_ns: int
    end_ns: int


def children_of(spans: Sequence[Span]) -> dict[int, list[Span]]:
    """Return the spans within each span, by its id."""
    children: dict[int, list[Span]] = {}
    for span in spans:
        if span.parent_id is not None:
            children.setdefault(span.parent_id, []).append(span)
    return children


def critical_path(root: Span, spans: Sequence[Span]) -> list[PathStep]:
    """Return the stretches in order, without gaps from the start of ``root`` to its end.

    Seen from the end of a span, what it last waited for is the one within it that ended last; before the start of that
    one, again the one that had ended last by then, and so on. What remains is its own work.
    """
    children = children_of(spans)
    path: list[PathStep] = []
    open_steps = [(PathStep(root, root.start_ns, root.end_ns), False)]
    while open_steps:  # not by recursion, since files may nest deeper than Python does
        step, is_own = open_steps.pop()
        inner = children.get(step.span.span_id)
        if inner and not is_own:
            open_steps += _waits(step, inner)
        elif step.end_ns > step.start_ns:
            path.append(step)
    return path


def _waits(step: PathStep, inner: list[Span]) -> Iterator[tuple[PathStep, bool]]:
    """Yield what a span waited for, the latest first, and whether that was its own work."""
    left = sorted(inner, key=lambda span: span.end_ns)
    now = step.end_ns
    while now > step.start_ns:
        running: list[Span] = []
        while left and left[-1].end_ns >= now:
            running.append(left.pop())
        longest = min(running, key=lambda span: span.start_ns, default=None)
        if longest is not None and longest.start_ns < now:
            begin = max(longest.start_ns, step.start_ns)
            yield PathStep(longest, begin, now), False
        else:
            begin = max(left[-1].end_ns if left else step.start_ns, step.start_ns)
            yield PathStep(step.span, begin, now), True
        now = begin
