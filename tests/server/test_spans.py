"""Traces: the spans of requests and their phases, whose they are, what is in them, and that a collector gets them."""

from __future__ import annotations

import builtins
import gzip
import logging
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from patience import PATIENCE_SECONDS
from running_server import MODEL, RunningServer
from treadle.errors import UsageError
from treadle.server.record import RequestRecord
from treadle.server.settings import ServerSettings
from treadle.server.spans import Spans, open_spans

SECRET = "xyzzy-plugh"
CHAT = {"messages": [{"role": "user", "content": f"Say {SECRET}."}], "max_tokens": 4, "temperature": 0}
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Traced:
    """A server whose spans are kept in memory."""

    def __init__(self, path: Path) -> None:
        self.exporter = InMemorySpanExporter()
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.server = RunningServer(path, ServerSettings(), spans=Spans(provider))

    def ask(self, path: str, body: dict[str, Any], **headers: str) -> tuple[httpx.Response, list[ReadableSpan]]:
        """The response and the spans, the request's own last."""
        self.exporter.clear()
        response = httpx.post(f"{self.server.url}{path}", json=body, headers=headers, timeout=PATIENCE_SECONDS)
        # Spans are made when the response is sent already, but before the server turns to what comes next.
        httpx.get(f"{self.server.url}/health", timeout=PATIENCE_SECONDS)
        return response, list(self.exporter.get_finished_spans())


@pytest.fixture(scope="module")
def traced(smollm2_path: Path) -> Iterator[Traced]:
    traced = Traced(smollm2_path)
    yield traced
    traced.server.close()


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_SDK_DISABLED"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.model
def test_a_request_has_a_span_with_its_phases_and_none_of_its_text(traced: Traced) -> None:
    response, spans = traced.ask("/v1/chat/completions", CHAT, **{"x-request-id": "r-1"})
    usage = response.json()["usage"]
    *phases, request = spans
    assert [span.name for span in spans] == ["queue", "prefill", "decode", f"chat {MODEL}"]
    assert request.kind == SpanKind.SERVER
    assert dict(request.attributes or {}) == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "treadle",
        "gen_ai.request.model": MODEL,
        "gen_ai.response.model": MODEL,
        "gen_ai.request.choice.count": 1,
        "gen_ai.response.finish_reasons": ("length",),
        "gen_ai.usage.input_tokens": usage["prompt_tokens"],
        "gen_ai.usage.cache_read.input_tokens": 0,
        "gen_ai.usage.output_tokens": 4,
        "gen_ai.response.time_to_first_chunk": request.attributes["gen_ai.response.time_to_first_chunk"],  # type: ignore[index]
        "http.request.method": "POST",
        "http.route": "/v1/chat/completions",
        "http.response.status_code": 200,
        "treadle.request.id": "r-1",
    }
    own = request.context
    assert own is not None and request.parent is None
    assert all(span.parent is not None and span.parent.span_id == own.span_id for span in phases)
    times = [request.start_time, *(time for span in phases for time in (span.start_time, span.end_time))]
    times.append(request.end_time)
    assert times == sorted(times)  # type: ignore[type-var]
    assert SECRET not in "".join(span.to_json() for span in spans)


@pytest.mark.model
def test_a_request_belongs_to_the_trace_of_its_client(traced: Traced) -> None:
    _, spans = traced.ask("/v1/completions", {"prompt": "Once", "max_tokens": 2}, traceparent=PARENT, tracestate="a=b")
    request = spans[-1]
    assert request.name == f"text_completion {MODEL}"
    assert request.parent is not None and request.context is not None
    assert (f"{request.parent.trace_id:032x}", f"{request.parent.span_id:016x}") == tuple(PARENT.split("-")[1:3])
    assert {span.context.trace_id for span in spans if span.context} == {request.parent.trace_id}
    assert request.context.trace_state.get("a") == "b"
    _, spans = traced.ask("/v1/completions", {"prompt": "Once", "max_tokens": 2}, traceparent="nonsense")
    assert spans[-1].parent is None


@pytest.mark.model
def test_a_client_may_say_that_its_trace_is_not_recorded(traced: Traced) -> None:
    _, spans = traced.ask("/v1/completions", {"prompt": "Once", "max_tokens": 2}, traceparent=PARENT[:-1] + "0")
    assert spans == []


@pytest.mark.model
def test_each_answer_has_phases_of_its_own(traced: Traced) -> None:
    _, spans = traced.ask("/v1/completions", {"prompt": "Once", "max_tokens": 2, "n": 3})
    assert (spans[-1].attributes or {})["gen_ai.request.choice.count"] == 3
    indexes = [(span.attributes or {})["treadle.answer.index"] for span in spans if span.name == "decode"]
    assert sorted(map(str, indexes)) == ["0", "1", "2"]


@pytest.mark.model
def test_what_no_model_heard_of_has_no_span(traced: Traced) -> None:
    assert traced.ask("/v1/completions", {"prompt": 5})[1] == []
    traced.exporter.clear()
    httpx.get(f"{traced.server.url}/v1/models", timeout=PATIENCE_SECONDS)
    assert traced.exporter.get_finished_spans() == ()


@pytest.mark.parametrize(("status", "code"), [(504, "timeout"), (500, None), (499, None)])
def test_a_failure_says_what_it_was(status: int, code: str | None) -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    spans = Spans(provider)
    spans.report(RequestRecord("r", "POST", "/v1/messages", route="/v1/messages", status=status, code=code, model="m"))
    spans.close()
    [span] = exporter.get_finished_spans()
    assert (span.attributes or {})["error.type"] == (code or str(status))
    assert (span.status.status_code == StatusCode.ERROR) == (status >= 500)


class Collector(BaseHTTPRequestHandler):
    """Takes traces as an OTLP collector does."""

    received: list[tuple[str, bytes]]
    has_some: threading.Event

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        if self.headers.get("content-encoding") == "gzip":
            body = gzip.decompress(body)
        self.received.append((self.path, body))
        self.has_some.set()
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def collector() -> Iterator[tuple[str, list[tuple[str, bytes]]]]:
    received: list[tuple[str, bytes]] = []
    handler = type("Handler", (Collector,), {"received": received, "has_some": threading.Event()})
    with HTTPServer(("127.0.0.1", 0), handler) as server, ThreadPoolExecutor(1) as executor:
        executor.submit(server.serve_forever)
        yield f"http://127.0.0.1:{server.server_port}", received
        server.shutdown()


@pytest.mark.parametrize("way", ["argument", "variable"])
def test_a_collector_gets_the_spans(
    collector: tuple[str, list[tuple[str, bytes]]], monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    url, received = collector
    monkeypatch.setattr("treadle.server.spans._CLOSE_MILLISECONDS", 1000 * PATIENCE_SECONDS)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", str(PATIENCE_SECONDS))
    if way == "variable":
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
        monkeypatch.setenv("OTEL_SERVICE_NAME", "mine")
    spans = open_spans(url + "/" if way == "argument" else None)
    assert spans is not None
    spans.report(RequestRecord("r", "POST", "/v1/completions", route="/v1/completions", status=200, model="m"))
    spans.close()
    [(path, body)] = received
    assert path == "/v1/traces"
    [resource] = ExportTraceServiceRequest.FromString(body).resource_spans
    names = {each.key: each.value.string_value for each in resource.resource.attributes}
    assert names["service.name"] == ("mine" if way == "variable" else "treadle")
    assert [span.name for span in resource.scope_spans[0].spans] == ["text_completion m"]


def test_without_a_collector_there_are_no_spans(monkeypatch: pytest.MonkeyPatch) -> None:
    assert open_spans(None) is None
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    assert open_spans("http://127.0.0.1:1") is None


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    real = builtins.__import__

    def without(name: str, *args: Any) -> Any:
        if name.startswith("opentelemetry"):
            raise ModuleNotFoundError(f"No module named {name!r}")
        return real(name, *args)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(UsageError, match=r"not installed .*opentelemetry.*") as caught:
        open_spans("http://127.0.0.1:4318")
    assert caught.value.hint == "pip install 'treadle[otel]'"
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:4318")
    with caplog.at_level(logging.WARNING, logger="treadle.server"):
        assert open_spans(None) is None
    assert "OTEL_EXPORTER_OTLP_* is set, but" in caplog.text


@pytest.mark.parametrize("endpoint", ["localhost:4318", "grpc://host:4317", ""])
def test_an_endpoint_that_is_no_address_is_refused(endpoint: str) -> None:
    with pytest.raises(UsageError, match="otel_endpoint: expected http"):
        ServerSettings(otel_endpoint=endpoint)
