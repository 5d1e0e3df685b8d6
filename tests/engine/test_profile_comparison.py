"""Two profiles side by side: what counts as a change, what is put down to the machine, and what is warned of."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from profile_cases import LIMITS, MACHINE, MODEL, SETTINGS, decode, operator, record

from treadle.engine.profile.comparison import CellChange, compare
from treadle.engine.profile.record import Cell
from treadle.engine.profile.verdict import judge
from treadle.errors import UsageError

READING = operator("gate_up", 0.025, num_bytes=1e9, num_ops=4e9)


def judged(cell: Cell) -> Cell:
    return replace(cell, verdict=judge(cell, MACHINE, SETTINGS))


def change(*, ratio: float, machine: float = 1.0, spread: float = 0.0, num_turns: int = 5) -> CellChange:
    """What is said of a cell that became so many times as fast, on a machine that did, too."""
    turns = [1 - spread / 2, *[1.0] * (num_turns - 2), 1 + spread / 2] if num_turns > 1 else [1.0]
    old = judged(decode(READING, rates=tuple(40 * turn for turn in turns)))
    limits = replace(LIMITS, memory_bytes=machine * LIMITS.memory_bytes)
    new = judged(decode(READING, rates=tuple(40 * ratio * turn for turn in turns), limits=limits))
    (found,) = compare(record(old), record(new)).changes
    assert found.ratio == pytest.approx(ratio)
    return found


@pytest.mark.parametrize(
    ("ratio", "outcome"), [(1.0, "same"), (1.015, "same"), (1.03, "faster"), (0.985, "same"), (0.97, "slower")]
)
def test_without_spread_two_percent_are_noise(ratio: float, outcome: str) -> None:
    assert change(ratio=ratio).outcome == outcome


def test_the_noise_is_the_spread_of_both() -> None:
    assert change(ratio=1.15, spread=0.1, num_turns=2).outcome == "same"
    assert change(ratio=1.25, spread=0.1, num_turns=2).outcome == "faster"
    assert change(ratio=1.25, spread=0.1, num_turns=2).noise == pytest.approx(0.2)


def test_a_single_turn_says_little() -> None:
    assert change(ratio=1.09, num_turns=1).outcome == "same"
    assert change(ratio=1.11, num_turns=1).outcome == "faster"


def test_what_the_machine_explains_is_put_down_to_it() -> None:
    assert change(ratio=0.8, machine=0.8).outcome == "machine"
    assert change(ratio=0.6, machine=0.8).outcome == "slower"
    assert change(ratio=1.0, machine=0.8).outcome == "same"


def test_arithmetic_explains_only_what_it_bounds() -> None:
    slower = replace(LIMITS, int8_ops=0.5 * LIMITS.int8_ops)
    old, new = judged(decode(READING)), judged(decode(READING, limits=slower, rates=(20.0,) * 3))
    assert compare(record(old), record(new)).changes[0].outcome == "slower"


def test_the_operator_that_changed_most_is_named() -> None:
    old = decode(READING, operator("logits", 0.010))
    new = decode(READING, operator("logits", 0.018), operator("sample", 0.001))
    (found,) = compare(record(old), record(new)).changes
    assert found.operator is not None
    assert (found.operator.name, found.operator.old_seconds, found.operator.new_seconds) == ("logits", 0.010, 0.018)


def test_cells_that_only_one_has_are_listed() -> None:
    one, two, four = (decode(READING, streams=count) for count in (1, 2, 4))
    found = compare(record(one, two), record(two, four))
    assert [each.new.name for each in found.changes] == ["decode, 2 streams"]
    assert found.missing == ("decode, 1 stream", "decode, 4 streams")


def test_nothing_in_common_is_refused() -> None:
    with pytest.raises(UsageError, match=r"nothing in common to compare; the old one of model has decode, 1 stream"):
        compare(record(decode(READING)), record(decode(READING, streams=2)))


def warnings(**changes: Any) -> str:
    cell = decode(READING)
    return "\n".join(compare(record(cell), record(cell, **changes)).warnings)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, ""),
        (
            {"model": replace(MODEL, name="large", num_parameters=7)},
            "another model: model before, large now; rates are not comparable, shares are",
        ),
        ({"model": replace(MODEL, name="model Q8_0")}, "another file of the model: model before, model Q8_0 now"),
        ({"machine": replace(MACHINE, num_cores=8)}, "other machine: cores 2 before, 8 now"),
        ({"machine": replace(MACHINE, quota=1.5)}, "other machine: CPU quota none before, 1.5 now"),
        ({"settings": replace(SETTINGS, cpus=(-1,))}, "other settings: CPUs of the threads 0 1 before, -1 now"),
        ({"treadle": "0.2.0"}, "another version of Treadle: 0.1.0 before, 0.2.0 now"),
    ],
)
def test_whatever_else_differs_is_said(changes: dict[str, Any], words: str) -> None:
    assert warnings(**changes) == words


def test_a_machine_that_gave_something_else_is_said() -> None:
    slower = decode(READING, limits=replace(LIMITS, memory_bytes=40e9, int8_ops=2100e9))
    found = compare(record(decode(READING)), record(slower))
    assert found.warnings == ("the machine read 0.80 times as fast as before",)
    unknown = decode(READING, limits=replace(LIMITS, memory_bytes=0.0, int8_ops=0.0))
    assert compare(record(unknown), record(slower)).warnings == ()


def test_fewer_threads_are_no_slower_machine() -> None:
    alone = replace(LIMITS, num_threads=1, memory_bytes=25e9)
    old, new = judged(decode(READING)), judged(decode(READING, limits=alone, rates=(20.0,) * 3))
    found = compare(record(old), record(new))
    assert (found.changes[0].outcome, found.warnings) == ("slower", ())
