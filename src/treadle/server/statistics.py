"""What a server says about itself: load, speed, caches, memory and recent requests of each model.

Leaves to others: counting (the engine, ``server.recent``) and drawing (``server.dashboard``).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from treadle.engine.kv.kv_type import KV_BLOCK_TOKENS
from treadle.engine.remote.address import is_engine_url
from treadle.hardware.memory import resident_memory_bytes
from treadle.server.machine_watch import Shares
from treadle.server.recent import MOST_KEPT

if TYPE_CHECKING:
    from treadle.engine.contract import AsyncEngine
    from treadle.engine.counters import PoolCounters
    from treadle.engine.load import LoadReport
    from treadle.engine.statistics import EngineStats
    from treadle.hardware.machine_speed import MachineSpeed
    from treadle.server.hub import ModelHub, ServedModel
    from treadle.server.machine_watch import MachineWatch

__all__ = ["server_statistics"]


def server_statistics(
    hub: ModelHub,
    machine: MachineWatch,
    *,
    max_output_tokens: int | None = None,
    most_requests: int = MOST_KEPT,
    clock: Callable[[], float] = time.monotonic,
) -> dict[str, Any]:
    """Return how the server and its models are doing; sizes in bytes, rates and shares of the last ten seconds.

    What is not known is null: all limits until they could be measured. ``clock`` is what two looks are compared by, and
    ``most_requests`` are told of each model.
    """
    speed, denied = machine.speed, machine.denied
    return {
        "clock_seconds": clock(),
        "resident_bytes": resident_memory_bytes(),
        "limits": {
            "read_bytes_per_second": None if speed is None else speed.read_bytes_per_second,
            "int8_ops_per_second": None if speed is None else speed.int8_ops_per_second or None,
            "answer_tokens": max_output_tokens,
        },
        "denied": {"throttled_seconds": denied.throttled_seconds, "steal_seconds": denied.steal_seconds},
        "models": [_model_facts(hub, model, speed, most_requests) for model in hub.models.values()],
    }


def _model_facts(hub: ModelHub, model: ServedModel, speed: MachineSpeed | None, most_requests: int) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "name": model.name,
        "adapters": list(model.adapters),
        "is_loaded": model.engine is not None,
        "is_loading": model.is_loading,
        "is_elsewhere": is_engine_url(model.source),
        "users": model.num_users,
        "idle_seconds": hub.idle_seconds(model),
    }
    if model.engine is not None:
        facts["context"] = model.engine.context
        facts |= _engine_facts(model.engine, speed)
    return {**facts, "requests": model.recent.as_json(most_requests)}


def _engine_facts(engine: AsyncEngine, speed: MachineSpeed | None) -> dict[str, Any]:
    """Return what is known of an engine in this process; of one elsewhere it is nothing."""
    report, stats = engine.report, engine.stats()
    return {} if report is None or stats is None else _local_facts(report, stats, speed)


def _local_facts(report: LoadReport, stats: EngineStats, speed: MachineSpeed | None) -> dict[str, Any]:
    scheduler, steps, plan = stats.scheduler, stats.steps, report.memory_plan
    shares = Shares(speed, stats)
    return {
        "embeds_only": report.embeds_only and not report.ranks,
        "ranks": report.ranks,
        "running": scheduler.num_running,
        "waiting": scheduler.num_waiting,
        "tokens_per_second": {"prompt": steps.prompt_rate, "answer": steps.answer_rate},
        "tokens": {"prompt": scheduler.num_prompt_tokens_computed, "answer": scheduler.num_answer_tokens_computed},
        # What steps of answers read while they computed, and what steps with prompts did.
        "decode_read_bytes_per_second": steps.decode_read_rate,
        "prompt_int8_ops_per_second": steps.prompt_int8_rate,
        "shares": {"bandwidth": shares.bandwidth, "int8": shares.int8},
        "steps": {"count": steps.num_steps, "seconds": steps.step_seconds},
        "cache": _cache_facts(stats),
        "kv_blocks": {**_pool_facts(scheduler.pools[0]), "tokens": KV_BLOCK_TOKENS},
        "window_kv_blocks": None if len(scheduler.pools) == 1 else _pool_facts(scheduler.pools[1]),
        "memory": {
            "weights": report.weight_bytes,
            "kv_blocks_limit": plan.kv_bytes,
            "ram_cache_limit": plan.ram_cache_bytes,
            "disk_cache_limit": report.disk_cache_bytes,
            "available": plan.available_bytes,
        },
        "threads": {
            "count": report.thread_plan.num_threads,
            "latest": stats.num_threads or None,
            "reason": report.thread_plan.reason,
            "isa": report.isa,
        },
    }


def _pool_facts(pool: PoolCounters) -> dict[str, int]:
    return {"total": pool.num_blocks, "used": pool.num_used, "cached": pool.num_cached}


def _cache_facts(stats: EngineStats) -> dict[str, Any]:
    """Return how many prompt tokens were found, by where, and how many were not."""
    scheduler, store = stats.scheduler, stats.store
    loaded = kept = {"ram": 0, "disk": 0}
    if store is not None:
        loaded = {"ram": store.num_loaded_from_ram, "disk": store.num_loaded_from_disk}
        kept = {"ram": store.num_in_ram, "disk": store.num_on_disk}
    return {
        "hit_rate": stats.hit_rate,
        "kv_block_tokens": scheduler.num_pool_hit_tokens,
        "ram_tokens": loaded["ram"] * KV_BLOCK_TOKENS,
        "disk_tokens": loaded["disk"] * KV_BLOCK_TOKENS,
        "missed_tokens": scheduler.num_missed_tokens,
        "kept_tokens": {place: num_blocks * KV_BLOCK_TOKENS for place, num_blocks in kept.items()},
    }
