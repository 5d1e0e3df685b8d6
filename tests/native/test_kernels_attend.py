"""Attention over KV blocks: every table against softmax attention in double."""

from __future__ import annotations

import numpy as np
import pytest
from kernel_cases import RUNNABLE_ISAS, UNIT_ROUNDOFF, assert_same_bits
from numpy.typing import NDArray

from treadle._native import kernels

every_isa = pytest.mark.parametrize("isa", RUNNABLE_ISAS)

Case = tuple[NDArray[np.float32], NDArray[np.uint16], NDArray[np.uint16], NDArray[np.int32]]


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


def check(isa: str, case: Case, lengths: list[int]) -> None:
    q, k_blocks, v_blocks, limits = case
    head_dim = q.shape[1]
    k = k_blocks.view(np.float16).astype(np.float64).transpose(0, 2, 1).reshape(-1, head_dim)
    v = v_blocks.view(np.float16).astype(np.float64).reshape(-1, head_dim)
    maxima, sums, acc = kernels.attend(isa, q, k_blocks, v_blocks, limits)
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


@every_isa
@pytest.mark.parametrize("head_dim", [8, 16, 24, 64, 80, 128])
@pytest.mark.parametrize("rows", range(1, 9))
def test_attention_equals_numpy_in_double(isa: str, head_dim: int, rows: int) -> None:
    for longest in (1, 2, 31, 32, 33, 100):
        lengths = [max(longest - r, 0) for r in range(rows)]
        check(isa, make_case(longest, rows, head_dim, lengths), lengths)


@every_isa
def test_far_apart_scores(isa: str) -> None:
    """Most weights underflow to zero, and later blocks raise the maximum."""
    lengths = [96, 96, 70]
    check(isa, make_case(5, 3, 64, lengths, spread=30.0), lengths)


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
