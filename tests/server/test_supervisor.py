"""What the service manager is told."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from treadle.server.supervisor import tell_supervisor


@pytest.mark.parametrize("is_abstract", [False, True])
def test_the_supervisor_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_abstract: bool) -> None:
    name = f"treadle-test-{tmp_path}" if is_abstract else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        channel.bind(("\0" if is_abstract else "") + name)
        monkeypatch.setenv("NOTIFY_SOCKET", ("@" if is_abstract else "") + name)
        tell_supervisor("READY=1")
        assert channel.recv(100) == b"READY=1"


@pytest.mark.parametrize("address", [None, "", "/nowhere/at/all"])
def test_nobody_need_listen(monkeypatch: pytest.MonkeyPatch, address: str | None) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    if address is not None:
        monkeypatch.setenv("NOTIFY_SOCKET", address)
    tell_supervisor("READY=1")
