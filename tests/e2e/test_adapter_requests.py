"""Requests with adapters through the whole engine: answers are those they would get alone, kept prompts their own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from gguf import GGMLQuantizationType as Format

from oracles.tiny_adapter import TinyAdapter
from oracles.tiny_model import TinyModel
from treadle import LLM, CapacityError, ModelFileError, SamplingParams, UsageError

MODEL = TinyModel(format=Format.Q8_0)
GREEDY = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
PROMPTS = [[(number * 31 + 7 * i) % 200 for i in range(70 + number)] for number in range(8)]
NAMES = [None, "a", "b", "c"]


@pytest.fixture(scope="module")
def tiny_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return MODEL.write(tmp_path_factory.mktemp("adapted") / "tiny.gguf")


@pytest.fixture(scope="module")
def paths(tiny_path: Path) -> dict[str, Path]:
    return {n: TinyAdapter(seed=i).write(tiny_path.with_name(f"{n}.gguf"), MODEL) for i, n in enumerate("abc")}


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TREADLE_HOME", str(tmp_path))


def test_different_adapters_side_by_side(tiny_path: Path, paths: dict[str, Path]) -> None:
    with LLM(tiny_path) as llm:
        for name, path in paths.items():
            llm.load_adapter(name, path)
        alone = [[llm.generate(prompt, GREEDY, adapter=name).token_ids for prompt in PROMPTS] for name in NAMES]
    assert len({str(answers) for answers in alone}) == len(NAMES)
    with LLM(tiny_path) as llm:
        for name, path in paths.items():
            llm.load_adapter(name, path)
        streams = [llm.stream(prompt, GREEDY, adapter=name) for name in NAMES for prompt in PROMPTS]
        together = [[token_id for chunk in stream for token_id in chunk.token_ids] for stream in streams]
    assert together == [answer for answers in alone for answer in answers]


def test_kept_prompts_belong_to_the_contents_of_an_adapter(tiny_path: Path, paths: dict[str, Path]) -> None:
    with LLM(tiny_path, disk_cache="1GiB") as llm:
        llm.load_adapter("a", paths["a"])
        first = llm.generate(PROMPTS[0], GREEDY, adapter="a")
    with LLM(tiny_path, disk_cache="1GiB") as llm:
        llm.load_adapter("again", paths["a"])
        llm.load_adapter("other", paths["b"])
        llm.load_adapter("weaker", paths["a"], 0.5)
        answers = [llm.generate(PROMPTS[0], GREEDY, adapter=name) for name in (None, "other", "weaker", "again")]
    assert [answer.cached_tokens for answer in answers] == [0, 0, 0, 64]
    assert answers[-1].token_ids == first.token_ids


def test_memory_may_be_set_aside(tiny_path: Path, paths: dict[str, Path]) -> None:
    with LLM(tiny_path, memory="300MB") as llm, pytest.raises(CapacityError, match="adapter_memory"):
        llm.load_adapter("a", paths["a"])
    with LLM(tiny_path, memory="300MB", adapter_memory="1MiB", max_adapters=1) as llm:
        llm.load_adapter("a", paths["a"])
        with pytest.raises(CapacityError, match="max_adapters"):
            llm.load_adapter("b", paths["b"])


def test_a_model_is_no_adapter(tiny_path: Path, tmp_path: Path) -> None:
    other = replace(MODEL, architecture="qwen2")
    with LLM(tiny_path) as llm:
        with pytest.raises(ModelFileError, match=r"general\.type"):
            llm.load_adapter("a", tiny_path)
        with pytest.raises(ModelFileError, match="architecture 'qwen2'"):
            llm.load_adapter("a", TinyAdapter().write(tmp_path / "qwen2.gguf", other))
        with pytest.raises(UsageError, match="no adapter"):
            llm.generate(PROMPTS[0], GREEDY, adapter="a")
