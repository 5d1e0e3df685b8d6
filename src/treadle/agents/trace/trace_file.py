"""Traces as lines of JSON, one for each span as it ends, so that what a killed program has written can be read.

Leaves to others: the traces themselves (``record``).
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from treadle.agents.trace.spans import KINDS, AttributeValue, Span
from treadle.errors import UsageError

if TYPE_CHECKING:
    from treadle.agents.trace.record import Trace

__all__ = ["StoredTrace", "TraceWriter", "read_trace_file"]

_VERSION = 1
_START = b'{"type": "'  # of every line, so that one that was cut off can be told from one that was never ours
_MAX_LINE_BYTES = 1 << 20
_MAX_SPANS = 1_000_000
_MAX_NS = 1 << 62


class TraceWriter:
    """Adds traces to the end of a file, which several may do at a time: each line is one write.

    Raises:
        UsageError: The file cannot be written; so do the methods.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._write(b"\n" if _is_cut(path) else b"")

    def begin(self, trace: Trace) -> None:
        """Say which trace the following spans are of."""
        self._line("trace", trace, version=_VERSION, name=trace.name, began_at_ns=trace.began_at_ns)

    def add(self, trace: Trace, span: Span) -> None:
        """Add a span that has ended."""
        self._line(
            "span",
            trace,
            span=span.span_id,
            parent=span.parent_id,
            kind=span.kind,
            name=span.name,
            start_ns=span.start_ns - trace.origin_ns,
            end_ns=span.end_ns - trace.origin_ns,
            cpu_seconds=span.cpu_seconds,
            attributes={name: _writable(value) for name, value in span.attributes.items()},
        )

    def end(self, trace: Trace) -> None:
        """Say that the task has ended."""
        self._line("end", trace, num_dropped=trace.num_dropped)

    def _line(self, line_type: str, trace: Trace, **fields: Any) -> None:
        self._write(
            json.dumps({"type": line_type, "trace": trace.trace_id, **fields}, allow_nan=False).encode() + b"\n"
        )

    def _write(self, line: bytes) -> None:
        try:
            descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                os.write(descriptor, line)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise UsageError(f"{self._path}: the trace cannot be written: {error.strerror}") from None


@dataclass
class StoredTrace:
    """A trace as a file has it; its spans begin and end in nanoseconds since ``began_at_ns``, that of the task last."""

    trace_id: str
    name: str
    began_at_ns: int
    spans: list[Span] = field(default_factory=list)
    num_dropped: int = 0
    is_complete: bool = False


def read_trace_file(path: Path) -> tuple[list[StoredTrace], list[str]]:
    """Return the traces of a file, and in words what is missing from it because a writer was killed.

    Raises:
        UsageError: It cannot be read, is none of these files, or is too big.
    """
    traces: dict[str, StoredTrace] = {}
    notes: list[str] = []
    num_spans = 0
    for number, line in _lines(path):
        where = f"{path}: line {number}"
        try:
            fields = json.loads(line)
        except (ValueError, RecursionError):
            if not line.startswith(_START):
                raise UsageError(f"{where}: expected JSON of a trace, found {_shorten(line)}") from None
            notes.append(f"{where} is cut short: its writer was stopped")
            continue
        try:
            num_spans += _read_line(fields, traces)
        except (KeyError, TypeError, ValueError) as error:
            raise UsageError(f"{where}: {_reason(error)}, in {_shorten(line)}") from None
        if num_spans > _MAX_SPANS:
            raise UsageError(f"{where}: expected {_MAX_SPANS:,} spans at most, found more")
    if not traces:
        raise UsageError(f"{path}: holds no trace", hint="write one with `treadle agent --trace FILE`")
    for trace in traces.values():
        notes += _complete(trace, path)
    return list(traces.values()), notes


def _is_cut(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            file.seek(-1, os.SEEK_END)
            return file.read() != b"\n"
    except OSError:  # there is none, or nothing in it
        return False


def _writable(value: AttributeValue) -> AttributeValue:
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    try:
        with path.open("rb") as file:
            number = 0
            while line := file.readline(_MAX_LINE_BYTES):
                number += 1
                if len(line) == _MAX_LINE_BYTES:
                    raise UsageError(f"{path}: line {number}: expected {_MAX_LINE_BYTES:,} bytes at most, found more")
                if line.strip():
                    yield number, line
    except OSError as error:
        raise UsageError(f"{path}: the trace cannot be read: {error.strerror}") from None


def _read_line(fields: Any, traces: dict[str, StoredTrace]) -> int:
    """Take in a line; returns how many spans it has."""
    kind, trace_id = _get(fields, "type", str), _get(fields, "trace", str)
    if kind == "trace":
        version = _get(fields, "version", int)
        if version != _VERSION:
            raise ValueError(f"expected version {_VERSION} of the format, found {version}")
        if trace_id in traces:
            raise ValueError("this trace began already")
        traces[trace_id] = StoredTrace(trace_id, _get(fields, "name", str), _number(fields, "began_at_ns"))
        return 0
    if trace_id not in traces:
        raise ValueError("this trace has not begun")
    trace = traces[trace_id]
    if kind == "span":
        trace.spans.append(_read_span(fields))
        return 1
    if kind != "end":
        raise ValueError(f"expected trace, span or end, found {kind!r:.40}")
    trace.num_dropped, trace.is_complete = _number(fields, "num_dropped"), True
    return 0


def _read_span(fields: dict[str, Any]) -> Span:
    kind = _get(fields, "kind", str)
    if kind not in KINDS:
        raise ValueError(f"expected a kind of span, found {kind!r:.40}")
    attributes = _get(fields, "attributes", dict)
    if not all(map(_is_attribute, attributes.values())):
        raise ValueError("expected attributes of text, numbers and true or false")
    parent = fields["parent"]
    span_id = _number(fields, "span")
    if parent is not None and not (type(parent) is int and 0 < parent < span_id):
        raise ValueError("expected a span of a lower number, or none, as the parent")
    span = Span(kind, _get(fields, "name", str), attributes, span_id=span_id, parent_id=parent)
    span.start_ns, span.end_ns = _number(fields, "start_ns"), _number(fields, "end_ns")
    if span.end_ns < span.start_ns:
        raise ValueError("expected an end after the start")
    seconds = fields["cpu_seconds"]
    if seconds is not None:
        if type(seconds) not in (int, float) or not 0 <= seconds < math.inf:
            raise ValueError("expected cpu_seconds to be a number of at least 0, or none")
        span.cpu_seconds = float(seconds)
    return span


def _is_attribute(value: Any) -> bool:
    return math.isfinite(value) if isinstance(value, float) else isinstance(value, str | bool | int)


def _get(fields: Any, name: str, kind: type) -> Any:
    value = fields[name]
    if type(value) is not kind:
        raise ValueError(f"expected {name} to be of type {kind.__name__}")
    return value


def _number(fields: dict[str, Any], name: str) -> int:
    value = _get(fields, name, int)
    if not -_MAX_NS < value < _MAX_NS:
        raise ValueError(f"expected {name} to be less than {_MAX_NS}")
    return int(value)


def _complete(trace: StoredTrace, path: Path) -> list[str]:
    """Give the spans that have lost their parent the task for one, and a task that did not end an end."""
    roots = [span for span in trace.spans if span.kind == "task" and span.parent_id is None]
    if len({span.span_id for span in trace.spans}) < len(trace.spans) or len(roots) > 1:
        raise UsageError(f"{path}: trace {trace.trace_id!r:.40} has two spans of one number")
    others = [span for span in trace.spans if span not in roots]
    if roots:
        [root] = roots
    else:
        root = Span("task", trace.name, {}, span_id=0)
        root.start_ns = min((span.start_ns for span in others), default=0)
        root.end_ns = max((span.end_ns for span in others), default=root.start_ns)
    known = {span.span_id for span in trace.spans}
    for span in others:
        if span.parent_id not in known:
            span.parent_id = root.span_id
    trace.spans = [*others, root]
    if trace.is_complete:
        return []
    name = trace.name if len(trace.name) <= 60 else trace.name[:59] + "…"
    return [f"{path}: the task {name!r} did not end; what it did last is missing"]


def _shorten(line: bytes) -> str:
    text = line.decode(errors="replace").strip()
    return repr(text if len(text) <= 80 else text[:79] + "…")


def _reason(error: Exception) -> str:
    if isinstance(error, KeyError):
        return f"expected a field {error}"
    return str(error) if isinstance(error, ValueError) else "expected an object"
