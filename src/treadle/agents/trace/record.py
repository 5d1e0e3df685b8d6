"""The spans of one task, kept in memory and, if wanted, in a file as they end.

Leaves to others: the form of the file (``trace_file``) and what the spans add up to (``summary``).
"""

from __future__ import annotations

import itertools
import logging
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType

from treadle.agents.trace.spans import AttributeValue, Span
from treadle.agents.trace.summary import TraceSummary, summarise
from treadle.agents.trace.trace_file import StoredTrace, TraceWriter, read_trace_file
from treadle.errors import UsageError

__all__ = ["MAX_SPANS", "Trace", "read_traces"]

_log = logging.getLogger("treadle.agents")
MAX_SPANS = 10_000
_NS = 1_000_000_000


class Trace:
    """The spans of one task: use ``with Trace.open(name) as trace``, and ``span`` within it.

    Spans begin and end in nanoseconds of one monotonic clock; ``began_at_ns`` is the time since 1970 at which that
    clock stood at ``origin_ns``. ``num_dropped`` counts the spans there was no room for. A trace that was read from a
    file whose writer was killed is not ``is_complete``.
    """

    def __init__(self, trace_id: str, name: str, *, began_at_ns: int, origin_ns: int, max_spans: int) -> None:
        self.trace_id = trace_id
        self.name = name
        self.began_at_ns = began_at_ns
        self.origin_ns = origin_ns
        self.num_dropped = 0
        self.is_complete = False
        self._max_spans = max_spans
        self._ids = itertools.count(1)
        self._spans: list[Span] = []
        self._root: Span | None = None
        self._writer: TraceWriter | None = None
        self._cpu_ns = 0

    @classmethod
    def open(
        cls,
        name: str,
        *,
        path: str | Path | None = None,
        max_spans: int = MAX_SPANS,
        **attributes: AttributeValue,
    ) -> Trace:
        """Begin the trace of a task, to be used with ``with``.

        Args:
            name: What the task is, for people.
            path: A file to which each span is added when it ends; others may add to it at the same time. One that can
                no longer be written, as when the disk is full, is warned of and left.
            max_spans: How many spans are kept at most; what comes beyond is counted.
            attributes: What else to say of the task.

        Raises:
            UsageError: ``max_spans`` is below 1, or the file cannot be written.
        """
        if max_spans < 1:
            raise UsageError(f"max_spans: expected 1 at least, found {max_spans}")
        began_at_ns, origin_ns = time.time_ns(), time.perf_counter_ns()
        trace = cls(os.urandom(16).hex(), name, began_at_ns=began_at_ns, origin_ns=origin_ns, max_spans=max_spans)
        trace._root = Span("task", name, attributes, recorder=trace, span_id=next(trace._ids))
        if path is not None:
            trace._writer = TraceWriter(Path(path))
        return trace

    @classmethod
    def read(cls, path: str | Path) -> Trace:
        """Return the trace in a file of one; ``read_traces`` takes files of any number.

        Raises:
            UsageError: The file cannot be read, is no file of traces, or holds another number of them.
        """
        traces, _ = read_traces([path])
        if len(traces) != 1:
            raise UsageError(f"{path}: expected the trace of one task, found {len(traces)}")
        return traces[0]

    @property
    def spans(self) -> Sequence[Span]:
        """Return the spans that have ended, in the order of their ends; the last is that of the task."""
        return self._spans

    @property
    def root(self) -> Span:
        """Return the span of the task."""
        assert self._root is not None
        return self._root

    def summary(self) -> TraceSummary:
        """Return where the time went."""
        return summarise([self])

    def write(self, path: str | Path) -> None:
        """Add the trace to the end of a file, which is made if there is none.

        Raises:
            UsageError: The file cannot be written.
        """
        writer = TraceWriter(Path(path))
        writer.begin(self)
        for each in self._spans:
            writer.add(self, each)
        writer.end(self)

    def reserve(self) -> int | None:
        """Return the id of a new span, None if there is no room for it."""
        span_id = next(self._ids)
        if span_id <= self._max_spans:
            return span_id
        self.num_dropped += 1
        return None

    def record(self, span: Span) -> None:
        """Keep a span that has ended."""
        self._spans.append(span)
        if self._writer is not None:
            self._write(lambda writer: writer.add(self, span))

    def __enter__(self) -> Trace:
        if self._writer is not None:
            self._writer.begin(self)
        self._cpu_ns = time.process_time_ns()
        self.root.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.root.attributes["process_cpu_seconds"] = (time.process_time_ns() - self._cpu_ns) / _NS
        self.root.__exit__(kind, error, traceback)
        self.is_complete = True
        self._write(lambda writer: writer.end(self))
        self._writer = None

    def _write(self, write: Callable[[TraceWriter], None]) -> None:
        """Go on without the file when that can no longer be written: the task matters more."""
        try:
            if self._writer is not None:
                write(self._writer)
        except UsageError as error:
            self._writer = None
            _log.warning("%s", error)


def read_traces(paths: Sequence[str | Path]) -> tuple[list[Trace], list[str]]:
    """Return the traces in files, and in words what is missing from them because a writer was killed.

    Raises:
        UsageError: A file cannot be read or is no file of traces; names the line.
    """
    traces: list[Trace] = []
    notes: list[str] = []
    for path in paths:
        stored, found = read_trace_file(Path(path))
        traces += map(_from_file, stored)
        notes += found
    return traces, notes


def _from_file(stored: StoredTrace) -> Trace:
    trace = Trace(stored.trace_id, stored.name, began_at_ns=stored.began_at_ns, origin_ns=0, max_spans=0)
    trace.num_dropped = stored.num_dropped
    trace.is_complete = stored.is_complete
    trace._spans = stored.spans
    trace._root = stored.spans[-1]
    return trace
