"""Trying other ways to run a model: what is kept, when it is used, and when it no longer holds."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from oracles.tiny_model import TinyModel
from treadle.config import Settings
from treadle.engine.execution_plan import MachineView
from treadle.engine.outset import plan_model, view_machine
from treadle.engine.tune import Trial, _fastest, _for_prompts, _ways, tune
from treadle.engine.tuning import Tuning, apply_tuning, describe_setup, forget_tuning, prepare_record, save_tuning
from treadle.errors import UsageError
from treadle.hardware.cores import Core
from treadle.hardware.plan import ThreadPlan
from treadle.hardware.topology import Topology
from treadle.models.gguf import ModelFile


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> ModelFile:
    return ModelFile.open(TinyModel().write(tmp_path_factory.mktemp("tune") / "tiny.gguf"))


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(tmp_path)


@pytest.fixture
def machine() -> MachineView:
    return view_machine()


def keep(settings: Settings, file: ModelFile, machine: MachineView, **found: Any) -> Path:
    path = prepare_record(settings.home, file)
    save_tuning(path, file, Tuning(found, describe_setup(machine), []))
    return path


def test_what_was_found_is_used_and_said(file: ModelFile, settings: Settings, machine: MachineView) -> None:
    keep(settings, file, machine, threads=1, pin=True, huge_pages=False)
    tuned = apply_tuning(settings, file, machine)
    assert (tuned.threads, tuned.pin, tuned.huge_pages) == (1, True, False)
    assert tuned.why("threads") == "as `treadle tune` says"


def test_what_is_set_wins(file: ModelFile, settings: Settings, machine: MachineView) -> None:
    keep(settings, file, machine, threads=1, pin=True)
    tuned = apply_tuning(settings.override(threads=2), file, machine)
    assert (tuned.threads, tuned.pin) == (2, True)


def test_the_plan_uses_it(file: ModelFile, machine: MachineView, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("TREADLE_HOME", str(tmp_path))
    keep(Settings(tmp_path), file, machine, prompt_threads=1, pin=False)
    plan = plan_model(file.path)
    assert plan.prompt_threads.num_threads == 1
    assert plan.reasons["pin"] == "as `treadle tune` says"


@pytest.mark.parametrize(
    "change",
    [
        ("processor", "another processor"),
        ("cores", "other cores"),
        ("memory_nodes", "other memory nodes"),
        ("quota", "another CPU quota"),
        ("kernel", "another kernel"),
        ("huge_pages", "another mode of huge pages"),
        ("treadle", "another version of Treadle"),
    ],
)
def test_a_stale_record_is_noticed_in_one_line_and_ignored(
    file: ModelFile, settings: Settings, machine: MachineView, caplog: Any, change: tuple[str, str]
) -> None:
    name, words = change
    path = keep(settings, file, machine, threads=1)
    record = json.loads(path.read_text())
    record["setup"][name] = "something else"
    path.write_text(json.dumps(record))
    with caplog.at_level(logging.WARNING):
        assert apply_tuning(settings, file, machine) == settings
    expected = f"tiny was tuned for {words}: that is ignored; type `treadle tune {file.path}`"
    assert caplog.messages == [expected]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{",
        '{"format": 2, "settings": {}, "setup": {}, "measured": []}',
        '{"format": 1, "settings": {"threads": "many"}, "setup": {}, "measured": []}',
        '{"format": 1, "settings": {"colour": 1}, "setup": {}, "measured": []}',
    ],
)
def test_a_damaged_record_counts_as_none(
    file: ModelFile, settings: Settings, machine: MachineView, caplog: Any, text: str
) -> None:
    keep(settings, file, machine, threads=1).write_text(text)
    assert apply_tuning(settings, file, machine) == settings
    assert caplog.messages == []


def test_another_model_is_not_tuned_by_it(
    file: ModelFile, settings: Settings, machine: MachineView, tmp_path: Path
) -> None:
    keep(settings, file, machine, threads=1)
    other = ModelFile.open(TinyModel(num_layers=3).write(tmp_path / "other.gguf"))
    assert apply_tuning(settings, other, machine) == settings


def test_forgetting(file: ModelFile, settings: Settings, machine: MachineView) -> None:
    assert not forget_tuning(settings.home, file)
    keep(settings, file, machine, threads=1)
    assert forget_tuning(settings.home, file)
    assert apply_tuning(settings, file, machine) == settings


def test_ways_to_run_on_a_hybrid_processor() -> None:
    fast = [Core((cpu, cpu + 1), is_efficiency=False, knows_siblings=True) for cpu in range(0, 16, 2)]
    slow = [Core((cpu,), is_efficiency=True, knows_siblings=True) for cpu in range(16, 20)]
    topology = Topology(frozenset(range(20)), frozenset(range(20)), (*fast, *slow), ())
    usual = ThreadPlan(list(range(0, 16, 2)), "")
    ways = _ways(Settings(Path()), topology, usual)
    assert ways == [
        {},
        {"threads": 4},
        {"threads": 6},
        {"threads": 7},
        {"threads": 12},
        {"threads": 20},
        {"pin": False},
    ]
    assert _ways(Settings(Path()).override(threads=3, pin=True), topology, usual) == [{}]


@pytest.mark.parametrize(
    ("rates", "name"),
    [
        ([10.3, 10.3, 10.3, 10.3], "other"),
        ([10.1, 10.1, 10.1, 10.1], "usual"),  # hardly faster
        ([12.0, 12.0, 9.0, 9.0], "usual"),  # not always faster
        ([9.0, 9.0, 9.0, 9.0], "usual"),
    ],
)
def test_only_what_is_clearly_and_nearly_always_faster_is_kept(rates: list[float], name: str) -> None:
    trials = [Trial("usual", {}, [], [10.0] * 4), Trial("other", {"threads": 1}, [], rates)]
    assert _fastest(trials, lambda trial: trial.decode_rates).name == name


@pytest.mark.parametrize(
    ("chosen", "reader", "more"),
    [
        ({"threads": 1}, {}, {"prompt_threads": 2}),
        ({"threads": 1}, {"threads": 1}, {}),
        ({}, {"threads": 4}, {"prompt_threads": 4}),
        ({"pin": False}, {}, {}),
    ],
)
def test_prompts_may_have_threads_of_their_own(chosen: Any, reader: Any, more: Any) -> None:
    assert _for_prompts(chosen, Trial("reader", reader), 2) == more


def test_tuning_a_model_measures_every_way(file: ModelFile, settings: Settings, machine: MachineView) -> None:
    heard: list[str] = []
    found = tune(file, settings, machine, seconds=0.1, takes_lossy=True, progress=heard.append)
    names = [trial["name"] for trial in found.measured]
    assert names[0] == "the plan's own"
    assert any("at 448 tokens of context" in name for name in names)
    assert all(trial["decode_rate"] > 0 for trial in found.measured)
    assert heard[0] == "loading" and len(heard) > len(names)
    assert found.settings.keys() <= {"threads", "prompt_threads", "pin", "huge_pages", "kv_type"}
    save_tuning(prepare_record(settings.home, file), file, found)
    apply_tuning(settings, file, machine)


def test_a_folder_that_cannot_be_written_is_refused_before_measuring(tmp_path: Path, file: ModelFile) -> None:
    (tmp_path / "tuning").write_text("no folder")
    with pytest.raises(UsageError, match=r"could not be kept: .*tuning.*\nhint: TREADLE_HOME"):
        prepare_record(tmp_path, file)


def test_what_is_set_is_not_tried(file: ModelFile, settings: Settings, machine: MachineView) -> None:
    fixed = settings.override(threads=1, pin=False, huge_pages=True, kv_type="f16")
    found = tune(file, fixed, machine, seconds=0.1)
    assert [trial["name"] for trial in found.measured] == ["the plan's own"]
    assert found.settings == {}
