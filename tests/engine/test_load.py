"""Loading a model: what is chosen, what is refused before any weight is read, what is warned of."""

from __future__ import annotations

import errno
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable
from concurrent.futures import CancelledError
from pathlib import Path

import pytest

from oracles.tiny_model import TinyModel
from patience import PATIENCE_SECONDS
from treadle import LLM, CapacityError, ModelFileError, SamplingParams, UsageError
from treadle.engine import load as load_module
from treadle.engine import outset
from treadle.engine.runner import NativeRunner
from treadle.hardware.memory import MemoryBudget

GREEDY = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)


@pytest.fixture(scope="module")
def tiny_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return TinyModel().write(tmp_path_factory.mktemp("load") / "tiny.gguf")


def test_a_small_model_loads_and_answers_in_every_way(tiny_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    with LLM(tiny_path, threads=2, progress=lambda done, total: seen.append((done, total))) as llm:
        assert llm.report.memory_plan.reason == "all the model was trained for"
        assert (llm.context, llm.report.thread_plan.num_threads) == (512, 2)
        assert llm.report.name == "tiny"
        assert seen[-1][0] == seen[-1][1]
        single = llm.generate("the inn", GREEDY)
        assert llm.generate(["the inn", "an"], GREEDY)[0].token_ids == single.token_ids
        assert "".join(chunk.text for chunk in llm.stream("the inn", GREEDY)) == single.text
        assert len(llm.chat([{"role": "user", "content": "the"}], GREEDY).token_ids) == 8
        assert llm.detokenize(llm.tokenize("the inn <|im_end|>")) == "the inn <|im_end|>"


def test_an_answer_is_repeated_exactly_also_after_one_was_cancelled(tiny_path: Path) -> None:
    params = SamplingParams(temperature=1.0, seed=1, repetition_penalty=1.3, max_tokens=24)
    with LLM(tiny_path) as llm:
        first, second = (llm.generate("the an in the", params) for _ in range(2))
        with llm.stream("the an in", params) as cut_short:
            next(cut_short)
        assert first.token_ids == second.token_ids == llm.generate("the an in the", params).token_ids


def test_the_kernels_can_be_chosen(tiny_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with LLM(tiny_path, isa="ref") as llm:
        assert llm.report.isa == "ref"
    monkeypatch.setenv("TREADLE_ISA", "ref")
    with LLM(tiny_path) as llm:
        assert llm.report.isa == "ref"
    with pytest.raises(UsageError, match='no kernels for instruction set "sse9"'):
        LLM(tiny_path, isa="sse9")


def test_the_kv_type_can_be_chosen(tiny_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with LLM(tiny_path) as llm:
        plain = llm.report.memory_plan
    with LLM(tiny_path, kv_type="q8_0") as llm:
        small = llm.report.memory_plan
        assert len(llm.generate("the inn", GREEDY).token_ids) == 8
    assert (plain.kv_type, small.kv_type) == ("f16", "q8_0")
    assert small.kv_bytes < plain.kv_bytes
    monkeypatch.setenv("TREADLE_KV_TYPE", "q8_0")
    with LLM(tiny_path) as llm:
        assert llm.report.memory_plan.kv_type == "q8_0"
    with LLM(tiny_path, kv_type="f16") as llm:
        assert llm.report.memory_plan.kv_type == "f16"
    with pytest.raises(UsageError, match="kv_type: expected one of f16, q8_0, found 'int8'"):
        LLM(tiny_path, kv_type="int8")


@pytest.mark.parametrize("settings", [{"threads": 0}, {"context": 0}, {"context": 513}])
def test_refuses_settings_out_of_range(tiny_path: Path, settings: dict[str, int]) -> None:
    with pytest.raises(UsageError):
        LLM(tiny_path, **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_num_requests": 0}, "max_num_requests: expected a whole number, 1 to 512 .*found 0"),
        ({"max_num_requests": 513}, "max_num_requests: .*found 513"),
        ({"max_num_requests": 1.5}, "max_num_requests: .*found 1.5"),
        ({"slowdown": 1}, "slowdown: expected above 1.*found 1"),
        ({"slowdown": float("nan")}, "slowdown: .*found nan"),
        ({"slowdown": "2"}, "slowdown: .*found '2'"),
    ],
)
def test_ways_to_share_steps_that_cannot_be_are_refused_before_loading(
    tiny_path: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, float], message: str
) -> None:
    monkeypatch.setattr(NativeRunner, "load", lambda *_, **__: pytest.fail("weights were loaded"))
    with pytest.raises(UsageError, match=message):
        LLM(tiny_path, **settings)  # type: ignore[arg-type]


def test_how_requests_share_steps_can_be_chosen(tiny_path: Path) -> None:
    with LLM(tiny_path, max_num_requests=2, slowdown=None) as llm:
        scheduler = llm._host.scheduler
        assert (scheduler.max_num_requests, scheduler.slowdown) == (2, None)
        prompts = ["the", "an", "the inn", "the the", "in", "an an"] * 4
        together = [completion.token_ids for completion in llm.generate(prompts, GREEDY)]
        assert together == [llm.generate(prompt, GREEDY).token_ids for prompt in prompts]


def test_what_does_not_fit_is_refused_before_loading(tiny_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(NativeRunner, "load", lambda *_, **__: pytest.fail("weights were loaded"))
    monkeypatch.setattr(outset, "memory_budget", lambda: MemoryBudget(10**6, 10**6, "a limit of a test"))
    with pytest.raises(CapacityError, match=r"tiny needs \d+ MB to load .* may use 1 MB \(a limit of a test\)"):
        LLM(tiny_path)


@pytest.mark.parametrize(
    ("error_number", "limit_bytes", "text"),
    [
        (
            errno.ENOMEM,
            65536,
            r"mlock: the limit is 64 KiB and the model needs [\d,]+ KiB; .* Type `ulimit -l \d+` first",
        ),
        (errno.EPERM, 0, r"mlock: the limit is 0 KiB"),
        (errno.ENOMEM, None, r"mlock failed: Cannot allocate memory; the model may be swapped out"),
        (errno.ENOSYS, 65536, r"mlock failed: Function not implemented"),
    ],
)
def test_a_lock_that_is_forbidden_is_a_warning(
    tiny_path: Path, monkeypatch: pytest.MonkeyPatch, error_number: int, limit_bytes: int | None, text: str
) -> None:
    monkeypatch.setattr(NativeRunner, "lock_memory", lambda _: error_number)
    monkeypatch.setattr(load_module, "memlock_limit_bytes", lambda: limit_bytes)
    with pytest.warns(RuntimeWarning, match=text) as caught, LLM(tiny_path, mlock=True) as llm:
        assert len(llm.generate("the", GREEDY).token_ids) == 8
    assert caught[0].filename == __file__


def test_a_lock_that_is_granted_is_silent(tiny_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(NativeRunner, "lock_memory", lambda _: 0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        LLM(tiny_path, mlock=True).close()


def test_a_tokenizer_that_fails_abandons_the_weights(tiny_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    endings: list[type[BaseException]] = []

    def load_forever(*_: object, progress: Callable[[int, int], None], **__: object) -> None:
        try:
            while True:
                progress(0, 1)
        except CancelledError as error:
            endings.append(type(error))

    def fail(*_: object) -> None:
        raise ModelFileError("no tokenizer")

    monkeypatch.setattr(NativeRunner, "load", load_forever)
    monkeypatch.setattr(load_module, "_read_text_parts", fail)
    with pytest.raises(ModelFileError, match="no tokenizer"):
        LLM(tiny_path)
    assert endings == [CancelledError]


def test_an_error_in_the_progress_callback_ends_the_load(tiny_path: Path) -> None:
    def fail(done_bytes: int, total_bytes: int) -> None:
        raise ZeroDivisionError(f"{done_bytes} of {total_bytes}")

    with pytest.raises(ZeroDivisionError):
        LLM(tiny_path, progress=fail)


@pytest.mark.parametrize(
    ("ending", "code", "num_tracebacks"),
    [("", 0, 0), ("sys.exit(3)", 3, 0), ("signal.raise_signal(signal.SIGINT)", -signal.SIGINT, 1)],
)
def test_a_program_that_ends_while_its_model_answers_ends_cleanly(
    tiny_path: Path, ending: str, code: int, num_tracebacks: int
) -> None:
    program = (
        "import signal, sys\n"
        "from treadle import LLM, SamplingParams\n"
        "llm = LLM(sys.argv[1])\n"
        "stream = llm.stream('the', SamplingParams(max_tokens=None, ignore_eos=True))\n"
        f"next(stream)\n{ending}\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, tiny_path],
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert (done.returncode, done.stderr.count("Traceback")) == (code, num_tracebacks)
