"""What a server says about itself: load, speed, caches, memory and recent requests of each model.

Leaves to others: counting (the engine, ``server.recent``) and drawing (``server.dashboard``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from treadle.engine.kv_type import KV_BLOCK_TOKENS
from treadle.hardware.memory import resident_memory_bytes
from treadle.server.machine_watch import Shares

if TYPE_CHECKING:
    from treadle.engine.contract import AsyncEngine
    from treadle.engine.load import LoadReport
    from treadle.engine.statistics import EngineStats
    from treadle.hardware.machine_speed import MachineSpeed
    from treadle.server.hub import ModelHub, ServedModel
    from treadle.server.machine_watch import MachineWatch

__all__ = ["server_statistics"]


def server_statistics(hub: ModelHub, machine: MachineWatch) -> dict[str, Any]:
    """Return how the server and its models are doing; sizes in bytes, rates and shares of the last ten seconds.

    What is not known is null: all limits until they could be measured.
    """
    speed = machine.speed
    return {
        "resident_bytes": resident_memory_bytes(),
        "limits": {
            "read_bytes_per_second": None if speed is None else speed.read_bytes_per_second,
            "int8_ops_per_second": None if speed is None else speed.int8_ops_per_second or None,
        },
        "models": [_model_facts(model, speed) for model in hub.models.values()],
    }


def _model_facts(model: ServedModel, speed: MachineSpeed | None) -> dict[str, Any]:
    facts: dict[str, Any] = {"name": model.name, "is_loaded": model.engine is not None}
    if model.engine is not None:
        facts["context"] = model.engine.context
        facts |= _engine_facts(model.engine, speed)
    return {**facts, "requests": model.recent.as_json()}


def _engine_facts(engine: AsyncEngine, speed: MachineSpeed | None) -> dict[str, Any]:
    """Return what is known of an engine in this process; of one elsewhere it is nothing."""
    report, stats = engine.report, engine.stats()
    return {} if report is None or stats is None else _local_facts(report, stats, speed)


def _local_facts(report: LoadReport, stats: EngineStats, speed: MachineSpeed | None) -> dict[str, Any]:
    scheduler, steps, plan = stats.scheduler, stats.steps, report.memory_plan
    shares = Shares(speed, stats)
    return {
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
        "kv_blocks": {
            "total": scheduler.num_blocks,
            "used": scheduler.num_used_blocks,
            "cached": scheduler.num_cached_blocks,
            "tokens": KV_BLOCK_TOKENS,
        },
        "memory": {
            "weights": report.weight_bytes,
            "kv_blocks_limit": plan.kv_bytes,
            "ram_cache_limit": plan.ram_cache_bytes,
            "disk_cache_limit": report.disk_cache_bytes,
            "available": plan.available_bytes,
        },
        "threads": {"count": report.thread_plan.num_threads, "reason": report.thread_plan.reason, "isa": report.isa},
    }


def _cache_facts(stats: EngineStats) -> dict[str, Any]:
    """Return how many prompt tokens were found, by where, and how many were not."""
    scheduler, store = stats.scheduler, stats.store
    loaded = {"ram": 0, "disk": 0}
    if store is not None:
        loaded = {"ram": store.num_loaded_from_ram, "disk": store.num_loaded_from_disk}
    return {
        "hit_rate": stats.hit_rate,
        "kv_block_tokens": scheduler.num_pool_hit_tokens,
        "ram_tokens": loaded["ram"] * KV_BLOCK_TOKENS,
        "disk_tokens": loaded["disk"] * KV_BLOCK_TOKENS,
        "missed_tokens": scheduler.num_missed_tokens,
    }
