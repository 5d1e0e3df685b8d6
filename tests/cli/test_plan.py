"""`treadle plan`: what it prints, as text and as JSON, and whose word wins."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from command import treadle
from oracles.tiny_model import TinyModel

SPEEDS = {"read_bytes_per_second", "int8_ops_per_second", "float_ops_per_second", "isa"}


@pytest.fixture(scope="module")
def tiny_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return TinyModel().write(tmp_path_factory.mktemp("plan") / "tiny.gguf")


def test_every_choice_is_a_line_with_its_reason(tiny_path: Path) -> None:
    result = treadle("plan", tiny_path, "--threads", "1", TREADLE_KV_TYPE="q8_0")
    assert result.code == 0
    choices, _, _ = result.out.partition("\n\n")
    lines = {line.split("  ")[0]: line for line in choices.splitlines()}
    assert list(lines) == [
        "threads",
        "prompt threads",
        "pinning",
        "memory nodes",
        "memory",
        "context",
        "KV cache",
        "KV type",
        "huge pages",
        "locked in RAM",
        "adapting",
    ]
    assert "1 " in lines["threads"] and "as asked for (" in lines["threads"]
    assert lines["KV type"].split() == ["KV", "type", "q8_0", "as", "TREADLE_KV_TYPE", "says"]


def test_the_same_as_json(tiny_path: Path) -> None:
    result = treadle("plan", tiny_path, "--json", "--no-adapt", "--context", "64")
    plan = json.loads(result.out)
    assert plan["adapt"] == {"on": False, "reason": "as asked for"}
    assert plan["context"]["tokens"] == 64
    assert list(plan["predicted"]) == ["as it is"] and plan["measured"].keys() == SPEEDS


def test_predictions_side_by_side(tiny_path: Path) -> None:
    result = treadle("plan", tiny_path, "--compare", "Q4_0, q8_0")
    table = result.out.partition("\n\n")[2].splitlines()
    assert table[0].split() == ["predicted", "Q4_0", "Q8_0"]
    assert [line.split("  ")[0] for line in table[1:]] == [
        "decode, 1 stream",
        "decode, 4 streams",
        "decode, 8 streams",
        "decode, 16 streams",
        "prompt of 512",
        "first token after 512",
        "first token after 2048",
        "memory",
        "largest context",
        "bound by compute",
    ]
    assert result.err.startswith("predicted from ")


def test_a_quantisation_there_is_not(tiny_path: Path) -> None:
    result = treadle("plan", tiny_path, "--compare", "Q99")
    assert result.code == 1 and "quantisation: expected one of Q4_0" in result.err


def test_a_model_of_the_catalog_need_not_be_here(tmp_path: Path) -> None:
    result = treadle("plan", "qwen2.5:0.5b", "--json", TREADLE_HOME=str(tmp_path))
    assert list(json.loads(result.out)["predicted"]) == ["Q4_K_M"]


def test_a_model_that_does_not_fit_has_no_plan(tiny_path: Path) -> None:
    result = treadle("plan", tiny_path, "--memory", "1MB")
    assert result.code == 1
    assert "needs" in result.err and result.out == ""


def test_a_wrong_key_in_the_settings_file_is_an_error_everywhere(tiny_path: Path, tmp_path: Path) -> None:
    folder = tmp_path / "treadle"
    folder.mkdir()
    (folder / "treadle.toml").write_text("thread = 2\n")
    for command in (["plan", tiny_path], ["run", "the", "-m", tiny_path], ["list"]):
        result = treadle(*command, XDG_CONFIG_HOME=str(tmp_path))
        assert result.code == 1
        assert (
            f"{folder}/treadle.toml: Treadle does not know the key 'thread'\nhint: did you mean threads?" in result.err
        )


def test_tuning_and_forgetting(tiny_path: Path, tmp_path: Path) -> None:
    home = {"TREADLE_HOME": str(tmp_path)}
    result = treadle("tune", tiny_path, "--seconds", "0.1", **home)
    assert result.code == 0, result.err
    lines = result.out.splitlines()
    assert lines[0].split() == ["prompt", "tok/s", "decode", "tok/s"]
    assert lines[1].startswith("the plan's own") and lines[-1].startswith("kept: ")
    assert "kept in " in result.err
    found = json.loads(treadle("tune", tiny_path, "--seconds", "0.1", "--json", **home).out)
    assert found.keys() == {"settings", "measured"}
    assert treadle("tune", tiny_path, "--forget", **home).err == "forgotten\n"
    assert treadle("tune", tiny_path, "--forget", **home).err == "there was nothing to forget\n"
    assert "expected above 0, found 0" in treadle("tune", tiny_path, "--seconds", "0", **home).err
