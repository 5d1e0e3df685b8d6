"""Traces with given times, so that what they add up to is known."""

from __future__ import annotations

from treadle.agents.trace import Span, SpanKind, Trace

MS = 1_000_000


def new_trace(milliseconds: int, name: str = "task") -> Trace:
    """A trace of a task that began at 0 and has ended."""
    with Trace.open(name) as trace:
        pass
    trace.origin_ns = 0
    trace.root.start_ns, trace.root.end_ns = 0, milliseconds * MS
    return trace


def add(
    around: Span | Trace,
    kind: SpanKind,
    start_ms: int,
    end_ms: int,
    name: str = "",
    *,
    cpu_seconds: float | None = None,
) -> Span:
    span = around.root if isinstance(around, Trace) else around
    return span.add(kind, name or kind, start_ms * MS, end_ms * MS, cpu_seconds=cpu_seconds)


def agent_trace(name: str = "task") -> Trace:
    """Two turns of a second: the model, two tools at a time, the model again."""
    trace = new_trace(2000, name)
    first = add(trace, "turn", 0, 1500, "1")
    model = add(first, "model", 0, 400, "m")
    add(model, "queue", 0, 50)
    add(model, "prefill", 50, 250)
    add(model, "decode", 250, 400)
    model.attributes.update(prompt_tokens=100, cached_tokens=60, answer_tokens=20)
    add(first, "parse", 400, 410)
    add(first, "dispatch", 410, 420)
    long = add(first, "tool", 420, 1480, "run_python", cpu_seconds=0.01)
    add(long, "wait", 420, 520, "cores")
    add(long, "sandbox", 520, 1460, "python", cpu_seconds=0.9)
    short = add(first, "tool", 420, 700, "fetch")
    short.attributes["error"] = "ToolError"
    add(short, "network", 430, 690, "GET")
    second = add(trace, "turn", 1500, 1990, "2")
    model = add(second, "model", 1500, 1980, "m")
    add(model, "prefill", 1500, 1600)
    add(model, "decode", 1600, 1980)
    model.attributes.update(prompt_tokens=150, cached_tokens=120, answer_tokens=30)
    return trace
