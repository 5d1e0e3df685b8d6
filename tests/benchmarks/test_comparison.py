"""The turns of a comparison: who measures what and when, and what happens to an engine that fails."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import comparison
import pytest
from comparison import Comparison, Settings, Work
from engines import EngineError, EngineGoneError

PROMPT, DECODE = Work("prompt", 1, 40), Work("decode", 2, 8)


class FakeEngine:
    """Answers at once and writes down what it was asked."""

    log: list[tuple[str, str, Any]]
    failing: dict[str, Exception]

    def __init__(self, name: str, python: str) -> None:
        self.name, self.python = name, python

    def ask(self, do: str, **arguments: Any) -> Any:
        if do == "load":
            return {"vocab_size": 100}
        if do == "peak_bytes":
            return 1000
        self.log.append((self.name, arguments["method"], arguments.get("tokens") or arguments.get("prompts")))
        if self.name in self.failing:
            raise self.failing[self.name]
        return (5e9, 1e9) if self.name == "limits" else 0.25

    def close(self) -> None:
        self.log.append((self.name, "close", None))


@pytest.fixture(autouse=True)
def engines(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[FakeEngine]]:
    FakeEngine.log, FakeEngine.failing = [], {}
    monkeypatch.setattr(comparison, "EngineProcess", FakeEngine)
    yield FakeEngine


def compare(works: list[Work], *, rounds: int = 2, max_seconds: float = 1e9) -> Comparison:
    settings = Settings(threads=2, steps=4, turn_seconds=0.5, rounds=rounds, max_seconds=max_seconds)
    result = Comparison(Path("model.gguf"), settings, works)
    result.start(dict.fromkeys(("limits", "treadle", "rival"), "python"))
    result.run()
    return result


def test_turns_alternate_and_last_long_enough(engines: type[FakeEngine]) -> None:
    report = compare([PROMPT]).report()
    names = [name for name, _, _ in engines.log]
    warm_up, first, second = names[:3], names[3:8], names[8:]
    assert warm_up == ["rival", "treadle", "limits"]
    # Two calls of a quarter of a second make a turn.
    assert first == ["limits", "treadle", "treadle", "rival", "rival"]
    assert second == ["rival", "rival", "treadle", "treadle", "limits"]
    (cell,) = report["cells"]
    assert cell["tokens_per_second"] == {"treadle": [160.0, 160.0], "rival": [160.0, 160.0]}
    assert cell["read_bytes_per_second"] == [5e9, 5e9]
    assert report["rounds"] == 2


def test_prompts_are_new_to_every_engine_and_equal_for_all(engines: type[FakeEngine]) -> None:
    compare([PROMPT], rounds=1)
    prompts = {
        name: [tokens for who, _, tokens in engines.log if who == name and tokens] for name in ("treadle", "rival")
    }
    assert prompts["treadle"] == prompts["rival"]
    assert len({tuple(tokens) for tokens in prompts["treadle"]}) == len(prompts["treadle"]) == 3
    assert all(len(tokens) == 40 and min(tokens) >= 0 and max(tokens) < 50 for tokens in prompts["treadle"])


def test_streams_keep_their_prompts_and_differ_from_each_other(engines: type[FakeEngine]) -> None:
    report = compare([DECODE], rounds=1).report()
    asked = [prompts for name, _, prompts in engines.log if name == "treadle"]
    assert len(asked) == 4  # the warm-up, a call that warms the caches again, two that count
    assert all(prompts == asked[0] for prompts in asked)
    assert asked[0][0] != asked[0][1]
    assert report["cells"][0]["tokens_per_second"]["treadle"] == [32.0]  # 4 steps of 2 streams in a quarter second


def test_an_engine_that_cannot_do_a_work_still_does_the_others(engines: type[FakeEngine]) -> None:
    engines.failing["rival"] = EngineError("no")
    report = compare([PROMPT, DECODE]).report()
    assert [cell["failures"] for cell in report["cells"]] == [{"rival": "no"}, {"rival": "no"}]
    assert report["failures"] == {}
    assert [name for name, _, _ in engines.log].count("rival") == 2


def test_an_engine_that_is_gone_is_asked_no_more(engines: type[FakeEngine]) -> None:
    engines.failing["rival"] = EngineGoneError("killed")
    report = compare([PROMPT, DECODE]).report()
    assert report["failures"] == {"rival": "killed"}
    assert [call for name, call, _ in engines.log if name == "rival"] == ["prompt", "close"]
    assert len(report["cells"][1]["tokens_per_second"]["treadle"]) == 2


def test_no_work_begins_after_the_time_is_up(engines: type[FakeEngine]) -> None:
    report = compare([PROMPT], max_seconds=-1.0).report()
    assert engines.log == []
    assert (report["rounds"], report["rounds_wanted"]) == (0, 2)
