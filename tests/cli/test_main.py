"""The command line as a whole: help, version, and how our own bugs end."""

from __future__ import annotations

import pytest

from command import treadle
from patience import PATIENCE_SECONDS
from treadle.cli import main as main_module
from treadle.cli.console import console
from treadle.errors import InternalError


def test_without_arguments_it_lists_the_commands() -> None:
    result = treadle()
    assert (result.code, result.err) == (0, "")
    for name in ("run", "chat", "pull", "list", "show", "rm", "cache"):
        assert f" {name} " in result.out
    assert treadle("--help").out == result.out


@pytest.mark.parametrize("name", ["run", "chat", "pull", "list", "show", "rm", "cache"])
def test_every_command_explains_itself(name: str) -> None:
    result = treadle(name, "--help")
    assert (result.code, result.err) == (0, "")
    assert f"treadle {name}" in result.out


def test_the_version_is_printed() -> None:
    result = treadle("--version")
    assert result.code == 0
    assert result.out.startswith("treadle")


def test_starting_loads_nothing_heavy() -> None:
    import subprocess  # noqa: PLC0415
    import sys  # noqa: PLC0415

    heavy = {"numpy", "tokenizers", "jinja2", "huggingface_hub", "httpx", "rich.console", "treadle._native"}
    others = {"treadle.cli.agent", "treadle.cli.doctor", "treadle.cli.serve", "treadle.cli.trace"}
    program = (
        "import sys, treadle.cli.main as main; main.application('run');"
        f" print(*sorted({heavy | others} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=True
    )
    assert done.stdout == "\n"


def test_too_little_memory_is_no_bug(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def strike(**_: object) -> None:
        raise MemoryError("std::bad_alloc")

    monkeypatch.setattr(main_module, "application", lambda *_: strike)
    with pytest.raises(SystemExit) as ended:
        main_module.main(["run"])
    assert ended.value.code == 1
    assert capsys.readouterr().err.startswith("error: the system gave no more memory: std::bad_alloc\nhint: ")


@pytest.mark.parametrize("error", [RuntimeError("lightning"), InternalError("lightning")])
def test_our_own_bugs_end_with_2_and_a_request_to_report(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def strike(**_: object) -> None:
        raise error

    monkeypatch.setattr(main_module, "application", lambda *_: strike)
    monkeypatch.setattr(console, "is_verbose", False)
    monkeypatch.delenv("TREADLE_DEBUG", raising=False)
    with pytest.raises(SystemExit) as ended:
        main_module.main(["run"])
    err = capsys.readouterr().err
    assert ended.value.code == 2
    assert "lightning\nthis is a bug in Treadle; please report" in err
    assert "Traceback" not in err
    monkeypatch.setenv("TREADLE_DEBUG", "1")
    with pytest.raises(SystemExit):
        main_module.main(["run"])
    assert "Traceback" in capsys.readouterr().err
