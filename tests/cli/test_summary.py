"""The closing line of an answer: which share of the machine's bandwidth it used, where that is known."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from treadle.cli.summary import closing_line
from treadle.engine.bandwidth_record import keep_bandwidth, known_bandwidth
from treadle.engine.outset import view_machine
from treadle.hardware.machine_speed import MachineSpeed

SPEED = MachineSpeed(50e9, 2000e9)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TREADLE_HOME", str(tmp_path))
    return tmp_path


@pytest.fixture(autouse=True)
def _probe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("treadle.hardware.machine_speed.measure_speed", lambda _: SPEED)


def line(decode_seconds: float, decode_bytes: int = 1_000_000_000) -> str:
    """The line of an answer whose every token read so much, 40 tokens a second."""
    threads = SimpleNamespace(cpus=[-1, -1], num_threads=2)
    llm: Any = SimpleNamespace(report=SimpleNamespace(decode_bytes=decode_bytes, thread_plan=threads))
    timings = SimpleNamespace(prefill_seconds=0.1, decode_seconds=decode_seconds)
    completion: Any = SimpleNamespace(
        prompt_tokens=10, prompt_rate=100.0, answer_tokens=40, decode_rate=40.0, timings=timings
    )
    return closing_line(completion, llm)


def test_a_short_answer_measures_nothing(home: Path) -> None:
    assert ", 40.0 GB/s, " in line(1.0)
    assert known_bandwidth(home, view_machine(), 2) is None


def test_a_known_machine_has_a_share(home: Path) -> None:
    keep_bandwidth(home, view_machine(), {2: [MachineSpeed(80e9, 0.0)]})
    assert ", 40.0 GB/s (50% of the machine's), " in line(1.0)
    assert ", 40.0 GB/s (50% of the machine's), " in line(100.0)


def test_a_long_answer_measures_once(home: Path) -> None:
    assert ", 40.0 GB/s (80% of the machine's), " in line(2.0)
    assert known_bandwidth(home, view_machine(), 2) == 50e9


def test_weights_from_the_caches_have_no_share(home: Path) -> None:
    keep_bandwidth(home, view_machine(), {2: [MachineSpeed(30e9, 0.0)]})
    assert ", 40.0 GB/s, " in line(1.0)


def test_a_machine_that_cannot_be_measured_has_none(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("treadle.hardware.machine_speed.measure_speed", lambda _: None)
    assert ", 40.0 GB/s, " in line(100.0)
