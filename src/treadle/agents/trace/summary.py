"""What the spans of tasks add up to: seconds by kind, shares of model and tools, the critical path, tokens.

Leaves to others: dividing the time of a task (``time_shares``, ``critical_path``) and showing it (the commands).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from treadle.agents.trace.critical_path import critical_path
from treadle.agents.trace.spans import AttributeValue, Span, SpanKind
from treadle.agents.trace.time_shares import GROUPS, Group, share_time

if TYPE_CHECKING:
    from treadle.agents.trace.record import Trace

__all__ = ["KindTime", "PathShare", "ToolTime", "TraceSummary", "summarise"]

# They say that a task went on, not with what.
_FRAMES: tuple[SpanKind, ...] = ("task", "turn")
_NS = 1e9
_MAX_NUMBER = 1e15  # files are not to be trusted


@dataclass(frozen=True)
class KindTime:
    """The spans of a kind: wall seconds in which they were innermost, and CPU seconds where those are known."""

    num_spans: int
    wall_seconds: float
    cpu_seconds: float | None


@dataclass(frozen=True)
class ToolTime:
    """The calls of a tool: wall seconds of all added up, also of those that ran together, and CPU seconds if known."""

    num_calls: int
    num_errors: int
    wall_seconds: float
    cpu_seconds: float | None


@dataclass(frozen=True)
class PathShare:
    """Spans of one kind and name on the critical path, and the wall seconds that they decided."""

    kind: SpanKind
    name: str
    num_spans: int
    wall_seconds: float


@dataclass(frozen=True)
class TraceSummary:
    """Where the time of tasks went.

    ``wall_seconds`` are those of all tasks added up; ``groups`` and ``kinds`` divide them: time that several spans
    cover counts once. "own" is the agent's own work, and what no span accounts for. ``path`` has the longest first.
    ``coverage`` is the share of the time in which a span said what was done, other than that a task or turn went on.
    ``process_cpu_seconds`` are the CPU seconds of the whole process while the tasks ran, counted for each.
    """

    num_tasks: int
    task_seconds: tuple[float, ...]
    groups: Mapping[Group, float]
    kinds: Mapping[SpanKind, KindTime]
    tools: Mapping[str, ToolTime]
    path: tuple[PathShare, ...]
    prompt_tokens: int
    cached_tokens: int
    answer_tokens: int
    process_cpu_seconds: float
    num_dropped: int

    @property
    def wall_seconds(self) -> float:
        """Return the wall seconds of all tasks."""
        return sum(self.task_seconds)

    @property
    def median_seconds(self) -> float:
        """Return how long a task takes, half of them less."""
        ordered = sorted(self.task_seconds)
        middle = len(ordered) // 2
        return (ordered[middle] + ordered[~middle]) / 2 if ordered else 0.0

    @property
    def coverage(self) -> float:
        """Return the share of the time that spans account for, from 0 to 1."""
        bare = sum(self.kinds[kind].wall_seconds for kind in _FRAMES if kind in self.kinds)
        return 1.0 - bare / self.wall_seconds if self.wall_seconds else 1.0

    def share(self, group: Group) -> float:
        """Return a group's share of the time, from 0 to 1."""
        return self.groups[group] / self.wall_seconds if self.wall_seconds else 0.0


def summarise(traces: Sequence[Trace]) -> TraceSummary:
    """Return where the time of tasks went; to be called when they have ended."""
    groups: dict[Group, float] = dict.fromkeys(GROUPS, 0.0)
    kind_seconds: dict[SpanKind, float] = {}
    on_path: dict[tuple[SpanKind, str], list[float]] = {}
    for trace in traces:
        for (group, kind), nanoseconds in share_time(trace.root, trace.spans).items():
            groups[group] += nanoseconds / _NS
            kind_seconds[kind] = kind_seconds.get(kind, 0.0) + nanoseconds / _NS
        _add_path(trace, on_path)
    spans = [span for trace in traces for span in trace.spans]
    return TraceSummary(
        num_tasks=len(traces),
        task_seconds=tuple(trace.root.seconds for trace in traces),
        groups=groups,
        kinds=_by_kind(spans, kind_seconds),
        tools=_by_tool(traces),
        path=_path_shares(on_path),
        prompt_tokens=_count(spans, "prompt_tokens"),
        cached_tokens=_count(spans, "cached_tokens"),
        answer_tokens=_count(spans, "answer_tokens"),
        process_cpu_seconds=sum(_number(trace.root.attributes.get("process_cpu_seconds")) for trace in traces),
        num_dropped=sum(trace.num_dropped for trace in traces),
    )


def _add_path(trace: Trace, on_path: dict[tuple[SpanKind, str], list[float]]) -> None:
    found: dict[int, tuple[Span, float]] = {}
    for step in critical_path(trace.root, trace.spans):
        _, seconds = found.get(step.span.span_id, (step.span, 0.0))
        found[step.span.span_id] = step.span, seconds + (step.end_ns - step.start_ns) / _NS
    for span, seconds in found.values():
        on_path.setdefault((span.kind, span.name), []).append(seconds)


def _path_shares(on_path: Mapping[tuple[SpanKind, str], Sequence[float]]) -> tuple[PathShare, ...]:
    shares = [PathShare(kind, name, len(found), sum(found)) for (kind, name), found in on_path.items()]
    return tuple(sorted(shares, key=lambda share: -share.wall_seconds))


def _by_kind(spans: Sequence[Span], seconds: Mapping[SpanKind, float]) -> dict[SpanKind, KindTime]:
    found: dict[SpanKind, list[Span]] = {}
    for span in spans:
        found.setdefault(span.kind, []).append(span)
    times = {
        kind: KindTime(len(same), seconds.get(kind, 0.0), _cpu(span.cpu_seconds for span in same))
        for kind, same in found.items()
    }
    return dict(sorted(times.items(), key=lambda item: -item[1].wall_seconds))


def _by_tool(traces: Sequence[Trace]) -> dict[str, ToolTime]:
    calls: dict[str, list[tuple[Span, float | None]]] = {}
    for trace in traces:
        cpu = _cpu_with_inner(trace.spans)
        for span in trace.spans:
            if span.kind == "tool":
                calls.setdefault(span.name, []).append((span, cpu.get(span.span_id)))
    times = {
        name: ToolTime(
            num_calls=len(same),
            num_errors=sum(span.has_failed for span, _ in same),
            wall_seconds=sum(span.seconds for span, _ in same),
            cpu_seconds=_cpu(seconds for _, seconds in same),
        )
        for name, same in calls.items()
    }
    return dict(sorted(times.items(), key=lambda item: -item[1].wall_seconds))


def _cpu_with_inner(spans: Sequence[Span]) -> dict[int, float]:
    """Return the CPU seconds of each span and all within it, where any are known."""
    found: dict[int, float] = {}
    for span in sorted(spans, key=lambda each: -each.span_id):  # those within a span have higher numbers
        if span.cpu_seconds is not None:
            found[span.span_id] = found.get(span.span_id, 0.0) + span.cpu_seconds
        if span.parent_id is not None and span.span_id in found:
            found[span.parent_id] = found.get(span.parent_id, 0.0) + found[span.span_id]
    return found


def _cpu(seconds: Iterable[float | None]) -> float | None:
    known = [each for each in seconds if each is not None]
    return sum(known) if known else None


def _count(spans: Iterable[Span], name: str) -> int:
    return round(sum(_number(span.attributes.get(name)) for span in spans if span.kind == "model"))


def _number(value: AttributeValue | None) -> float:
    return value if isinstance(value, int | float) and abs(value) < _MAX_NUMBER else 0.0
