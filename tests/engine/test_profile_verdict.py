"""What bounds a cell, said from constructed measurements: every verdict, its borders, and what it advises."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from profile_cases import LIMITS, MACHINE, SETTINGS, decode, operator, quiet

from treadle.engine.profile.record import Cell, Verdict
from treadle.engine.profile.verdict import judge

# 1 GB in 25 ms are 40 GB/s, 80 % of 50; 4 G operations in 25 ms are 8 % of 2000 G/s.
READING = operator("gate_up", 0.025, num_bytes=1e9, num_ops=4e9)
# 60 G operations in 50 ms are 60 % of 2000 G/s; 1 GB in 50 ms is 40 % of the bandwidth.
COMPUTING = operator("gate_up", 0.050, num_bytes=1e9, num_ops=60e9)


def verdict(cell: Cell, **machine: Any) -> Verdict:
    found = judge(cell, replace(MACHINE, **machine), SETTINGS)
    assert found is not None
    return found


def test_memory_at_its_limit_is_dram_bound() -> None:
    found = verdict(decode(READING))
    assert found.kind == "DRAM-bound"
    assert found.because == "40.0 GB/s are 80% of what memory gives (50.0 GB/s), arithmetic is at 8% of its peak"
    assert found.numbers["read_share"] == pytest.approx(0.8)
    assert any("share each reading of the weights" in text for text in found.advice)


def test_weights_in_the_caches_are_cache_bound() -> None:
    limits = replace(LIMITS, cache_bytes=80e9)
    found = verdict(decode(READING, limits=limits))
    assert found.kind == "cache-bound"
    assert "50% of what the caches give (80.0 GB/s)" in found.because


def test_products_that_take_longer_than_reading_are_compute_bound() -> None:
    found = verdict(decode(COMPUTING, streams=16))
    assert found.kind == "compute-bound"
    assert found.because == (
        "1,200 G operations/s are 60% of the arithmetic's peak (2,000 G/s in int8), memory is at 40%"
    )


def test_what_kernels_reach_decides_between_reading_and_computing() -> None:
    # 55 % of the bandwidth are 67 % of what kernels reach of it, 50 % of the arithmetic 82 %.
    both = operator("gate_up", 0.040, num_bytes=0.55 * 50e9 * 0.040, num_ops=0.50 * 2000e9 * 0.040)
    assert verdict(decode(both)).kind == "compute-bound"


def test_floats_have_a_peak_of_their_own() -> None:
    # 20 G operations of floats in 50 ms are 80 % of 500 G/s, in int8 they would be 20 %.
    attention = operator("attention", 0.050, num_bytes=1e9, num_ops=20e9)
    assert verdict(decode(attention)).kind == "compute-bound"
    assert verdict(decode(replace(attention, computes="int8"))).kind == "DRAM-bound"


def test_without_the_rate_of_int8_memory_that_is_little_used_means_arithmetic() -> None:
    limits = replace(LIMITS, int8_ops=0.0, float_ops=0.0)
    found = verdict(decode(COMPUTING, limits=limits))
    assert found.kind == "compute-bound"
    assert found.because == "1,200 G operations/s, while memory is at 40% of its limit"
    assert "ops_share" not in found.numbers
    assert verdict(decode(READING, limits=limits)).kind == "DRAM-bound"


def test_waiting_for_each_other_is_barrier_bound() -> None:
    found = verdict(decode(operator("start", 0.001), operator("gate_up", 0.009, wait=0.004, num_bytes=0.2e9)))
    assert found.kind == "barrier-bound"
    assert found.because == (
        "threads wait for each other for 40% of the time, steps start and end for 10%, and 56 pieces of 179 us make a "
        "pass; memory is at 40% and arithmetic at 0% of the limit"
    )
    assert found.advice[0] == "treadle tune MODEL  # tries fewer threads, and keeps what is faster"


def test_little_work_between_barriers_is_barrier_bound_with_less_waiting() -> None:
    cell = decode(operator("gate_up", 0.010, wait=0.0006, num_bytes=0.1e9))
    assert verdict(cell).kind == "barrier-bound"
    alone = replace(cell, limits=replace(LIMITS, num_threads=1))
    assert verdict(alone).kind == "DRAM-bound"
    busy = decode(operator("gate_up", 0.010, wait=0.0006, num_bytes=0.1e9, num_ops=3e9))  # reading 24 %, computing 25 %
    assert verdict(busy).kind == "compute-bound"


def test_waiting_beside_memory_at_its_limit_is_not() -> None:
    assert verdict(decode(operator("gate_up", 0.025, wait=0.009, num_bytes=1e9))).kind == "DRAM-bound"


@pytest.mark.parametrize(
    "met",
    [
        {"throttled_seconds": 0.1, "num_periods": 10, "num_throttled": 0},  # of two threads in one second
        {"throttled_seconds": 0.0, "num_periods": 10, "num_throttled": 1},
    ],
)
def test_a_quota_that_bites_is_throttled(met: dict[str, Any]) -> None:
    found = verdict(decode(READING, conditions=quiet(**met)), quota=1.5)
    assert found.kind == "throttled"
    assert found.advice[0] == "treadle serve MODEL --threads 1  # as many as the quota has whole CPUs"


def test_a_quota_that_hardly_bites_is_not() -> None:
    met = quiet(throttled_seconds=0.09, num_periods=20, num_throttled=1)
    assert verdict(decode(READING, conditions=met)).kind == "DRAM-bound"


def test_a_host_that_steals_has_robbed() -> None:
    found = verdict(decode(READING, conditions=quiet(own_seconds=1.8, stolen_seconds=0.2)))
    assert found.kind == "robbed"
    assert found.because == "the host took 10% of the CPU time for others"
    short = quiet(0.01, stolen_seconds=0.02)
    assert verdict(decode(READING, conditions=short)).kind == "DRAM-bound"
    assert found.advice == ("vmstat 1 5  # column st; a machine type with dedicated CPUs ends it",)


def test_other_programs_in_the_way_have_robbed() -> None:
    found = verdict(decode(READING, conditions=quiet(queued_seconds=0.6, other_seconds=1.0)))
    assert found.kind == "robbed"
    assert found.because == (
        "other programs took 50% of the CPUs from the threads: they were ready and did not run for 30% of their time"
    )
    assert found.advice[1] == "treadle serve MODEL --threads 1  # leaves a core to the others"


def test_a_worker_that_sits_out_was_robbed_of_its_core() -> None:
    cell = decode(READING, conditions=quiet(other_seconds=1.0))
    steps = [step._replace(num_threads=1) for step in cell.steps[:4]]
    found = verdict(replace(cell, steps=(*steps, *cell.steps[4:])))
    assert found.kind == "robbed"
    assert found.numbers["absent_share"] == pytest.approx(0.2)
    assert found.because == ("other programs took 50% of the CPUs from the threads: some sat out in 20% of the steps")


def test_threads_that_take_cpus_from_each_other_were_not_robbed() -> None:
    limits = replace(LIMITS, num_threads=4)
    cell = decode(READING, limits=limits, conditions=quiet(queued_seconds=2.0, other_seconds=0.0))
    cell = replace(cell, steps=tuple(step._replace(num_threads=4) for step in cell.steps))
    found = verdict(cell)
    assert found.kind == "barrier-bound"
    assert found.because == "4 threads share 2 cores: they were ready and did not run for 50% of their time"
    assert found.advice == ("treadle serve MODEL --threads 2  # one for each core",)


def test_pages_from_disk_are_swapped() -> None:
    met = quiet(2.0, swapped_bytes=300 << 20)
    found = verdict(decode(READING, conditions=met, counts={"major_faults": 40}))
    assert found.kind == "swapped"
    assert found.because == "20 pages a second had to come from disk, and 315 MB of the process are in swap"
    assert found.advice[0].startswith("treadle serve MODEL --mlock")
    assert verdict(decode(READING, conditions=met, counts={"major_faults": 39})).kind == "DRAM-bound"
    short = quiet(0.001, swapped_bytes=0)
    assert verdict(decode(READING, conditions=short, counts={"major_faults": 19})).kind == "DRAM-bound"


def test_many_walks_through_page_tables_are_tlb_bound() -> None:
    found = verdict(decode(READING, counts={"cycles": 1000, "dtlb_load_misses": 10}), huge_pages="never")
    assert found.kind == "TLB-bound"
    assert found.because == "finding pages takes about 30% of the cycles"
    assert found.advice[0].startswith("echo madvise | sudo tee ")
    assert verdict(decode(READING, counts={"cycles": 1000, "dtlb_load_misses": None})).kind == "DRAM-bound"


def test_what_comes_from_elsewhere_hides_what_the_model_needs() -> None:
    met = quiet(throttled_seconds=1.0, num_periods=10, num_throttled=9, stolen_seconds=1.0)
    assert verdict(decode(READING, conditions=met, counts={"major_faults": 100})).kind == "swapped"
    assert verdict(decode(READING, conditions=met)).kind == "throttled"


def test_a_cell_far_from_every_limit_says_where_its_time_goes() -> None:
    cell = decode(operator("sample", 0.09), operator("gate_up", 0.01, num_bytes=0.5e9))
    assert verdict(cell).because.endswith("; sample takes 90% of the time")
    cell = decode(operator("gate_up", 0.01, num_bytes=0.2e9))
    slow = replace(cell, python_seconds=0.03, rates=(1 / 0.04,))
    assert verdict(slow).because.endswith("; 75% of the time is Python around the core")


def test_nothing_is_said_of_a_machine_that_was_not_measured() -> None:
    limits = replace(LIMITS, memory_bytes=0.0, int8_ops=0.0, float_ops=0.0)
    assert judge(decode(READING, limits=limits), MACHINE, SETTINGS) is None
    throttled = quiet(throttled_seconds=1.0, num_periods=10, num_throttled=9)
    assert verdict(decode(READING, limits=limits, conditions=throttled)).kind == "throttled"


def test_a_long_context_is_kept_smaller() -> None:
    cell = decode(operator("gate_up", 0.010, num_bytes=0.4e9), operator("attention", 0.010, num_bytes=0.4e9))
    advice = " ".join(verdict(cell).advice)
    assert "--kv-type q8_0" in advice
    assert "--kv-type" not in " ".join(verdict(decode(READING)).advice)


def test_the_limit_that_most_of_the_time_is_spent_at_decides() -> None:
    products = operator("gate_up", 0.030, num_bytes=0.2e9, num_ops=40e9)
    attention = operator("attention", 0.020, num_bytes=0.9e9, num_ops=1e9)
    found = verdict(decode(products, attention))
    assert found.kind == "compute-bound"
    assert found.because.endswith(
        "60% of the time operators compute for longer than they read, for 40% it is the other way round"
    )
    assert verdict(decode(products, replace(attention, busy_seconds=0.040))).kind == "DRAM-bound"
