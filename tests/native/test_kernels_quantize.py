"""Activation tiles: every table against the definition in formats.h, computed by NumPy in f32."""

from __future__ import annotations

import numpy as np
import pytest
from kernel_cases import ACT_F32, ACT_Q8, RUNNABLE_ISAS, assert_same_bits, quantized
from numpy.typing import NDArray

from treadle._native import kernels

every_isa = pytest.mark.parametrize("isa", RUNNABLE_ISAS)


def check_tile(isa: str, x: NDArray[np.float32]) -> None:
    tokens, columns = x.shape
    tile = kernels.quantize(isa, ACT_Q8, x)
    q, scale = quantized(x, 32)
    np.testing.assert_array_equal(tile["q"], q.reshape(tokens, columns // 4, 4).transpose(1, 0, 2))
    assert_same_bits(tile["scale"], np.ascontiguousarray(scale.T))
    wide = q.astype(np.int32)
    sums = wide.reshape(tokens, -1, 32).sum(axis=2)
    np.testing.assert_array_equal(tile["zero32"], -128 * sums.T)
    with np.errstate(over="ignore"):
        scaled_sum = scale * sums.astype(np.float32)
    assert_same_bits(tile["scaled_sum"], np.ascontiguousarray(scaled_sum.T))
    np.testing.assert_array_equal(tile["zero16"], -32 * wide.reshape(tokens, -1, 16).sum(axis=2).T)


@every_isa
@pytest.mark.parametrize("tokens", [1, 2, 3, 5, 8])
def test_random_activations(isa: str, tokens: int) -> None:
    for columns in (0, 32, 96, 256, 576):
        rng = np.random.default_rng(columns + tokens)
        x = rng.normal(0, 1, (tokens, columns)) * 10.0 ** rng.integers(-6, 6, (tokens, 1))
        check_tile(isa, x.astype(np.float32))


@every_isa
@pytest.mark.parametrize("value", [0.0, -0.0, 1e-45, -1e-38, 9e-37, 2e-36, 1.0, -1.0, 3.4e38, -3.4e38])
def test_constant_blocks(isa: str, value: float) -> None:
    check_tile(isa, np.full((2, 512), value, np.float32))


@every_isa
def test_halves_round_to_even(isa: str) -> None:
    x = np.resize(np.arange(-126.5, 127, 1, dtype=np.float32), (1, 512))
    x[:, ::32] = 127  # the scale is exactly 1
    q = kernels.quantize(isa, ACT_Q8, x)["q"].reshape(1, 512)
    assert (q[x != 127] % 2 == 0).all()
    check_tile(isa, x)


@every_isa
@pytest.mark.parametrize("bad", [np.nan, -np.nan, np.inf, -np.inf])
def test_a_bad_value_spoils_its_block_only(isa: str, bad: float) -> None:
    for column in (0, 13, 255, 256, 511):
        x = np.random.default_rng(column).normal(0, 1, (3, 512)).astype(np.float32)
        x[1, column] = bad
        check_tile(isa, x)


@every_isa
def test_float_tiles_are_transposed(isa: str) -> None:
    for tokens in range(1, 9):
        for columns in (0, 1, 7, 8, 9, 31, 33):
            x = np.random.default_rng(columns).normal(0, 1, (tokens, columns)).astype(np.float32)
            np.testing.assert_array_equal(kernels.quantize(isa, ACT_F32, x)["x"], x.T)
