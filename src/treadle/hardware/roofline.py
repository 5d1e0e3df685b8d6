"""How long work takes at the least on a machine of known speed: the roofline, lowered to what kernels reach of it.

Leaves to others: measuring the machine (``machine_speed``) and counting the work of a model.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from treadle.hardware.machine_speed import MachineSpeed, measure_speed

__all__ = [
    "READ_REACH",
    "Roofline",
    "Work",
    "float_reach",
    "int8_reach",
    "measure_roofline",
    "typical_speed",
]

_NUM_MEASUREMENTS = 5

# What the kernels reach of the measured limits. Fitted on an AMD EPYC (Zen 5, two cores, November 2026) to four models
# of 98 MB to 1.1 GB; `benchmarks/prediction.py` shows how far predictions are off elsewhere.
READ_REACH = 0.82
# By kernel table; those of Arm were not fitted.
_INT8_REACH = {"avx512_vnni": 0.61, "avx2_vnni": 0.53, "avx2": 0.54, "ref": 0.056}
_OTHER_INT8_REACH = 0.55
_FLOAT_REACH = {"avx512_vnni": 0.8}
_OTHER_FLOAT_REACH = 0.7
# Instructions per product in relation to four-bit weights, without an instruction that adds up in 32 bits.
_INSTRUCTION_COSTS: Mapping[str, Mapping[str, float]] = {
    "avx2": dict.fromkeys(("Q5_0", "Q5_1", "Q5_K", "MXFP4"), 1.2)
    | {"Q6_K": 1.25, "Q8_0": 1.6}
    | dict.fromkeys(("IQ4_NL", "IQ4_XS"), 1.9)
}
# Reading and computing overlap, and hold each other up where both take about as long: a power mean of the two.
_BLEND = 4
# Of a layer, whatever it computes: threads wait for each other about ten times.
_LAYER_SECONDS = 12e-6
# Of a token in a layer: what is neither a product nor attention, for each element of the hidden state.
_ELEMENT_SECONDS = 3e-9


@dataclass(frozen=True)
class Work:
    """One step of a model.

    Args:
        weight_bytes: Read once.
        kv_bytes: Read from the KV blocks of all streams.
        int8_ops: Multiplications and additions with the weights, times ``Roofline.cost_of`` their format.
        float_ops: The same in attention.
        num_elements: Of hidden states, over all tokens and layers.
        num_layers: How often threads wait for each other.
    """

    weight_bytes: float
    kv_bytes: float
    int8_ops: float
    float_ops: float
    num_elements: float
    num_layers: int


@dataclass(frozen=True)
class Roofline:
    """Predicts for a machine, from its speed with as many threads as will compute."""

    speed: MachineSpeed

    @property
    def knows_compute(self) -> bool:
        """Tell whether arithmetic was measured; without it only what is bound by memory can be predicted."""
        return self.speed.int8_ops_per_second > 0 and self.speed.float_ops_per_second > 0

    def cost_of(self, weight_format: str) -> float:
        """Return how much longer products with weights of a format take than the int8 rate says."""
        return _INSTRUCTION_COSTS.get(self.speed.isa, {}).get(weight_format, 1.0)

    def seconds(self, work: Work) -> float:
        """Return about how long a step takes."""
        reading = work.weight_bytes / (READ_REACH * self.speed.read_bytes_per_second)
        rest = work.kv_bytes / (READ_REACH * self.speed.read_bytes_per_second) + work.num_layers * _LAYER_SECONDS
        if not self.knows_compute:
            return reading + rest
        computing = self.compute_seconds(work)
        attention = work.float_ops / (float_reach(self.speed.isa) * self.speed.float_ops_per_second)
        both: float = (reading**_BLEND + computing**_BLEND) ** (1 / _BLEND)
        return both + attention + rest + work.num_elements * _ELEMENT_SECONDS

    def compute_seconds(self, work: Work) -> float:
        """Return how long the products of a step take, were its weights in a cache."""
        return work.int8_ops / (int8_reach(self.speed.isa) * self.speed.int8_ops_per_second)

    def is_compute_bound(self, work: Work) -> bool:
        """Tell whether the products of a step take longer than reading the weights."""
        reading = work.weight_bytes / (READ_REACH * self.speed.read_bytes_per_second)
        return self.knows_compute and self.compute_seconds(work) > reading


def int8_reach(isa: str) -> float:
    """Return which share of the int8 rate of a kernel table its products reach."""
    return _INT8_REACH.get(isa, _OTHER_INT8_REACH)


def float_reach(isa: str) -> float:
    """Return which share of the float rate of a kernel table its attention reaches."""
    return _FLOAT_REACH.get(isa, _OTHER_FLOAT_REACH)


def measure_roofline(cpus: Sequence[int], isa: str = "") -> Roofline | None:
    """Measure with a thread on each of these CPUs for about a second; None where too little memory is free.

    Args:
        cpus: One entry per thread, -1 pins none.
        isa: The kernel table that will compute, by default the best one here.
    """
    speeds = [speed for _ in range(_NUM_MEASUREMENTS) if (speed := measure_speed(cpus, isa=isa)) is not None]
    return Roofline(typical_speed(speeds)) if speeds else None


def typical_speed(speeds: Sequence[MachineSpeed]) -> MachineSpeed:
    """Return what a model can count on for seconds.

    The middle one of the rates of reading: shared machines read much faster for moments. The best one of computing:
    nothing makes that faster than it is.
    """
    best = functools.reduce(MachineSpeed.best_of, speeds)
    return dataclasses.replace(best, read_bytes_per_second=median(speed.read_bytes_per_second for speed in speeds))
