"""A server on a unix socket: who may open the file, what becomes of it, and that clients work as ever."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import openai
import pytest

from command import environment
from patience import PATIENCE_SECONDS
from treadle.errors import UsageError
from treadle.server.listening import address_of, listening
from treadle.server.settings import ServerSettings


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_the_file_is_private_and_goes_with_the_server(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with listening(ServerSettings(socket=path)) as listener:
        assert mode_of(path) == 0o600
        assert address_of(listener, is_secure=False) == f"unix:{path}"
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))  # and waits until the server has loaded
        with pytest.raises(UsageError, match="another server does"), listening(ServerSettings(socket=path)):
            pass
    assert not path.exists()
    with listening(ServerSettings(socket=path, socket_mode=0o660)):
        assert mode_of(path) == 0o660


def test_a_file_that_was_left_behind_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as killed:
        killed.bind(str(path))
    assert path.is_socket()
    with listening(ServerSettings(socket=path)), socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))


def test_what_others_put_there_stays(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with listening(ServerSettings(socket=path)):
        path.unlink()
        path.write_text("mine")
    assert path.read_text() == "mine"
    with pytest.raises(UsageError, match="no socket"), listening(ServerSettings(socket=path)):
        pass
    assert path.read_text() == "mine"


@pytest.mark.parametrize("name", ["missing/s", "s" * 200])
def test_a_file_that_cannot_be_made(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="cannot listen on"), listening(ServerSettings(socket=tmp_path / name)):
        pass


@contextmanager
def serving(model: Path, path: Path, *options: str, **settings: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "treadle", "serve", f"tiny={model}", "--socket", str(path), "--context", "1024"]
    settings["TREADLE_HOME"] = str(path.parent)
    process = subprocess.Popen([*command, *options], stderr=subprocess.PIPE, text=True, env=environment(**settings))
    try:
        assert process.stderr is not None
        while f"at unix:{path}" not in (line := process.stderr.readline()):
            assert line, "the server ended before it was ready"
        yield process
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


@pytest.mark.model
def test_clients_and_proxies_use_it_as_they_use_a_port(smollm2_path: Path, tmp_path: Path) -> None:
    path = tmp_path / "s"
    with serving(smollm2_path, path, "--log-json", "--disk-cache", "0", TREADLE_API_KEY="secret") as process:
        transport = httpx.HTTPTransport(uds=str(path))
        with httpx.Client(transport=transport, base_url="http://llm.example.com", timeout=PATIENCE_SECONDS) as http:
            assert http.get("/health").status_code == 200  # whatever name a proxy passes on
            assert http.get("/v1/models").status_code == 401
            forwarded = {"x-forwarded-for": "192.0.2.7", "x-request-id": "told"}
            assert http.get("/v1/models", headers={"x-api-key": "secret", **forwarded}).status_code == 200
            with openai.OpenAI(base_url="http://localhost/v1", api_key="secret", http_client=http) as client:
                stream = client.completions.create(model="tiny", prompt="Once", max_tokens=3, stream=True)
                assert [chunk.choices[0].finish_reason for chunk in stream][-1] == "length"
        os.kill(process.pid, signal.SIGTERM)
        assert process.wait(PATIENCE_SECONDS) == 0
        assert process.stderr is not None
        entries = [json.loads(line) for line in process.stderr.read().splitlines()]
    assert [entry["client"] for entry in entries if entry.get("id") == "told"] == ["192.0.2.7"]
    assert not path.exists()
