"""Models that the core does not know answer through llama.cpp; what it knows answers alike through both."""

from __future__ import annotations

import ctypes
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType as Format

from oracles.foreign_model import ForeignModel, RecurrentModel
from oracles.tiny_adapter import TinyAdapter
from oracles.tiny_model import TinyModel
from patience import PATIENCE_SECONDS
from treadle import (
    LLM,
    CapacityError,
    Completion,
    ModelFileError,
    SamplingParams,
    TokenLogprob,
    UnsupportedModelError,
    UsageError,
)
from treadle.engine import choose
from treadle.engine.llamacpp import library as library_module
from treadle.engine.llamacpp.library import ContextParams, captured_log, open_library
from treadle.engine.llamacpp.runner import LlamaCppRunner
from treadle.hardware.memory import resident_memory_bytes

GREEDY = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
PROMPTS = ["the inn " * (1 + 7 * index % 23) for index in range(24)]


@pytest.fixture(scope="module")
def foreign_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return ForeignModel().write(tmp_path_factory.mktemp("foreign") / "foreign.gguf")


@pytest.fixture(scope="module")
def tiny_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return TinyModel().write(tmp_path_factory.mktemp("known") / "tiny.gguf")


def load(path: Path, **options: Any) -> LLM:
    """Load with one thread: OpenMP's wait for each other in a hurry, which takes long beside other tests."""
    return LLM(path, **{"threads": 1, **options})


def as_dict(logprob: TokenLogprob) -> dict[int, float]:
    return {each.token_id: each.logprob for each in logprob.top}


def assert_likeliest(llm: LLM, answer: Completion, prompt: str, num_tokens: int) -> None:
    """Check a greedy token deep in an answer against a fresh reading of all that is before it.

    llama.cpp rounds a little differently from batch to batch, so it may have been second by a hair.
    """
    params = SamplingParams(temperature=0, max_tokens=1, logprobs=20, ignore_eos=True)
    again = llm.generate([*llm.tokenize(prompt), *answer.token_ids[:num_tokens]], params)
    top = as_dict((again.logprobs or ())[0])
    assert top[answer.token_ids[num_tokens]] > max(top.values()) - 0.1


def test_a_model_the_core_does_not_know_answers_through_llama_cpp(foreign_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    with load(foreign_path, threads=2, progress=lambda done, total: seen.append((done, total))) as llm:
        assert llm.report.engine.name == "llamacpp"
        assert llm.report.engine.reason == "engine: llama.cpp, for architecture 'gptneox' is not one this core runs"
        assert llm.report.isa.startswith("llama.cpp (")
        assert seen[-1] == (foreign_path.stat().st_size, foreign_path.stat().st_size)
        single = llm.generate("the inn", GREEDY)
        assert len(single.token_ids) == 8
        assert "".join(chunk.text for chunk in llm.stream("the inn", GREEDY)) == single.text
        assert len(llm.chat([{"role": "user", "content": "the"}], GREEDY).token_ids) == 8


def test_takes_no_adapters(tiny_path: Path, tmp_path: Path) -> None:
    path = TinyAdapter().write(tmp_path / "adapter.gguf", TinyModel())
    with load(tiny_path, engine="llamacpp") as llm, pytest.raises(UsageError, match="adapters need Treadle's own core"):
        llm.load_adapter("law", path)


def test_the_engine_can_be_chosen(tiny_path: Path, foreign_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with LLM(tiny_path) as llm:
        assert (llm.report.engine.name, llm.report.engine.reason) == ("native", "")
    monkeypatch.setenv("TREADLE_ENGINE", "llamacpp")
    with LLM(tiny_path) as llm:
        assert llm.report.engine.name == "llamacpp"
    with LLM(tiny_path, engine="native") as llm:
        assert llm.report.engine.name == "native"
    with pytest.raises(UnsupportedModelError, match="gptneox"):
        LLM(foreign_path, engine="native")
    with pytest.raises(UsageError, match="engine: expected native or llamacpp, found 'vllm'"):
        LLM(tiny_path, engine="vllm")


def test_without_the_extra_the_error_says_what_to_install(
    tiny_path: Path, foreign_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (choose, library_module):
        monkeypatch.setattr(module, "find_library", lambda: None)
    open_library.cache_clear()
    with pytest.raises(UnsupportedModelError, match=r"gptneox.*\n.*pip install 'treadle\[llamacpp\]'"):
        LLM(foreign_path)
    with pytest.raises(UsageError, match=r"xllamacpp is not installed\n.*pip install 'treadle\[llamacpp\]'"):
        LLM(tiny_path, engine="llamacpp")


def test_both_engines_compute_the_same_distributions(tmp_path: Path) -> None:
    exact_path = TinyModel(format=Format.F32).write(tmp_path / "exact.gguf")
    params = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True, logprobs=20)
    answers = []
    for engine in ("native", "llamacpp"):
        with load(exact_path, engine=engine) as llm:
            answers.append(llm.generate("the inn in the", params))
    for ours, theirs in zip(*[completion.logprobs or () for completion in answers], strict=True):
        assert ours.token_id == theirs.token_id
        expected, found = as_dict(ours), as_dict(theirs)
        differences = [found[token_id] - expected[token_id] for token_id in expected.keys() & found.keys()]
        assert len(differences) >= 15
        # Neither rounds weights or activations, but keys and values are kept as f16.
        assert np.max(np.abs(differences)) < 0.02


def test_many_prompts_are_answered_together(foreign_path: Path) -> None:
    with load(foreign_path) as llm:
        answers = llm.generate(PROMPTS, GREEDY)
        assert llm.stats().scheduler.num_steps < len(PROMPTS) * GREEDY.max_tokens / 4
        for prompt, answer in list(zip(PROMPTS, answers, strict=True))[::5]:
            assert_likeliest(llm, answer, prompt, 7)


def test_a_long_prompt_is_read_in_several_steps(foreign_path: Path) -> None:
    params = SamplingParams(temperature=0, max_tokens=2, ignore_eos=True)
    with load(foreign_path) as llm:
        before = llm.stats().scheduler.num_steps
        assert len(llm.generate("the inn " * 500, params).token_ids) == 2
        assert llm.stats().scheduler.num_steps - before >= 3


def test_requests_that_must_make_way_begin_again(foreign_path: Path) -> None:
    params = SamplingParams(temperature=0, max_tokens=150, ignore_eos=True)
    prompts = [f"{number} the inn" for number in range(6)]
    with load(foreign_path, context=256) as llm:
        llm._host.scheduler.pools[0].try_allocate(llm.report.memory_plan.num_blocks - 16)  # leave room for three
        answers = llm.generate(prompts, params)
        assert llm.stats().scheduler.num_preemptions > 0
        for prompt, answer in zip(prompts, answers, strict=True):
            assert_likeliest(llm, answer, prompt, 60)
            assert_likeliest(llm, answer, prompt, 140)


def test_what_an_earlier_prompt_began_with_is_not_read_again(foreign_path: Path) -> None:
    turn = "the inn in the " * 60
    with load(foreign_path) as llm:
        first = llm.generate(turn, GREEDY)
        ids = [*llm.tokenize(turn), *first.token_ids, *llm.tokenize("an inn")]
        second, other = llm.generate([ids, f"{turn} or not"], GREEDY)
        assert first.cached_tokens == 0
        # The last token of an answer is not computed.
        assert second.cached_tokens == first.prompt_tokens + 7
        assert first.prompt_tokens - 2 <= other.cached_tokens <= first.prompt_tokens
        assert llm.stats().scheduler.num_pool_hit_tokens == second.cached_tokens + other.cached_tokens
        again = llm.generate(ids, GREEDY)
        assert again.cached_tokens == len(ids) - 1
        for answer in (second, again):
            params = SamplingParams(temperature=0, max_tokens=1, logprobs=20, ignore_eos=True)
            llm._host._runner._sequences.clear()  # type: ignore[union-attr]
            fresh = llm.generate([*ids, *answer.token_ids[:6]], params)
            assert fresh.cached_tokens == 0
            top = as_dict((fresh.logprobs or ())[0])
            assert top[answer.token_ids[6]] > max(top.values()) - 0.1


def test_models_without_attention_answer_and_read_every_prompt_anew(tmp_path: Path) -> None:
    path = RecurrentModel().write(tmp_path / "mamba.gguf")
    prompts = ["the inn " * 300, *["in the"] * 20]  # more than may run at a time
    with load(path) as llm:
        assert llm.report.memory_plan.scratch_bytes > llm.report.batching.max_num_requests * 2 * 128 * 20 * 4
        alone = [llm.generate(prompt, GREEDY).token_ids for prompt in prompts[:2]]
        together = llm.generate(prompts, GREEDY)
    assert [answer.token_ids for answer in together] == [alone[0], *[alone[1]] * 20]
    assert {answer.cached_tokens for answer in together} == {0}


def test_a_cancelled_answer_gives_its_place_back(foreign_path: Path) -> None:
    endless = SamplingParams(temperature=0, max_tokens=1500, ignore_eos=True)
    with load(foreign_path) as llm:
        expected = llm.generate("an inn", GREEDY).token_ids
        for _ in range(40):  # more than there are sequences
            with llm.stream("the", endless) as stream:
                next(stream)
        assert llm.generate("an inn", GREEDY).token_ids == expected


def test_sampling_with_a_seed_penalties_and_a_mask_is_ours(foreign_path: Path) -> None:
    params = SamplingParams(temperature=1.0, seed=3, repetition_penalty=1.2, max_tokens=16, logit_bias={33: -100})
    with load(foreign_path) as llm:
        first, second = (llm.generate("the inn", params).token_ids for _ in range(2))
    assert first == second
    assert 33 not in first


def test_several_models_at_once_and_after_each_other(foreign_path: Path, tiny_path: Path) -> None:
    def ask(path: Path) -> list[int]:
        with load(path, engine="llamacpp", threads=1) as llm:
            return llm.generate("the inn", GREEDY).token_ids

    alone = [ask(foreign_path), ask(tiny_path)]
    with ThreadPoolExecutor(2) as executor:
        assert list(executor.map(ask, [foreign_path, tiny_path] * 2)) == alone * 2


def test_quantised_keys_and_values(foreign_path: Path) -> None:
    with load(foreign_path, kv_type="q8_0") as llm:
        assert len(llm.generate("the inn", GREEDY).token_ids) == 8


def test_a_tokenizer_of_llama_cpp_stands_in_for_one_we_do_not_know(tmp_path: Path, foreign_path: Path) -> None:
    path = ForeignModel(pretokenizer="kimi-k2").write(tmp_path / "kimi.gguf")
    text = "the inn, thé 中文 12 \N{SLIGHTLY SMILING FACE} <|im_end|>"
    with load(foreign_path) as llm:
        known = llm.tokenize("the inn")
    with load(path) as llm:
        assert llm.tokenize("the inn") == known
        assert llm.detokenize(llm.tokenize(text)) == text
        assert max(llm.tokenize(text)) < 261  # no control token
        assert len(llm.generate("the inn", GREEDY).token_ids) == 8
    tiny = TinyModel().write(tmp_path / "tiny.gguf")
    tiny.write_bytes(tiny.read_bytes().replace(b"\5\0\0\0\0\0\0\0qwen2", b"\5\0\0\0\0\0\0\0qwen9"))
    with pytest.raises(ModelFileError, match=r"llama\.cpp does not load it: .*qwen9"):
        LLM(tiny)


def test_a_broken_file_is_a_model_file_error_with_the_reason(tmp_path: Path, foreign_path: Path) -> None:
    damaged = tmp_path / "damaged.gguf"
    damaged.write_bytes(foreign_path.read_bytes().replace(b"blk.1.attn_qkv.weight", b"blk.1.attn_qkx.weight"))
    with pytest.raises(ModelFileError, match=r"damaged.gguf: llama.cpp does not load it: .*attn_qkv"):
        LLM(damaged)


def test_an_error_in_the_progress_callback_ends_the_load(foreign_path: Path) -> None:
    def fail(done_bytes: int, total_bytes: int) -> None:
        raise ZeroDivisionError(f"{done_bytes} of {total_bytes}")

    with pytest.raises(ZeroDivisionError):
        LLM(foreign_path, progress=fail)


@pytest.mark.parametrize(
    ("ending", "code", "num_tracebacks"),
    [("", 0, 0), ("sys.exit(3)", 3, 0), ("signal.raise_signal(signal.SIGINT)", -signal.SIGINT, 1)],
)
def test_a_program_that_ends_while_its_model_answers_ends_cleanly(
    foreign_path: Path, ending: str, code: int, num_tracebacks: int
) -> None:
    program = (
        "import signal, sys\n"
        "from treadle import LLM, SamplingParams\n"
        "llm = LLM(sys.argv[1])\n"
        "stream = llm.stream('the', SamplingParams(max_tokens=None, ignore_eos=True))\n"
        f"next(stream)\n{ending}\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, foreign_path],
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert (done.returncode, done.stderr.count("Traceback")) == (code, num_tracebacks)


def test_closing_gives_the_memory_back(tmp_path: Path) -> None:
    path = ForeignModel(hidden_size=512, num_layers=12).write(tmp_path / "large.gguf")
    load(path).close()
    before = resident_memory_bytes()
    for _ in range(4):
        with load(path) as llm:
            assert resident_memory_bytes() > before + (60 << 20)
            llm.generate("the", GREEDY)
        del llm
    assert resident_memory_bytes() < before + (40 << 20)


@pytest.mark.parametrize("max_num_requests", [1, 5, 240])
def test_any_number_of_requests_may_share_steps(foreign_path: Path, max_num_requests: int) -> None:
    with load(foreign_path, max_num_requests=max_num_requests) as llm:
        answers = llm.generate(PROMPTS * 10, SamplingParams(temperature=0, max_tokens=2, ignore_eos=True))
        assert {len(answer.token_ids) for answer in answers} == {2}


def test_threads_change_between_steps(foreign_path: Path) -> None:
    with load(foreign_path, threads=2, prompt_threads=1) as llm:
        runner = llm._host._runner
        assert isinstance(runner, LlamaCppRunner)
        expected = llm.generate("the inn", GREEDY).token_ids
        assert runner.num_threads == 2
        runner.limit_threads(1)
        assert llm.generate("the inn", GREEDY).token_ids == expected
        assert runner.num_threads == 1
        runner.limit_threads(None)
        assert runner.num_threads == 2
        runner.set_threads([-1], [-1, -1])
        assert runner.num_threads == 1


def test_settings_of_the_core_are_not_dropped_in_silence(foreign_path: Path) -> None:
    with pytest.raises(UsageError, match="isa: 'ref' is for the native core"):
        LLM(foreign_path, isa="ref")
    with pytest.raises(UsageError, match="at most 240 together, found 300"):
        LLM(foreign_path, max_num_requests=300)
    with pytest.warns(RuntimeWarning, match="ram_cache is not used") as caught, LLM(foreign_path, ram_cache="1MiB"):
        pass
    assert caught[0].filename == __file__


def test_no_room_in_the_cells_is_an_error_of_that_step_alone(
    foreign_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with load(foreign_path) as llm:
        library = open_library()
        with monkeypatch.context() as patch:
            patch.setattr(library, "llama_decode", lambda *_: 1)
            with pytest.raises(CapacityError, match=r"llama\.cpp computed no step of"):
                llm.generate("the inn", GREEDY)
        assert len(llm.generate("the inn", GREEDY).token_ids) == 8


def test_a_library_with_other_structures_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    open_library.cache_clear()
    monkeypatch.setattr(library_module, "version", lambda _: "2027.1.1")
    with pytest.raises(UsageError, match=r"xllamacpp is version 2027\.1\.1; Treadle calls version"):
        open_library()
    monkeypatch.undo()
    monkeypatch.setitem(library_module._CONTEXT_DEFAULTS, "n_ubatch", 1024)
    with pytest.raises(UsageError, match=r"has other context parameters \(n_ubatch is 512, expected 1024\)"):
        open_library()
    monkeypatch.undo()
    monkeypatch.setitem(library_module._SIGNATURES, "llama_unheard_of", (None, ()))
    with pytest.raises(UsageError, match="has no function llama_unheard_of"):
        open_library()


def test_structures_have_the_size_of_the_header() -> None:
    assert ctypes.sizeof(library_module.ModelParams) == 80
    assert ctypes.sizeof(ContextParams) == 168
    assert ctypes.sizeof(library_module.Batch) == 56


def test_the_log_is_kept_apart_by_thread() -> None:
    def warn(text: bytes) -> list[str]:
        with captured_log() as log:
            barrier.wait(timeout=PATIENCE_SECONDS)
            library_module._take_log(3, text, None)
            library_module._take_log(2, b"not worth telling", None)
            barrier.wait(timeout=PATIENCE_SECONDS)
            return list(log)

    barrier = threading.Barrier(2)
    with ThreadPoolExecutor(2) as executor:
        assert list(executor.map(warn, [b"one\n", b"two\xff\n"])) == [["one"], ["two\N{REPLACEMENT CHARACTER}"]]
