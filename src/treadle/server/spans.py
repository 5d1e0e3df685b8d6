"""Traces of requests for OpenTelemetry: one span for each that a model answers, with its phases, and none of its text.

Leaves to others: noting what became of a request (``server.watch``). Needs the extra ``treadle[otel]``.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from treadle.errors import UsageError

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import TracerProvider

    from treadle.server.record import AnswerPhases, RequestRecord

__all__ = ["Spans", "open_spans"]

_log = logging.getLogger("treadle.server")
# Any of these says that traces are wanted; the exporter reads the others of OTEL_* by itself.
_ENDPOINT_VARIABLES = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
_CLOSE_MILLISECONDS = 3000
# https://opentelemetry.io/docs/specs/semconv/gen-ai/
_OPERATIONS = {
    "/v1/completions": "text_completion",
    "/v1/embeddings": "embeddings",
    **dict.fromkeys(("/v1/rerank", "/v2/rerank", "/rerank"), "rerank"),
}
_CHAT = "chat"
_NS = 1_000_000_000


def open_spans(endpoint: str | None) -> Spans | None:
    """Return what sends traces to an OTLP collector over HTTP; None if neither argument nor environment names one.

    Args:
        endpoint: The collector's base address, such as http://localhost:4318; wins over ``OTEL_EXPORTER_OTLP_*``.

    Raises:
        UsageError: ``endpoint`` is given and the extra is not installed.
    """
    is_disabled = os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"
    if is_disabled or (endpoint is None and not any(os.environ.get(name) for name in _ENDPOINT_VARIABLES)):
        return None
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415  an extra
        from opentelemetry.sdk.resources import Resource  # noqa: PLC0415
        from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
        from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415
    except ImportError as error:
        missing = UsageError(
            f"traces for OpenTelemetry need a package that is not installed ({error})",
            hint="pip install 'treadle[otel]'",
        )
        if endpoint is not None:
            raise missing from None
        _log.warning("OTEL_EXPORTER_OTLP_* is set, but %s", missing)
        return None
    named = {} if os.environ.get("OTEL_SERVICE_NAME") else {"service.name": "treadle"}
    provider = TracerProvider(resource=Resource.create(named))
    address = None if endpoint is None else f"{endpoint.rstrip('/')}/v1/traces"
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=address)))
    return Spans(provider)


class Spans:
    """Makes the spans of requests that have ended; the provider samples them and sends them in a thread of its own."""

    def __init__(self, provider: TracerProvider) -> None:
        from opentelemetry import trace  # noqa: PLC0415
        from opentelemetry.trace.propagation import tracecontext  # noqa: PLC0415

        self._provider = provider
        self._tracer = provider.get_tracer("treadle")
        self._trace = trace
        self._propagator = tracecontext.TraceContextTextMapPropagator()

    def report(self, record: RequestRecord) -> None:
        """Make the spans of a request that reached a model, below the span its ``traceparent`` names."""
        if record.model is None:
            return
        operation = _OPERATIONS.get(record.route, _CHAT)
        span = self._tracer.start_span(
            f"{operation} {record.model}",
            context=self._propagator.extract(record.trace_headers),
            kind=self._trace.SpanKind.SERVER,
            start_time=record.began_at_ns,
            attributes=_attributes(record, operation),
        )
        context = self._trace.set_span_in_context(span)
        for answer in record.answers:
            self._report_phases(context, record, answer)
        if record.status >= 500:
            span.set_status(self._trace.StatusCode.ERROR, record.code)
        span.end(end_time=record.began_at_ns + int(record.seconds * _NS))

    def close(self) -> None:
        """Send what is left, for a few seconds at most."""
        self._provider.force_flush(_CLOSE_MILLISECONDS)
        self._provider.shutdown()

    def _report_phases(self, context: Context, record: RequestRecord, answer: AnswerPhases) -> None:
        start = record.began_at_ns + int((answer.began - record.began) * _NS)
        timings = answer.timings
        attributes: Mapping[str, Any] = {"treadle.answer.index": answer.index}
        for name, seconds in (
            ("queue", timings.queued_seconds),
            ("prefill", timings.prefill_seconds),
            ("decode", timings.decode_seconds),
        ):
            end = start + int(seconds * _NS)
            self._tracer.start_span(name, context=context, start_time=start, attributes=attributes).end(end_time=end)
            start = end


def _attributes(record: RequestRecord, operation: str) -> dict[str, Any]:
    attributes: dict[str, Any] = {
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": "treadle",
        "gen_ai.request.model": record.model,
        "gen_ai.response.model": record.model,
        "gen_ai.request.choice.count": max(1, len(record.answers)),
        "gen_ai.response.finish_reasons": tuple(record.finish_reasons),
        "gen_ai.usage.input_tokens": record.prompt_tokens,
        "gen_ai.usage.cache_read.input_tokens": record.cached_tokens,
        "gen_ai.usage.output_tokens": record.answer_tokens,
        "http.request.method": record.method,
        "http.route": record.route,
        "http.response.status_code": record.status,
        "treadle.request.id": record.request_id,
    }
    if record.first_token_seconds is not None:
        attributes["gen_ai.response.time_to_first_chunk"] = record.first_token_seconds
    if record.status >= 400:
        attributes["error.type"] = record.code or str(record.status)
    return attributes
