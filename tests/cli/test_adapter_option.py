"""The option --adapter of commands that answer."""

from __future__ import annotations

from pathlib import Path

import pytest
from gguf import GGMLQuantizationType as Format

from command import treadle
from oracles.tiny_adapter import TinyAdapter
from oracles.tiny_model import TinyModel
from treadle.cli.adapters import load_adapter, read_adapters
from treadle.engine.llm import LLM
from treadle.errors import UsageError

TINY = TinyModel(format=Format.Q8_0)


@pytest.fixture(scope="module")
def tiny_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return TINY.write(tmp_path_factory.mktemp("adapters") / "tiny.gguf")


@pytest.fixture(scope="module")
def adapter_path(tiny_path: Path) -> Path:
    return TinyAdapter().write(tiny_path.with_name("law@2.gguf"), TINY)


def test_run_and_chat_answer_with_an_adapter(tiny_path: Path, adapter_path: Path) -> None:
    options = ["-m", tiny_path, "--temperature", "0", "-n", "8", "-q"]
    plain = treadle("run", "the inn", *options)
    adapted = treadle("run", "the inn", *options, "--adapter", adapter_path)
    assert (plain.code, adapted.code) == (0, 0)
    assert plain.out != adapted.out
    assert treadle("run", "the inn", *options, "--adapter", f"{adapter_path}@0").out == plain.out
    assert treadle("chat", *options, "--adapter", adapter_path, text="the inn\n").out == adapted.out


def test_a_file_that_is_no_adapter(tiny_path: Path) -> None:
    refused = treadle("run", "the inn", "-m", tiny_path, "--adapter", tiny_path)
    assert refused.code == 1
    assert "general.type is 'model'" in refused.err


def test_what_the_option_may_say() -> None:
    found = read_adapters(["law=law.gguf", "tone=a/b=c@2.gguf@0.5", "x=y@z"])
    assert found == [("law", "law.gguf", 1.0), ("tone", "a/b=c@2.gguf", 0.5), ("x", "y@z", 1.0)]
    assert read_adapters(None) == []
    for text in ("law.gguf", "=law.gguf", "law="):
        with pytest.raises(UsageError, match="expected NAME=PATH"):
            read_adapters([text])


def test_nothing_to_load(tiny_path: Path) -> None:
    with LLM(tiny_path) as llm:
        assert load_adapter(llm, None) is None
