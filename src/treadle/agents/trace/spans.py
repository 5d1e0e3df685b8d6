"""A span is a piece of a task's time: what was done, from when to when, on how much CPU, within which other span.

Leaves to others: keeping spans (``record``), and what they add up to (``summary``).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextvars import ContextVar
from types import TracebackType
from typing import Any, Literal, Protocol, TypeVar, get_args

from treadle.agents.trace.cpu import MODEL_CPU, CpuMark, count_cpu, mark_cpu

__all__ = [
    "KINDS",
    "AttributeValue",
    "Recorder",
    "Span",
    "SpanKind",
    "charge_cpu",
    "charge_thread",
    "current_span",
    "span",
]

SpanKind = Literal[
    "task", "turn", "model", "queue", "prefill", "decode", "parse", "dispatch", "tool", "sandbox", "network", "wait"
]
KINDS: tuple[SpanKind, ...] = get_args(SpanKind)
AttributeValue = str | int | float | bool

T = TypeVar("T")
_MAX_TEXT = 2000
_NS = 1_000_000_000
_CURRENT: ContextVar[Span | None] = ContextVar("treadle_span", default=None)


class Recorder(Protocol):
    """Keeps the spans of a task."""

    def reserve(self) -> int | None:
        """Return the id of a new span, None if there is no room for it."""

    def record(self, span: Span) -> None:
        """Keep a span that has ended."""


class Span:
    """A piece of a task's time, measured from ``with`` to its end, or elsewhere and given to ``add``.

    ``start_ns`` and ``end_ns`` are those of ``time.perf_counter_ns``, 0 before they are known. ``cpu_seconds`` leaves
    out what spans within it have, and is None where it cannot be told: code that waits in an event loop shares its
    thread with other tasks. That of a "model" span is an even part of what this process used while the model was asked.

    A span may be opened in any thread or task, but not around the ``yield`` of a generator, whose caller would find
    itself inside of it. Text in ``attributes`` is cut after 2000 characters.
    """

    __slots__ = (
        "_mark",
        "_outer",
        "_recorder",
        "attributes",
        "cpu_seconds",
        "end_ns",
        "kind",
        "name",
        "parent_id",
        "span_id",
        "start_ns",
    )

    def __init__(
        self,
        kind: SpanKind,
        name: str,
        attributes: dict[str, AttributeValue],
        *,
        recorder: Recorder | None = None,
        span_id: int = 0,
        parent_id: int | None = None,
    ) -> None:
        self.kind = kind
        self.name = name
        self.attributes = attributes
        self.span_id = span_id
        self.parent_id = parent_id
        self.start_ns = 0
        self.end_ns = 0
        self.cpu_seconds: float | None = None
        self._recorder = recorder
        self._outer: Span | None = None
        self._mark: CpuMark | float | None = None

    @property
    def seconds(self) -> float:
        """Return how long it lasted, in wall seconds."""
        return (self.end_ns - self.start_ns) / _NS

    @property
    def has_failed(self) -> bool:
        """Tell whether it ended by an exception, or in a result that says so."""
        return "error" in self.attributes or self.attributes.get("is_error") is True

    def add(
        self,
        kind: SpanKind,
        name: str,
        start_ns: int,
        end_ns: int,
        *,
        cpu_seconds: float | None = None,
        **attributes: AttributeValue,
    ) -> Span:
        """Add a span within this one that was measured elsewhere, and return it."""
        made = _child(self, kind, name, attributes)
        made.start_ns, made.end_ns, made.cpu_seconds = start_ns, max(start_ns, end_ns), cpu_seconds
        made._record()
        return made

    def __enter__(self) -> Span:
        if self._recorder is not None:
            self._outer = _CURRENT.get()
            _CURRENT.set(self)
            self._mark = MODEL_CPU.enter() if self.kind == "model" else mark_cpu()
            self.start_ns = time.perf_counter_ns()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._recorder is None:
            return
        self.end_ns = time.perf_counter_ns()
        self._read_cpu()
        if kind is not None:
            self.attributes.setdefault("error", kind.__name__)
        if _CURRENT.get() is self:
            _CURRENT.set(self._outer)
        self._outer = None
        self._record()

    def _read_cpu(self) -> None:
        if isinstance(self._mark, float):
            cpu_seconds: float | None = MODEL_CPU.leave(self._mark) / _NS
        else:
            assert self._mark is not None
            cpu_seconds = count_cpu(self._mark)
        if self.cpu_seconds is None:  # else somebody knows better
            self.cpu_seconds = cpu_seconds

    def _record(self) -> None:
        if self._recorder is None:
            return
        for name, value in self.attributes.items():
            if isinstance(value, str) and len(value) > _MAX_TEXT:
                self.attributes[name] = value[:_MAX_TEXT] + "…"
        self._recorder.record(self)


def charge_cpu(seconds: float) -> None:
    """Count CPU seconds that were measured elsewhere, such as in a child process, to the span this code runs in."""
    inside = _CURRENT.get()
    if inside is not None:
        inside.cpu_seconds = (inside.cpu_seconds or 0.0) + seconds


def charge_thread(function: Callable[..., T], *arguments: Any, **keywords: Any) -> T:
    """Call a function in another thread than the span's own, and count the CPU seconds it takes there to that span."""
    mark = mark_cpu()
    try:
        return function(*arguments, **keywords)
    finally:
        charge_cpu(count_cpu(mark) or 0.0)


def current_span() -> Span | None:
    """Return the span that this code runs in, None if no trace is open."""
    return _CURRENT.get()


def span(kind: SpanKind, name: str = "", **attributes: AttributeValue) -> Span:
    """Return a span for ``with``, inside of the one that this code runs in; nothing is kept if no trace is open."""
    outer = _CURRENT.get()
    return Span(kind, name, attributes) if outer is None else _child(outer, kind, name, attributes)


def _child(outer: Span, kind: SpanKind, name: str, attributes: dict[str, AttributeValue]) -> Span:
    recorder = outer._recorder
    span_id = None if recorder is None else recorder.reserve()
    if span_id is None:
        return Span(kind, name, attributes)
    return Span(kind, name, attributes, recorder=recorder, span_id=span_id, parent_id=outer.span_id)
