"""Groups of options: what typer sees, and that their names are the arguments of the engine."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, fields

from treadle.cli.option_groups import EngineOptions, SamplingOptions, expand_groups
from treadle.engine.load import LoadOptions
from treadle.engine.sampling import SamplingParams


@dataclass(frozen=True)
class Pair:
    left: int = 1
    right: str = "r"


def test_a_group_becomes_its_options_and_comes_back_as_one() -> None:
    seen: list[object] = []

    def command(first: str, *, pair: Pair, last: bool = False) -> None:
        seen.extend([first, pair, last])

    expanded = expand_groups(command)
    assert [(each.name, each.annotation, each.default) for each in inspect.signature(expanded).parameters.values()] == [
        ("first", str, inspect.Parameter.empty),
        ("left", int, 1),
        ("right", str, "r"),
        ("last", bool, False),
    ]
    expanded(first="a", left=2, right="s", last=True)  # type: ignore[call-arg]
    assert seen == ["a", Pair(2, "s"), True]


def test_options_of_the_engine_are_its_arguments() -> None:
    assert {field.name for field in fields(EngineOptions)} <= set(LoadOptions.__annotations__)
    assert EngineOptions(threads=2, numa="node").as_arguments()["numa"] == "node"


def test_sampling_by_default_is_that_of_the_engine() -> None:
    assert SamplingOptions().params() == SamplingParams()
    assert SamplingOptions(top_k=3, stop=["."]).params() == SamplingParams(top_k=3, stop=["."])
