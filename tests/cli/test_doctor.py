"""`treadle doctor`: what it prints, its JSON, and its exit code."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from command import treadle
from treadle.cli.main import main
from treadle.hardware.finding import Finding, Level


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TREADLE_HOME", str(tmp_path))


def test_the_page(tmp_path: Path) -> None:
    result = treadle("doctor", TREADLE_HOME=str(tmp_path))
    assert (result.code, result.err) == (0, "")
    assert result.out.startswith("machine")
    assert "disk" in result.out and "not measured" in result.out
    assert "CPU quota: " in result.out


def test_json_has_the_documented_fields(tmp_path: Path) -> None:
    facts = json.loads(treadle("doctor", "--json", TREADLE_HOME=str(tmp_path)).out)
    assert list(facts) == ["schema", "worst", "machine", "measured", "findings"]
    assert facts["schema"] == 1 and facts["worst"] in ("red", "amber", "green")
    assert facts["measured"].keys() == {"speeds", "latency", "disk_bytes_per_second", "disk_path", "steal_share"}
    for speed in facts["measured"]["speeds"]:
        rates = {"read_bytes_per_second", "int8_ops_per_second", "float_ops_per_second"}
        assert speed.keys() == {"threads", "isa"} | rates
    for place in (facts["measured"]["latency"] or {"places": []})["places"]:
        assert place.keys() == {"place", "num_bytes", "seconds"}
    for finding in facts["findings"]:
        assert finding.keys() == {"name", "level", "found", "why", "fix", "effect"}


def test_the_kernels_that_were_asked_for_are_measured(tmp_path: Path) -> None:
    result = treadle("doctor", TREADLE_HOME=str(tmp_path), TREADLE_ISA="ref")
    assert (result.code, result.err) == (0, "")
    assert "float operations/s (ref)" in result.out
    refused = treadle("doctor", TREADLE_HOME=str(tmp_path), TREADLE_ISA="mmx")
    assert refused.code == 1 and 'no kernels for instruction set "mmx"' in refused.err


def test_a_missing_model_is_an_error() -> None:
    result = treadle("doctor", "/nowhere/model.gguf")
    assert result.code == 1 and "/nowhere/model.gguf" in result.err


@pytest.mark.parametrize(
    ("level", "options", "code"), [("red", ["--strict"], 1), ("red", [], 0), ("amber", ["--strict"], 0)]
)
def test_strict_fails_on_red(
    level: Level, options: list[str], code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    finding = Finding("swap", level, "in use", "slow", "sudo swapoff -a", 0.5)
    monkeypatch.setattr("treadle.hardware.findings.find", lambda _: [finding])
    with pytest.raises(SystemExit) as stop:
        main(["doctor", *options])
    assert stop.value.code == code
    lines = capsys.readouterr().out.splitlines()
    assert lines[-3:] == [f"{level:<7}swap: in use", "       slow", "       $ sudo swapoff -a"]
