"""A profile of a small model as it is taken: what is measured adds up, and what cannot be measured is refused."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from gguf import GGMLQuantizationType as Format

from oracles.tiny_model import TinyModel
from treadle.engine.profile.operators import float_operators
from treadle.engine.profile.record import ProfileRecord
from treadle.engine.profile.record_file import parse_record, record_text
from treadle.engine.profile.run import profile, works_of
from treadle.errors import CapacityError, UsageError
from treadle.models.gguf import ModelFile


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return TinyModel().write(tmp_path_factory.mktemp("profile") / "tiny.gguf")


@pytest.fixture(scope="module")
def taken(path: Path) -> tuple[ProfileRecord, list[str]]:
    said: list[str] = []
    made = profile(path, prompts=[40, 8], streams=[3], stream_context=20, seconds=0.2, threads=1, progress=said.append)
    return made, said


def test_the_cells_are_those_asked_for(taken: tuple[ProfileRecord, list[str]]) -> None:
    made, said = taken
    assert [cell.name for cell in made.cells] == ["prompt of 8", "prompt of 40", "decode, 3 streams"]
    assert [cell.tokens_per_pass for cell in made.cells] == [8, 40, 3]
    assert all(len(cell.rates) >= 2 and cell.rate > 0 for cell in made.cells)
    assert "loading" in said and "decode, 3 streams, turn 2" in said


def test_operators_add_up_to_the_time_of_their_steps(taken: tuple[ProfileRecord, list[str]]) -> None:
    for cell in taken[0].cells:
        timed = [step.seconds for step in cell.steps if step.is_timed]  # a step is a pass of each of these
        assert min(timed) * 0.999 <= cell.timed_seconds
        assert 0 < sum(each.seconds for each in cell.operators) <= max(timed) * 1.001
        assert {"qkv", "attention", "gate_up", "down", "logits", "end"} <= {each.name for each in cell.operators}


def test_operators_read_all_weights_once_a_pass(taken: tuple[ProfileRecord, list[str]]) -> None:
    made = taken[0]
    for cell in made.cells:
        weights = sum(each.num_bytes for each in cell.operators if each.name != "attention")
        assert weights == pytest.approx(made.model.decode_bytes)


def test_decoding_is_timed_with_and_without_timers(taken: tuple[ProfileRecord, list[str]]) -> None:
    prompt, decode = taken[0].cells[0], taken[0].cells[-1]
    assert all(step.is_timed for step in prompt.steps) and prompt.timer_cost is None
    assert {step.is_timed for step in decode.steps} == {True, False} and decode.timer_cost is not None
    assert all(step.num_tokens == 3 for step in decode.steps)
    begins = [step.began for step in decode.steps]
    assert begins == sorted(begins) and begins[0] > 0 and begins[-1] < taken[0].seconds


def test_the_weights_fit_in_the_caches(taken: tuple[ProfileRecord, list[str]]) -> None:
    made = taken[0]
    if not made.machine.cache_bytes:
        pytest.skip("this machine does not tell its caches")
    assert all(cell.limits.cache_bytes is not None for cell in made.cells)
    assert made.speeds and all(sample.num_threads == 1 for sample in made.speeds)


def test_it_is_judged_and_can_be_kept(taken: tuple[ProfileRecord, list[str]]) -> None:
    made = taken[0]
    assert all(cell.verdict is not None for cell in made.cells)
    assert parse_record(record_text(made), "made") == made
    assert made.cells[0].counts.keys() >= {"cycles", "major_faults", "context_switches"}
    assert made.uncounted.keys() == {name for name, count in made.cells[0].counts.items() if count is None}


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two CPUs")
def test_threads_beyond_the_cores_are_in_each_others_way(path: Path) -> None:
    num_threads = 4 * len(os.sched_getaffinity(0))
    made = profile(path, prompts=[], streams=[1], stream_context=8, seconds=0.5, threads=num_threads)
    verdict = made.cells[0].verdict
    assert verdict is not None
    # On a machine where others run, too, they may have been in the way instead, but never the memory.
    assert verdict.kind in ("barrier-bound", "robbed", "throttled", "swapped")


@pytest.mark.parametrize(
    ("prompts", "streams", "context", "words"),
    [
        ([0], None, None, "prompts: expected lengths of 1 to 512 tokens, found 0"),
        ([513], None, None, "prompts: expected lengths of 1 to 512 tokens, found 513"),
        (None, [0], None, "streams: expected numbers of 1 to 512, found 0"),
        (None, [513], None, "streams: expected numbers of 1 to 512, found 513"),
        (None, None, 512, "context: expected 1 to 511 tokens, found 512"),
        (None, None, 0, "context: expected 1 to 511 tokens, found 0"),
        ([], [], None, "there is nothing to measure"),
    ],
)
def test_what_is_out_of_range_is_refused(
    path: Path, prompts: list[int] | None, streams: list[int] | None, context: int | None, words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        works_of(ModelFile.open(path), prompts, streams, context)


def test_by_default_what_the_model_can_read_is_measured(tmp_path: Path) -> None:
    def names(context_length: int) -> list[str]:
        path = TinyModel(context_length=context_length).write(tmp_path / f"{context_length}.gguf")
        return [work.name for work in works_of(ModelFile.open(path), streams=[1])]

    assert names(512) == ["prompt of 128", "prompt of 512", "decode, 1 stream"]
    assert names(64) == ["prompt of 64", "decode, 1 stream"]


def test_streams_that_do_not_fit_in_memory_are_refused(path: Path) -> None:
    with pytest.raises(CapacityError, match=r"needs .* MB with .* tokens in its streams") as refused:
        profile(path, prompts=[], streams=[512], stream_context=400, memory="150MiB", seconds=0.1)
    assert "--streams" in (refused.value.hint or "")


def test_operators_with_float_weights_are_known(tmp_path: Path) -> None:
    mixed = TinyModel(format=Format.Q8_0, formats={"ffn_down": Format.F16}, tied=True).write(tmp_path / "mixed.gguf")
    assert float_operators(ModelFile.open(mixed)) == {"attention", "down"}
    floats = TinyModel(format=Format.F32).write(tmp_path / "floats.gguf")
    assert float_operators(ModelFile.open(floats)) >= {"attention", "qkv", "gate_up", "down", "logits"}
