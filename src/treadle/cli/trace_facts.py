"""Traces as JSON takes them, for ``--json`` and for the page.

Leaves to others: the figures (``agents.trace``).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from treadle.agents.trace import critical_path, group_spans, summarise

if TYPE_CHECKING:
    from treadle.agents.trace import Trace, TraceSummary

__all__ = ["trace_facts"]

_SCHEMA = 1  # higher when a field goes or changes its meaning
_NS = 1e9


def trace_facts(traces: Sequence[Trace], notes: Sequence[str], *, has_spans: bool) -> dict[str, Any]:
    """Return what is known of tasks; with their spans, in seconds since the start of each, if ``has_spans``."""
    return {
        "schema": _SCHEMA,
        "notes": list(notes),
        "summary": _summary(summarise(traces)),
        "tasks": [_task(trace, has_spans=has_spans) for trace in traces],
    }


def _task(trace: Trace, *, has_spans: bool) -> dict[str, Any]:
    facts = {
        "id": trace.trace_id,
        "name": trace.name,
        "began_at": trace.began_at_ns / _NS,
        "seconds": trace.root.seconds,
        "is_complete": trace.is_complete,
        "attributes": trace.root.attributes,
        "summary": _summary(trace.summary()),
    }
    return {**facts, **_spans(trace)} if has_spans else facts


def _spans(trace: Trace) -> dict[str, Any]:
    begin = trace.root.start_ns
    groups = group_spans(trace.spans)
    return {
        "spans": [
            {
                "id": span.span_id,
                "parent": span.parent_id,
                "kind": span.kind,
                "name": span.name,
                "group": groups[span.span_id],
                "start": (span.start_ns - begin) / _NS,
                "end": (span.end_ns - begin) / _NS,
                "cpu_seconds": span.cpu_seconds,
                "has_failed": span.has_failed,
                "attributes": span.attributes,
            }
            for span in trace.spans
        ],
        "critical_path": [
            {"span": step.span.span_id, "start": (step.start_ns - begin) / _NS, "end": (step.end_ns - begin) / _NS}
            for step in critical_path(trace.root, trace.spans)
        ],
    }


def _summary(summary: TraceSummary) -> dict[str, Any]:
    return {
        "num_tasks": summary.num_tasks,
        "wall_seconds": summary.wall_seconds,
        "median_seconds": summary.median_seconds,
        "process_cpu_seconds": summary.process_cpu_seconds,
        "coverage": summary.coverage,
        "groups": dict(summary.groups),
        "kinds": {kind: dataclasses.asdict(time) for kind, time in summary.kinds.items()},
        "tools": {name: dataclasses.asdict(time) for name, time in summary.tools.items()},
        "critical_path": [dataclasses.asdict(share) for share in summary.path],
        "prompt_tokens": summary.prompt_tokens,
        "cached_tokens": summary.cached_tokens,
        "answer_tokens": summary.answer_tokens,
        "num_dropped": summary.num_dropped,
    }
