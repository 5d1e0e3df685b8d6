"""The API for event loops over fakes: answers, cancellation, slow readers, wake-ups, loading, closing."""

from __future__ import annotations

import asyncio
import gc
import random
import threading
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any
from unittest.mock import Mock

import pytest

from fakes import FakeModelRunner, answer
from patience import PATIENCE_SECONDS
from treadle.engine import async_llm as async_llm_module
from treadle.engine.async_llm import AsyncLLM
from treadle.engine.async_stream import AsyncCompletionStream
from treadle.engine.completion import CompletionChunk
from treadle.engine.contract import AsyncEngine
from treadle.engine.courier import Courier, Inbox
from treadle.engine.load import LoadedModel
from treadle.engine.plan import Sample, StepPlan, StepResult
from treadle.engine.request import TokenEvent
from treadle.engine.sampling import SamplingParams
from treadle.errors import CapacityError, ModelFileError, UsageError

GREEDY = SamplingParams(temperature=0, max_tokens=6)
LONG = SamplingParams(temperature=0, max_tokens=None)


def spell(prompt: str, length: int) -> str:
    return "".join(f"<{token_id}>" for token_id in answer([ord(char) for char in prompt], length))


def serve(loaded: LoadedModel, test: Callable[[AsyncLLM], Awaitable[None]]) -> None:
    """Run a test in an event loop of its own; nothing it asked for may be left when it is done."""

    async def run() -> None:
        async with AsyncLLM(loaded) as llm:
            await test(llm)
            loaded.runner.is_held = False  # type: ignore[attr-defined]
            loaded.runner.may_step.release(1000)  # type: ignore[attr-defined]
            # The engine's thread carries out orders in the order they came, so this one comes after every cancellation.
            await read_all(llm.generate("z", SamplingParams(max_tokens=1)))
            scheduler = llm._host.scheduler
            assert (scheduler.pools[0].num_used, scheduler.running, scheduler.waiting) == (0, (), ())

    asyncio.run(asyncio.wait_for(run(), timeout=PATIENCE_SECONDS))


async def read_all(stream: AsyncCompletionStream) -> list[CompletionChunk]:
    return [chunk async for chunk in stream]


async def read_text(stream: AsyncCompletionStream) -> str:
    return "".join([chunk.text async for chunk in stream])


def test_streams_an_answer_and_ends_with_the_whole(loaded: LoadedModel) -> None:
    async def test(llm: AsyncLLM) -> None:
        engine: AsyncEngine = llm
        chunks = [chunk async for chunk in engine.generate("hello", GREEDY)]
        assert "".join(chunk.text for chunk in chunks) == spell("hello", 6)
        assert [chunk.finish_reason for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
        completion = chunks[-1].completion
        assert completion is not None
        assert (completion.text, completion.finish_reason) == (spell("hello", 6), "length")
        assert completion.timings.first_token_seconds > 0

    serve(loaded, test)


def test_answers_a_conversation(loaded: LoadedModel) -> None:
    async def test(llm: AsyncLLM) -> None:
        prompt = llm.chat_prompt([{"role": "user", "content": "hi"}], note="!")
        assert prompt.text == "user:hi;!"
        assert await llm.tokenize(prompt.text) == prompt.token_ids
        assert await read_text(llm.generate(prompt, GREEDY)) == spell("user:hi;!", 6)

    serve(loaded, test)


def test_many_tasks_are_served_together(loaded: LoadedModel, runner: FakeModelRunner) -> None:
    async def test(llm: AsyncLLM) -> None:
        prompts = [f"prompt {index}" for index in range(60)]
        texts = await asyncio.gather(*(read_text(llm.generate(prompt, GREEDY)) for prompt in prompts))
        assert texts == [spell(prompt, 6) for prompt in prompts]
        assert max(len(plan.chunks) for plan in runner.plans) > 1

    serve(loaded, test)


def test_several_answers_share_a_stream(loaded: LoadedModel) -> None:
    async def test(llm: AsyncLLM) -> None:
        texts = ["", "", ""]
        async for chunk in llm.generate("hello", SamplingParams(max_tokens=4, n=3)):
            texts[chunk.index] += chunk.text
        assert texts == [spell("hello", 4)] * 3

    serve(loaded, test)


def test_a_slow_reader_gets_what_came_meanwhile_in_one_chunk(loaded: LoadedModel, runner: FakeModelRunner) -> None:
    async def test(llm: AsyncLLM) -> None:
        slow = llm.generate("slow", GREEDY)
        assert await read_text(llm.generate("quick, but longer", SamplingParams(max_tokens=20))) == spell(
            "quick, but longer", 20
        )
        [chunk] = await read_all(slow)
        assert chunk.text == spell("slow", 6)
        assert list(chunk.token_ids) == answer([ord(char) for char in "slow"], 6)
        assert chunk.finish_reason == "length"

    serve(loaded, test)


def test_a_step_wakes_each_loop_once(monkeypatch: pytest.MonkeyPatch, loaded: LoadedModel) -> None:
    monkeypatch.setattr(async_llm_module, "Courier", partial(Courier, pace_seconds=0))

    async def test(llm: AsyncLLM) -> None:
        loop = asyncio.get_running_loop()
        wake = loop.call_soon_threadsafe
        num_wakes = 0

        def counted(*args: Any, **kwargs: Any) -> Any:
            nonlocal num_wakes
            num_wakes += 1
            return wake(*args, **kwargs)

        monkeypatch.setattr(loop, "call_soon_threadsafe", counted)
        loaded.runner.is_held = True  # type: ignore[attr-defined]
        # The first step may hold fewer than all prompts; as nothing is slowed down for batches, the second has the rest.
        streams = [llm.generate(f"prompt {index}", LONG, priority="batch") for index in range(5)]
        loaded.runner.may_step.release(1)  # type: ignore[attr-defined]
        await anext(streams[0])
        num_wakes = 0
        for _ in range(10):
            loaded.runner.may_step.release(1)  # type: ignore[attr-defined]
            await asyncio.gather(*map(anext, streams))
        assert num_wakes <= 11
        monkeypatch.undo()

    serve(loaded, test)


async def by_closing(stream: AsyncCompletionStream) -> None:
    await anext(stream)
    await stream.aclose()
    await stream.aclose()
    assert await read_all(stream) == []


async def by_leaving_the_block(stream: AsyncCompletionStream) -> None:
    async with stream:
        await anext(stream)
    assert await read_all(stream) == []


async def by_dropping(stream: AsyncCompletionStream) -> None:
    await anext(stream)
    del stream
    gc.collect()


async def by_cancelling_the_task(stream: AsyncCompletionStream) -> None:
    task = asyncio.create_task(read_all(stream))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await read_all(stream) == []


@pytest.mark.parametrize("end", [by_closing, by_leaving_the_block, by_dropping, by_cancelling_the_task])
def test_an_answer_nobody_reads_on_is_given_up_before_the_next_step(
    loaded: LoadedModel, runner: FakeModelRunner, end: Callable[[AsyncCompletionStream], Awaitable[None]]
) -> None:
    async def test(llm: AsyncLLM) -> None:
        runner.is_held = True
        runner.may_step.release(1)
        await end(llm.generate("hello", LONG))
        runner.is_held = False
        runner.may_step.release(1000)
        await read_all(llm.generate("z", SamplingParams(max_tokens=1)))
        # One step more than it was allowed, which had begun before the end.
        assert sum(plan.chunks[0].request.prompt_ids != [ord("z")] for plan in runner.plans) <= 2

    serve(loaded, test)


def test_refuses_before_anything_is_computed(loaded: LoadedModel, runner: FakeModelRunner) -> None:
    async def test(llm: AsyncLLM) -> None:
        with pytest.raises(UsageError, match="the prompt has 320 tokens"):
            llm.generate("x" * 320)
        assert runner.plans == []

    serve(loaded, test)


def test_an_error_is_raised_and_the_others_go_on(loaded: LoadedModel, runner: FakeModelRunner) -> None:
    run = runner.run

    def poisoned(plan: StepPlan) -> StepResult:
        samples = iter(run(plan).samples)
        chunks = [chunk for chunk in plan.chunks if chunk.samples]
        return StepResult(
            [Sample(-1, bad_logits=True) if c.request.prompt_ids[0] == ord("b") else next(samples) for c in chunks]
        )

    async def test(llm: AsyncLLM) -> None:
        runner.run = poisoned  # type: ignore[method-assign]
        good = asyncio.create_task(read_text(llm.generate("good", GREEDY)))
        with pytest.raises(ModelFileError, match="NaN or infinite logits"):
            await read_all(llm.generate("bad", SamplingParams(max_tokens=6, n=2)))
        assert len(await good) > 0

    serve(loaded, test)


def test_closing_ends_what_runs_with_an_error(loaded: LoadedModel) -> None:
    async def run() -> None:
        llm = AsyncLLM(loaded)
        stream = llm.generate("hello", LONG)
        await llm.close()
        await llm.close()
        with pytest.raises(CapacityError, match="the model was closed before the answer ended"):
            await read_all(stream)
        with pytest.raises(UsageError, match="the model was closed"):
            llm.generate("hello")

    asyncio.run(run())


def test_a_dropped_model_ends_its_thread(loaded: LoadedModel) -> None:
    llm = AsyncLLM(loaded)
    thread = llm._host.thread._thread
    del llm
    gc.collect()
    thread.join(timeout=PATIENCE_SECONDS)
    assert not thread.is_alive()


def test_a_closed_loop_does_not_disturb_the_others(loaded: LoadedModel, runner: FakeModelRunner) -> None:
    llm = AsyncLLM(loaded)
    kept: list[AsyncCompletionStream] = []

    async def leave() -> None:
        kept.append(llm.generate("left behind", LONG))

    async def ask() -> str:
        return await read_text(llm.generate("hello", GREEDY))

    runner.is_held = True
    asyncio.run(leave())
    runner.is_held = False
    runner.may_step.release(1000)
    assert asyncio.run(ask()) == spell("hello", 6)
    asyncio.run(llm.close())


def test_a_storm_of_cancelled_tasks_leaves_nothing_behind(loaded: LoadedModel) -> None:
    async def test(llm: AsyncLLM) -> None:
        chance = random.Random(5)

        async def ask(index: int) -> None:
            prompt = f"{index}-" + "x" * chance.randrange(120)
            num_chunks = chance.choice([0, 1, 7, 100])
            text = ""
            async with llm.generate(prompt, SamplingParams(max_tokens=chance.randint(1, 90))) as stream:
                async for chunk in stream:
                    text += chunk.text
                    if num_chunks == 0:
                        break
                    num_chunks -= 1
            assert spell(prompt, 90).startswith(text)

        tasks = [asyncio.create_task(ask(index)) for index in range(150)]
        for _ in tasks:
            await asyncio.sleep(0)
            if chance.random() < 0.3:
                chance.choice(tasks).cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert {type(result) for result in results} <= {type(None), asyncio.CancelledError}

    serve(loaded, test)


def test_loads_in_a_thread_and_takes_the_options(monkeypatch: pytest.MonkeyPatch, loaded: LoadedModel) -> None:
    calls: list[dict[str, Any]] = []

    def load(model: str, **options: Any) -> LoadedModel:
        assert threading.current_thread() is not threading.main_thread()
        calls.append({"model": model, **options})
        options["progress"](1, 2)
        return loaded

    seen: list[tuple[int, int]] = []
    monkeypatch.setattr(async_llm_module, "load_model", load)

    async def run() -> None:
        async with await AsyncLLM.load(
            "fake", context=64, progress=lambda done, total: seen.append((done, total))
        ) as llm:
            assert (llm.name, llm.context, llm.has_chat_template) == ("fake", 320, True)

    asyncio.run(run())
    assert seen == [(1, 2)]
    assert (calls[0]["model"], calls[0]["context"]) == ("fake", 64)


def test_a_load_that_is_cancelled_stops(monkeypatch: pytest.MonkeyPatch, loaded: LoadedModel) -> None:
    has_begun, may_go_on, has_stopped = threading.Event(), threading.Event(), threading.Event()

    def load(*_: Any, **options: Any) -> LoadedModel:
        has_begun.set()
        assert may_go_on.wait(timeout=PATIENCE_SECONDS)
        try:
            options["progress"](1, 2)
        except BaseException:
            has_stopped.set()
            raise
        return loaded

    monkeypatch.setattr(async_llm_module, "load_model", load)

    async def run() -> None:
        task = asyncio.create_task(AsyncLLM.load("fake"))
        await asyncio.to_thread(has_begun.wait, PATIENCE_SECONDS)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        may_go_on.set()
        assert await asyncio.to_thread(has_stopped.wait, PATIENCE_SECONDS)

    asyncio.run(run())


def test_a_courier_with_nothing_to_say_wakes_nobody() -> None:
    Courier().end_step()


def event(*samples: int, known: int, finish_reason: Any = None) -> TokenEvent:
    """An event of a request with a prompt of one token, ``known`` of its answer known with it."""
    request = Mock(prompt_ids=[1], token_ids=[1] * (1 + known))
    return TokenEvent(request, "", [Sample(sample) for sample in samples], finish_reason)


def test_a_courier_holds_back_what_can_wait_for_a_moment_only() -> None:
    now = 0.0

    async def run() -> None:
        nonlocal now
        courier = Courier(pace_seconds=1, clock=lambda: now)
        inbox = Inbox()
        deliver = courier.route(inbox)

        async def arrived() -> int:
            courier.end_step()
            await asyncio.sleep(0)
            num_events = sum(len(events) for events in inbox._events.values())
            inbox._events.clear()
            return num_events

        deliver(event(5, known=1))
        assert await arrived() == 1  # the first of an answer
        deliver(event(6, known=2))
        assert await arrived() == 0
        now = 0.9
        deliver(event(7, known=3))
        assert await arrived() == 0
        now = 1.0
        deliver(event(8, known=4))
        assert await arrived() == 3
        deliver(event(9, known=5))
        assert await arrived() == 0
        assert await arrived() == 1  # a step that said nothing: more may never come
        deliver(event(10, known=6))
        assert await arrived() == 0
        deliver(event(11, known=7, finish_reason="stop"))
        assert await arrived() == 2
        deliver(event(12, 13, known=2))
        assert await arrived() == 1  # another answer begins, with a token that was forced

    asyncio.run(run())
