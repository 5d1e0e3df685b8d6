"""How a model will run on this machine: threads, their places, memory, context; each choice with its reason.

Leaves to others: the settings (``config``), measuring alternatives (``engine.tune``) and carrying it out (``load``).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from treadle.engine.kv.kv_type import DEFAULT_KV_TYPE
from treadle.engine.memory_plan import MAX_NUM_REQUESTS, MemoryPlan, plan_memory
from treadle.errors import UsageError
from treadle.hardware.limits import CpuQuota
from treadle.hardware.placement import Placement, num_copies, plan_placement
from treadle.hardware.plan import MAX_THREADS, UNPINNED, ThreadPlan, assign_threads, split_cores

if TYPE_CHECKING:
    from treadle.config import Settings
    from treadle.hardware.memory import HugePages, MemoryBudget
    from treadle.hardware.topology import Topology
    from treadle.models.gguf import ModelFile
    from treadle.models.hyperparameters import Hyperparameters
    from treadle.models.outline import ModelOutline

__all__ = ["Choice", "ExecutionPlan", "MachineView", "plan_execution", "plan_threads_of"]

# Threads wait for each other many times a token: with far more of them than CPUs an answer takes minutes.
_MAX_THREADS_PER_CPU = 8


class Choice(NamedTuple):
    """Something chosen, as text for people, and why."""

    name: str
    value: str
    reason: str


class MachineView(NamedTuple):
    """What of the machine a plan depends on."""

    topology: Topology
    quota: CpuQuota | None
    memory: MemoryBudget
    huge_pages: HugePages


@dataclass(frozen=True)
class ExecutionPlan:
    """How a model will run; ``threads`` compute answers and ``prompt_threads`` prompts.

    ``home_cpus`` are those that threads without a place of their own may use, None for all of them.
    ``adapts`` says whether fewer threads run while a quota or other programs take their CPUs, ``huge_pages`` whether
    memory asks for such. ``reasons`` are those of what does not carry its own, by name.
    """

    threads: ThreadPlan
    prompt_threads: ThreadPlan
    placement: Placement
    memory: MemoryPlan
    huge_pages: bool
    adapts: bool
    locks_memory: bool
    reasons: dict[str, str]
    home_cpus: frozenset[int] | None = None

    def choices(self) -> list[Choice]:
        """Return every choice, in words."""
        memory, placement = self.memory, self.placement
        nodes = " ".join(map(str, placement.nodes))
        return [
            Choice("threads", str(self.threads.num_threads), _after_colon(self.threads.reason)),
            Choice("prompt threads", str(self.prompt_threads.num_threads), self.reasons["prompt_threads"]),
            Choice("pinning", _places(self.threads.cpus), self.reasons["pin"]),
            Choice("memory nodes", f"{placement.policy} {nodes}".rstrip(), placement.reason),
            Choice("memory", f"{memory.available_bytes / 1e6:,.0f} MB", memory.available_reason),
            Choice("context", f"{memory.context} tokens", memory.reason),
            *self._kv_choices(),
            Choice("huge pages", _switch(self.huge_pages), self.reasons["huge_pages"]),
            Choice("locked in RAM", _switch(self.locks_memory), self.reasons["mlock"]),
            Choice("adapting", _switch(self.adapts), self.reasons["adapt"]),
        ]

    def _kv_choices(self) -> list[Choice]:
        memory = self.memory
        if memory.kv_bytes == 0:
            return [Choice("KV cache", "none", "the model keeps nothing of a text")]
        return [
            Choice("KV cache", f"{memory.kv_bytes / 1e6:,.0f} MB", f"{_pools(memory)}, taken when first used"),
            Choice("KV type", memory.kv_type, self.reasons["kv_type"]),
        ]

    def as_dict(self) -> dict[str, Any]:
        """Return the plan as values for JSON; sizes in bytes, ``cpus`` -1 for a thread that the system places."""
        memory, placement = self.memory, self.placement
        return {
            "threads": {"count": self.threads.num_threads, "cpus": self.threads.cpus, "reason": self.threads.reason},
            "prompt_threads": {
                "count": self.prompt_threads.num_threads,
                "cpus": self.prompt_threads.cpus,
                "reason": self.reasons["prompt_threads"],
            },
            "pinning": {"on": UNPINNED not in self.threads.cpus, "reason": self.reasons["pin"]},
            "memory_nodes": {"policy": placement.policy, "nodes": list(placement.nodes), "reason": placement.reason},
            "memory": {
                "available_bytes": memory.available_bytes,
                "weight_bytes": memory.weight_bytes,
                "kv_bytes": memory.kv_bytes,
                "scratch_bytes": memory.scratch_bytes,
                "ram_cache_bytes": memory.ram_cache_bytes,
                "disk_buffer_bytes": memory.disk_buffer_bytes,
                "adapter_bytes": memory.adapter_bytes,
                "reason": memory.available_reason,
            },
            "context": {"tokens": memory.context, "reason": memory.reason},
            "kv_type": {"name": memory.kv_type, "reason": self.reasons["kv_type"]},
            "huge_pages": {"on": self.huge_pages, "reason": self.reasons["huge_pages"]},
            "mlock": {"on": self.locks_memory, "reason": self.reasons["mlock"]},
            "adapt": {"on": self.adapts, "reason": self.reasons["adapt"]},
        }


def plan_execution(
    file: ModelFile | ModelOutline,
    settings: Settings,
    machine: MachineView,
    *,
    max_num_requests: int = MAX_NUM_REQUESTS,
    frees_windows: bool = True,
) -> ExecutionPlan:
    """Choose how to run a model; what ``settings`` set wins over everything measured.

    Layers with a sliding window need few KV blocks with an engine that ``frees_windows``, one block after the other.
    Another one keeps what convolutions need once per request.

    Raises:
        UsageError: A setting is out of range.
        CapacityError: Weights or context do not fit in memory; says the largest context that does.
    """
    _check_threads(settings, machine.topology)
    wanted = settings.numa or "auto"
    shape = file.hyperparameters
    memory = plan_memory(
        file.name,
        shape if frees_windows else _without_windows(shape),
        file_bytes=num_copies(machine.topology, wanted) * file.file_bytes,
        budget=machine.memory,
        memory_bytes=settings.memory_bytes,
        ram_cache_bytes=settings.ram_cache_bytes,
        has_disk_cache=settings.disk_cache_bytes > 0,
        adapter_bytes=settings.adapter_memory_bytes,
        context=settings.context,
        kv_type=settings.kv_type or DEFAULT_KV_TYPE,
        max_num_requests=max_num_requests,
    )
    placement = plan_placement(
        machine.topology,
        memory.weight_bytes + memory.kv_bytes + memory.scratch_bytes,
        weight_bytes=file.file_bytes,
        wanted=wanted,
        num_threads=max(settings.threads or 0, settings.prompt_threads or 0) or None,
    )
    threads, prompt_threads = plan_threads_of(settings, machine, placement)
    return ExecutionPlan(
        threads=threads,
        prompt_threads=prompt_threads,
        placement=placement,
        home_cpus=_home_cpus(settings.reserve_cores, machine.topology, placement),
        memory=memory,
        huge_pages=settings.huge_pages is not False,
        adapts=settings.adapt is not False,
        locks_memory=settings.mlock,
        reasons=_reasons(settings, machine, threads),
    )


def plan_threads_of(settings: Settings, machine: MachineView, placement: Placement) -> tuple[ThreadPlan, ThreadPlan]:
    """Return the threads that compute answers and those that read prompts."""
    threads = _threads("threads", settings, machine, placement)
    if settings.prompt_threads is None:
        return threads, threads
    return threads, _threads("prompt_threads", settings, machine, placement)


def _check_threads(settings: Settings, topology: Topology) -> None:
    """Refuse more threads than could ever get anything done; only what is set is looked at, not what changes later."""
    num_cpus = len(topology.usable)
    most = min(MAX_THREADS, _MAX_THREADS_PER_CPU * num_cpus)
    for name in ("threads", "prompt_threads"):
        number = getattr(settings, name)
        if number is not None and number > most:
            raise UsageError(
                f"{name} is {number}, expected 1 to {most} on the {num_cpus} CPUs that this process may use",
                hint="leave it out to use every core; more threads than cores make answers slower",
            )


def _threads(name: str, settings: Settings, machine: MachineView, placement: Placement) -> ThreadPlan:
    return assign_threads(
        machine.topology,
        machine.quota,
        getattr(settings, name),
        why=settings.why(name) if name in settings.sources else "",
        cpus=placement.cpus,
        pin=settings.pin,
        num_reserved=settings.reserve_cores,
    )


def _without_windows(shape: Hyperparameters) -> Hyperparameters:
    state_bytes = shape.state_bytes_per_request + shape.convolution_bytes
    return replace(shape, window=0, windowed_kv_bytes_per_token=0, state_bytes_per_request=state_bytes)


def _home_cpus(num_reserved: int, topology: Topology, placement: Placement) -> frozenset[int] | None:
    """Return where threads may run that have no place of their own, None if anywhere."""
    if not num_reserved:
        return placement.cpus
    own = topology.usable if placement.cpus is None else placement.cpus
    near = [core for core in topology.cores if not own.isdisjoint(core.cpus)]
    if num_reserved >= len(near):
        raise UsageError(f"reserve_cores is {num_reserved}, and the model has {len(near)} in all: one must be left")
    used, _ = split_cores(near, num_reserved)
    return own & frozenset(cpu for core in used for cpu in core.cpus)


def _reasons(settings: Settings, machine: MachineView, threads: ThreadPlan) -> dict[str, str]:
    """Why each choice was made that does not say it itself."""
    mode = machine.huge_pages.mode
    fills = "threads fill the usable cores" if UNPINNED not in threads.cpus else "fewer threads than usable cores"
    usual = {
        "prompt_threads": "as many as for answers",
        "pin": fills,
        "kv_type": "the default; q8_0 takes half the memory and is slightly less exact",
        "huge_pages": "the system does not know them" if mode is None else f"the system's mode is {mode!r}",
        "mlock": "only on demand",
        "adapt": "fewer threads run while a quota or other programs take their CPUs",
    }
    return {name: settings.why(name) if name in settings.sources else reason for name, reason in usual.items()}


def _pools(memory: MemoryPlan) -> str:
    of_window = f"{memory.num_window_blocks} blocks for layers that see {memory.window} tokens"
    if not memory.num_window_blocks:
        return f"{memory.num_blocks} blocks"
    return f"{memory.num_blocks} blocks, and {of_window}" if memory.num_blocks else of_window


def _places(cpus: list[int]) -> str:
    pinned = [str(cpu) for cpu in cpus if cpu != UNPINNED]
    return f"CPU {', '.join(pinned)}" if pinned else "off"


def _switch(value: bool) -> str:
    return "on" if value else "off"


def _after_colon(reason: str) -> str:
    return reason.partition(": ")[2].partition("; ")[0]
