"""How a model will run: every choice, who made it, and that loading keeps to it."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import pytest

from oracles.tiny_model import TinyModel
from treadle import LLM, SamplingParams, UsageError
from treadle.config import Settings
from treadle.engine.execution_plan import ExecutionPlan, MachineView, plan_execution
from treadle.engine.outset import plan_model
from treadle.hardware.cores import Core
from treadle.hardware.limits import CpuQuota
from treadle.hardware.memory import HugePages, MemoryBudget
from treadle.hardware.topology import Topology, read_topology
from treadle.models.gguf import ModelFile

CORES = tuple(Core((cpu,), is_efficiency=False, knows_siblings=True) for cpu in range(4))
MACHINE = MachineView(
    Topology(frozenset(range(4)), frozenset(range(4)), CORES, ()),
    None,
    MemoryBudget(2**31, 2**32, "a test"),
    HugePages("madvise", "madvise", 2**21, {}),
)


@pytest.fixture(scope="module")
def tiny_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return TinyModel().write(tmp_path_factory.mktemp("plan") / "tiny.gguf")


def plan(path: Path, machine: MachineView = MACHINE, **given: Any) -> ExecutionPlan:
    return plan_execution(ModelFile.open(path), Settings(Path("/nowhere")).override(**given), machine)


def reasons(chosen: ExecutionPlan) -> dict[str, str]:
    return {choice.name: choice.reason for choice in chosen.choices()}


def test_every_choice_has_a_value_and_a_reason(tiny_path: Path) -> None:
    chosen = plan(tiny_path)
    assert chosen.threads.cpus == chosen.prompt_threads.cpus == [0, 1, 2, 3]
    assert all(choice.value and choice.reason for choice in chosen.choices())
    assert reasons(chosen)["huge pages"] == "the system's mode is 'madvise'"


def test_a_quota_is_rounded_down_and_leaves_places_to_the_system(tiny_path: Path) -> None:
    chosen = plan(tiny_path, MACHINE._replace(quota=CpuQuota(2.9, "/somewhere/cpu.max")))
    assert chosen.threads.cpus == [-1, -1]
    assert reasons(chosen)["threads"] == "4 physical cores in the affinity mask, CPU quota 2.9 in /somewhere/cpu.max"
    assert reasons(chosen)["pinning"] == "fewer threads than usable cores"


def test_what_is_set_wins_and_says_so(tiny_path: Path) -> None:
    chosen = plan(
        tiny_path, threads=2, prompt_threads=3, pin=True, kv_type="q8_0", huge_pages=False, adapt=False, mlock=True
    )
    assert (chosen.threads.cpus, chosen.prompt_threads.cpus) == ([0, 1], [0, 1, 2])
    assert (chosen.memory.kv_type, chosen.huge_pages, chosen.adapts, chosen.locks_memory) == (
        "q8_0",
        False,
        False,
        True,
    )
    for name in ("prompt threads", "pinning", "KV type", "huge pages", "locked in RAM", "adapting"):
        assert reasons(chosen)[name] == "as asked for"
    assert reasons(chosen)["threads"].startswith("as asked for (")


def test_reserved_cores_are_left_alone_by_threads_with_and_without_places(tiny_path: Path) -> None:
    chosen = plan(tiny_path, reserve_cores=1)
    assert (chosen.threads.cpus, chosen.home_cpus) == ([0, 1, 2], {0, 1, 2})
    assert "1 core reserved for others" in reasons(chosen)["threads"]
    chosen = plan(tiny_path, reserve_cores=3, threads=2, pin=False)
    assert (chosen.threads.cpus, chosen.home_cpus) == ([-1, -1], {0})
    with pytest.raises(UsageError, match="reserve_cores is 4, and the model has 4 in all: one must be left"):
        plan(tiny_path, reserve_cores=4)


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity") or len(read_topology().cores) < 2, reason="needs two cores")
def test_loading_leaves_the_caller_all_cores(tiny_path: Path) -> None:
    before = os.sched_getaffinity(0)
    with LLM(tiny_path, reserve_cores=1) as llm:
        assert os.sched_getaffinity(0) == before
        assert llm.cores is not None
        assert llm.cores.num_spare >= 1


def test_the_source_of_a_setting_is_named(tiny_path: Path) -> None:
    settings = Settings.from_environment({"TREADLE_THREADS": "3", "TREADLE_PIN": "on"}, [])
    chosen = plan_execution(ModelFile.open(tiny_path), settings, MACHINE)
    assert "as TREADLE_THREADS says" in chosen.threads.reason
    assert reasons(chosen)["pinning"] == "as TREADLE_PIN says"


def test_the_plan_as_json(tiny_path: Path) -> None:
    chosen = plan(tiny_path, context=64)
    found = json.loads(json.dumps(chosen.as_dict()))
    assert found["threads"] == {"count": 4, "cpus": [0, 1, 2, 3], "reason": chosen.threads.reason}
    assert found["context"] == {"tokens": 64, "reason": "as asked"}
    assert found["memory_nodes"]["policy"] == "default"
    assert {"pinning", "kv_type", "huge_pages", "mlock", "adapt", "prompt_threads", "memory"} <= found.keys()


def test_loading_follows_the_plan(tiny_path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "treadle.toml").write_text('threads = 1\nprompt_threads = 2\ncontext = 96\nkv_type = "q8_0"\n')
    chosen = plan_model(tiny_path)
    with LLM(tiny_path, context=128) as llm:
        assert llm.report.plan.threads == chosen.threads
        assert llm.report.plan.prompt_threads.num_threads == 2
        assert (llm.context, llm.report.memory_plan.kv_type) == (128, "q8_0")


def test_threads_of_prompts_and_answers_give_the_same_tokens(tiny_path: Path) -> None:
    params = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True)
    prompt = list(range(1, 60))
    answers = []
    for settings in ({"threads": 1}, {"threads": 1, "prompt_threads": 3}, {"threads": 2, "prompt_threads": 1}):
        with LLM(tiny_path, **settings) as llm:
            answers.append(llm.generate([prompt, prompt[:20], "the inn"], params))
    assert len({tuple(tuple(answer.token_ids) for answer in each) for each in answers}) == 1


@pytest.mark.parametrize("settings", [{"prompt_threads": 0}, {"numa": "both"}, {"threads": 1025}])
def test_settings_out_of_range_are_refused(tiny_path: Path, settings: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="expected"):
        plan(tiny_path, **settings)


@pytest.mark.parametrize("name", ["threads", "prompt_threads"])
def test_threads_that_could_only_wait_for_each_other_are_refused(tiny_path: Path, name: str) -> None:
    plan(tiny_path, **{name: 32})
    with pytest.raises(UsageError, match=f"^{name} is 33, expected 1 to 32 on the 4 CPUs") as refused:
        plan(tiny_path, **{name: 33})
    assert "leave it out" in (refused.value.hint or "")


def test_an_argument_there_is_not_is_refused(tiny_path: Path) -> None:
    with pytest.raises(TypeError, match="without the argument 'thread'"):
        LLM(tiny_path, thread=2)  # type: ignore[call-arg]


def test_a_plan_is_a_value(tiny_path: Path) -> None:
    assert plan(tiny_path) == plan(tiny_path)
    assert dataclasses.replace(plan(tiny_path), adapts=False) != plan(tiny_path)
