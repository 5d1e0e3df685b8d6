"""Attention over q8_0 KV blocks: `ref` against softmax attention in double over what the blocks hold, every other table
bit for bit against `ref`.
"""

from __future__ import annotations

import numpy as np
import pytest
from kernel_cases import FAST_ISAS, RUNNABLE_ISAS, UNIT_ROUNDOFF, assert_same_bits, quantized
from numpy.typing import NDArray

from treadle._native import kernels

every_isa = pytest.mark.parametrize("isa", RUNNABLE_ISAS)
fast = pytest.mark.parametrize("isa", FAST_ISAS)
HEAD_DIMS = [32, 64, 96, 128]

Case = tuple[NDArray[np.float32], NDArray[np.uint8], NDArray[np.uint8], NDArray[np.int32]]
State = tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.float32]]  # max, sum, acc


def blocks_of(values: NDArray[np.float32], is_key: bool) -> NDArray[np.uint8]:
    """Halves of q8_0 blocks [blocks, bytes] with these positions [positions, head_dim]."""
    parts = [kernels.store_q8_0("ref", values[at : at + 32], is_key) for at in range(0, len(values), 32)]
    return np.stack(parts)


def held(halves: NDArray[np.uint8], head_dim: int, is_key: bool) -> NDArray[np.float64]:
    """What the halves hold [positions, head_dim], read as formats.h describes them."""
    quants = halves[:, : 32 * head_dim]
    scales = np.ascontiguousarray(halves[:, 32 * head_dim :]).view(np.float16).reshape(-1, head_dim // 32, 32)
    if is_key:
        ints = quants.reshape(-1, head_dim // 4, 32, 4).transpose(0, 2, 1, 3).astype(np.float64) - 128
    else:
        ints = quants.view(np.int8).reshape(-1, 16, head_dim, 2).transpose(0, 1, 3, 2).astype(np.float64)
    with np.errstate(invalid="ignore"):  # 0 times the infinite scale of a broken position
        values = ints.reshape(-1, 32, head_dim // 32, 32) * scales.transpose(0, 2, 1)[..., None].astype(np.float64)
    return values.reshape(-1, head_dim)


def limits_of(lengths: list[int]) -> NDArray[np.int32]:
    num_blocks = max((max(lengths) + 31) // 32, 1)
    return np.clip(np.array(lengths)[None, :] - 32 * np.arange(num_blocks)[:, None], 0, 32).astype(np.int32)


def make_case(seed: int, head_dim: int, lengths: list[int], spread: float = 1.0) -> Case:
    """q, K and V blocks, and limits so that row r sees the first lengths[r] positions; any bytes lie beyond."""
    rng = np.random.default_rng(seed)
    limits = limits_of(lengths)
    q = rng.normal(0, spread, (len(lengths), head_dim)).astype(np.float32)
    shape = (32 * len(limits), head_dim)
    sizes = rng.choice([0.1, 1.0, 3.0], (shape[0], 1))
    k, v = (blocks_of((sizes * rng.normal(0, 1, shape)).astype(np.float32), is_key) for is_key in (True, False))
    beyond = 32 - (32 * len(limits) - max(lengths))
    for half in (k, v):
        scales = half[-1, 32 * head_dim :].view(np.uint16).reshape(-1, 32)
        scales[:, beyond:] = 0x7E00  # NaN
    return q, k, v, limits


def assert_same_state(found: State, expected: State) -> None:
    for part, expected_part in zip(found, expected, strict=True):
        assert_same_bits(part, expected_part)


def ragged(rows: int) -> list[list[int]]:
    """Lengths of so many rows, the longest at the corners of a block."""
    return [[max(longest - r, 0) for r in range(rows)] for longest in (1, 2, 16, 17, 31, 32, 33, 100)]


@pytest.mark.parametrize("is_key", [True, False])
@pytest.mark.parametrize("isa", RUNNABLE_ISAS)
def test_stored_values_are_rounded_to_eight_bits(isa: str, is_key: bool) -> None:
    values = np.random.default_rng(1).normal(0, 2, (32, 96)).astype(np.float32)
    values[3, :32] = 0
    values[4, 40] = 1000
    half = kernels.store_q8_0(isa, values, is_key)
    q, scale = quantized(values, 32)
    expected = q.reshape(32, 3, 32) * scale.astype(np.float16).astype(np.float64)[..., None]
    np.testing.assert_array_equal(held(half[None], 96, is_key), expected.reshape(32, 96))


@pytest.mark.parametrize("isa", RUNNABLE_ISAS)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e30])
def test_what_has_no_scale_is_stored_as_broken(isa: str, bad: float) -> None:
    values = np.ones((32, 64), np.float32)
    values[7, 40] = bad
    found = held(kernels.store_q8_0(isa, values, True)[None], 64, True)
    assert not np.isfinite(found[7, 40])
    assert np.isfinite(np.delete(found, 7, axis=0)).all()


@pytest.mark.parametrize("head_dim", HEAD_DIMS)
@pytest.mark.parametrize("rows", [1, 3, 8, 21])
def test_attention_equals_numpy_in_double(head_dim: int, rows: int) -> None:
    for lengths in ragged(rows):
        q, k_blocks, v_blocks, limits = make_case(lengths[0], head_dim, lengths)
        maxima, sums, acc = kernels.attend_q8_0("ref", q, k_blocks, v_blocks, limits)
        keys, values = held(k_blocks, head_dim, True), held(v_blocks, head_dim, False)
        ints, scales = quantized(q, 32)
        rounded = (ints.reshape(rows, -1, 32) * scales.astype(np.float64)[..., None]).reshape(rows, head_dim)
        for r, length in enumerate(lengths):
            if length == 0:
                assert maxima[r] == -np.inf
                assert sums[r] == 0
                assert (acc[r] == 0).all()
                continue
            products = rounded[r] * keys[:length]
            scores = products.sum(axis=1)
            weights = np.exp(scores - scores.max())
            # A group's sum is exact; scaling it and adding groups rounds three times a group.
            score_error = 3 * head_dim / 32 * UNIT_ROUNDOFF * np.abs(products).sum(axis=1).max()
            relative = 2 * score_error + (4 * len(limits) + 16) * UNIT_ROUNDOFF
            # Each weight is off by half a unit; units are relative to the largest weight and scale of the block.
            bound = np.zeros(head_dim)
            for at in range(0, length, 32):
                sizes = np.abs(values[at : min(at + 32, length)])
                largest = sizes.reshape(len(sizes), -1, 32).max(axis=(0, 2)).repeat(32)
                bound += 0.5 / 32767 * weights[at : at + 32].max() * len(sizes) * largest * 1.01
            bound += 3 * relative * (weights[:, None] * np.abs(values[:length])).sum(axis=0)
            error = np.abs(acc[r] / sums[r] * weights.sum() - (weights[:, None] * values[:length]).sum(axis=0))
            assert (error <= bound + 1e-30).all()
            assert abs(maxima[r] - scores.max()) <= score_error


@fast
@pytest.mark.parametrize("head_dim", HEAD_DIMS)
@pytest.mark.parametrize("rows", [*range(1, 10), 32])
def test_attention_equals_ref(isa: str, head_dim: int, rows: int) -> None:
    for lengths in ragged(rows):
        for spread in (0.1, 1.0, 30.0):
            case = make_case(lengths[0], head_dim, lengths, spread)
            assert_same_state(kernels.attend_q8_0(isa, *case), kernels.attend_q8_0("ref", *case))


@fast
@pytest.mark.parametrize("bits", [0x7E00, 0x7C00, 0x0001, 0x0000, 0x7BFF, 0xBC00])
@pytest.mark.parametrize("array", [1, 2])
def test_odd_scales_in_sight_equal_ref(isa: str, bits: int, array: int) -> None:
    """A scale that is NaN, infinite, subnormal, zero, the largest or negative."""
    for position in (0, 9, 18, 45):
        case = make_case(position, 64, [60, 60, 46, 10])
        case[array][position // 32, 32 * 64 :].view(np.uint16).reshape(2, 32)[1, position % 32] = bits
        assert_same_state(kernels.attend_q8_0(isa, *case), kernels.attend_q8_0("ref", *case))


@every_isa
def test_a_broken_query_or_block_ends_as_nan(isa: str) -> None:
    q, k, v, limits = make_case(3, 64, [40] * 3)
    q[1, 5] = np.nan
    _, sums, acc = kernels.attend_q8_0(isa, q, k, v, limits)
    assert np.isnan(sums[1])
    assert np.isfinite(acc[[0, 2]]).all()
    v[0, 32 * 64 :].view(np.uint16)[7] = 0x7E00  # dims 0..31 of position 7
    _, _, acc = kernels.attend_q8_0(isa, q, k, v, limits)
    assert np.isnan(acc[0, :32]).all()
    assert np.isfinite(acc[0, 32:]).all()


@every_isa
def test_nothing_past_a_limit_has_influence(isa: str) -> None:
    lengths = np.array([40, 64, 1, 33, 63, 0, 32, 50])
    q, k, v, limits = make_case(13, 96, lengths.tolist())
    clean = kernels.attend_q8_0(isa, q, k, v, limits)
    rng = np.random.default_rng(2)
    for position in range(64):
        spoilt = [half.copy() for half in (k, v)]
        for half in spoilt:
            half[position // 32, 32 * 96 :].view(np.uint16).reshape(3, 32)[:, position % 32] = 0x7E00
        keys = spoilt[0][position // 32, : 32 * 96].reshape(24, 32, 4)
        keys[:, position % 32] = rng.integers(0, 256, (24, 4))
        found = kernels.attend_q8_0(isa, q, *spoilt, limits)
        blind = lengths <= position
        for part, expected in zip(found, clean, strict=True):
            assert_same_bits(part[blind], expected[blind])


@every_isa
def test_rows_do_not_depend_on_each_other(isa: str) -> None:
    lengths = [70, 64, 1, 33, 70, 0, 32, 31, 70]
    q, k, v, limits = make_case(9, 64, lengths)
    together = kernels.attend_q8_0(isa, q, k, v, limits)
    for rows in range(1, 9):
        fewer = kernels.attend_q8_0(isa, q[:rows], k, v, np.ascontiguousarray(limits[:, :rows]))
        for found, expected in zip(fewer, together, strict=True):
            assert_same_bits(found, expected[:rows])


def windows(limits: NDArray[np.int32], lengths: list[int], window: int) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Limits and firsts [blocks, rows] so that each row sees the last `window` of its positions."""
    starts = np.array(lengths)[None, :] - window - 32 * np.arange(len(limits))[:, None]
    firsts = np.clip(starts, 0, 32).astype(np.int32)
    unseen = firsts >= limits
    return np.where(unseen, 0, limits).astype(np.int32), np.where(unseen, 0, firsts).astype(np.int32)


@every_isa
@pytest.mark.parametrize("window", [1, 5, 20, 32, 47])
def test_nothing_before_a_window_has_influence(isa: str, window: int) -> None:
    lengths = [100, 99, 98, 40, 33, 32, 31, 2]
    q, k, v, limits = make_case(3, 96, lengths)
    limits, firsts = windows(limits, lengths, window)
    clean = kernels.attend_q8_0(isa, q, k, v, limits, firsts)
    for row, length in enumerate(lengths):
        spoilt_k, spoilt_v = k.copy(), v.copy()
        for position in range(max(length - window, 0)):
            for half in (spoilt_k, spoilt_v):
                half[position // 32, 32 * 96 :].view(np.uint16).reshape(3, 32)[:, position % 32] = 0x7E00
        found = kernels.attend_q8_0(isa, q, spoilt_k, spoilt_v, limits, firsts)
        assert np.isfinite(found[2][row]).all()
        for part, expected in zip(found, clean, strict=True):
            assert_same_bits(part[row], expected[row])


@fast
@pytest.mark.parametrize("head_dim", [64, 256])
@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 8, 32])
@pytest.mark.parametrize("window", [1, 17, 40])
def test_windows_and_soft_caps_equal_ref(isa: str, head_dim: int, rows: int, window: int) -> None:
    for longest in (1, 17, 33, 100):
        lengths = [max(longest - 3 * r, 0) for r in range(rows)]
        q, k, v, limits = make_case(longest, head_dim, lengths)
        limits, firsts = windows(limits, lengths, window)
        for cap in (0.0, 1.5):
            arguments = (q, k, v, limits, firsts, cap)
            assert_same_state(kernels.attend_q8_0(isa, *arguments), kernels.attend_q8_0("ref", *arguments))


def test_windows_and_soft_cap_equal_numpy_in_double() -> None:
    lengths, cap, window = [70, 64, 5], 2.0, 40
    q, k_blocks, v_blocks, limits = make_case(11, 64, lengths)
    limits, firsts = windows(limits, lengths, window)
    maxima, sums, acc = kernels.attend_q8_0("ref", q, k_blocks, v_blocks, limits, firsts, cap)
    keys, values = held(k_blocks, 64, True), held(v_blocks, 64, False)
    ints, scales = quantized(q, 32)
    queries = (ints.reshape(3, -1, 32) * scales.astype(np.float64)[..., None]).reshape(3, 64)
    for r, length in enumerate(lengths):
        seen = slice(max(length - window, 0), length)
        scores = cap * np.tanh(keys[seen] @ queries[r] / cap)
        weights = np.exp(scores - scores.max())
        np.testing.assert_allclose(maxima[r], scores.max(), rtol=1e-5)
        np.testing.assert_allclose(sums[r], weights.sum(), rtol=1e-5)
        np.testing.assert_allclose(acc[r] / sums[r], weights @ values[seen] / weights.sum(), atol=2e-4)
