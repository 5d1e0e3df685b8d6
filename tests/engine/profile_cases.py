"""Cells whose measurements are made up, for tests of what is concluded from them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from treadle.engine.profile.record import (
    SCHEMA,
    Cell,
    Conditions,
    Limits,
    Operator,
    ProfileRecord,
    SpeedSample,
    Step,
)
from treadle.engine.profile.setup import MachineFacts, ModelFacts, ProfileSettings

LIMITS = Limits(num_threads=2, memory_bytes=50e9, cache_bytes=None, int8_ops=2000e9, float_ops=500e9, isa="avx512_vnni")
MACHINE = MachineFacts(
    processor="A processor",
    architecture="x86_64",
    num_cores=2,
    num_nodes=1,
    cache_bytes={"L1": 96 << 10, "L2": 2 << 20, "L3": 32 << 20},
    memory_bytes=8 << 30,
    huge_pages="madvise",
    quota=None,
    kernel="6.1.0",
    hypervisor=None,
    container=None,
)
SETTINGS = ProfileSettings(
    kernels="avx512_vnni",
    cpus=(0, 1),
    prompt_cpus=(0, 1),
    kv_type="f16",
    huge_pages=True,
    mlock=False,
    memory_nodes="default",
    batch_tokens=512,
)
MODEL = ModelFacts(
    name="model",
    architecture="qwen2",
    file_bytes=1_000_000_000,
    weight_bytes=990_000_000,
    decode_bytes=900_000_000,
    num_parameters=1_500_000_000,
    num_layers=28,
    formats={"Q4_K": 900_000_000, "F32": 100_000_000},
)


def operator(name: str, seconds: float, *, wait: float = 0.0, num_bytes: float = 0.0, num_ops: float = 0.0) -> Operator:
    """An operator that takes so long, of which it waits ``wait``."""
    computes = "float" if name == "attention" else "int8"
    return Operator(name, 28.0, seconds - wait, wait, num_bytes, num_ops, computes)


def decode(*operators: Operator, streams: int = 1, **changes: Any) -> Cell:
    """A cell of decoding, whose pass takes as long as its operators together."""
    seconds = sum(each.seconds for each in operators)
    cell = Cell(
        kind="decode",
        num_tokens=256,
        num_streams=streams,
        limits=LIMITS,
        rates=(0.99 * streams / seconds, streams / seconds, 1.01 * streams / seconds),
        python_seconds=0.0,
        timer_cost=0.01,
        operators=operators,
        steps=tuple(Step(number * seconds, seconds, streams, 2, number % 2 == 1) for number in range(20)),
        conditions=quiet(20 * seconds),
        counts={},
    )
    return replace(cell, **changes)


def quiet(seconds: float = 1.0, **changes: Any) -> Conditions:
    """Nothing happened in so many seconds but what is asked for."""
    conditions = Conditions(
        num_cpus=2,
        seconds=seconds,
        own_seconds=2 * seconds,
        throttled_seconds=0.0,
        num_periods=0,
        num_throttled=0,
        stolen_seconds=0.0,
        other_seconds=0.0,
        queued_seconds=0.0,
        swapped_in_bytes=0,
        swapped_bytes=0,
    )
    return replace(conditions, **changes)


def record(*cells: Cell, **changes: Any) -> ProfileRecord:
    """A record of these cells."""
    made = ProfileRecord(
        schema=SCHEMA,
        created="2026-11-30T12:00:00+00:00",
        treadle="0.1.0",
        seconds=40.0,
        model=MODEL,
        machine=MACHINE,
        settings=SETTINGS,
        speeds=(SpeedSample(0.5, 2, 50e9, 2000e9),),
        cells=cells,
        uncounted={"cycles": "the kernel has no such event"},
    )
    return replace(made, **changes)
