"""Sends traces to an OpenTelemetry collector, under its conventions for agents, and without any of their text.

Leaves to others: recording them (``record``). Needs the extra ``treadle[otel]``.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from treadle.agents.trace.spans import AttributeValue, Span, SpanKind
from treadle.errors import RemoteError, UsageError

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.trace import SpanContext

    from treadle.agents.trace.record import Trace

__all__ = ["TraceExporter"]

_EXPORTER_LOG = logging.getLogger("opentelemetry.exporter.otlp.proto.http.trace_exporter")
_MAX_BATCH = 512
_TIMEOUT_SECONDS = 10.0
# https://opentelemetry.io/docs/specs/semconv/gen-ai/gen-ai-agent-spans/
_OPERATIONS: dict[SpanKind, str] = {"task": "invoke_agent", "model": "chat", "tool": "execute_tool"}
_NAMES = {
    "prompt_tokens": "gen_ai.usage.input_tokens",
    "cached_tokens": "gen_ai.usage.cache_read.input_tokens",
    "answer_tokens": "gen_ai.usage.output_tokens",
    "call_id": "gen_ai.tool.call.id",
    "error": "error.type",
}


class _Reasons(logging.Handler):
    """Keeps the first reason for which the exporter did not succeed; it tells it to its log only."""

    first: str | None = None

    def emit(self, record: logging.LogRecord) -> None:
        self.first = self.first or record.getMessage()


class TraceExporter:
    """Sends the traces of tasks that have ended to a collector, by OTLP over HTTP.

    A trace that is sent twice has the same ids both times. What a user, a model or a tool has said stays here: of text
    only the names of models and tools, ids of calls, and kinds of errors are sent.

    Args:
        endpoint: The collector's base address, such as http://localhost:4318; None for that of
            ``OTEL_EXPORTER_OTLP_*``, whose other variables (headers, certificates, ...) hold in any case.

    Raises:
        UsageError: The endpoint is no address, or the extra is not installed.
    """

    def __init__(self, endpoint: str | None = None) -> None:
        if endpoint is not None and urlsplit(endpoint).scheme not in ("http", "https"):
            raise UsageError(f"otel_endpoint: expected http://HOST:PORT or https://..., found {endpoint!r:.80}")
        try:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import (  # noqa: PLC0415  an extra
                OTLPSpanExporter,
            )
            from opentelemetry.sdk.resources import Resource  # noqa: PLC0415
        except ImportError as error:
            raise UsageError(
                f"traces for OpenTelemetry need a package that is not installed ({error})",
                hint="pip install 'treadle[otel]'",
            ) from None
        self._where = endpoint or "the address in OTEL_EXPORTER_OTLP_*"
        named = {} if os.environ.get("OTEL_SERVICE_NAME") else {"service.name": "treadle"}
        self._resource = Resource.create(named)
        address = None if endpoint is None else f"{endpoint.rstrip('/')}/v1/traces"
        self._exporter = OTLPSpanExporter(endpoint=address, timeout=_TIMEOUT_SECONDS)
        self._reasons = _Reasons()
        _EXPORTER_LOG.addHandler(self._reasons)

    def export(self, trace: Trace) -> None:
        """Send a trace, in this thread, which may take seconds.

        Raises:
            RemoteError: The collector cannot be reached, or does not take it.
        """
        from opentelemetry.sdk.trace.export import SpanExportResult  # noqa: PLC0415

        spans = list(self._convert(trace))
        for start in range(0, len(spans), _MAX_BATCH):
            if self._exporter.export(spans[start : start + _MAX_BATCH]) is not SpanExportResult.SUCCESS:
                raise RemoteError(
                    f"the collector at {self._where} did not take the trace of {trace.name!r:.60}: "
                    f"{self._reasons.first or 'it did not say why':.300}"
                )

    def close(self) -> None:
        """Close the connection; to be called once."""
        self._exporter.shutdown()  # type: ignore[no-untyped-call]
        _EXPORTER_LOG.removeHandler(self._reasons)

    def __enter__(self) -> TraceExporter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _convert(self, trace: Trace) -> Iterator[ReadableSpan]:
        from opentelemetry.sdk.trace import ReadableSpan  # noqa: PLC0415
        from opentelemetry.sdk.util.instrumentation import InstrumentationScope  # noqa: PLC0415
        from opentelemetry.trace import SpanKind as Kind  # noqa: PLC0415
        from opentelemetry.trace import Status, StatusCode  # noqa: PLC0415

        contexts = {span.span_id: _context(trace, span.span_id) for span in trace.spans}
        offset = trace.began_at_ns - trace.origin_ns
        for span in trace.spans:
            yield ReadableSpan(
                name=_name(span),
                context=contexts[span.span_id],
                parent=None if span.parent_id is None else contexts.get(span.parent_id),
                resource=self._resource,
                attributes=_attributes(span, trace),
                kind=Kind.CLIENT if span.attributes.get("is_remote") else Kind.INTERNAL,
                status=Status(StatusCode.ERROR) if span.has_failed else Status(),
                start_time=span.start_ns + offset,
                end_time=span.end_ns + offset,
                instrumentation_scope=InstrumentationScope("treadle"),
            )


def _context(trace: Trace, span_id: int) -> SpanContext:
    from opentelemetry.trace import SpanContext, TraceFlags  # noqa: PLC0415

    digest = hashlib.sha256(f"{trace.trace_id} {span_id}".encode(errors="replace")).digest()
    whole = hashlib.sha256(trace.trace_id.encode(errors="replace")).digest()
    return SpanContext(
        trace_id=int.from_bytes(whole[:16], "big"),
        span_id=int.from_bytes(digest[:8], "big"),
        is_remote=False,
        trace_flags=TraceFlags(TraceFlags.SAMPLED),
    )


def _name(span: Span) -> str:
    if span.kind == "task":
        return "invoke_agent treadle"
    operation = _OPERATIONS.get(span.kind)
    return span.kind if operation is None else f"{operation} {span.name}"


def _attributes(span: Span, trace: Trace) -> dict[str, AttributeValue | tuple[str]]:
    found: dict[str, AttributeValue | tuple[str]] = {"treadle.span.kind": span.kind}
    if span.cpu_seconds is not None:
        found["treadle.cpu_seconds"] = span.cpu_seconds
    if span.kind in _OPERATIONS:
        found["gen_ai.operation.name"] = _OPERATIONS[span.kind]
    if span.kind == "task":
        found |= {"gen_ai.agent.name": "treadle", "gen_ai.provider.name": "treadle", "treadle.trace.id": trace.trace_id}
        found["treadle.num_dropped_spans"] = trace.num_dropped
    elif span.kind == "model":
        found |= {"gen_ai.provider.name": "treadle", "gen_ai.request.model": span.name}
        if isinstance(reason := span.attributes.get("finish_reason"), str):
            found["gen_ai.response.finish_reasons"] = (reason,)
    elif span.kind == "tool":
        found |= {"gen_ai.tool.name": span.name, "gen_ai.tool.type": "function"}
    for name, value in span.attributes.items():
        if name in _NAMES:
            found[_NAMES[name]] = value
        elif not isinstance(value, str):
            found[f"treadle.{name}"] = value
    return found
