"""An engine's process that misbehaves ends in an error that names the trouble."""

from __future__ import annotations

from pathlib import Path

import engines
import pytest
from engines import EngineGoneError, EngineProcess


def script(path: Path, line: str) -> str:
    path.write_text(f"#!/bin/sh\n{line}\n")
    path.chmod(0o755)
    return str(path)


def test_an_engine_that_does_not_answer_is_given_up(tmp_path: Path) -> None:
    engine = EngineProcess("llama.cpp", script(tmp_path / "silent", "read line; read line"), answer_seconds=0.05)
    try:
        with pytest.raises(EngineGoneError, match="no answer within"):
            engine.ask("peak_bytes")
    finally:
        engine.close()


def test_an_engine_that_ends_is_gone(tmp_path: Path) -> None:
    engine = EngineProcess("llama.cpp", script(tmp_path / "short", "read line; exit 7"))
    try:
        with pytest.raises(EngineGoneError, match="its process ended"):
            engine.ask("peak_bytes")
    finally:
        engine.close()


def test_an_engine_that_closes_its_output_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "EXIT_SECONDS", 0.05)
    engine = EngineProcess("llama.cpp", script(tmp_path / "mute", "exec cat >/dev/null"))
    try:
        with pytest.raises(EngineGoneError, match="closed its output"):
            engine.ask("peak_bytes")
    finally:
        engine.close()
