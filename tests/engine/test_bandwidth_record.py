"""How fast the machine reads, kept for later: as long as the machine is the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from treadle.engine import bandwidth_record
from treadle.engine.bandwidth_record import keep_bandwidth, known_bandwidth
from treadle.engine.execution_plan import MachineView
from treadle.engine.outset import view_machine
from treadle.hardware.machine_speed import MachineSpeed


@pytest.fixture(scope="module")
def machine() -> MachineView:
    return view_machine()


def speeds(*rates: float) -> list[MachineSpeed]:
    return [MachineSpeed(rate, 0.0) for rate in rates]


def test_nothing_is_known_of_a_machine_that_was_not_measured(tmp_path: Path, machine: MachineView) -> None:
    assert known_bandwidth(tmp_path, machine, 2) is None


def test_the_middle_of_all_measurements_counts(tmp_path: Path, machine: MachineView) -> None:
    keep_bandwidth(tmp_path, machine, {2: speeds(40e9, 80e9)})
    keep_bandwidth(tmp_path, machine, {2: speeds(50e9), 1: speeds(30e9)})
    assert known_bandwidth(tmp_path, machine, 2) == 50e9
    assert known_bandwidth(tmp_path, machine, 1) == 30e9
    assert known_bandwidth(tmp_path, machine, 4) is None


def test_old_measurements_are_forgotten(tmp_path: Path, machine: MachineView) -> None:
    keep_bandwidth(tmp_path, machine, {2: speeds(*[90e9] * 20)})
    keep_bandwidth(tmp_path, machine, {2: speeds(*[40e9] * 9)})
    assert known_bandwidth(tmp_path, machine, 2) == 40e9


def test_another_setup_knows_nothing(tmp_path: Path, machine: MachineView, monkeypatch: pytest.MonkeyPatch) -> None:
    keep_bandwidth(tmp_path, machine, {2: speeds(40e9)})
    monkeypatch.setattr(bandwidth_record, "describe_setup", lambda _: {"processor": "another"})
    assert known_bandwidth(tmp_path, machine, 2) is None


@pytest.mark.parametrize(
    "damage",
    [
        "",
        "[]",
        {"format": 2},
        {"setup": {}},
        {"read_bytes_per_second": []},
        {"read_bytes_per_second": {"2": 7}},
        {"read_bytes_per_second": {"2": [0]}},
        {"read_bytes_per_second": {"2": ["fast"]}},
        {"read_bytes_per_second": {"2": [1e999]}},
    ],
)
def test_a_damaged_record_counts_as_none(tmp_path: Path, machine: MachineView, damage: str | dict[str, Any]) -> None:
    keep_bandwidth(tmp_path, machine, {2: speeds(40e9)})
    path = tmp_path / "machine.json"
    path.write_text(damage if isinstance(damage, str) else json.dumps(json.loads(path.read_text()) | damage))
    assert known_bandwidth(tmp_path, machine, 2) is None
    keep_bandwidth(tmp_path, machine, {2: speeds(50e9)})
    assert known_bandwidth(tmp_path, machine, 2) == 50e9


def test_a_home_that_cannot_be_written_to_keeps_nothing(tmp_path: Path, machine: MachineView) -> None:
    (tmp_path / "file").write_text("in the way")
    keep_bandwidth(tmp_path / "file", machine, {2: speeds(40e9)})
    assert known_bandwidth(tmp_path / "file", machine, 2) is None
