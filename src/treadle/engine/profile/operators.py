"""Turns what the core timed into the operators of an average pass.

Leaves to others: switching the timers on and off (``cell_meter``).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Literal

from treadle.engine.profile.record import Operator

if TYPE_CHECKING:
    from treadle.engine.runner import StepTimings
    from treadle.models.gguf import ModelFile

__all__ = ["END", "START", "OperatorSums", "float_operators"]

START, END = "start", "end"  # before the first operator, and between the last one and the return of the core

# Whose weights an operator multiplies with.
_WEIGHTS = {
    "qkv": ("attn_q", "attn_k", "attn_v", "attn_qkv"),
    "convolution_in": ("in_proj",),
    "convolve": ("conv",),
    "attention_output": ("attn_output", "out_proj"),
    "route": ("ffn_gate_inp",),
    "gate_up": ("ffn_gate", "ffn_up", "ffn_gate_exps", "ffn_up_exps"),
    "down": ("ffn_down", "ffn_down_exps"),
    "logits": ("output", "token_embd"),
}
_FLOAT_FORMATS = frozenset({"F16", "BF16", "F32"})


class OperatorSums:
    """Adds up the timings of steps; ``float_names`` are the operators that multiply floats."""

    def __init__(self, float_names: frozenset[str]) -> None:
        self._float_names = float_names
        self._sums: dict[str, list[float]] = {}
        self.core_seconds = 0.0

    def add(self, timings: StepTimings) -> None:
        """Add what was timed since the timers were switched on."""
        self.core_seconds += timings.seconds
        num_workers = _num_workers(timings)
        for found in timings.operators:
            if found.num_calls:
                busy, waited = (sum(times) / num_workers for times in (found.busy_seconds, found.wait_seconds))
                values = (found.num_calls, busy, waited, found.bytes, found.operations)
                sums = self._sums.setdefault(found.name, [0.0] * len(values))
                for index, value in enumerate(values):
                    sums[index] += value

    def per_pass(self, num_passes: int) -> tuple[Operator, ...]:
        """Return the operators of the average pass, with one for the end of the steps."""
        operators = [self._operator(name, sums, num_passes) for name, sums in self._sums.items()]
        rest = self.core_seconds / num_passes - sum(operator.seconds for operator in operators)
        return (*operators, Operator(END, 1.0, max(0.0, rest), 0.0, 0.0, 0.0, "float"))

    def _operator(self, name: str, sums: Iterable[float], num_passes: int) -> Operator:
        computes: Literal["int8", "float"] = "float" if name in self._float_names else "int8"
        num_calls, busy, waited, num_bytes, num_ops = (value / num_passes for value in sums)
        return Operator(name, num_calls, busy, waited, num_bytes, num_ops, computes)


def _num_workers(timings: StepTimings) -> float:
    """Return how many workers took part in the mean: all go through the same operators, but some sit out at times."""
    times = [[*map(sum, zip(each.busy_seconds, each.wait_seconds, strict=True))] for each in timings.operators]
    totals = [sum(worker) for worker in zip(*times, strict=True)]
    return sum(totals) / totals[0] if totals and totals[0] else 1.0  # the first one never sits out


def float_operators(file: ModelFile) -> frozenset[str]:
    """Return the operators that multiply floats: attention, and those whose weights are floats for the most part."""
    names = {"attention"}
    sizes: dict[str, dict[bool, int]] = {}
    for tensor in file.tensors:
        part = tensor.name.removesuffix(".weight").rpartition(".")[2]
        if tensor.name.endswith(".weight") and len(tensor.shape) > 1:
            is_float = tensor.format in _FLOAT_FORMATS
            by_kind = sizes.setdefault(part, {True: 0, False: 0})
            by_kind[is_float] += tensor.num_bytes
    for operator, parts in _WEIGHTS.items():
        used = ("output",) if operator == "logits" and "output" in sizes else parts
        floats, others = (sum(sizes.get(part, {}).get(kind, 0) for part in used) for kind in (True, False))
        if floats > others:
            names.add(operator)
    return frozenset(names)
