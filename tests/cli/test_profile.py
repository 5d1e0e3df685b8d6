"""`treadle profile`: what it prints, what it keeps, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from command import Terminal, plain_numbers, treadle
from oracles.tiny_model import TinyModel
from treadle.cli.main import main

SAMPLE = Path(__file__).parents[1] / "engine" / "profiles" / "smollm2.json"
QUICK = ("--prompts", "16", "--streams", "1,2", "--context", "8", "--seconds", "0.2", "--threads", "1")


@pytest.fixture(scope="module")
def tiny_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return TinyModel().write(tmp_path_factory.mktemp("profile-command") / "tiny.gguf")


def test_a_model_is_measured_shown_and_kept(tiny_path: Path, tmp_path: Path) -> None:
    kept = tmp_path / "profile.json"
    result = treadle("profile", tiny_path, *QUICK, "--json", kept)
    assert result.code == 0 and result.err == f"kept in {kept}\n"
    assert [cell["derived"]["name"] for cell in json.loads(kept.read_text())["cells"]] == [
        "prompt of 16",
        "decode, 1 stream",
        "decode, 2 streams",
    ]
    lines = result.out.splitlines()
    assert lines[0].startswith("tiny") or "1 thread, " in lines[0]
    (header,) = [line for line in lines if "bound by" in line]
    assert header.split()[:2] == ["tok/s", "spread"]
    assert sum(line.startswith("operator ") for line in lines) == 3
    assert f"treadle plan {tiny_path} --compare" in result.out or "what would help" in result.out


def test_json_alone(tiny_path: Path) -> None:
    result = treadle("profile", tiny_path, *QUICK, "--json", "-")
    assert (result.code, result.err) == (0, "")
    assert json.loads(result.out)["schema"] == 1


def test_a_kept_profile_is_shown_once_more() -> None:
    result = treadle("profile", SAMPLE, "--all", "--compare", SAMPLE)
    assert (result.code, result.err) == (0, "")
    table = result.out.split("\n\n")[1].splitlines()
    assert [plain_numbers(line).split("  ")[0] for line in table[1:]] == [
        "prompt of N",
        "prompt of N",
        "prompt of N",
        "decode, N stream",
        "decode, N streams",
        "decode, N streams",
    ]
    assert "$ treadle serve MODEL" in result.out
    assert result.out.count("\noperator ") == 6
    assert "the hypervisor offers no performance counters" in result.out
    changes = result.out.partition("\nsince ")[2].splitlines()[2:]
    assert len(changes) == 6 and all(" 1.000 " in line and " noise" in line for line in changes)


def test_another_model_is_compared_with_a_warning(tmp_path: Path) -> None:
    other = json.loads(SAMPLE.read_text())
    other["model"] |= {"name": "other", "num_parameters": 1}
    other["machine"]["num_cores"] = 64
    changed = tmp_path / "other.json"
    changed.write_text(json.dumps(other))
    result = treadle("profile", SAMPLE, "--compare", changed)
    assert result.code == 0
    assert "warning: another model: other before" in result.err
    assert "warning: other machine: cores 64 before, 2 now" in result.err


def test_on_a_terminal_there_are_rules_and_no_escapes_from_the_file(tmp_path: Path) -> None:
    hostile = json.loads(SAMPLE.read_text())
    for cell in hostile["cells"]:
        for operator in cell["operators"]:
            operator["name"] = "\x1b]0;owned\x07[bold]" + operator["name"]
    path = tmp_path / "hostile.json"
    path.write_text(json.dumps(hostile))
    with Terminal("profile", path) as terminal:
        assert terminal.wait() == 0
        assert "─────" in terminal.shown and "[bold]gate_up" in terminal.shown
        assert "\x1b]0;" not in terminal.shown


def refused(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> str:
    """What a command that the user can mend says."""
    with pytest.raises(SystemExit) as stop:
        main(["profile", *map(str, arguments)])
    said = capsys.readouterr()
    assert (stop.value.code, said.out) == (1, "")
    assert said.err.count("error: ") == 1 and "Traceback" not in said.err
    return said.err


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--prompts", "16,x"), "--prompts: expected numbers such as 1,2,4, found '16,x'"),
        (("--streams", "-1"), "--streams: expected numbers such as 1,2,4, found '-1'"),
        (("--prompts", "100000"), "prompts: expected lengths of 1 to 512 tokens, found 100000"),
        (("--prompts", "", "--streams", ""), "there is nothing to measure"),
        (("--seconds", "0"), "--seconds: expected above 0"),
        (("--json", "/nowhere/out.json"), "--json: expected a file in a folder that is there"),
        (("--compare", "/nowhere/old.json"), "/nowhere/old.json: the profile cannot be read"),
    ],
)
def test_mistakes_are_one_clear_error(
    tiny_path: Path, options: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert words in refused(capsys, tiny_path, *options)


def test_a_broken_profile_is_one_clear_error(
    tiny_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = tmp_path / "old.json"
    broken.write_text(SAMPLE.read_text()[:-500])
    for arguments in ((tiny_path, "--compare", broken), (broken,)):
        assert refused(capsys, *arguments).startswith(f"error: {broken}: expected the JSON of a profile")


def test_a_missing_model_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert "/nowhere/model.gguf" in refused(capsys, "/nowhere/model.gguf")
