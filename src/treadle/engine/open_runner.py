"""Has the chosen engine load a model's weights as the plan says.

Leaves to others: the choice (``engine.choose``), the plan (``execution_plan``) and all beside the weights (``load``).
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from treadle.engine.llamacpp.runner import MAX_NUM_REQUESTS, LlamaCppRunner
from treadle.engine.memory_plan import MAX_BATCH_TOKENS
from treadle.engine.runner import NativeRunner
from treadle.errors import UsageError

if TYPE_CHECKING:
    from treadle.config import Settings
    from treadle.engine.batching import Batching
    from treadle.engine.choose import EngineChoice
    from treadle.engine.execution_plan import ExecutionPlan
    from treadle.engine.plan import ModelRunner
    from treadle.models.gguf import ModelFile

__all__ = ["open_runner", "suit_settings"]

_log = logging.getLogger("treadle.engine")


def suit_settings(settings: Settings, batching: Batching) -> Settings:
    """Return what of the settings holds for an engine other than the native one.

    Raises:
        UsageError: One was asked for that the engine has no use of, or cannot keep to.
    """
    if batching.max_num_requests > MAX_NUM_REQUESTS:
        raise UsageError(
            f"max_num_requests: llama.cpp computes at most {MAX_NUM_REQUESTS} together, found "
            f"{batching.max_num_requests}"
        )
    if settings.sources.get("isa") == "asked for":
        raise UsageError(f"isa: {settings.isa!r:.40} is for the native core, and this model runs through llama.cpp")
    if settings.numa == "replicated" and settings.sources.get("numa") == "asked for":
        raise UsageError("numa: copies of the weights are for the native core, and this model runs through llama.cpp")
    if settings.ram_cache_bytes:
        text = "ram_cache is not used: llama.cpp keeps no KV blocks beyond its own"
        warnings.warn(text, RuntimeWarning, stacklevel=5)
    sources = {**settings.sources, "pin": "llama.cpp"}
    numa = "interleave" if settings.numa == "replicated" else settings.numa
    return replace(settings, ram_cache_bytes=0, disk_cache_bytes=0, pin=False, numa=numa, sources=sources)


def open_runner(
    file: ModelFile,
    choice: EngineChoice,
    *,
    isa: str,
    plan: ExecutionPlan,
    batching: Batching,
    progress: Callable[[int, int], None],
) -> ModelRunner:
    """Load the weights; ``progress`` hears bytes done and bytes in all, and what it raises ends the load."""
    # An encoder reads a text in one piece.
    max_batch_tokens = max(MAX_BATCH_TOKENS, plan.memory.context if file.is_encoder else 0)
    if choice.reason:
        _log.info("%s: %s", file.name, choice.reason)
    with plan.placement.applied() as problem:
        if problem is not None:
            _log.warning(
                "memory is not placed on nodes %s: %s; a container needs the capability SYS_NICE for it",
                " ".join(map(str, plan.placement.nodes)),
                problem,
            )
        if choice.name == "native":
            return NativeRunner.load(
                file,
                isa=isa,
                cpus=plan.threads.cpus,
                prompt_cpus=plan.prompt_threads.cpus,
                home_cpus=plan.home_cpus,
                copies=plan.placement.copies,
                adapts=plan.adapts,
                num_blocks=[pool.num_blocks for pool in plan.memory.pools],
                kv_type=plan.memory.kv_type,
                context=plan.memory.context,
                max_batch_tokens=max_batch_tokens,
                progress=progress,
            )
        return LlamaCppRunner.load(
            file,
            num_threads=plan.threads.num_threads,
            num_prompt_threads=plan.prompt_threads.num_threads,
            num_blocks=plan.memory.num_blocks,
            kv_type=plan.memory.kv_type,
            max_batch_tokens=max_batch_tokens,
            max_num_requests=batching.max_num_requests,
            mlock=plan.locks_memory,
            progress=progress,
        )
