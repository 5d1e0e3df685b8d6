"""What an operator sees of a running server: request ids, logs, metrics, and that nothing works for clients that left."""

from __future__ import annotations

import hashlib
import json
import logging
import random
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from test_structured import WEATHER

from patience import PATIENCE_SECONDS
from running_server import MODEL, RunningServer, access_log
from treadle.engine.async_llm import AsyncLLM
from treadle.server.logs import _fields, _JsonFormatter, _TextFormatter
from treadle.server.record import RequestRecord
from treadle.server.settings import ServerSettings

pytestmark = pytest.mark.model

SHORT = {"messages": [{"role": "user", "content": "Name the capital of Japan."}], "temperature": 0, "max_tokens": 8}
LONG = {"prompt": "and then " * 300, "max_tokens": 600, "ignore_eos": True}
SECRET = "xyzzy-plugh"


@pytest.fixture
def server(native_server: RunningServer) -> RunningServer:
    """What is counted here are the steps and blocks of the core, once clients of earlier tests are gone."""
    wait_until_idle(native_server)
    return native_server


def metrics(http: httpx.Client) -> dict[str, float]:
    """Every sample as `name{label=value}`, the buckets of histograms left out."""
    text = http.get("/metrics").text
    return {
        sample.name + "".join(f"{{{key}={value}}}" for key, value in sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if not sample.name.endswith("_bucket")
    }


def wait_until_idle(server: RunningServer) -> None:
    engine = server.hub.default.engine
    assert engine is not None
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        counters = engine.stats().scheduler
        if not any((*(pool.num_used for pool in counters.pools), counters.num_running, counters.num_waiting)):
            return
        assert time.monotonic() < deadline, counters
        threading.Event().wait(0.005)


def leave(
    server: RunningServer,
    body: dict[str, object],
    after: float,
    path: str = "/v1/completions",
    *,
    request_id: str = "leaving",
    until: Callable[[], bool] = lambda: False,
) -> None:
    """Ask and close the connection after so many seconds, or once something is so."""
    data = json.dumps(body).encode()
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as connection:
        head = f"POST {path} HTTP/1.1\r\nHost: {host}\r\nX-Request-Id: {request_id}\r\n"
        head += f"Content-Length: {len(data)}\r\n\r\n"
        connection.sendall(head.encode() + data)
        connection.settimeout(0.005)
        deadline = time.monotonic() + after
        while time.monotonic() < deadline and not until():
            try:
                if not connection.recv(65536):
                    return
            except TimeoutError:
                continue


def test_a_request_keeps_its_id_or_gets_one(http: httpx.Client) -> None:
    assert http.get("/health", headers={"x-request-id": "mine-1.a:b"}).headers["x-request-id"] == "mine-1.a:b"
    for odd in ("a b", "x" * 129, "a\tb", "<script>"):
        made = http.get("/health", headers={"x-request-id": odd}).headers["x-request-id"]
        assert len(made) == 32
    assert http.post("/nowhere").headers["x-request-id"]


def test_the_log_names_the_address_of_a_client_and_nothing_else_for_it(
    http: httpx.Client, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, logger="treadle.server.access"):
        for index, given in enumerate(
            ("", "203.0.113.7", "2001:db8::1", "::ffff:203.0.113.7", "a status=200", "x" * 5000)
        ):
            headers = {"x-request-id": f"from-{index}"} | ({"x-forwarded-for": given} if given else {})
            assert http.post("/v1/completions", json={}, headers=headers).status_code == 400
        found = [access_log(caplog, f"from-{index}").fields.get("client") for index in range(6)]  # type: ignore[attr-defined]
    assert found == ["127.0.0.1", "203.0.113.7", "2001:db8::1", "203.0.113.7", None, None]


@pytest.mark.parametrize("formatter", [_JsonFormatter(), _TextFormatter()])
def test_what_is_logged_stays_one_line_whatever_it_holds(formatter: logging.Formatter) -> None:
    record = logging.LogRecord("treadle", logging.INFO, "", 0, "no model %s", ("a\nINFO b\x1b[2J\u2028c",), None)
    line = formatter.format(record)
    assert line.isprintable()
    assert "no model a" in line


def test_a_request_with_a_key_is_told_by_a_part_of_its_digest() -> None:
    key = hashlib.sha256(b"some key").hexdigest()
    fields = _fields(RequestRecord("id", "GET", "/", key_id=key))
    assert fields["key"] == key[:8]
    assert "key" not in _fields(RequestRecord("id", "GET", "/"))


def test_latencies_and_tokens_are_counted_under_the_known_names(http: httpx.Client) -> None:
    before = metrics(http)
    usage = http.post("/v1/chat/completions", json=SHORT).json()["usage"]
    after = metrics(http)

    def growth(name: str, **labels: str) -> float:
        labels |= {"model_name": MODEL, **({"engine": "0"} if name.startswith("vllm:") else {})}
        key = name + "".join(f"{{{key}={value}}}" for key, value in sorted(labels.items()))
        return after[key] - before[key]

    assert growth("vllm:request_success_total", finished_reason="stop") == 1
    assert growth("vllm:prompt_tokens_total") == usage["prompt_tokens"]
    assert growth("vllm:generation_tokens_total") == usage["completion_tokens"]
    assert growth("vllm:prefix_cache_queries_total") == usage["prompt_tokens"]
    assert growth("vllm:prefix_cache_hits_total") == usage["prompt_tokens_details"]["cached_tokens"]
    assert growth("vllm:inter_token_latency_seconds_count") == usage["completion_tokens"] - 1
    for name in ("time_to_first_token", "e2e_request_latency", "request_queue_time", "request_prefill_time"):
        assert growth(f"vllm:{name}_seconds_count") == 1
    parts = sum(growth(f"vllm:request_{part}_time_seconds_sum") for part in ("queue", "prefill", "decode"))
    assert 0 < parts <= growth("vllm:e2e_request_latency_seconds_sum")
    assert growth("vllm:num_requests_running") == growth("vllm:num_requests_waiting") == 0
    assert growth("treadle:step_native_seconds_total") <= growth("treadle:step_seconds_total")
    assert growth("treadle:weight_bytes_read_total") > growth("treadle:kv_bytes_read_total") > 0
    assert after[f"treadle:cached_tokens{{model_name={MODEL}}}{{tier=pool}}"] > 0
    assert after["treadle:resident_memory_bytes"] > 0
    assert after["treadle:http_requests_in_progress"] == after["treadle:http_requests_queued"] == 0


@pytest.mark.slow
def test_the_share_of_the_limit_is_told_once_the_server_was_idle(server: RunningServer, http: httpx.Client) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while "treadle:bandwidth_limit_bytes_per_second" not in (found := metrics(http)):
        assert time.monotonic() < deadline
        threading.Event().wait(0.1)
    http.post("/v1/completions", json={**LONG, "max_tokens": 100})
    found = metrics(http)
    # How much of it is used, and how much was found to be there, depends on what else the machine does.
    assert 0 < found[f"treadle:bandwidth_share{{model_name={MODEL}}}"] < 100
    if "treadle:int8_limit_ops_per_second" in found:
        assert 0 < found[f"treadle:int8_share{{model_name={MODEL}}}"] < 100


def test_who_asks_for_no_route_is_told_where_they_are(http: httpx.Client) -> None:
    lost = http.post("/chat/completions", json=SHORT)
    assert lost.status_code == 404
    assert lost.json()["error"]["message"].startswith("POST '/chat/completions': there is no such route")
    wrong = http.put("/v1/models")
    assert (wrong.status_code, wrong.headers["allow"]) == (405, "GET")
    assert wrong.json()["error"]["message"] == "PUT '/v1/models': expected GET"


def test_labels_hold_nothing_that_clients_choose(http: httpx.Client) -> None:
    http.get(f"/{SECRET}")
    http.request(SECRET.upper(), f"/v1/models/{SECRET}")
    http.get(f"/v1/models/{SECRET}")
    http.post("/v1/chat/completions", json={**SHORT, "model": SECRET})
    assert SECRET not in http.get("/metrics").text.lower()


@pytest.mark.parametrize("formatter", [_JsonFormatter(), _TextFormatter()])
def test_the_log_has_one_line_for_a_request_and_no_prompt(
    http: httpx.Client, caplog: pytest.LogCaptureFixture, formatter: logging.Formatter
) -> None:
    body = {**SHORT, "messages": [{"role": "user", "content": f"Say {SECRET}."}]}
    with caplog.at_level(logging.INFO, logger="treadle.server.access"):
        assert http.post("/v1/chat/completions", json=body, headers={"x-request-id": "r-1"}).status_code == 200
        http.get("/health")
        line = formatter.format(access_log(caplog, "r-1"))
    logged = [record.fields for record in caplog.records if hasattr(record, "fields")]
    assert [fields["route"] for fields in logged if fields["id"] == "r-1"] == ["/v1/chat/completions"]
    assert "/health" not in [fields["route"] for fields in logged]
    assert SECRET not in line
    assert "\n" not in line
    if isinstance(formatter, _JsonFormatter):
        entry = json.loads(line)
        assert (entry["id"], entry["route"], entry["status"]) == ("r-1", "/v1/chat/completions", 200)
        assert (entry["model"], entry["answer_tokens"], entry["finish"]) == (MODEL, 8, "length")
    else:
        assert "id=r-1 method=POST route=/v1/chat/completions status=200" in line


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("after", [0.0, 0.02, 0.3], ids=["queue", "prefill", "decode"])
def test_nothing_works_for_a_client_that_left(
    server: RunningServer, http: httpx.Client, stream: bool, after: float
) -> None:
    name = f"vllm:request_success_total{{engine=0}}{{finished_reason=length}}{{model_name={MODEL}}}"
    before = metrics(http)[name]
    leave(server, {**LONG, "stream": stream}, after)
    wait_until_idle(server)
    assert metrics(http)[name] == before  # it did not run to its end


@pytest.mark.parametrize("stream", [True, False])
def test_the_log_says_where_the_time_of_a_client_that_left_went(
    server: RunningServer, caplog: pytest.LogCaptureFixture, stream: bool
) -> None:
    engine = server.hub.default.engine
    assert engine is not None
    wait_until_idle(server)
    known = engine.stats().scheduler.num_answer_tokens_computed
    with caplog.at_level(logging.INFO, logger="treadle.server.access"):
        leave(
            server,
            {**LONG, "stream": stream},
            PATIENCE_SECONDS,
            request_id="left",
            until=lambda: engine.stats().scheduler.num_answer_tokens_computed > known,
        )
        fields = access_log(caplog, "left").fields  # type: ignore[attr-defined]
    assert (fields["status"], fields["finish"]) == (499, "abort")
    assert 0 < fields["prefill"] + fields["decode"] <= fields["seconds"]


def test_an_answer_that_ends_with_its_only_call_is_no_abort(http: httpx.Client) -> None:
    def finished(reason: str) -> float:
        return metrics(http)[
            f"vllm:request_success_total{{engine=0}}{{finished_reason={reason}}}{{model_name={MODEL}}}"
        ]

    before = finished("abort"), finished("stop"), finished("length")
    fields = {"tools": [WEATHER], "tool_choice": "required", "parallel_tool_calls": False, "max_tokens": 200}
    [choice] = http.post("/v1/chat/completions", json={**SHORT, **fields}).json()["choices"]
    assert (choice["finish_reason"], len(choice["message"]["tool_calls"])) == ("tool_calls", 1)
    assert (finished("abort"), finished("stop"), finished("length")) == (before[0], before[1] + 1, before[2])


def test_clients_that_leave_the_queue_leave_it_at_once(server: RunningServer, http: httpx.Client) -> None:
    with ThreadPoolExecutor(40) as executor:
        for _ in range(40):
            executor.submit(leave, server, LONG, 0.05)
    assert http.post("/v1/chat/completions", json=SHORT).status_code == 200
    wait_until_idle(server)


def test_a_full_queue_is_told_with_429(smollm2_path: Path) -> None:
    running = RunningServer(smollm2_path, ServerSettings(max_queued=1, api_keys=("k",)))
    try:
        engine = running.hub.default.engine
        assert isinstance(engine, AsyncLLM) and engine.cores is not None
        with (
            httpx.Client(base_url=running.url, timeout=PATIENCE_SECONDS, headers={"x-api-key": "k"}) as client,
            ThreadPoolExecutor(1) as executor,
        ):
            engine.cores.hold(PATIENCE_SECONDS)
            try:
                waiting = executor.submit(client.post, "/v1/chat/completions", json=SHORT)
                while not metrics(client)["treadle:http_requests_queued"]:
                    assert not waiting.done()
                refused = client.post("/v1/chat/completions", json=SHORT)
            finally:
                engine.cores.hold(0)
            assert (waiting.result().status_code, refused.status_code) == (200, 429)
            assert refused.json()["error"]["code"] == "queue_full"
            assert 1 <= int(refused.headers["retry-after"]) <= 60
            assert client.get("/health").status_code == 200
            assert client.get("/metrics", headers={"x-api-key": "no"}).status_code == 401
    finally:
        running.close()


def test_an_answer_that_takes_too_long_ends_with_504_and_a_stream_with_an_error(smollm2_path: Path) -> None:
    running = RunningServer(smollm2_path, ServerSettings(request_timeout=0.5))
    try:
        with httpx.Client(base_url=running.url, timeout=PATIENCE_SECONDS) as client:
            for path, body in (
                ("/v1/completions", LONG),
                ("/v1/chat/completions", {**SHORT, "max_tokens": 900, "logit_bias": {"2": -100}}),
            ):
                response = client.post(path, json=body)
                assert (response.status_code, response.json()["error"]["code"]) == (504, "timeout")
            for _ in range(100):
                with client.stream("POST", "/v1/completions", json={**LONG, "prompt": "and", "stream": True}) as stream:
                    last = [line for line in stream.iter_lines() if line][-1]
                if stream.status_code != 504:  # as where the machine is too busy to begin in time
                    break
            assert stream.status_code == 200
            assert json.loads(last.removeprefix("data: "))["error"]["code"] == "timeout"
            wait_until_idle(running)
            assert (
                metrics(client)[
                    f"vllm:request_success_total{{engine=0}}{{finished_reason=error}}{{model_name={MODEL}}}"
                ]
                >= 3
            )
    finally:
        running.close()


@pytest.mark.slow
def test_256_clients_at_once(server: RunningServer) -> None:
    def ask(client: httpx.Client) -> set[int]:
        return {client.post("/v1/chat/completions", json=SHORT).status_code for _ in range(2)}

    limits = httpx.Limits(max_connections=256)
    with (
        httpx.Client(base_url=server.url, timeout=PATIENCE_SECONDS, limits=limits) as client,
        ThreadPoolExecutor(256) as executor,
    ):
        codes = set().union(*executor.map(ask, [client] * 256))
    assert 200 in codes and codes <= {200, 429, 503}
    wait_until_idle(server)


@pytest.mark.slow
def test_1000_clients_that_leave_at_random(server: RunningServer) -> None:
    rng = random.Random(7)
    delays = [rng.choice([0, 0.01, 0.1, 0.5]) * rng.random() for _ in range(1000)]
    with ThreadPoolExecutor(32) as executor:
        list(
            executor.map(lambda pair: leave(server, {**LONG, "stream": bool(pair[0] % 2)}, pair[1]), enumerate(delays))
        )
    wait_until_idle(server)
