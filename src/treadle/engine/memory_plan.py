"""Fits weights, KV blocks and scratch memory into what this process may use, before anything is loaded.

Leaves to others: measuring the machine (``treadle.hardware``) and reading the file (``treadle.models``).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from treadle.engine.kv.block_window import BlockWindow
from treadle.engine.kv.kv_memory import BATCH_TOKENS, MAX_BATCH_TOKENS, KvMemory, blocks_for
from treadle.engine.kv.kv_type import DEFAULT_KV_TYPE, KV_BLOCK_TOKENS, check_kv_type
from treadle.errors import CapacityError, UsageError

if TYPE_CHECKING:
    from treadle.hardware.memory import MemoryBudget
    from treadle.models.hyperparameters import Hyperparameters

__all__ = [
    "DEFAULT_CONTEXT",
    "KV_BLOCK_TOKENS",
    "MAX_BATCH_TOKENS",
    "MAX_NUM_REQUESTS",
    "MemoryPlan",
    "PoolPlan",
    "plan_memory",
]

DEFAULT_CONTEXT = 8192
MAX_NUM_REQUESTS = 16

# The core computes the logits of more requests than this in several passes over the same memory.
_MAX_LOGIT_ROWS = 64
# Bookkeeping of the pool takes some hundred bytes a block; this many hold 32 million tokens.
_MAX_BLOCKS = 1 << 20
# Enough for what a step computes, whatever the model, so that a disk may hesitate for a moment.
DISK_BUFFER_BYTES = 64 << 20
_F16_BYTES = 2
# The interpreter, the tokenizer's tables and the allocator's slack, whatever the model.
_FIXED_BYTES = 96 << 20


class PoolPlan(NamedTuple):
    """The KV blocks of layers that see equally far back; no window where they see everything before a token."""

    num_blocks: int
    window: BlockWindow | None


@dataclass(frozen=True)
class MemoryPlan:
    """How the memory of one loaded model is divided, in bytes; contexts are in tokens.

    There are ``num_blocks`` KV blocks for layers that see everything before a token, and ``num_window_blocks`` for
    those that see ``window`` tokens; 0 where the model has none. They take memory when they are first used, so
    ``kv_bytes`` is a limit rather than a cost. So are ``ram_cache_bytes``, for blocks beyond the pools, and
    ``disk_buffer_bytes``, for blocks on their way to the disk. All parts together are at most ``available_bytes``.

    The blocks of an encoder, which keeps nothing of a text, are part of its scratch memory.
    """

    context: int
    num_blocks: int
    weight_bytes: int
    kv_bytes: int
    scratch_bytes: int
    available_bytes: int
    available_reason: str
    reason: str
    ram_cache_bytes: int = 0
    disk_buffer_bytes: int = 0
    kv_type: str = DEFAULT_KV_TYPE
    largest_context: int = 0
    window: int = 0
    num_window_blocks: int = 0

    @property
    def pools(self) -> list[PoolPlan]:
        """Return the pools of KV blocks, one for layers with a window last."""
        window = BlockWindow(self.window, KV_BLOCK_TOKENS, MAX_BATCH_TOKENS)
        pools = [PoolPlan(self.num_blocks, None), PoolPlan(self.num_window_blocks, window)]
        return [pool for pool in pools if pool.num_blocks]

    def with_blocks(self, num_blocks: int) -> MemoryPlan:
        """Return the plan with so many KV blocks in each pool."""
        return replace(
            self,
            num_blocks=num_blocks if self.num_blocks else 0,
            num_window_blocks=num_blocks if self.num_window_blocks else 0,
        )

    @property
    def adapter_bytes(self) -> int:
        """Return what is left for adapters."""
        taken_bytes = self.weight_bytes + self.kv_bytes + self.scratch_bytes
        return max(0, self.available_bytes - taken_bytes - self.ram_cache_bytes - self.disk_buffer_bytes)


def plan_memory(
    name: str,
    model: Hyperparameters,
    *,
    file_bytes: int,
    budget: MemoryBudget,
    memory_bytes: int | None = None,
    ram_cache_bytes: int = 0,
    has_disk_cache: bool = False,
    adapter_bytes: int = 0,
    context: int | None = None,
    kv_type: str = DEFAULT_KV_TYPE,
    max_num_requests: int = MAX_NUM_REQUESTS,
) -> MemoryPlan:
    """Choose the context and the number of KV blocks.

    Args:
        name: The model's name, for messages.
        model: Its hyperparameters.
        file_bytes: Size of the model file; the loaded weights take as much.
        budget: What this process may use.
        memory_bytes: Use this much instead, and give KV blocks all that the rest leaves of it. By default they get
            room for one full context and 4096 tokens of other requests.
        ram_cache_bytes: Memory for KV blocks beyond the pool.
        has_disk_cache: Whether there must be memory for blocks on their way to the disk, too.
        adapter_bytes: Memory that is to be left for adapters.
        context: Tokens asked for; by default the smallest of the model's, 8192 and what fits.
        kv_type: How keys and values are kept, one of ``KV_TYPES``.
        max_num_requests: Most requests in one step.

    Raises:
        UsageError: ``context`` is below 2 or above what the model was trained for, ``ram_cache_bytes`` is more than a
            quarter of the memory, or ``kv_type`` is none of them or does not suit the model.
        CapacityError: The weights, or the context asked for, do not fit; says the largest context that does. Or
            ``memory_bytes`` is more than this process could ever have.
    """
    _check_context(name, model, context)
    check_kv_type(kv_type, name, model)
    if memory_bytes is not None:
        budget = _chosen_budget(budget, memory_bytes)
    _check_ram_cache(ram_cache_bytes, budget)
    if model.is_encoder:
        plan = _plan_encoder(model, file_bytes, budget, context, max_num_requests)
        if (needed_bytes := file_bytes + plan.scratch_bytes + adapter_bytes) > budget.available_bytes:
            raise _too_little(name, budget, needed_bytes, None, None)
        return plan
    disk_buffer_bytes = DISK_BUFFER_BYTES if has_disk_cache else 0
    scratch_bytes = _scratch_bytes(model, max_num_requests)
    fixed_bytes = file_bytes + scratch_bytes + ram_cache_bytes + disk_buffer_bytes + adapter_bytes
    kv = KvMemory(model, kv_type)
    kv_bytes = budget.available_bytes - fixed_bytes
    largest = kv.largest_context(kv_bytes, model.context_length)
    if largest < 1 or (context or 0) > largest:
        raise _too_little(name, budget, fixed_bytes, kv, context)
    chosen = context or min(DEFAULT_CONTEXT, largest)
    wanted_blocks = _MAX_BLOCKS if memory_bytes is not None else blocks_for(chosen) + blocks_for(BATCH_TOKENS)
    num_blocks = kv.largest_pool(kv_bytes, chosen, wanted_blocks)
    return MemoryPlan(
        context=chosen,
        num_blocks=num_blocks if kv.block_bytes else 0,
        weight_bytes=file_bytes,
        kv_bytes=kv.pool_bytes(num_blocks, chosen),
        scratch_bytes=scratch_bytes,
        available_bytes=budget.available_bytes,
        available_reason=budget.reason,
        reason=_reason(context, chosen, model),
        ram_cache_bytes=ram_cache_bytes,
        disk_buffer_bytes=disk_buffer_bytes,
        kv_type=kv_type,
        largest_context=largest,
        window=model.window,
        num_window_blocks=kv.num_window_blocks(num_blocks, chosen),
    )


def _plan_encoder(
    model: Hyperparameters, file_bytes: int, budget: MemoryBudget, context: int | None, max_num_requests: int
) -> MemoryPlan:
    """Plan for texts that are read in one step, of which nothing is kept: keys and values are scratch memory, too."""
    chosen = context or min(DEFAULT_CONTEXT, model.context_length)
    batch_tokens = max(MAX_BATCH_TOKENS, chosen)
    num_blocks = blocks_for(batch_tokens) + max_num_requests  # the last block of a text is seldom full
    block_bytes = 2 * model.num_kv_heads * model.head_dim * _F16_BYTES * KV_BLOCK_TOKENS
    scratch_bytes = _scratch_bytes(model, max_num_requests, batch_tokens) + num_blocks * block_bytes
    return MemoryPlan(
        context=chosen,
        num_blocks=num_blocks,
        weight_bytes=file_bytes,
        kv_bytes=0,
        scratch_bytes=scratch_bytes,
        available_bytes=budget.available_bytes,
        available_reason=budget.reason,
        reason=_reason(context, chosen, model),
        largest_context=model.context_length,
    )


def _too_little(
    name: str, budget: MemoryBudget, fixed_bytes: int, kv: KvMemory | None, context: int | None
) -> CapacityError:
    has = f"and this process may use {_mb(budget.available_bytes)} ({budget.reason})"
    largest = 0 if kv is None else kv.largest_context(budget.available_bytes - fixed_bytes, context or KV_BLOCK_TOKENS)
    if kv is None or context is None or largest < 1:
        least_bytes = fixed_bytes + (0 if kv is None else kv.pool_bytes(1, KV_BLOCK_TOKENS))
        return CapacityError(
            f"{name} needs {_mb(least_bytes)} to load {has}",
            hint="free memory, raise the limit, or choose a smaller model or quantisation",
        )
    needed_bytes = fixed_bytes + kv.pool_bytes(blocks_for(context), context)
    return CapacityError(
        f"{name} with a context of {context} tokens needs {_mb(needed_bytes)} {has}",
        hint=f"the largest context that fits is {largest} tokens",
    )


def _check_ram_cache(ram_cache_bytes: int, budget: MemoryBudget) -> None:
    most_bytes = budget.available_bytes // 4
    if ram_cache_bytes > most_bytes:
        raise UsageError(
            f"ram_cache: expected at most {_mb(most_bytes)}, a quarter of the {_mb(budget.available_bytes)} that this "
            f"process may use ({budget.reason}), found {_mb(ram_cache_bytes)}"
        )


def _chosen_budget(budget: MemoryBudget, memory_bytes: int) -> MemoryBudget:
    if memory_bytes > budget.limit_bytes:
        raise CapacityError(
            f"memory: {_mb(memory_bytes)} asked for, and this process can never have more than "
            f"{_mb(budget.limit_bytes)} ({budget.reason})",
            hint="ask for less, or leave it out to use what is free",
        )
    return replace(budget, available_bytes=memory_bytes, reason="the memory asked for")


def _check_context(name: str, model: Hyperparameters, context: int | None) -> None:
    if context is None:
        return
    if context < 2:
        raise UsageError(f"context: expected at least 2 tokens (one of the prompt, one of the answer), found {context}")
    if context > model.context_length:
        raise UsageError(
            f"context: {name} was trained for {model.context_length} tokens, found {context}",
            hint=f"ask for at most {model.context_length}",
        )


def _reason(asked: int | None, chosen: int, model: Hyperparameters) -> str:
    if asked is not None:
        return "as asked"
    if chosen == model.context_length:
        return "all the model was trained for"
    return "the default" if chosen == DEFAULT_CONTEXT else "the largest that fits in memory"


def _scratch_bytes(model: Hyperparameters, max_num_requests: int, batch_tokens: int = MAX_BATCH_TOKENS) -> int:
    """Bound the activations of one step (float32, a handful of rows per token) and the logits of every request."""
    row_floats = 8 * model.hidden_size + 3 * model.feed_forward_size
    # Of each expert of a token: its input, rounded, what is between its products, and what comes out.
    row_floats += model.num_experts_used * (2 * model.hidden_size + 2 * model.expert_feed_forward_size)
    logit_floats = min(max_num_requests, _MAX_LOGIT_ROWS) * model.vocab_size
    state_bytes = max_num_requests * model.state_bytes_per_request
    return _FIXED_BYTES + state_bytes + 4 * (batch_tokens * row_floats + logit_floats)


def _mb(num_bytes: int) -> str:
    return f"{num_bytes / 1e6:,.0f} MB"
