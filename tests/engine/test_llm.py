"""The Python API over fakes: answers, lists, streams, threads, errors, closing."""

from __future__ import annotations

import gc
import random
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from fakes import FakeModelRunner, answer
from patience import PATIENCE_SECONDS
from treadle.engine import llm as llm_module
from treadle.engine.llm import LLM
from treadle.engine.load import LoadedModel
from treadle.engine.plan import Sample, StepPlan, StepResult
from treadle.engine.sampling import SamplingParams
from treadle.errors import CapacityError, ModelFileError, UsageError

GREEDY = SamplingParams(temperature=0, max_tokens=6)
LONG = SamplingParams(temperature=0, max_tokens=None)


def spell(prompt: str, length: int) -> str:
    return "".join(f"<{token_id}>" for token_id in answer([ord(char) for char in prompt], length))


@pytest.fixture
def llm(loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> Iterator[LLM]:
    monkeypatch.setattr(llm_module, "load_model", lambda *_, **__: loaded)
    with LLM("fake") as llm:
        yield llm


def wait_until_idle(llm: LLM, runner: FakeModelRunner) -> None:
    """Pass one more request through: the engine's thread carries out orders in the order they came."""
    runner.is_held = False
    runner.may_step.release(1000)
    llm.generate("z", SamplingParams(max_tokens=1))


def test_answers_one_prompt(llm: LLM) -> None:
    completion = llm.generate("hello", GREEDY)
    assert completion.text == spell("hello", 6)
    assert completion.token_ids == answer([ord(char) for char in "hello"], 6)
    assert (completion.finish_reason, completion.prompt_tokens, completion.logprobs) == ("length", 5, None)
    assert completion.timings.prefill_seconds > 0
    assert completion.timings.decode_seconds > 0


def test_answers_a_list_in_its_order_and_together(llm: LLM, runner: FakeModelRunner) -> None:
    prompts = [f"prompt {index}" for index in range(150)]
    completions = llm.generate(prompts, GREEDY)
    assert [completion.text for completion in completions] == [spell(prompt, 6) for prompt in prompts]
    assert max(len(plan.chunks) for plan in runner.plans) > 1
    assert llm.generate([], GREEDY) == []


def test_gives_several_answers_each_with_its_own_seed(llm: LLM, runner: FakeModelRunner) -> None:
    params = SamplingParams(max_tokens=4, seed=7, n=3)
    first = llm.generate("hello", params)
    assert (first.index, [other.index for other in first.alternatives]) == (0, [1, 2])
    assert [each.text for each in (first, *first.alternatives)] == [spell("hello", 4)] * 3
    seeds = [seed for _, seed in runner.samplers]
    assert seeds[0] == 7
    assert len(set(seeds)) == 3
    llm.generate(["hello", "you"], params)
    assert [seed for _, seed in runner.samplers] == seeds * 3


def test_streams_several_answers_told_apart_by_their_index(llm: LLM) -> None:
    texts = ["", ""]
    ends = []
    for chunk in llm.stream("hello", SamplingParams(max_tokens=4, n=2)):
        texts[chunk.index] += chunk.text
        ends += [chunk.index] if chunk.completion is not None else []
    assert texts == [spell("hello", 4)] * 2
    assert sorted(ends) == [0, 1]


def test_conversations_can_be_asked_as_a_list(llm: LLM) -> None:
    prompts = [llm.chat_prompt([{"role": "user", "content": text}]) for text in ("a", "b")]
    assert [prompt.text for prompt in prompts] == ["user:a;", "user:b;"]
    assert [each.text for each in llm.generate(prompts, GREEDY)] == [spell("user:a;", 6), spell("user:b;", 6)]


def test_takes_token_ids(llm: LLM) -> None:
    ids = llm.tokenize("hello")
    assert llm.generate(ids, GREEDY).text == spell("hello", 6)
    assert [completion.text for completion in llm.generate([ids, [1]], GREEDY)] == [spell("hello", 6), spell("\x01", 6)]
    with pytest.raises(UsageError, match="-1 is not a token id, expected 0 to 999"):
        llm.generate([5, -1], GREEDY)
    assert llm.detokenize([7, 8]) == "<7><8>"


def test_chat_renders_with_the_template_and_its_variables(llm: LLM) -> None:
    messages = [{"role": "user", "content": "hi"}]
    assert llm.chat(messages, GREEDY).text == spell("user:hi;", 6)
    assert llm.chat(messages, GREEDY, note="!").text == spell("user:hi;!", 6)


def test_streams_the_same_text_and_ends_with_the_whole(llm: LLM) -> None:
    chunks = list(llm.stream("hello", GREEDY))
    assert "".join(chunk.text for chunk in chunks) == spell("hello", 6)
    assert [chunk.finish_reason for chunk in chunks] == [None] * 5 + ["length"]
    assert chunks[-1].completion is not None
    assert chunks[-1].completion.text == spell("hello", 6)
    assert "".join(chunk.text for chunk in llm.stream([{"role": "user", "content": "a"}], GREEDY)) == spell(
        "user:a;", 6
    )
    with pytest.raises(UsageError, match="stream: note is for the chat template"):
        llm.stream("hello", GREEDY, note="!")


def test_stop_strings_and_logprobs_reach_the_answer(llm: LLM) -> None:
    third = f"<{answer([97], 3)[2]}>"
    completion = llm.generate("a", SamplingParams(max_tokens=9, stop=third[1:], logprobs=0))
    assert (completion.text, completion.finish_reason) == (spell("a", 2) + "<", "stop")
    assert completion.logprobs is not None
    assert [logprob.text for logprob in completion.logprobs] == [f"<{token_id}>" for token_id in answer([97], 3)]


def test_a_seed_is_kept_and_without_one_each_request_draws_its_own(llm: LLM, runner: FakeModelRunner) -> None:
    llm.generate("a", SamplingParams(max_tokens=1, seed=7))
    llm.generate(["a", "b"], SamplingParams(max_tokens=1))
    seeds = [seed for _, seed in runner.samplers]
    assert seeds[0] == 7
    assert seeds[1] != seeds[2]


@pytest.mark.parametrize("priority", ["urgent", 3])
def test_refuses_an_unknown_priority(llm: LLM, priority: Any) -> None:
    with pytest.raises(UsageError, match=f"priority: expected interactive or batch, found {priority!r}"):
        llm.generate("hello", priority=priority)


@pytest.mark.parametrize("timeout", [0, -1, "1", True])
def test_refuses_a_timeout_that_is_none(llm: LLM, timeout: Any) -> None:
    with pytest.raises(UsageError, match="timeout: expected seconds above 0"):
        llm.generate("hello", timeout=timeout)


def test_says_what_ended_an_answer(llm: LLM) -> None:
    text = f"<{answer([97], 3)[2]}>"
    assert llm.generate("a", SamplingParams(max_tokens=9, stop=[text])).stopped_by == text
    assert llm.generate("a", SamplingParams(max_tokens=2, stop=[text])).stopped_by is None


def test_says_how_much_of_a_prompt_was_known(llm: LLM) -> None:
    prompt = "x" * 70
    assert [llm.generate(prompt, GREEDY).cached_tokens for _ in range(2)] == [0, 64]


def test_statistics_say_what_was_done(llm: LLM, runner: FakeModelRunner) -> None:
    llm.generate("x" * 70, GREEDY)
    llm.generate("x" * 70, GREEDY)
    wait_until_idle(llm, runner)
    stats = llm.stats()
    assert (stats.num_prompt_tokens, stats.scheduler.num_missed_tokens) == (141, 77)
    assert stats.hit_rate == pytest.approx(64 / 141)
    assert stats.steps.num_steps == stats.scheduler.num_steps == 13
    assert 0 < stats.steps.native_seconds < stats.steps.step_seconds
    assert stats.resident_bytes > 0
    assert stats.store is None


def test_a_full_context_ends_with_length(llm: LLM) -> None:
    completion = llm.generate("x" * 319, SamplingParams(max_tokens=None))
    assert (len(completion.token_ids), completion.finish_reason) == (1, "length")


@pytest.mark.parametrize(
    ("prompts", "text"),
    [
        ("x" * 320, "^the prompt has 320 tokens; a context of 320 has room for 319"),
        (["ok", "x" * 320], "^prompt 1 of the list: the prompt has 320 tokens"),
        ("", "the prompt is empty"),
        (5, "expected text or a list of token ids, found 5"),
        ([{"role": "user", "content": "hi"}], "expected text or a list of token ids, found {'role': 'user'"),
        ([["a"]], r"expected text or a list of token ids, found \['a'\]"),
    ],
)
def test_refuses_before_anything_is_computed(llm: LLM, runner: FakeModelRunner, prompts: Any, text: str) -> None:
    with pytest.raises(UsageError, match=text):
        llm.generate(prompts, GREEDY)
    assert runner.plans == []


def test_closing_a_stream_frees_its_request(llm: LLM, runner: FakeModelRunner) -> None:
    runner.is_held = True
    stream = llm.stream("hello", LONG)
    runner.may_step.release(2)
    next(stream)
    stream.close()
    assert list(stream) == []
    wait_until_idle(llm, runner)
    assert runner.plans[-1].chunks[0].request.prompt_ids == [ord("z")]
    assert llm._host.scheduler.pools[0].num_used == 0


def test_dropping_a_stream_unread_frees_its_request(llm: LLM, runner: FakeModelRunner) -> None:
    runner.is_held = True
    stream = llm.stream("hello", LONG)
    [request] = stream.requests
    del stream
    gc.collect()
    wait_until_idle(llm, runner)
    assert request.finish_reason is None
    assert len(request.answer_ids) < 300
    assert llm._host.scheduler.pools[0].num_used == 0


def test_threads_are_served_together(llm: LLM, runner: FakeModelRunner) -> None:
    texts: dict[int, str] = {}
    runner.is_held = True
    threads = [
        threading.Thread(target=lambda i=i: texts.update({i: llm.generate(f"prompt {i}", GREEDY).text}))
        for i in range(8)
    ]
    for thread in threads:
        thread.start()
    runner.may_step.release(1000)
    for thread in threads:
        thread.join(timeout=PATIENCE_SECONDS)
    assert texts == {i: spell(f"prompt {i}", 6) for i in range(8)}


def test_bad_logits_raise_for_one_prompt_and_mark_one_of_a_list(llm: LLM, runner: FakeModelRunner) -> None:
    run = runner.run

    def poisoned(plan: StepPlan) -> StepResult:
        samples = iter(run(plan).samples)
        chunks = [chunk for chunk in plan.chunks if chunk.samples]
        return StepResult(
            [Sample(-1, bad_logits=True) if c.request.prompt_ids[0] == ord("b") else next(samples) for c in chunks]
        )

    runner.run = poisoned  # type: ignore[method-assign]
    with pytest.raises(ModelFileError, match="NaN or infinite logits"):
        llm.generate("bad", GREEDY)
    with pytest.raises(ModelFileError, match="NaN or infinite logits"):
        list(llm.stream("bad", GREEDY))
    bad, good = llm.generate(["bad", "good"], GREEDY)
    assert (bad.finish_reason, type(bad.error)) == ("error", ModelFileError)
    assert good.finish_reason == "length"


def test_a_step_that_fails_ends_its_requests_and_the_next_ones_are_served(llm: LLM, runner: FakeModelRunner) -> None:
    run = runner.run

    def broken(plan: StepPlan) -> StepResult:
        runner.run = run  # type: ignore[method-assign]
        raise RuntimeError("lightning")

    runner.run = broken  # type: ignore[method-assign]
    with pytest.raises(Exception, match="was cut short: RuntimeError: lightning"):
        llm.generate("hello", GREEDY)
    assert llm.generate("hello", GREEDY).text == spell("hello", 6)


def test_a_closed_model_says_so(llm: LLM, runner: FakeModelRunner) -> None:
    runner.is_held = True
    stream = llm.stream("hello", LONG)
    closer = threading.Thread(target=llm.close)
    closer.start()
    while not llm._host.thread._is_closed:
        pass
    with llm._host.thread._lock:  # the order to end is given under it
        runner.may_step.release(1)
    closer.join(timeout=PATIENCE_SECONDS)
    llm.close()
    with pytest.raises(CapacityError, match="the model was closed before the answer ended"):
        list(stream)
    for ask in (llm.generate, llm.stream):
        with pytest.raises(UsageError, match="the model was closed"):
            ask("hello", GREEDY)


def test_a_dropped_model_ends_its_thread(llm: LLM) -> None:
    thread = llm._host.thread._thread
    assert thread.is_alive()
    llm._host._end()
    assert not thread.is_alive()


def test_a_storm_of_threads_and_early_ends_leaves_nothing_behind(llm: LLM, runner: FakeModelRunner) -> None:
    wrong: list[str] = []

    def ask(seed: int) -> None:
        chance = random.Random(seed)
        for index in range(25):
            prompt = f"{seed}-{index}-" + "x" * chance.randrange(120)
            num_chunks = chance.choice([0, 1, 7, 100])
            with llm.stream(prompt, SamplingParams(max_tokens=chance.randint(1, 90))) as stream:
                text = "".join(chunk.text for chunk, _ in zip(stream, range(num_chunks), strict=False))
            if not spell(prompt, 90).startswith(text):
                wrong.append(prompt)

    threads = [threading.Thread(target=ask, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=PATIENCE_SECONDS)
    assert wrong == []
    wait_until_idle(llm, runner)
    assert (llm._host.scheduler.pools[0].num_used, llm._host.scheduler.running, llm._host.scheduler.waiting) == (
        0,
        (),
        (),
    )
