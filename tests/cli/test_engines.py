"""Commands with a model that the core does not know: one line says who answers, everything else is as always."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from command import plain_numbers, treadle
from oracles.foreign_model import ForeignModel

CLOSING_LINE = "prompt N tokens at N tok/s, answer N tokens at N tok/s, N GB/s, peak memory N MB"
NOTES = ("engine: llama.cpp, for architecture 'gptneox' is not one this core runs", CLOSING_LINE)


@pytest.fixture(scope="module")
def foreign_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return ForeignModel().write(tmp_path_factory.mktemp("foreign") / "foreign.gguf")


def test_run_says_in_one_line_why_llama_cpp_answers(foreign_path: Path, tmp_path: Path) -> None:
    asked = ("run", "the inn", "-m", foreign_path, "--raw", "--temperature", "0", "-n", "8", "-t", "1")
    result = treadle(*asked, TREADLE_HOME=str(tmp_path))
    assert (result.code, len(result.out) > 1) == (0, True)
    engine, *rest, closing = result.err.splitlines()
    assert engine == NOTES[0]
    assert plain_numbers(closing) == NOTES[1]
    assert all("was cut" in line for line in rest)
    quiet = treadle(*asked, "-q")
    assert (quiet.out, quiet.err) == (result.out, "")


def test_an_engine_that_cannot_is_refused_and_says_who_can(foreign_path: Path) -> None:
    refused = treadle("run", "the inn", "-m", foreign_path, "--engine", "native")
    assert (refused.code, refused.out) == (1, "")
    assert "architecture 'gptneox' is not one this core runs" in refused.err
    assert "hint: leave the engine open, and llama.cpp runs it" in refused.err
    assert treadle("run", "the inn", "-m", foreign_path, "--engine", "best").code == 1


def test_show_tells_which_engine_it_would_be(foreign_path: Path) -> None:
    assert "llama.cpp, for architecture 'gptneox'" in json.loads(treadle("show", foreign_path, "--json").out)["engine"]
