"""Spans: where they belong across tasks and threads, what they cost in CPU, what is kept of them."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from treadle.agents.trace import Span, Trace, add_model_spans, charge_cpu, charge_thread, current_span, span
from treadle.agents.trace.cpu import SharedCpu
from treadle.engine.completion import Completion, Timings
from treadle.errors import UsageError


def tree(trace: Trace) -> dict[str, str | None]:
    """Every span's name, and that of the span around it."""
    names = {each.span_id: each.name for each in trace.spans}
    return {each.name: None if each.parent_id is None else names[each.parent_id] for each in trace.spans}


def burn() -> None:
    """Use CPU until the clock of this thread has gone on."""
    began = time.thread_time_ns()
    while time.thread_time_ns() - began < 2_000_000:
        pass


def test_spans_lie_within_each_other() -> None:
    with Trace.open("task", model="m") as trace:
        assert current_span() is trace.root
        with span("turn", "1"):
            with span("parse", "a", tokens=3):
                pass
            with span("dispatch", "b"):
                pass
    assert current_span() is None
    assert tree(trace) == {"a": "1", "b": "1", "1": "task", "task": None}
    assert [each.kind for each in trace.spans] == ["parse", "dispatch", "turn", "task"]
    assert trace.spans[0].attributes == {"tokens": 3}
    assert trace.root.attributes["model"] == "m" and trace.is_complete
    inner, outer = trace.spans[0], trace.spans[2]
    assert outer.start_ns <= inner.start_ns <= inner.end_ns <= outer.end_ns


def test_without_a_trace_nothing_is_kept() -> None:
    with span("tool", "a", x=1) as made:
        made.attributes["y"] = 2
        made.add("sandbox", "s", 0, 5)
        assert current_span() is None
    assert made.end_ns == 0


def test_tasks_and_threads_find_their_span() -> None:
    def in_thread() -> None:
        with span("sandbox", "thread"):
            pass

    async def call(name: str) -> None:
        with span("tool", name):
            await asyncio.sleep(0)
            with span("parse", f"within {name}"):
                await asyncio.to_thread(in_thread) if name == "b" else None

    async def run() -> None:
        with span("turn", "1"):
            await asyncio.gather(call("a"), call("b"), asyncio.create_task(call("c")))

    with Trace.open("task") as trace:
        asyncio.run(run())
    assert tree(trace) == {
        "within a": "a",
        "within b": "b",
        "within c": "c",
        "thread": "within b",
        "a": "1",
        "b": "1",
        "c": "1",
        "1": "task",
        "task": None,
    }


def test_tasks_side_by_side_have_traces_of_their_own() -> None:
    async def one(name: str) -> Trace:
        with Trace.open(name) as trace:
            for _ in range(3):
                with span("tool", f"tool of {name}"):
                    await asyncio.sleep(0)
        return trace

    async def run() -> list[Trace]:
        return await asyncio.gather(*(one(f"task {index}") for index in range(5)))

    for trace in asyncio.run(run()):
        assert tree(trace) == {f"tool of {trace.name}": trace.name, trace.name: None}
        assert len(trace.spans) == 4


def test_an_error_is_noted_and_goes_on() -> None:
    with pytest.raises(ValueError), Trace.open("task") as trace, span("tool", "a"):
        raise ValueError
    assert [each.attributes["error"] for each in trace.spans] == ["ValueError", "ValueError"]


def test_a_cancelled_task_leaves_its_spans() -> None:
    async def run() -> Trace:
        with Trace.open("task") as trace:

            async def wait() -> None:
                with span("tool", "a"):
                    await asyncio.Event().wait()

            waiting = asyncio.create_task(wait())
            await asyncio.sleep(0)
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
        return trace

    trace = asyncio.run(run())
    assert [(each.name, each.attributes.get("error")) for each in trace.spans] == [
        ("a", "CancelledError"),
        ("task", None),
    ]


def test_a_generator_that_is_closed_elsewhere_does_no_harm() -> None:
    async def numbers() -> AsyncIterator[int]:
        with span("model", "m"):
            yield 1
            yield 2

    async def run() -> None:
        stream = numbers()
        assert await anext(stream) == 1
        await asyncio.create_task(stream.aclose())  # type: ignore[attr-defined]

    with Trace.open("task") as trace:
        asyncio.run(run())
    assert [each.name for each in trace.spans] == ["m", "task"]


def test_what_there_is_no_room_for_is_counted() -> None:
    with Trace.open("task", max_spans=3) as trace:
        for _ in range(5):
            with span("turn", "t"), span("tool", "a"):
                pass
        trace.root.add("sandbox", "s", 1, 2)
    assert [each.name for each in trace.spans] == ["a", "t", "task"]
    assert trace.num_dropped == 9
    assert trace.summary().num_dropped == 9
    with pytest.raises(UsageError, match="max_spans: expected 1 at least, found 0"):
        Trace.open("task", max_spans=0)


def test_long_text_is_cut() -> None:
    with Trace.open("task") as trace, span("tool", "a", arguments="x" * 5000):
        pass
    assert trace.spans[0].attributes["arguments"] == "x" * 2000 + "…"


def test_threads_share_the_bound() -> None:
    def work(context: Span) -> None:
        for _ in range(500):
            context.add("tool", "a", 0, 1)

    with Trace.open("task", max_spans=1001) as trace:
        threads = [threading.Thread(target=work, args=(trace.root,)) for _ in range(4)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
    assert len(trace.spans) == 1001 and trace.num_dropped == 1000
    assert len({each.span_id for each in trace.spans}) == 1001


def test_cpu_seconds_are_those_of_the_span_alone() -> None:
    with Trace.open("task"), span("dispatch", "outer") as outer:
        burn()
        with span("parse", "inner") as inner:
            burn()
            burn()
    assert inner.cpu_seconds is not None and outer.cpu_seconds is not None
    assert inner.cpu_seconds >= 0.004
    assert outer.cpu_seconds >= 0.002
    assert outer.cpu_seconds + inner.cpu_seconds <= outer.seconds * 1.01  # two clocks, read one after the other


def test_code_that_waits_in_a_loop_has_no_cpu_seconds_of_its_own() -> None:
    async def busy() -> None:
        burn()

    async def run() -> tuple[Span, Span, Span]:
        with span("dispatch", "at once") as at_once:
            burn()
        with span("tool", "waits") as waits:
            with span("parse", "before") as before:
                burn()
            await asyncio.gather(busy(), busy())
        return at_once, waits, before

    with Trace.open("task"):
        at_once, waits, before = asyncio.run(run())
    assert at_once.cpu_seconds is not None and at_once.cpu_seconds >= 0.002
    assert before.cpu_seconds is not None and before.cpu_seconds >= 0.002
    assert waits.cpu_seconds is None


def test_a_loop_that_ended_early_does_not_mislead_the_next() -> None:
    async def begin() -> None:
        with span("parse", "a"):
            pass

    async def wait() -> Span:
        with span("tool", "b") as made:
            await asyncio.sleep(0)
        return made

    with Trace.open("task"):
        asyncio.run(begin())
        assert asyncio.run(wait()).cpu_seconds is None


def test_a_thread_has_its_own_cpu_seconds() -> None:
    def work() -> Span:
        with span("tool", "thread") as made:
            burn()
        return made

    async def run() -> Span:
        return await asyncio.to_thread(work)

    with Trace.open("task"):
        made = asyncio.run(run())
    assert made.cpu_seconds is not None and made.cpu_seconds >= 0.002


def test_cpu_seconds_from_elsewhere_are_charged_to_the_span() -> None:
    def work() -> None:
        burn()
        with span("parse", "inner"):
            burn()
            burn()

    async def run() -> Span:
        with span("tool", "a") as made:
            charge_cpu(5.0)
            charge_cpu(2.0)
            await asyncio.to_thread(charge_thread, work)
        return made

    with Trace.open("task") as trace:
        made = asyncio.run(run())
        charge_cpu(1.0)
    assert made.cpu_seconds is not None and 7.002 <= made.cpu_seconds < 7.0 + made.seconds
    inner = trace.spans[0]
    assert inner.cpu_seconds is not None and inner.cpu_seconds >= 0.004
    assert made.cpu_seconds + inner.cpu_seconds <= 7.0 + made.seconds * 1.01
    assert trace.root.cpu_seconds == 1.0
    charge_cpu(1.0)  # without a trace nobody is charged


def test_those_who_use_the_process_at_a_time_share_its_cpu() -> None:
    now = 0

    def pass_time(nanoseconds: int) -> None:
        nonlocal now
        now += nanoseconds

    shared = SharedCpu(lambda: now)
    pass_time(1000)
    first = shared.enter()
    pass_time(100)
    second = shared.enter()
    pass_time(60)
    shared.exclude(20)  # somebody else's, of the 60
    assert shared.leave(second) == 20
    pass_time(7)
    assert shared.leave(first) == 100 + 20 + 7
    pass_time(500)
    assert shared.leave(shared.enter()) == 0


def test_what_is_excluded_before_it_shows_is_taken_out_later() -> None:
    now = 0
    shared = SharedCpu(lambda: now)
    entered = shared.enter()
    shared.exclude(30)
    middle = shared.enter()
    now = 50
    assert shared.leave(middle) == 10
    assert shared.leave(entered) == 10


def completion(queued: float, prefill: float, decode: float) -> Completion:
    return Completion("", [1, 2], "stop", 10, 2, Timings(queued, prefill, decode), cached_tokens=4)


def test_an_answer_has_phases() -> None:
    with Trace.open("task") as trace:
        with span("model", "m") as model:
            pass
        model.start_ns, model.end_ns = 0, 10_000_000_000
        add_model_spans(model, completion(1.0, 2.0, 4.0), end_ns=9_000_000_000)
    phases = [(each.kind, each.start_ns, each.end_ns) for each in trace.spans if each.parent_id == model.span_id]
    assert phases == [
        ("queue", 2_000_000_000, 3_000_000_000),
        ("prefill", 3_000_000_000, 5_000_000_000),
        ("decode", 5_000_000_000, 9_000_000_000),
    ]
    summary = trace.summary()
    assert (summary.prompt_tokens, summary.cached_tokens, summary.answer_tokens) == (10, 4, 2)


def test_phases_never_begin_before_their_answer_was_asked_for() -> None:
    with Trace.open("task") as trace:
        model = trace.root.add("model", "m", 5_000, 8_000)
        add_model_spans(model, completion(0.0, 5e-6, 1e-6), is_remote=True, end_ns=8_000)
    phases = [(each.kind, each.name, each.start_ns) for each in trace.spans if each.parent_id == model.span_id]
    assert phases == [("prefill", "until the first token", 5_000), ("decode", "decode", 7_000)]


def test_a_trace_comes_back_from_its_file(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    attributes: dict[str, Any] = {"text": "\ud800 <b>\n", "rate": float("nan"), "is_hot": True}
    with Trace.open("task ☃", path=path, depth=2) as trace, span("tool", "a", **attributes):
        pass
    kept = Trace.read(path)
    other = tmp_path / "other.jsonl"
    trace.write(other)
    assert other.read_text() == path.read_text()
    assert kept.trace_id == trace.trace_id and kept.name == "task ☃" and kept.is_complete
    assert kept.spans[0].attributes == {"text": "\ud800 <b>\n", "rate": "nan", "is_hot": True}
    assert kept.root.attributes["depth"] == 2
    assert kept.began_at_ns == trace.began_at_ns
    for mine, theirs in zip(trace.spans, kept.spans, strict=True):
        assert theirs.start_ns == mine.start_ns - trace.origin_ns
        assert (theirs.seconds, theirs.cpu_seconds) == (mine.seconds, mine.cpu_seconds)
