"""Traces on their way to an OpenTelemetry collector: names, attributes, times, and what stays here."""

from __future__ import annotations

import builtins
import gzip
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from command import treadle
from made_traces import MS, add, agent_trace, new_trace
from patience import PATIENCE_SECONDS
from treadle.agents.trace import otel
from treadle.agents.trace.otel import TraceExporter
from treadle.errors import RemoteError, UsageError

pytest.importorskip("opentelemetry.sdk", reason="needs the extra otel")
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span as ProtoSpan

SECRET = "a word nobody else would say: zyzzyva"


class Collector:
    """Takes traces as an OTLP collector does, or refuses them with another status."""

    def __init__(self) -> None:
        self.status = 200
        self.bodies: list[bytes] = []
        self.url = ""

    @property
    def spans(self) -> list[ProtoSpan]:
        requests = [ExportTraceServiceRequest.FromString(body) for body in self.bodies]
        return [
            span
            for request in requests
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    found = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            is_packed = self.headers.get("content-encoding") == "gzip"
            assert self.path == "/v1/traces"
            found.bodies.append(gzip.decompress(body) if is_packed else body)
            self.send_response(found.status)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    monkeypatch.setattr(otel, "_TIMEOUT_SECONDS", PATIENCE_SECONDS)
    with HTTPServer(("127.0.0.1", 0), Handler) as server, ThreadPoolExecutor(1) as executor:
        executor.submit(server.serve_forever)
        found.url = f"http://127.0.0.1:{server.server_port}"
        yield found
        server.shutdown()


def attributes_of(span: ProtoSpan) -> dict[str, Any]:
    found = {}
    for each in span.attributes:
        kind = each.value.WhichOneof("value")
        value = getattr(each.value, kind)
        found[each.key] = [item.string_value for item in value.values] if kind == "array_value" else value
    return found


def test_a_task_arrives_under_the_conventions(collector: Collector) -> None:
    trace = agent_trace(SECRET)
    trace.began_at_ns = 1_700_000_000_000_000_000
    for span in trace.spans:
        if span.kind == "model":
            span.attributes.update(finish_reason="stop", is_remote=True)
        if span.kind == "tool":
            span.attributes.update(call_id="call_1", arguments=SECRET, result_chars=7)
    with TraceExporter(collector.url + "/") as exporter:
        exporter.export(trace)
    by_id = {span.span_id: span for span in collector.spans}
    names = [span.name for span in collector.spans]
    assert len(by_id) == len(trace.spans) == 17 and len({span.trace_id for span in collector.spans}) == 1
    assert {"invoke_agent treadle", "chat m", "execute_tool fetch", "execute_tool run_python", "queue"} <= set(names)

    [root] = [span for span in collector.spans if not span.parent_span_id]
    assert root.name == "invoke_agent treadle"
    assert root.start_time_unix_nano == trace.began_at_ns
    assert root.end_time_unix_nano == trace.began_at_ns + 2000 * MS
    assert attributes_of(root)["gen_ai.operation.name"] == "invoke_agent"
    chat = next(span for span in collector.spans if span.name == "chat m")
    assert chat.kind == ProtoSpan.SPAN_KIND_CLIENT
    assert (
        attributes_of(chat).items()
        >= {
            "gen_ai.operation.name": "chat",
            "gen_ai.request.model": "m",
            "gen_ai.usage.input_tokens": 100,
            "gen_ai.usage.cache_read.input_tokens": 60,
            "gen_ai.usage.output_tokens": 20,
            "gen_ai.response.finish_reasons": ["stop"],
        }.items()
    )
    assert by_id[chat.parent_span_id].name == "turn"
    tool = next(span for span in collector.spans if span.name == "execute_tool fetch")
    assert tool.status.code == tool.status.STATUS_CODE_ERROR and tool.kind == ProtoSpan.SPAN_KIND_INTERNAL
    assert attributes_of(tool) == {
        "treadle.span.kind": "tool",
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "fetch",
        "gen_ai.tool.type": "function",
        "gen_ai.tool.call.id": "call_1",
        "error.type": "ToolError",
        "treadle.result_chars": 7,
    }
    sandbox = next(span for span in collector.spans if span.name == "sandbox")
    assert attributes_of(sandbox) == {"treadle.span.kind": "sandbox", "treadle.cpu_seconds": 0.9}
    assert SECRET.encode() not in b"".join(collector.bodies)


def test_the_same_trace_has_the_same_ids_again(collector: Collector) -> None:
    trace = agent_trace()
    with TraceExporter(collector.url) as exporter:
        exporter.export(trace)
        exporter.export(trace)
        exporter.export(agent_trace())
    half = len(trace.spans)
    first, second, other = (collector.spans[half * index : half * (index + 1)] for index in range(3))
    assert [(span.trace_id, span.span_id) for span in first] == [(span.trace_id, span.span_id) for span in second]
    assert not {span.trace_id for span in first} & {span.trace_id for span in other}


def test_long_traces_go_in_parts(collector: Collector) -> None:
    trace = new_trace(2000)
    for index in range(1500):
        add(trace, "tool", index, index + 1)
    with TraceExporter(collector.url) as exporter:
        exporter.export(trace)
    assert len(collector.bodies) == 3 and len(collector.spans) == 1501


def test_a_collector_that_refuses_is_an_error(collector: Collector) -> None:
    collector.status = 400
    with (
        TraceExporter(collector.url) as exporter,
        pytest.raises(RemoteError, match="did not take the trace of 'task': "),
    ):
        exporter.export(new_trace(5))


def test_the_command_sends_files(collector: Collector, tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    agent_trace().write(path)
    new_trace(5).write(path)
    result = treadle("trace", path, "--otel-endpoint", collector.url, OTEL_SERVICE_NAME="mine")
    assert (result.code, result.out, result.err) == (0, "", f"sent 2 traces to {collector.url}\n")
    [first, _] = [ExportTraceServiceRequest.FromString(body) for body in collector.bodies]
    names = {each.key: each.value.string_value for each in first.resource_spans[0].resource.attributes}
    assert names["service.name"] == "mine"
    collector.status = 401
    result = treadle("trace", path, "--otel-endpoint", collector.url)
    assert result.code == 1 and len(result.err.splitlines()) == 1
    assert result.err.startswith(f"error: the collector at {collector.url} did not take the trace of 'task': ")


@pytest.mark.parametrize("endpoint", ["localhost:4318", "grpc://host:4317", ""])
def test_an_endpoint_that_is_no_address_is_refused(endpoint: str) -> None:
    with pytest.raises(UsageError, match="otel_endpoint: expected http"):
        TraceExporter(endpoint)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *args: Any) -> Any:
        if name.startswith("opentelemetry"):
            raise ModuleNotFoundError(f"No module named {name!r}")
        return real(name, *args)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(UsageError, match=r"not installed .*opentelemetry.*") as caught:
        TraceExporter("http://127.0.0.1:4318")
    assert caught.value.hint == "pip install 'treadle[otel]'"


def test_exporters_leave_nothing_behind(collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[threading.Thread] = []
    start = threading.Thread.start

    def note_and_start(thread: threading.Thread) -> None:
        if threading.current_thread() is threading.main_thread():  # others begin threads of their own meanwhile
            begun.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", note_and_start)
    handlers = list(otel._EXPORTER_LOG.handlers)
    for _ in range(3):
        with TraceExporter(collector.url) as exporter:
            exporter.export(new_trace(5))
    assert not any(thread.is_alive() for thread in begun)
    assert otel._EXPORTER_LOG.handlers == handlers
