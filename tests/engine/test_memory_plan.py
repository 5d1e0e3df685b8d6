"""The memory plan: defaults, limits, and refusals that say what would fit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from treadle.engine.kv.kv_memory import context_kv_bytes
from treadle.engine.memory_plan import MemoryPlan, plan_memory
from treadle.errors import CapacityError, UsageError
from treadle.hardware.memory import MemoryBudget
from treadle.models.hyperparameters import Hyperparameters

MB = 10**6


NEEDS = Hyperparameters(
    num_layers=2,
    hidden_size=64,
    num_heads=4,
    num_kv_heads=4,
    head_dim=16,
    feed_forward_size=128,
    context_length=32768,
    vocab_size=1000,
    kv_bytes_per_token=10_000,
)


def plan(
    available_bytes: int = 2000 * MB,
    context: int | None = None,
    needs: Hyperparameters = NEEDS,
    file_bytes: int = 100 * MB,
    **more: Any,
) -> MemoryPlan:
    return plan_memory(
        "tiny",
        needs,
        file_bytes=file_bytes,
        budget=MemoryBudget(available_bytes, available_bytes, "test"),
        context=context,
        **more,
    )


def test_takes_8192_tokens_of_a_model_that_could_do_more() -> None:
    result = plan()
    assert (result.context, result.reason) == (8192, "the default")
    assert result.num_blocks == (8192 + 4096) // 32
    assert result.kv_bytes == result.num_blocks * 32 * 10_000


def test_takes_the_models_own_context_when_that_is_smaller() -> None:
    result = plan(needs=replace(NEEDS, context_length=2048))
    assert (result.context, result.reason) == (2048, "all the model was trained for")


def test_takes_what_fits_when_memory_is_short() -> None:
    result = plan(available_bytes=220 * MB)
    assert result.reason == "the largest that fits in memory"
    assert result.context == result.num_blocks * 32 < 8192
    used = result.weight_bytes + result.scratch_bytes + result.kv_bytes
    assert used <= 220 * MB < used + 32 * 10_000


def test_a_larger_context_than_fits_names_the_largest_that_does() -> None:
    largest = plan(available_bytes=220 * MB).context
    assert plan(available_bytes=220 * MB, context=largest).context == largest
    with pytest.raises(
        CapacityError, match=rf"context of {largest + 1} tokens needs \d+ MB .* may use 220 MB"
    ) as caught:
        plan(available_bytes=220 * MB, context=largest + 1)
    assert caught.value.hint == f"the largest context that fits is {largest} tokens"


def test_a_context_that_is_no_multiple_of_a_block_is_kept() -> None:
    assert plan(context=1000).context == 1000
    assert plan(context=1000).num_blocks == 32 + 128


def test_weights_that_do_not_fit_are_refused_before_loading() -> None:
    with pytest.raises(CapacityError, match=r"tiny needs 50,1.. MB to load and this process may use 2,000 MB"):
        plan(file_bytes=50_000 * MB)


@pytest.mark.parametrize(
    ("context", "text"), [(0, "expected at least 2"), (-5, "found -5"), (32769, "trained for 32768")]
)
def test_refuses_contexts_that_cannot_be(context: int, text: str) -> None:
    with pytest.raises(UsageError, match=text):
        plan(context=context)


def test_memory_that_is_asked_for_is_used_up_by_kv_blocks() -> None:
    result = plan(memory_bytes=500 * MB)
    assert (result.available_bytes, result.available_reason) == (500 * MB, "the memory asked for")
    used = result.weight_bytes + result.scratch_bytes + result.kv_bytes
    assert used <= 500 * MB < used + 32 * 10_000
    assert (result.context, plan(memory_bytes=1000 * MB).context) == (8192, 8192)


def test_memory_may_be_asked_for_beyond_what_is_free_but_not_beyond_the_machine() -> None:
    budget = MemoryBudget(300 * MB, 800 * MB, "test")
    result = plan_memory("tiny", NEEDS, file_bytes=100 * MB, budget=budget, memory_bytes=800 * MB)
    assert result.available_bytes == 800 * MB
    with pytest.raises(CapacityError, match=r"memory: 801 MB asked for, .* never have more than 800 MB \(test\)"):
        plan_memory("tiny", NEEDS, file_bytes=100 * MB, budget=budget, memory_bytes=801 * MB)


def test_too_little_memory_asked_for_says_so() -> None:
    with pytest.raises(CapacityError, match=r"may use 100 MB \(the memory asked for\)"):
        plan(memory_bytes=100 * MB)


def test_caches_come_out_of_the_same_memory() -> None:
    plain, cached = (
        plan(memory_bytes=800 * MB),
        plan(memory_bytes=800 * MB, ram_cache_bytes=200 * MB, has_disk_cache=True),
    )
    assert (cached.ram_cache_bytes, cached.disk_buffer_bytes) == (200 * MB, 64 << 20)
    missing = (plain.num_blocks - cached.num_blocks) * 32 * 10_000
    assert abs(missing - 200 * MB - (64 << 20)) <= 32 * 10_000
    with pytest.raises(CapacityError, match=r"tiny needs 3.. MB to load and this process may use 300 MB"):
        plan(memory_bytes=300 * MB, ram_cache_bytes=75 * MB, has_disk_cache=True, file_bytes=100 * MB)


def test_at_most_a_quarter_of_memory_is_for_blocks_beyond_the_pool() -> None:
    assert plan(ram_cache_bytes=500 * MB).ram_cache_bytes == 500 * MB
    with pytest.raises(UsageError, match=r"ram_cache: expected at most 500 MB, a quarter of the 2,000 MB .* 501 MB"):
        plan(ram_cache_bytes=501 * MB)


def test_q8_0_blocks_take_17_bytes_instead_of_32() -> None:
    needs = replace(NEEDS, head_dim=32)
    plain, small = plan(needs=needs), plan(needs=needs, kv_type="q8_0")
    assert (plain.kv_type, small.kv_type) == ("f16", "q8_0")
    assert plain.num_blocks == small.num_blocks
    assert small.kv_bytes * 32 == plain.kv_bytes * 17


def test_refuses_a_kv_type_that_does_not_suit_the_heads() -> None:
    with pytest.raises(UsageError, match="q8_0 rounds groups of 32 values, and the heads of tiny have 16"):
        plan(kv_type="q8_0")
    with pytest.raises(UsageError, match="kv_type: expected one of f16, q8_0, found 'q4_0'"):
        plan(kv_type="q4_0")


def test_an_encoder_takes_no_kv_blocks_and_its_context_as_scratch_memory() -> None:
    encoder = replace(NEEDS, is_encoder=True, kv_bytes_per_token=0, context_length=2048)
    plans = [plan(context=context, needs=encoder) for context in (None, 512, 64)]
    assert [(each.context, each.kv_bytes) for each in plans] == [(2048, 0), (512, 0), (64, 0)]
    assert plans[0].scratch_bytes > plans[1].scratch_bytes == plans[2].scratch_bytes
    assert plans[0].num_blocks == 2048 // 32 + 16
    with pytest.raises(CapacityError, match=r"tiny needs .* MB to load and this process may use 200 MB"):
        plan(200 * MB, needs=encoder)


# Of 10,000 bytes for a token 8,000 are those of layers that see 512 tokens: blocks of 64,000 and of 256,000 bytes. One
# request holds at most (511 + 32 + 512 - 2) / 32 + 2 = 34 of the latter.
WINDOWED = replace(NEEDS, window=512, windowed_kv_bytes_per_token=8000, context_length=131072)


def test_layers_with_a_window_get_blocks_for_one_context_and_the_other_requests() -> None:
    result = plan(needs=WINDOWED, context=32768)
    assert (result.num_blocks, result.num_window_blocks) == (1024 + 128, 34 + 128)
    assert result.kv_bytes == 1152 * 64_000 + 162 * 256_000
    assert result.kv_bytes < plan(needs=replace(NEEDS, context_length=131072), context=32768).kv_bytes / 3
    assert [pool.num_blocks for pool in result.pools] == [1152, 162]
    assert result.pools[0].window is None and result.pools[1].window is not None
    assert (result.pools[1].window.window, result.pools[1].window.most_held) == (512, 34)


def test_a_window_is_never_more_than_the_context() -> None:
    result = plan(needs=WINDOWED, context=64)
    assert (result.num_blocks, result.num_window_blocks) == (2 + 128, 2 + 128)
    assert context_kv_bytes(WINDOWED, "f16", 64) == 2 * 320_000
    assert context_kv_bytes(WINDOWED, "f16", 32768) == 1024 * 64_000 + 34 * 256_000


@pytest.mark.parametrize("megabytes", [205, 220, 300, 1000])
def test_the_largest_context_is_one_that_fits_and_no_longer_one_does(megabytes: int) -> None:
    largest = plan(available_bytes=megabytes * MB, needs=WINDOWED).largest_context
    result = plan(available_bytes=megabytes * MB, needs=WINDOWED, context=largest)
    assert result.weight_bytes + result.scratch_bytes + result.kv_bytes <= megabytes * MB
    if largest < 131072:
        with pytest.raises(CapacityError, match=r"context of") as caught:
            plan(available_bytes=megabytes * MB, needs=WINDOWED, context=largest + 1)
        assert caught.value.hint == f"the largest context that fits is {largest} tokens"
        assert largest > 2 * plan(available_bytes=megabytes * MB).largest_context or megabytes < 300


def test_all_the_memory_asked_for_goes_to_both_pools() -> None:
    result = plan(memory_bytes=1000 * MB, needs=WINDOWED)
    used = result.weight_bytes + result.scratch_bytes + result.kv_bytes
    assert used <= 1000 * MB < used + 64_000 + 256_000
    assert result.num_window_blocks == 34 + 128 + (result.num_blocks - 256 - 128) // 8


def test_a_model_with_windows_in_all_layers_has_one_pool() -> None:
    needs = replace(WINDOWED, windowed_kv_bytes_per_token=10_000)
    result = plan(needs=needs, context=32768)
    assert (result.num_blocks, result.num_window_blocks, result.kv_bytes) == (0, 162, 162 * 320_000)
    assert [pool.num_blocks for pool in result.pools] == [162]
    assert result.with_blocks(7).pools[0].num_blocks == 7
    asked = plan(memory_bytes=1000 * MB, needs=needs)
    assert 1000 * MB - 320_000 < asked.weight_bytes + asked.scratch_bytes + asked.kv_bytes <= 1000 * MB


def test_convolutions_take_what_they_keep_whatever_the_type() -> None:
    needs = replace(NEEDS, head_dim=32, window=3, num_convolutions=5, hidden_size=64, context_length=131072)
    assert needs.convolution_bytes == 5 * 2 * 64 * 4
    result = plan(needs=needs, context=32768)
    assert (result.num_blocks, result.num_window_blocks) == (1024 + 128, 19 + 128)
    assert result.kv_bytes == 1152 * 320_000 + 147 * needs.convolution_bytes
    small = plan(needs=needs, context=32768, kv_type="q8_0")
    assert small.kv_bytes == 1152 * 170_000 + 147 * needs.convolution_bytes


def test_q8_0_takes_17_of_32_bytes_in_both_pools() -> None:
    needs = replace(WINDOWED, head_dim=32)
    plain, small = plan(needs=needs), plan(needs=needs, kv_type="q8_0")
    assert (plain.num_blocks, plain.num_window_blocks) == (small.num_blocks, small.num_window_blocks)
    assert small.kv_bytes * 32 == plain.kv_bytes * 17
