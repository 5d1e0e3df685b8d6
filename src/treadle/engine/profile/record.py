"""What a profile consists of: the machine, the model, and of each cell the steps, operators, limits and verdict.

Leaves to others: taking it (``run``), its form as a file (``record_file``) and what to say about it.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import Literal, NamedTuple

from treadle.engine.profile.setup import MachineFacts, ModelFacts, ProfileSettings

__all__ = [
    "SCHEMA",
    "Cell",
    "Conditions",
    "Limits",
    "Operator",
    "ProfileRecord",
    "SpeedSample",
    "Step",
    "Verdict",
    "VerdictKind",
    "cell_name",
]

SCHEMA = 1  # of the JSON; higher when a field goes or changes its meaning

VerdictKind = Literal[
    "DRAM-bound", "cache-bound", "compute-bound", "barrier-bound", "throttled", "robbed", "swapped", "TLB-bound"
]


class Step(NamedTuple):
    """One step of the timeline; ``began`` is in seconds from the start of the profile, ``is_timed`` by operator."""

    began: float
    seconds: float
    num_tokens: int
    num_threads: int
    is_timed: bool


class SpeedSample(NamedTuple):
    """What the machine gave at a moment, all threads together; ``began`` as in ``Step``, 0 what was not measured."""

    began: float
    num_threads: int
    read_bytes_per_second: float
    int8_ops_per_second: float


@dataclass(frozen=True)
class Limits:
    """What so many threads of the machine could do per second.

    ``cache_bytes`` is the rate of reading what a pass reads again and again from the caches, None where it does not fit
    in them. Operations are multiplications and additions of the kernels ``isa``; 0 where their rate was not measured.
    """

    num_threads: int
    memory_bytes: float
    cache_bytes: float | None
    int8_ops: float
    float_ops: float
    isa: str

    @property
    def read_bytes(self) -> float:
        """Return the rate of reading from where the weights are."""
        return self.memory_bytes if self.cache_bytes is None else self.cache_bytes

    def ops(self, computes: Literal["int8", "float"]) -> float:
        """Return the rate of operations of a kind."""
        return self.int8_ops if computes == "int8" else self.float_ops


@dataclass(frozen=True)
class Operator:
    """One operator in an average pass of a cell; seconds are those of the average worker.

    ``num_bytes`` are weights or KV blocks that it reads, ``num_ops`` the multiplications and additions of its products.
    """

    name: str
    num_calls: float
    busy_seconds: float
    wait_seconds: float
    num_bytes: float
    num_ops: float
    computes: Literal["int8", "float"]

    @property
    def seconds(self) -> float:
        """Return the time with waiting at barriers."""
        return self.busy_seconds + self.wait_seconds

    @property
    def intensity(self) -> float | None:
        """Return the operations per byte, None for what reads nothing."""
        return self.num_ops / self.num_bytes if self.num_bytes else None

    def limit_seconds(self, limits: Limits) -> float | None:
        """Return how long it takes at the least on the machine, None for what is neither read nor multiplied."""
        return max(self.read_seconds(limits), self.ops_seconds(limits)) or None

    def read_seconds(self, limits: Limits) -> float:
        """Return how long reading takes at the least."""
        return self.num_bytes / limits.read_bytes if limits.read_bytes else 0.0

    def ops_seconds(self, limits: Limits) -> float:
        """Return how long its operations take at the least, 0 where their rate is not known."""
        rate = limits.ops(self.computes)
        return self.num_ops / rate if rate else 0.0

    def roofline_share(self, limits: Limits) -> float | None:
        """Return its share of what the machine could do, None as ``limit_seconds`` does."""
        least = self.limit_seconds(limits)
        return None if least is None or not self.seconds else least / self.seconds


@dataclass(frozen=True)
class Conditions:
    """What the steps of a cell met, summed over its turns; None where the system does not tell.

    Seconds are CPU seconds of all threads, but for ``seconds`` of the clock: ``throttled_seconds`` threads waited for
    the next period of a quota, ``stolen_seconds`` the host took of the ``num_cpus`` that this process may run on,
    ``other_seconds`` other programs ran on them, and ``queued_seconds`` threads of this process were ready and did not
    run. ``swapped_bytes`` of the process are in swap at the end; ``swapped_in_bytes`` is what the whole machine brought
    back.
    """

    num_cpus: int
    seconds: float
    own_seconds: float
    throttled_seconds: float | None = None
    num_periods: int | None = None
    num_throttled: int | None = None
    stolen_seconds: float | None = None
    other_seconds: float | None = None
    queued_seconds: float | None = None
    swapped_in_bytes: int | None = None
    swapped_bytes: int | None = None


@dataclass(frozen=True)
class Verdict:
    """What bounds a cell, why, the numbers behind it (shares are 0 to 1), and what would help, as things to type."""

    kind: VerdictKind
    because: str
    numbers: dict[str, float]
    advice: tuple[str, ...] = ()


def cell_name(kind: str, num_tokens: int, num_streams: int) -> str:
    """Return what a cell is in words."""
    if kind == "prompt":
        return f"prompt of {num_tokens}"
    return f"decode, {num_streams} stream{'' if num_streams == 1 else 's'}"


@dataclass(frozen=True)
class Cell:
    """One kind of work: a prompt of ``num_tokens``, or ``num_streams`` that decode with a context of so many each.

    A pass reads the prompt once, or adds a token to each stream. ``rates`` are the tokens per second of each turn,
    those of decoding without timers, as ``python_seconds`` are what a pass spends around the core. ``counts`` are of
    all turns, by the name of the event, None where it was not counted. ``timer_cost`` is how much longer a pass takes
    while operators are timed, None where all of them were.
    """

    kind: Literal["prompt", "decode"]
    num_tokens: int
    num_streams: int
    limits: Limits
    rates: tuple[float, ...]
    python_seconds: float
    timer_cost: float | None
    operators: tuple[Operator, ...]
    steps: tuple[Step, ...]
    conditions: Conditions
    counts: dict[str, int | None]
    verdict: Verdict | None = None

    @property
    def name(self) -> str:
        """Return what it is in words."""
        return cell_name(self.kind, self.num_tokens, self.num_streams)

    @property
    def tokens_per_pass(self) -> int:
        """Return how many tokens a pass computes."""
        return self.num_tokens if self.kind == "prompt" else self.num_streams

    @property
    def rate(self) -> float:
        """Return the tokens per second of the typical turn."""
        return median(self.rates)

    @property
    def spread(self) -> float | None:
        """Return how far the middle half of the turns is apart, over the rate; None for one turn."""
        if len(self.rates) < 2:
            return None
        ordered = sorted(self.rates)
        last = len(ordered) - 1
        return (ordered[-(-3 * last // 4)] - ordered[last // 4]) / self.rate

    @property
    def pass_seconds(self) -> float:
        """Return how long a pass of the typical turn takes."""
        return self.tokens_per_pass / self.rate

    @property
    def timed_seconds(self) -> float:
        """Return how long a pass takes while operators are timed: their sum, and Python around the core."""
        return sum(operator.seconds for operator in self.operators) + self.python_seconds

    @property
    def num_bytes(self) -> float:
        """Return what a pass reads: weights and KV blocks."""
        return sum(operator.num_bytes for operator in self.operators)

    @property
    def num_ops(self) -> float:
        """Return the multiplications and additions of a pass."""
        return sum(operator.num_ops for operator in self.operators)

    @property
    def read_share(self) -> float | None:
        """Return which share of the machine's bandwidth a pass uses: of memory, or of the caches that hold it all."""
        if not self.limits.read_bytes:
            return None
        return sum(operator.read_seconds(self.limits) for operator in self.operators) / self.pass_seconds

    @property
    def ops_share(self) -> float | None:
        """Return which share of the machine's arithmetic a pass uses, None where that was not measured."""
        if not self.limits.int8_ops:
            return None
        return sum(operator.ops_seconds(self.limits) for operator in self.operators) / self.pass_seconds

    @property
    def limit_share(self) -> float | None:
        """Return how near to its roofline the cell is: the operators' least times, over its own."""
        if not self.limits.read_bytes:
            return None
        return sum(operator.limit_seconds(self.limits) or 0.0 for operator in self.operators) / self.pass_seconds


@dataclass(frozen=True)
class ProfileRecord:
    """A profile.

    ``created`` is a date and time in UTC. ``speeds`` is what the machine gave from time to time meanwhile,
    ``uncounted`` why events of the processor or the system could not be counted, by their names, and ``notes`` what
    holds for those that were.
    """

    schema: int
    created: str
    treadle: str
    seconds: float
    model: ModelFacts
    machine: MachineFacts
    settings: ProfileSettings
    speeds: tuple[SpeedSample, ...]
    cells: tuple[Cell, ...]
    uncounted: dict[str, str]
    notes: tuple[str, ...] = ()
