"""Attention over KV blocks: `ref` against softmax attention in double, every other table bit for bit against `ref`."""

from __future__ import annotations

import numpy as np
import pytest
from kernel_cases import FAST_ISAS, RUNNABLE_ISAS, UNIT_ROUNDOFF, assert_same_bits
from numpy.typing import NDArray

from treadle._native import kernels

every_isa = pytest.mark.parametrize("isa", RUNNABLE_ISAS)
fast = pytest.mark.parametrize("isa", FAST_ISAS)
HEAD_DIMS = [8, 16, 24, 64, 72, 80, 128]
SPECIAL = [np.nan, np.inf, -np.inf, 65504.0]

Case = tuple[NDArray[np.float32], NDArray[np.uint16], NDArray[np.uint16], NDArray[np.int32]]
State = tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.float32]]  # max, sum, acc


def make_case(seed: int, rows: int, head_dim: int, lengths: list[int], spread: float = 1.0) -> Case:
    """q, K and V blocks, and limits so that row r sees the first lengths[r] positions; what lies beyond is NaN."""
    rng = np.random.default_rng(seed)
    num_blocks = max((max(lengths) + 31) // 32, 1)
    q = rng.normal(0, spread, (rows, head_dim)).astype(np.float32)
    k = rng.normal(0, 1, (num_blocks, head_dim, 32)).astype(np.float16)
    v = rng.normal(0, 1, (num_blocks, 32, head_dim)).astype(np.float16)
    beyond = max(lengths) - (num_blocks - 1) * 32
    k[-1, :, beyond:] = np.nan
    v[-1, beyond:] = np.nan
    limits = np.clip(np.array(lengths)[None, :] - 32 * np.arange(num_blocks)[:, None], 0, 32).astype(np.int32)
    return q, k.view(np.uint16), v.view(np.uint16), limits


def ragged(rows: int) -> list[list[int]]:
    """Lengths of so many rows, the longest at the corners of a block."""
    return [[max(longest - r, 0) for r in range(rows)] for longest in (1, 2, 16, 17, 31, 32, 33, 100)]


def assert_same_state(found: State, expected: State) -> None:
    for part, expected_part in zip(found, expected, strict=True):
        assert_same_bits(part, expected_part)


def assert_near_double(case: Case, lengths: list[int]) -> None:
    q, k_blocks, v_blocks, limits = case
    head_dim = q.shape[1]
    k = k_blocks.view(np.float16).astype(np.float64).transpose(0, 2, 1).reshape(-1, head_dim)
    v = v_blocks.view(np.float16).astype(np.float64).reshape(-1, head_dim)
    maxima, sums, acc = kernels.attend("ref", q, k_blocks, v_blocks, limits)
    for r, length in enumerate(lengths):
        if length == 0:
            assert maxima[r] == -np.inf
            assert sums[r] == 0
            assert (acc[r] == 0).all()
            continue
        products = q[r].astype(np.float64) * k[:length]
        scores = products.sum(axis=1)
        weights = np.exp(scores - scores.max())
        weights /= weights.sum()
        # A score is off by head_dim roundings; that shifts weights by as much, twice (once through the maximum). Then
        # exp to two ulp, one correction per block, and the sums over positions.
        score_error = head_dim * UNIT_ROUNDOFF * np.abs(products).sum(axis=1).max()
        relative = 2 * score_error + (length + 4 * len(limits) + 8) * UNIT_ROUNDOFF
        bound = 2 * relative * (weights[:, None] * np.abs(v[:length])).sum(axis=0) + 1e-30
        error = np.abs(acc[r] / sums[r] - (weights[:, None] * v[:length]).sum(axis=0))
        assert (error <= bound).all()
        assert abs(maxima[r] - scores.max()) <= score_error


@pytest.mark.parametrize("head_dim", HEAD_DIMS)
@pytest.mark.parametrize("rows", [1, 3, 8, 21])
def test_attention_equals_numpy_in_double(head_dim: int, rows: int) -> None:
    for lengths in ragged(rows):
        assert_near_double(make_case(lengths[0], rows, head_dim, lengths), lengths)


def test_far_apart_scores() -> None:
    """Most weights underflow to zero, and later blocks raise the maximum."""
    lengths = [96, 96, 70]
    assert_near_double(make_case(5, 3, 64, lengths, spread=30.0), lengths)


@fast
@pytest.mark.parametrize("head_dim", HEAD_DIMS)
@pytest.mark.parametrize("rows", [*range(1, 10), 15, 32])
def test_attention_equals_ref(isa: str, head_dim: int, rows: int) -> None:
    for lengths in ragged(rows):
        for spread in (0.1, 1.0, 30.0):
            case = make_case(lengths[0], rows, head_dim, lengths, spread)
            assert_same_state(kernels.attend(isa, *case), kernels.attend("ref", *case))


@fast
@pytest.mark.parametrize("special", SPECIAL)
def test_broken_values_in_sight_equal_ref(isa: str, special: float) -> None:
    """One NaN, infinity or huge number among what a row sees: in q, in K of each vector of positions, in V."""
    for position in (0, 9, 18, 27, 45):
        for array in range(3):
            q, k, v, limits = make_case(position, 4, 64, [60] * 4)
            if array == 0:
                q[2, position] = special
            else:
                target = k[position // 32, 5] if array == 1 else v[position // 32, :, 5]
                target.view(np.float16)[position % 32] = special
            assert_same_state(kernels.attend(isa, q, k, v, limits), kernels.attend("ref", q, k, v, limits))


@every_isa
@pytest.mark.parametrize("poison", SPECIAL)
def test_nothing_past_a_limit_has_influence(isa: str, poison: float) -> None:
    """Each position, in sight of some rows or of none, is poisoned in turn: rows that do not see it stay the same."""
    lengths = np.array([40, 64, 1, 33, 63, 0, 32, 50])
    q, k, v, limits = make_case(13, 8, 72, lengths.tolist())
    # A third block that no row sees: limit 0, whatever it holds.
    k, v = (np.concatenate([blocks, blocks[:1]]) for blocks in (k, v))
    limits = np.concatenate([limits, np.zeros_like(limits[:1])])
    clean = kernels.attend(isa, q, k, v, limits)
    for position in range(96):
        poisoned_k, poisoned_v = k.copy(), v.copy()
        poisoned_k[position // 32].view(np.float16)[:, position % 32] = poison
        poisoned_v[position // 32].view(np.float16)[position % 32] = poison
        found = kernels.attend(isa, q, poisoned_k, poisoned_v, limits)
        blind = lengths <= position
        for part, expected in zip(found, clean, strict=True):
            assert_same_bits(part[blind], expected[blind])


@every_isa
def test_rows_do_not_depend_on_each_other(isa: str) -> None:
    lengths = [70, 64, 1, 33, 70, 0, 32, 31]
    q, k, v, limits = make_case(9, 8, 64, lengths)
    together = kernels.attend(isa, q, k, v, limits)
    for rows in range(1, 8):
        fewer = kernels.attend(isa, q[:rows], k, v, np.ascontiguousarray(limits[:, :rows]))
        for found, expected in zip(fewer, together, strict=True):
            assert_same_bits(found, expected[:rows])
    reversed_rows = kernels.attend(isa, np.ascontiguousarray(q[::-1]), k, v, np.ascontiguousarray(limits[:, ::-1]))
    for found, expected in zip(reversed_rows, together, strict=True):
        assert_same_bits(found, np.ascontiguousarray(expected[::-1]))


@every_isa
def test_a_bad_query_spoils_its_row_only(isa: str) -> None:
    q, k, v, limits = make_case(11, 4, 64, [40] * 4)
    clean = kernels.attend(isa, q, k, v, limits)
    q[2, 5] = np.nan
    spoilt = kernels.attend(isa, q, k, v, limits)
    assert not np.isfinite(spoilt[2][2] / spoilt[1][2]).any()
    for found, expected in zip(spoilt, clean, strict=True):
        assert_same_bits(found[[0, 1, 3]], expected[[0, 1, 3]])


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
    q, k, v, limits = make_case(3, 8, 96, lengths)
    limits, firsts = windows(limits, lengths, window)
    clean = kernels.attend(isa, q, k, v, limits, firsts)
    for row, length in enumerate(lengths):
        spoilt_k, spoilt_v = k.copy(), v.copy()
        for position in range(max(length - window, 0)):
            spoilt_k[position // 32, :, position % 32] = 0x7E00
            spoilt_v[position // 32, position % 32] = 0x7E00
        found = kernels.attend(isa, q, spoilt_k, spoilt_v, limits, firsts)
        assert np.isfinite(found[2][row]).all()
        for part, expected in zip(found, clean, strict=True):
            assert_same_bits(part[row], expected[row])


@fast
@pytest.mark.parametrize("head_dim", [24, 64, 256])
@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 8, 32])
@pytest.mark.parametrize("window", [1, 17, 40])
def test_windows_and_soft_caps_equal_ref(isa: str, head_dim: int, rows: int, window: int) -> None:
    for longest in (1, 17, 33, 100):
        lengths = [max(longest - 3 * r, 0) for r in range(rows)]
        q, k, v, limits = make_case(longest, rows, head_dim, lengths)
        limits, firsts = windows(limits, lengths, window)
        for cap in (0.0, 1.5):
            arguments = (q, k, v, limits, firsts, cap)
            assert_same_state(kernels.attend(isa, *arguments), kernels.attend("ref", *arguments))


def test_windows_and_soft_cap_equal_numpy_in_double() -> None:
    lengths, cap, window = [70, 64, 5], 2.0, 40
    q, k_blocks, v_blocks, limits = make_case(11, 3, 64, lengths)
    limits, firsts = windows(limits, lengths, window)
    maxima, sums, acc = kernels.attend("ref", q, k_blocks, v_blocks, limits, firsts, cap)
    keys = k_blocks.view(np.float16).astype(np.float64).transpose(0, 2, 1).reshape(-1, 64)
    values = v_blocks.view(np.float16).astype(np.float64).reshape(-1, 64)
    queries = q.astype(np.float64)
    for r, length in enumerate(lengths):
        seen = slice(max(length - window, 0), length)
        scores = cap * np.tanh(keys[seen] @ queries[r] / cap)
        weights = np.exp(scores - scores.max())
        np.testing.assert_allclose(maxima[r], scores.max(), rtol=1e-5)
        np.testing.assert_allclose(sums[r], weights.sum(), rtol=1e-5)
        np.testing.assert_allclose(acc[r] / sums[r], weights @ values[seen] / weights.sum(), atol=2e-4)
