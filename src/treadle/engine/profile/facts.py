"""Describes the model, the machine and the settings of a profile, as far as figures depend on them.

Leaves to others: finding these things out (``hardware``, ``models``, ``execution_plan``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from treadle.engine.memory_plan import MAX_BATCH_TOKENS
from treadle.engine.profile.limits import cache_sizes
from treadle.engine.profile.setup import MachineFacts, ModelFacts, ProfileSettings

if TYPE_CHECKING:
    from treadle.engine.execution_plan import ExecutionPlan
    from treadle.engine.runner import NativeRunner
    from treadle.hardware.machine import Machine
    from treadle.models.gguf import ModelFile

__all__ = ["describe_machine", "describe_model", "describe_settings"]


def describe_model(file: ModelFile, runner: NativeRunner) -> ModelFacts:
    """Describe a loaded model."""
    return ModelFacts(
        name=file.name,
        architecture=file.architecture,
        file_bytes=file.file_bytes,
        weight_bytes=runner.weight_bytes,
        decode_bytes=runner.decode_bytes,
        num_parameters=file.num_parameters,
        num_layers=file.hyperparameters.num_layers,
        formats={name: share.num_bytes for name, share in file.quant_mix.items()},
    )


def describe_machine(machine: Machine) -> MachineFacts:
    """Describe a machine."""
    return MachineFacts(
        processor=machine.processor.name,
        architecture=machine.processor.architecture,
        num_cores=len(machine.topology.cores),
        num_nodes=len(machine.topology.nodes),
        cache_bytes=cache_sizes(machine.caches),
        memory_bytes=machine.memory.limit_bytes,
        huge_pages=machine.huge_pages.mode,
        quota=None if machine.quota is None else machine.quota.num_cpus,
        kernel=machine.kernel,
        hypervisor=machine.hypervisor,
        container=machine.container,
    )


def describe_settings(plan: ExecutionPlan, runner: NativeRunner) -> ProfileSettings:
    """Describe how a model runs."""
    nodes = " ".join(map(str, plan.placement.nodes))
    return ProfileSettings(
        kernels=runner.kernels,
        cpus=tuple(plan.threads.cpus),
        prompt_cpus=tuple(plan.prompt_threads.cpus),
        kv_type=plan.memory.kv_type,
        huge_pages=plan.huge_pages,
        mlock=plan.locks_memory,
        memory_nodes=f"{plan.placement.policy} {nodes}".rstrip(),
        batch_tokens=MAX_BATCH_TOKENS,
    )
