"""`treadle serve` as a process: how it starts, and how it ends when told to."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from command import environment, treadle
from patience import PATIENCE_SECONDS
from treadle.cli.main import application
from treadle.errors import UsageError
from treadle.server import logs
from treadle.server.listening import listening
from treadle.server.serve import _unless_terminated
from treadle.server.settings import ServerSettings

pytestmark = pytest.mark.model

BODY = {"prompt": "Once upon a time", "max_tokens": 400, "temperature": 0, "ignore_eos": True, "stream": True}


@contextmanager
def serving(path: Path, home: Path, *options: str, **settings: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    command = [sys.executable, "-m", "treadle", "serve", f"tiny={path}", "-p", "0", "--context", "1024", *options]
    settings["TREADLE_HOME"] = str(home)
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment(**settings))
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
        serving(smollm2_path, tmp_path, "--log-json", "--drain-timeout", str(PATIENCE_SECONDS)) as (process, url),
        httpx.Client(base_url=url, timeout=PATIENCE_SECONDS) as http,
    ):
        with http.stream("POST", "/v1/completions", json=BODY | {"max_tokens": 1000}) as response:
            lines = response.iter_lines()
            next(lines)
            os.kill(process.pid, number)
            # Until the stream has ended the server says why it takes nothing more.
            refused = [http.get("/ready").status_code, http.post("/v1/completions", json=BODY).status_code]
            lives = http.get("/health").status_code
            rest = [line for line in lines if line]
        assert process.wait(PATIENCE_SECONDS) == 0
        assert rest[-1] == "data: [DONE]"
        assert json.loads(rest[-2].removeprefix("data: "))["choices"][0]["finish_reason"] == "length"
        assert (refused, lives) == ([503, 503], 200)
        assert process.stderr is not None
        entries = [json.loads(line) for line in process.stderr.read().splitlines()]
        assert [entry["answer_tokens"] for entry in entries if entry.get("route") == "/v1/completions"] == [1000]
    assert (tmp_path / "kv-cache").is_dir()


def num_tokens_on_disk(http: httpx.Client) -> float:
    found = re.search(r'treadle:cached_tokens\{.*tier="disk"\} (\S+)', http.get("/metrics").text)
    assert found is not None
    return float(found[1])


def test_a_prompt_is_known_after_the_server_was_killed(smollm2_path: Path, tmp_path: Path) -> None:
    known = {"prompt": "one two three four five six seven eight. " * 20, "max_tokens": 1, "temperature": 0}

    def ask(http: httpx.Client) -> tuple[str, int]:
        reply = http.post("/v1/completions", json=known).json()
        return reply["choices"][0]["text"], reply["usage"]["prompt_tokens_details"]["cached_tokens"]

    with (
        serving(smollm2_path, tmp_path) as (process, url),
        httpx.Client(base_url=url, timeout=PATIENCE_SECONDS) as http,
    ):
        text, _ = ask(http)
        # Blocks go to the disk between the steps of whatever follows.
        with http.stream("POST", "/v1/completions", json={**BODY, "max_tokens": 900}) as response:
            lines = response.iter_lines()
            while num_tokens_on_disk(http) < 128:
                next(lines)
            process.kill()
            process.wait()
            response.close()
    verdict = treadle("cache", "verify", "--json", TREADLE_HOME=str(tmp_path))
    assert json.loads(verdict.out)["problems"] == []
    with serving(smollm2_path, tmp_path) as (_, url), httpx.Client(base_url=url, timeout=PATIENCE_SECONDS) as http:
        again, num_cached = ask(http)
    assert again == text
    assert num_cached >= 128


def test_what_takes_too_long_is_cut_with_an_error(smollm2_path: Path, tmp_path: Path) -> None:
    options = ("--drain-timeout", "0.01", "--disk-cache", "0")
    with (
        serving(smollm2_path, tmp_path, *options) as (process, url),
        httpx.Client(base_url=url, timeout=PATIENCE_SECONDS) as http,
    ):
        with http.stream("POST", "/v1/completions", json={**BODY, "max_tokens": 1000}) as response:
            lines = response.iter_lines()
            next(lines)
            os.kill(process.pid, signal.SIGTERM)
            rest = [line for line in lines if line]
        error = json.loads(rest[-1].removeprefix("data: "))["error"]
        assert "the model was closed before the answer ended" in error["message"]
        assert error["code"] == "shutting_down"
        assert process.wait(PATIENCE_SECONDS) == 0
    assert not (tmp_path / "kv-cache").exists()


def test_an_operator_changes_keys_while_it_runs_and_ends_it_at_once(smollm2_path: Path, tmp_path: Path) -> None:
    keys, notify = tmp_path / "keys", tmp_path / "notify"
    keys.write_text("old\n")
    options = ("--api-key-file", str(keys), "--disk-cache", "0")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as supervisor:
        supervisor.bind(str(notify))
        with serving(smollm2_path, tmp_path, *options, NOTIFY_SOCKET=str(notify)) as (process, url):
            assert supervisor.recv(100) == b"READY=1"

            def status(key: str) -> int:
                return httpx.get(f"{url}/v1/models", headers={"x-api-key": key}, timeout=PATIENCE_SECONDS).status_code

            assert (status("old"), status("new")) == (200, 401)
            keys.write_text("new\n")
            process.send_signal(signal.SIGHUP)
            while status("new") != 200:
                assert process.poll() is None
            assert status("old") == 401
            with httpx.stream(
                "POST", f"{url}/v1/completions", json=BODY | {"max_tokens": 1000}, headers={"x-api-key": "new"}
            ) as response:
                next(lines := response.iter_lines())
                process.send_signal(signal.SIGINT)
                assert supervisor.recv(100) == b"STOPPING=1"
                process.send_signal(signal.SIGINT)
                assert "the model was closed before the answer ended" in [line for line in lines if line][-1]
            assert process.wait(PATIENCE_SECONDS) == 0
            assert process.stderr is not None
            assert "Traceback" not in process.stderr.read()


def test_a_name_with_two_addresses_is_listened_on_where_every_client_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = (socket.SOCK_STREAM, 6, "")
    found = [(socket.AF_INET6, *stream, ("::1", 0, 0, 0)), (socket.AF_INET, *stream, ("127.0.0.1", 0))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    with listening(ServerSettings(host="localhost", port=0)) as listener:
        assert listener.getsockname()[0] == "127.0.0.1"


def test_a_server_that_is_ended_while_it_loads_stops_loading() -> None:
    async def load() -> None:
        asyncio.get_running_loop().call_soon(os.kill, os.getpid(), signal.SIGTERM)
        await asyncio.Event().wait()

    before = signal.getsignal(signal.SIGTERM)
    assert not asyncio.run(_unless_terminated(load()))
    assert signal.getsignal(signal.SIGTERM) is before
    assert asyncio.run(_unless_terminated(asyncio.sleep(0)))
    with pytest.raises(ZeroDivisionError):
        asyncio.run(_unless_terminated(fail()))


async def fail() -> None:
    raise ZeroDivisionError


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--host", "0.0.0.0"), "there is no API key"),
        (("--tls-cert", "missing.pem", "--tls-key", "missing.pem"), "No such file"),
        (("--tls-cert", "missing.pem"), "both a certificate and a key"),
        (("--socket", "s", "--port", "80"), "on a socket file or on a port"),
        (("--socket", "s", "--tls-cert", "c.pem", "--tls-key", "k.pem"), "not for a socket file"),
        (("--socket", "s", "--socket-mode", "rw"), "octal"),
        (("--socket", "s", "--socket-mode", "1777"), "socket_mode"),
        (("--socket-mode", "660"), "needs --socket"),
        (("--socket", os.devnull), "no socket"),
        (("--metric-prefix", "a b"), "metric_prefix"),
        (("--max-queued", "0"), "max_queued"),
        (("--max-num-requests", "0"), "max_num_requests"),
        (("--slowdown", "0.5"), "slowdown"),
        (("--max-body", "huge"), "--max-body"),
        (("--max-headers", "0"), "max_header_bytes"),
        (("--max-connections", "0"), "max_connections"),
        (("--api-key-file", os.devnull), "there is no key in it"),
        (("--client-timeout", "0"), "client_timeout"),
        (("--max-stored", "-1"), "--max-stored"),
        (("--otel-endpoint", "localhost:4317"), "otel_endpoint"),
    ],
)
def test_settings_that_cannot_be_are_refused_before_loading(
    smollm2_path: Path, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...], message: str
) -> None:
    monkeypatch.setattr(logs, "configure_logs", lambda **_: None)  # those of this process go on
    with pytest.raises(UsageError, match=message):
        application("serve")(args=["serve", str(smollm2_path), *options], standalone_mode=False)


def test_a_refusal_is_an_exit_code(smollm2_path: Path, tmp_path: Path) -> None:
    result = treadle("serve", smollm2_path, "--host", "0.0.0.0", TREADLE_HOME=str(tmp_path))
    assert result.code == 1
    assert "there is no API key" in result.err


def test_that_a_model_cannot_be_loaded_is_told_once(tmp_path: Path) -> None:
    (tmp_path / "broken.gguf").write_text("no model")
    result = treadle("serve", tmp_path / "broken.gguf", "--port", "0", TREADLE_HOME=str(tmp_path))
    assert result.code == 1
    assert result.err.count("this is not a GGUF file") == 1
