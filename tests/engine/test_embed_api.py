"""`LLM.embed` and `AsyncLLM.embed` over fakes: shapes, order, options, errors, cancellation."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from fakes import FakeModelRunner, mean_state, state
from patience import PATIENCE_SECONDS
from treadle.engine import llm as llm_module
from treadle.engine.async_llm import AsyncLLM
from treadle.engine.contract import AsyncEngine
from treadle.engine.embedding import Embedding
from treadle.engine.llm import LLM
from treadle.engine.load import LoadedModel
from treadle.engine.plan import StepPlan, StepResult
from treadle.errors import ContextError, DeadlineError, ModelFileError, UsageError


@pytest.fixture
def llm(loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> Iterator[LLM]:
    monkeypatch.setattr(llm_module, "load_model", lambda *_, **__: loaded)
    with LLM("fake") as llm:
        yield llm


def ids(text: str) -> list[int]:
    return [ord(char) for char in text]


def unit(vector: np.ndarray[Any, Any]) -> list[float]:
    return (vector / np.linalg.norm(vector)).astype(np.float32).tolist()  # type: ignore[no-any-return]


def test_one_text_gives_one_vector(llm: LLM) -> None:
    vector = llm.embed("hello")
    assert (vector.shape, vector.dtype) == ((3,), np.float32)
    assert vector.tolist() == pytest.approx(unit(mean_state(ids("hello"))), rel=1e-6)
    assert llm.embed(ids("hello")).tolist() == vector.tolist()
    assert llm.embed("hello", pooling="last", normalize=False).tolist() == state(ids("hello")).tolist()


def test_a_list_gives_a_row_for_each_in_its_order_and_computes_them_together(llm: LLM, runner: FakeModelRunner) -> None:
    texts = [f"text {index}" for index in range(150)]
    vectors = llm.embed(texts, pooling="last", normalize=False, dimensions=2)
    assert (vectors.shape, vectors.dtype) == ((150, 2), np.float32)
    assert vectors.tolist() == [state(ids(text))[:2].tolist() for text in texts]
    assert max(len(plan.chunks) for plan in runner.plans) > 1
    assert llm.embed(["hello"]).shape == (1, 3)
    assert llm.embed([]).shape == (0,)
    assert all(chunk.request.priority == "batch" for plan in runner.plans[:20] for chunk in plan.chunks)


def test_the_model_file_may_choose_the_pooling(loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    object.__setattr__(loaded.report, "pooling", "last")
    monkeypatch.setattr(llm_module, "load_model", lambda *_, **__: loaded)
    with LLM("fake") as llm:
        assert llm.embed("hello", normalize=False).tolist() == state(ids("hello")).tolist()


@pytest.mark.parametrize(
    ("inputs", "options", "refusal"),
    [
        ("", {}, (UsageError, "^the prompt is empty")),
        (["a", ""], {}, (UsageError, "prompt 1 of the list: the prompt is empty")),
        (["a", "b", "c" * 321], {}, (ContextError, "prompt 2 of the list: .* 321 tokens; a context of 320 has room")),
        (["a", [5, 5000]], {}, (UsageError, "prompt 1 of the list: .*5000 is not a token id")),
        (3, {}, (UsageError, "expected text or a list of token ids, found 3")),
        ("a", {"dimensions": 4}, (UsageError, "dimensions: expected 1 to 3")),
        ("a", {"pooling": "max"}, (UsageError, "pooling: expected mean, cls or last")),
        ("a", {"timeout": 0}, (UsageError, "timeout: expected seconds above 0")),
        ("a", {"priority": "high"}, (UsageError, "priority: expected interactive or batch")),
    ],
)
def test_refusals_come_before_anything_is_computed(
    llm: LLM, runner: FakeModelRunner, inputs: Any, options: dict[str, Any], refusal: tuple[type[Exception], str]
) -> None:
    error, text = refusal
    with pytest.raises(error, match=text):
        llm.embed(inputs, **options)
    assert runner.plans == []


def test_a_failed_text_ends_the_list_and_frees_the_others(
    llm: LLM, runner: FakeModelRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = runner.run

    def spoil(plan: StepPlan) -> StepResult:
        result = run(plan)
        for chunk in plan.chunks:
            if chunk.num_states and chunk.request.prompt_ids[0] == ord("b"):
                chunk.request.state_sum[0] = np.nan  # type: ignore[attr-defined]
        return result

    monkeypatch.setattr(runner, "run", spoil)
    with pytest.raises(ModelFileError, match=r"prompt . of the list: the model gave NaN"):
        llm.embed(["a", "bad", *["c" * 100] * 20])
    assert llm.embed("a").shape == (3,)
    assert llm._host.scheduler.pools[0].num_used == 0


def test_a_timeout_is_that_of_the_whole_list(llm: LLM, runner: FakeModelRunner) -> None:
    llm.embed(["text"] * 200, timeout=PATIENCE_SECONDS)
    assert len({chunk.request.deadline for plan in runner.plans for chunk in plan.chunks}) == 1
    with pytest.raises(DeadlineError, match=r"prompt . of the list: the request's time was up"):
        llm.embed(["text"] * 9, timeout=1e-9)


def test_a_closed_model_embeds_nothing(llm: LLM) -> None:
    llm.close()
    with pytest.raises(UsageError, match="the model was closed"):
        llm.embed("a")


def test_tasks_share_steps_and_hear_of_each_vector(loaded: LoadedModel, runner: FakeModelRunner) -> None:
    async def test() -> None:
        async with AsyncLLM(loaded) as llm:
            engine: AsyncEngine = llm
            heard: list[Embedding] = []
            texts = [f"text {index}" for index in range(100)]
            found, other = await asyncio.gather(
                engine.embed(texts, normalize=False, on_embedding=heard.append), engine.embed([ids("x")], dimensions=1)
            )
            assert [each.num_tokens for each in found] == [len(text) for text in texts]
            np.testing.assert_allclose(
                [each.vector for each in found], [mean_state(ids(text)) for text in texts], rtol=1e-6
            )
            assert sorted(map(id, heard)) == sorted(map(id, found))
            assert other[0].vector.tolist() == [1.0]
            assert await engine.embed([]) == []
            assert all(each.timings.prefill_seconds > 0 for each in found)
            with pytest.raises(UsageError, match=r"prompt . of the list: the prompt is empty"):
                await engine.embed(["a", ""])

    asyncio.run(test())
    assert max(len(plan.chunks) for plan in runner.plans) > 1


def test_a_cancelled_task_frees_what_it_holds(loaded: LoadedModel, runner: FakeModelRunner) -> None:
    async def test() -> None:
        async with AsyncLLM(loaded) as llm:
            has_begun = asyncio.Event()
            runner.is_held = True
            runner.may_step.release(1)
            task = asyncio.ensure_future(llm.embed(["text"] * 90, on_embedding=lambda _: has_begun.set()))
            await has_begun.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            runner.is_held = False
            runner.may_step.release(1000)
            await llm.embed(["z"])  # orders are carried out in the order they came, so every cancellation is done
            scheduler = llm._host.scheduler
            assert (scheduler.pools[0].num_used, scheduler.running, scheduler.waiting) == (0, (), ())
            assert sum(len(plan.chunks) for plan in runner.plans) < 90

    asyncio.run(asyncio.wait_for(test(), timeout=PATIENCE_SECONDS))
