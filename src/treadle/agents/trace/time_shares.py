"""Divides the time of a task among its spans: every moment belongs to the innermost spans that were open, once.

Leaves to others: adding up tasks (``summary``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Literal

from treadle.agents.trace.spans import Span, SpanKind

__all__ = ["GROUPS", "Group", "group_spans", "share_time"]

Group = Literal["model", "tools", "waiting", "own"]
GROUPS: tuple[Group, ...] = ("model", "tools", "waiting", "own")

_GROUP_OF_KIND: Mapping[SpanKind, Group] = {
    "model": "model",
    "queue": "model",
    "prefill": "model",
    "decode": "model",
    "tool": "tools",
    "sandbox": "tools",
    "wait": "waiting",
    "task": "own",
    "turn": "own",
    "parse": "own",
    "dispatch": "own",
}


def group_spans(spans: Sequence[Span]) -> dict[int, Group]:
    """Return the group of each span by its id; what may be done for several is in the group of the span around it."""
    groups: dict[int, Group] = {}
    for span in sorted(spans, key=lambda each: each.span_id):  # the span around one has a lower number
        around = groups.get(span.parent_id or 0, "own")
        groups[span.span_id] = _GROUP_OF_KIND.get(span.kind, around)
    return groups


def share_time(root: Span, spans: Sequence[Span]) -> dict[tuple[Group, SpanKind], float]:
    """Return nanoseconds by group and kind, which add up to those of ``root``.

    Where several innermost spans are open at a time, each has an equal part of it.
    """
    sweep = _Sweep(spans)
    events: list[tuple[int, bool, Span]] = []
    for span in spans:
        start_ns, end_ns = max(span.start_ns, root.start_ns), min(span.end_ns, root.end_ns)
        if start_ns < end_ns:
            events += [(start_ns, True, span), (end_ns, False, span)]
    events.sort(key=lambda event: event[0])
    last = root.start_ns
    for now, is_start, span in events:
        sweep.divide(now - last)
        last = now
        if is_start:
            sweep.open(span)
        else:
            sweep.close(span)
    return sweep.shares


class _Sweep:
    """The spans that are open at a moment, and how many of each kind are innermost."""

    def __init__(self, spans: Sequence[Span]) -> None:
        groups = group_spans(spans)
        self._keys = {span.span_id: (groups[span.span_id], span.kind) for span in spans}
        self._open: set[int] = set()
        self._num_inside: Counter[int] = Counter()
        self._innermost: Counter[tuple[Group, SpanKind]] = Counter()
        self.shares: dict[tuple[Group, SpanKind], float] = {}

    def divide(self, nanoseconds: int) -> None:
        """Give a stretch of time to those that are innermost."""
        total = self._innermost.total()
        if not nanoseconds or not total:
            return
        for key, count in self._innermost.items():
            if count:
                self.shares[key] = self.shares.get(key, 0.0) + nanoseconds * count / total

    def open(self, span: Span) -> None:
        self._open.add(span.span_id)
        if not self._num_inside[span.span_id]:
            self._innermost[self._keys[span.span_id]] += 1
        around = span.parent_id
        if around is not None:
            self._num_inside[around] += 1
            if around in self._open and self._num_inside[around] == 1:
                self._innermost[self._keys[around]] -= 1

    def close(self, span: Span) -> None:
        self._open.remove(span.span_id)
        if not self._num_inside[span.span_id]:
            self._innermost[self._keys[span.span_id]] -= 1
        around = span.parent_id
        if around is not None:
            self._num_inside[around] -= 1
            if around in self._open and not self._num_inside[around]:
                self._innermost[self._keys[around]] += 1
