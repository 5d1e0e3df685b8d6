"""The roofline: what bounds a step, and what it does not know."""

from __future__ import annotations

from dataclasses import replace

import pytest

from treadle.hardware.machine_speed import MachineSpeed
from treadle.hardware.roofline import Roofline, Work, typical_speed

ROOFLINE = Roofline(MachineSpeed(40e9, 2e12, 5e11, "avx512_vnni"))
READS = Work(weight_bytes=1e9, kv_bytes=0, int8_ops=3e9, float_ops=0, num_elements=0, num_layers=0)


def test_one_stream_is_bound_by_memory() -> None:
    seconds = ROOFLINE.seconds(READS)
    assert seconds == pytest.approx(1e9 / 40e9, rel=0.25)
    faster = Roofline(MachineSpeed(80e9, 2e12, 5e11, "avx512_vnni")).seconds(READS)
    assert faster == pytest.approx(seconds / 2, rel=0.01)
    assert not ROOFLINE.is_compute_bound(READS)


def test_many_streams_are_bound_by_compute() -> None:
    many = replace(READS, int8_ops=3e12)
    assert ROOFLINE.is_compute_bound(many)
    assert ROOFLINE.seconds(many) > 3e12 / 2e12
    assert Roofline(MachineSpeed(40e9, 4e12, 5e11, "avx512_vnni")).seconds(many) == pytest.approx(
        ROOFLINE.seconds(many) / 2, rel=0.01
    )


@pytest.mark.parametrize("field", ["weight_bytes", "kv_bytes", "int8_ops", "float_ops", "num_elements", "num_layers"])
def test_more_work_takes_longer(field: str) -> None:
    more = replace(READS, **{field: 10 * getattr(READS, field) + 1000})
    assert ROOFLINE.seconds(more) > ROOFLINE.seconds(READS)


def test_without_the_rate_of_int8_memory_alone_decides() -> None:
    roofline = Roofline(MachineSpeed(40e9, 0))
    assert not roofline.knows_compute
    assert roofline.seconds(READS) == roofline.seconds(replace(READS, int8_ops=1e15))
    assert not roofline.is_compute_bound(replace(READS, int8_ops=1e15))


def test_tables_reach_different_shares_and_pay_for_wide_weights() -> None:
    def roofline(isa: str) -> Roofline:
        return Roofline(MachineSpeed(40e9, 1e12, 3e11, isa))

    many = replace(READS, int8_ops=3e12, float_ops=1e11)
    seconds = {isa: roofline(isa).seconds(many) for isa in ("avx512_vnni", "avx2", "ref")}
    assert seconds["avx512_vnni"] < seconds["avx2"] < seconds["ref"]
    assert seconds["avx512_vnni"] < roofline("unheard_of").seconds(many) < seconds["ref"]
    costs = [roofline("avx2").cost_of(name) for name in ("Q4_K", "Q5_K", "Q6_K", "Q8_0")]
    assert costs[0] == 1.0 and costs == sorted(set(costs))
    assert {roofline("avx512_vnni").cost_of(name) for name in ("Q4_K", "Q8_0")} == {1.0}


def test_attention_takes_as_long_as_its_floats() -> None:
    few, many = READS, replace(READS, float_ops=1e12)
    assert ROOFLINE.seconds(many) - ROOFLINE.seconds(few) == pytest.approx(1e12 / (0.8 * 5e11))


def test_the_middle_of_reading_and_the_best_of_computing_count() -> None:
    speeds = [MachineSpeed(40e9, 1e12, 5.0), MachineSpeed(90e9, 2e12, 3.0), MachineSpeed(42e9, 1.5e12, 4.0)]
    assert typical_speed(speeds) == MachineSpeed(42e9, 2e12, 5.0)
