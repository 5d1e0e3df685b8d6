"""Cores that an engine leaves to others for a while: which, when, and that its answers do not change."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from oracles.tiny_model import TinyModel
from patience import PATIENCE_SECONDS
from treadle import LLM, SamplingParams
from treadle.engine.plan import StepPlan, StepResult
from treadle.engine.shared_cores import LendingRunner, SharedCores
from treadle.hardware.cores import Core
from treadle.hardware.plan import ThreadPlan
from treadle.hardware.topology import Topology


def topology(num_cores: int) -> Topology:
    cpus = frozenset(range(num_cores))
    cores = tuple(Core((cpu,), is_efficiency=False, knows_siblings=True) for cpu in range(num_cores))
    return Topology(cpus, cpus, cores, ())


class Runner:
    """Stands for a runner; keeps what it is told."""

    num_threads = 4

    def __init__(self) -> None:
        self.told: list[object] = []

    def run(self, plan: StepPlan) -> StepResult:
        assert not plan.chunks
        self.told.append("step")
        return StepResult()

    def set_threads(self, cpus: list[int], prompt_cpus: list[int]) -> None:
        self.told.append((cpus, prompt_cpus))

    def limit_threads(self, most: int | None) -> None:
        self.told.append(most)


def lending(runner: Runner, threads: Sequence[int], prompt_threads: Sequence[int], num_cores: int = 4) -> LendingRunner:
    plans = ThreadPlan(list(threads), ""), ThreadPlan(list(prompt_threads), "")
    return LendingRunner(runner, plans, lambda: topology(num_cores))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("threads", "num_lent", "kept"),
    [
        ([0, 1, 2, 3], 0, [0, 1, 2, 3]),
        ([0, 1, 2, 3], 1, [0, 1, 2]),
        ([0, 1, 2, 3], 3, [0]),
        ([0, 1, 2, 3], 9, [0]),
        ([0, 1], 2, [0, 1]),  # two cores are spare
        ([0, 1], 3, [0]),
        ([-1, -1, -1, -1, -1, -1], 1, [-1, -1, -1, -1, -1]),  # more threads than cores
    ],
)
def test_a_lent_core_costs_a_thread_unless_it_is_spare(threads: list[int], num_lent: int, kept: list[int]) -> None:
    cores = SharedCores([frozenset({cpu}) for cpu in (3, 2, 1, 0)], threads)
    cores.lend(num_lent)
    assert cores.kept(threads) == kept


def test_threads_change_before_a_step_and_only_then() -> None:
    runner = Runner()
    lends = lending(runner, [0, 1, 2, 3], [0, 1])
    lends.run(StepPlan([]))
    lends.cores.lend(3)
    lends.cores.lend(1)
    lends.run(StepPlan([]))
    lends.run(StepPlan([]))
    lends.cores.lend(3)
    lends.run(StepPlan([]))
    lends.cores.lend(0)
    lends.run(StepPlan([]))
    assert runner.told == [
        *("step", ([0, 1, 2], [0]), "step", "step"),
        *(([0], [0]), "step"),
        *(([0, 1, 2, 3], [0, 1]), "step"),
    ]


def test_new_threads_keep_off_what_is_lent() -> None:
    runner = Runner()
    lends = lending(runner, [0, 1, 2, 3], [0, 1, 2, 3])
    lends.cores.lend(1)
    lends.limit_threads(2)
    lends.set_threads([2, 3], [2, 3])
    assert runner.told == [2, ([2, 3], [2, 3])]
    assert lends.cores.num_spare == 2
    assert list(lends.cores.cores) == [frozenset({cpu}) for cpu in (1, 0, 3, 2)]


def test_threads_without_places_are_told() -> None:
    assert lending(Runner(), [0, 1], [0]).cores.has_places
    assert not lending(Runner(), [-1, -1], [-1]).cores.has_places


def test_listeners_hear_of_changes_only() -> None:
    cores = SharedCores([frozenset({0})], [0])
    heard: list[int] = []

    def listener() -> None:
        heard.append(cores.num_requests)

    cores.add_listener(listener)
    for num_requests in (0, 1, 1, 3, 0):
        cores.note_requests(num_requests)
    cores.remove_listener(listener)
    cores.note_requests(1)
    assert heard == [1, 3, 0]


@pytest.fixture(scope="module")
def tiny_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return TinyModel().write(tmp_path_factory.mktemp("cores") / "tiny.gguf")


def changes(cores: SharedCores) -> tuple[list[int], threading.Event, threading.Event]:
    """The numbers of requests the engine had, in turn; when it has some, and when it has none again."""
    heard: list[int] = []
    is_busy, is_idle = threading.Event(), threading.Event()

    def listener() -> None:
        heard.append(cores.num_requests)
        (is_busy if cores.num_requests else is_idle).set()

    cores.add_listener(listener)
    return heard, is_busy, is_idle


def test_an_engine_tells_its_requests_and_answers_the_same_on_fewer_cores(tiny_path: Path) -> None:
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    with LLM(tiny_path, threads=2) as llm:
        assert llm.cores is not None
        heard, _, is_idle = changes(llm.cores)
        whole = llm.generate(list(range(1, 40)), params).token_ids
        assert is_idle.wait(PATIENCE_SECONDS)
        assert heard == [1, 0]
        llm.cores.lend(len(llm.cores.cores) + 2)
        assert llm.generate(list(range(1, 40)), params).token_ids == whole
        assert llm.stats().num_threads == 1


def test_an_engine_that_is_held_begins_no_step_but_hears_of_requests(tiny_path: Path) -> None:
    params = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
    with LLM(tiny_path, threads=1) as llm:
        assert llm.cores is not None
        _, is_busy, is_idle = changes(llm.cores)
        llm.cores.hold(3600)
        answers = [threading.Thread(target=llm.generate, args=([1, 2, 3], params)) for _ in range(2)]
        for answer in answers:
            answer.start()
        assert is_busy.wait(PATIENCE_SECONDS)
        assert llm.stats().steps.num_steps == 0
        llm.cores.hold(0)
        for answer in answers:
            answer.join(PATIENCE_SECONDS)
        assert is_idle.wait(PATIENCE_SECONDS)
        assert llm.stats().steps.num_steps >= 4


def test_a_hold_ends_by_itself_and_does_not_keep_an_engine_from_closing(tiny_path: Path) -> None:
    params = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
    with LLM(tiny_path, threads=1) as llm:
        assert llm.cores is not None
        llm.cores.hold(0.01)
        assert len(llm.generate([1, 2, 3], params).token_ids) == 4
        llm.cores.hold(3600)


def test_an_engine_that_does_not_adapt_lends_nothing(tiny_path: Path) -> None:
    with LLM(tiny_path, threads=2, adapt=False) as llm:
        assert llm.cores is None
