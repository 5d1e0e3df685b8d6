"""`treadle serve` as a process: how it starts, and how it ends when told to."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from command import environment, treadle

pytestmark = pytest.mark.model

BODY = {"prompt": "Once upon a time", "max_tokens": 200, "temperature": 0, "ignore_eos": True, "stream": True}


@contextmanager
def serving(path: Path, home: Path, *options: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    command = [sys.executable, "-m", "treadle", "serve", f"tiny={path}", "-p", "0", "--context", "1024", *options]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment(TREADLE_HOME=str(home)))
    try:
        assert process.stderr is not None
        while not (found := re.search(r"http://[\d.:]+", line := process.stderr.readline())):
            assert line, "the server ended before it was ready"
        yield process, found[0]
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stream_ends_in_peace_when_the_server_is_told_to_end(smollm2_path: Path, tmp_path: Path, number: int) -> None:
    with (
        serving(smollm2_path, tmp_path, "--log-json") as (process, url),
        httpx.Client(base_url=url, timeout=120) as http,
    ):
        with http.stream("POST", "/v1/completions", json=BODY) as response:
            lines = response.iter_lines()
            next(lines)
            os.kill(process.pid, number)
            # Until the stream has ended the server says why it takes nothing more.
            refused = [httpx.get(f"{url}/ready").status_code]
            rest = [line for line in lines if line]
        assert process.wait(60) == 0
        assert rest[-1] == "data: [DONE]"
        assert json.loads(rest[-2].removeprefix("data: "))["choices"][0]["finish_reason"] == "length"
        assert refused == [503]
        assert process.stderr is not None
        entries = [json.loads(line) for line in process.stderr.read().splitlines()]
        assert [entry["answer_tokens"] for entry in entries if entry.get("route") == "/v1/completions"] == [200]
    assert (tmp_path / "kv-cache").is_dir()


def test_a_prompt_is_known_after_the_server_was_killed(smollm2_path: Path, tmp_path: Path) -> None:
    known = {"prompt": "one two three four five six seven eight. " * 20, "max_tokens": 1, "temperature": 0}

    def ask(http: httpx.Client) -> tuple[str, int]:
        reply = http.post("/v1/completions", json=known).json()
        return reply["choices"][0]["text"], reply["usage"]["prompt_tokens_details"]["cached_tokens"]

    with serving(smollm2_path, tmp_path) as (process, url), httpx.Client(base_url=url, timeout=120) as http:
        text, _ = ask(http)
        # Blocks go to the disk between the steps of whatever follows.
        with http.stream("POST", "/v1/completions", json={**BODY, "max_tokens": 900}) as response:
            lines = response.iter_lines()
            while 'tier="disk"} 0.0' in http.get("/metrics").text:
                next(lines)
            process.kill()
            process.wait()
            response.close()
    verdict = treadle("cache", "verify", "--json", TREADLE_HOME=str(tmp_path))
    assert json.loads(verdict.out)["problems"] == []
    with serving(smollm2_path, tmp_path) as (_, url), httpx.Client(base_url=url, timeout=120) as http:
        again, num_cached = ask(http)
    assert again == text
    assert num_cached >= 128


def test_what_takes_too_long_is_cut_with_an_error(smollm2_path: Path, tmp_path: Path) -> None:
    options = ("--drain-timeout", "0.01", "--disk-cache", "0")
    with serving(smollm2_path, tmp_path, *options) as (process, url), httpx.Client(base_url=url, timeout=120) as http:
        with http.stream("POST", "/v1/completions", json={**BODY, "max_tokens": 1000}) as response:
            lines = response.iter_lines()
            next(lines)
            os.kill(process.pid, signal.SIGTERM)
            rest = [line for line in lines if line]
        assert "the model was closed before the answer ended" in rest[-1]
        assert process.wait(60) == 0
    assert not (tmp_path / "kv-cache").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--host", "0.0.0.0"), "there is no API key"),
        (("--tls-cert", "missing.pem", "--tls-key", "missing.pem"), "No such file"),
        (("--tls-cert", "missing.pem"), "both a certificate and a key"),
        (("--metric-prefix", "a b"), "metric_prefix"),
        (("--max-queued", "0"), "max_queued"),
        (("--max-num-requests", "0"), "max_num_requests"),
        (("--slowdown", "0.5"), "slowdown"),
        (("--max-body", "huge"), "--max-body"),
        (("--max-headers", "0"), "max_header_bytes"),
        (("--client-timeout", "0"), "client_timeout"),
        (("--max-stored", "-1"), "--max-stored"),
        (("--otel-endpoint", "localhost:4317"), "otel_endpoint"),
    ],
)
def test_settings_that_cannot_be_are_refused_before_loading(
    smollm2_path: Path, tmp_path: Path, options: tuple[str, ...], message: str
) -> None:
    result = treadle("serve", smollm2_path, *options, TREADLE_HOME=str(tmp_path))
    assert result.code == 1
    assert message in result.err
