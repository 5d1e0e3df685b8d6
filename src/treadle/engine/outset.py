"""What is settled about a model before its weights are read: its settings, what computes it, and its plan.

Leaves to others: the plan's choices (``engine.execution_plan``) and loading by it (``engine.load``).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

from treadle.config import Settings
from treadle.engine.batching import Batching
from treadle.engine.choose import EngineChoice, choose_engine
from treadle.engine.execution_plan import ExecutionPlan, MachineView, plan_execution
from treadle.engine.open_runner import suit_settings
from treadle.engine.tuning import apply_tuning
from treadle.hardware.limits import cpu_quota
from treadle.hardware.memory import memory_budget, read_huge_pages
from treadle.hardware.topology import read_topology
from treadle.models.gguf import ModelFile
from treadle.models.store import resolve_model

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = ["Outset", "PlanOptions", "plan_model", "read_settings", "set_out", "usual_memory_bytes", "view_machine"]


class PlanOptions(TypedDict, total=False):
    """How a model is to run: the arguments that ``LLM`` explains."""

    context: int | None
    memory: int | str | None
    ram_cache: int | str | None
    disk_cache: int | str | None
    adapter_memory: int | str | None
    max_adapters: int | None
    kv_type: str | None
    isa: str | None
    threads: int | None
    prompt_threads: int | None
    reserve_cores: int | None
    pin: bool | None
    numa: str | None
    huge_pages: bool | None
    adapt: bool | None
    mlock: bool | None
    engine: str | None


@dataclass(frozen=True)
class Outset:
    """What is settled about a model before its weights are read."""

    file: ModelFile
    choice: EngineChoice
    settings: Settings
    batching: Batching
    machine: MachineView

    def plan(self) -> ExecutionPlan:
        """Return how the model will run."""
        max_num_requests = self.batching.max_num_requests
        frees_windows = self.choice.name == "native"
        return plan_execution(
            self.file, self.settings, self.machine, max_num_requests=max_num_requests, frees_windows=frees_windows
        )


def set_out(file: ModelFile, settings: Settings, batching: Batching) -> Outset:
    """Choose what computes a model, and fit settings and batching to it; raises as ``LLM`` does."""
    choice = choose_engine(file, settings.engine)
    machine = view_machine()
    if choice.name != "native":
        return Outset(file, choice, suit_settings(settings, batching), batching, machine)
    batching = batching.for_texts() if file.is_encoder else batching
    return Outset(file, choice, apply_tuning(settings, file, machine), batching, machine)


def plan_model(model: str | Path, **options: Unpack[PlanOptions]) -> ExecutionPlan:
    """Return how a model on this machine would run, without loading its weights; raises as ``LLM`` does."""
    return set_out(ModelFile.open(resolve_model(model, pull=False)), read_settings(options), Batching()).plan()


def usual_memory_bytes(model: str | Path, **options: Unpack[PlanOptions]) -> int:
    """Return how much memory a model takes where it is not told how much there is for it; raises as ``LLM`` does."""
    settings = replace(read_settings(options), memory_bytes=None)
    memory = set_out(ModelFile.open(resolve_model(model)), settings, Batching()).plan().memory
    caches_bytes = memory.ram_cache_bytes + memory.disk_buffer_bytes + settings.adapter_memory_bytes
    return memory.weight_bytes + memory.kv_bytes + memory.scratch_bytes + caches_bytes


def read_settings(options: PlanOptions) -> Settings:
    """Return the settings of the environment, with the options that were given in the stead of theirs."""
    unknown = options.keys() - PlanOptions.__annotations__.keys()
    if unknown:
        raise TypeError(f"a model is loaded without the argument {min(unknown)!r}")
    return Settings.from_environment().override(**options)


def view_machine(affinity: Collection[int] = ()) -> MachineView:
    """Return what of this machine a plan depends on, as it is now."""
    return MachineView(read_topology(affinity=affinity), cpu_quota(Path("/")), memory_budget(), read_huge_pages())
