"""The learned cap of a kind of work."""

from __future__ import annotations

import pytest

from treadle.agents.class_cap import ClassCap


def run(cap: ClassCap, num_pieces: int, seconds_at: dict[int, float]) -> None:
    """Pieces that run at the cap and, now and then, at half of it."""
    for index in range(num_pieces):
        level = max(1, cap.cap // 2) if index % 2 else cap.cap
        cap.ended(level, seconds_at[level])


@pytest.mark.parametrize("most", [1, 2, 3, 6, 8])
def test_work_that_scales_keeps_its_cores(most: int) -> None:
    cap = ClassCap(most)
    run(cap, 1000, dict.fromkeys(range(1, 9), 1.0))
    assert cap.cap == most


def test_work_that_gains_less_than_a_tenth_goes_down_to_where_it_gains() -> None:
    cap = ClassCap(8)
    run(cap, 100, {1: 1.0, 2: 1.1, 4: 1.9, 8: 3.6})  # throughput 1, 1.8, 2.1, 2.2
    assert cap.cap == 4


def test_caps_need_be_no_powers_of_two() -> None:
    cap = ClassCap(6)
    run(cap, 100, {1: 1.0, 3: 1.5, 6: 3.0})
    assert cap.cap == 3


def test_a_few_pieces_say_nothing() -> None:
    cap = ClassCap(2)
    run(cap, 14, {1: 1.0, 2: 9.0})
    assert cap.cap == 2
    run(cap, 2, {1: 1.0, 2: 9.0})
    assert cap.cap == 1


def test_more_get_another_chance() -> None:
    cap = ClassCap(2)
    run(cap, 16, {1: 1.0, 2: 2.0})
    assert cap.cap == 1
    run(cap, 127, {1: 1.0})
    assert cap.cap == 1
    run(cap, 1, {1: 1.0})
    assert cap.cap == 2
    run(cap, 100, {1: 1.0, 2: 1.0})
    assert cap.cap == 2
