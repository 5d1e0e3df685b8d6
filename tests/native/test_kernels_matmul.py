"""Panel products: ref against NumPy in double, every other table against ref bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
from kernel_cases import (
    ACT_F32,
    BLOCK_FORMATS,
    FAST_ISAS,
    FLOAT_FORMATS,
    FORMATS,
    RUNNABLE_ISAS,
    UNIT_ROUNDOFF,
    Format,
    assert_same_bits,
    dequantized,
    error_weights,
    extreme_rows,
    quantized,
    random_rows,
)
from numpy.typing import NDArray

from treadle._native import kernels

by_format = pytest.mark.parametrize("fmt", FORMATS, ids=lambda f: f.name)
fast = pytest.mark.parametrize("isa", FAST_ISAS)

BLOCK_COLUMNS = {32: (32, 64, 96, 576), 256: (256, 512, 1536)}
FLOAT_COLUMNS = (1, 2, 3, 15, 17, 64, 576)


def column_counts(fmt: Format) -> tuple[int, ...]:
    return BLOCK_COLUMNS.get(fmt.block_columns, FLOAT_COLUMNS)


def activations(rng: np.random.Generator, tokens: int, columns: int) -> NDArray[np.float32]:
    """Normal values whose size varies from token to token, with a few outliers."""
    x = rng.normal(0, 1, (tokens, columns)) * 10.0 ** rng.integers(-3, 3, (tokens, 1))
    x[rng.random(x.shape) < 0.01] *= 50
    return x.astype(np.float32)


def as_kernels_see(fmt: Format, x: NDArray[np.float32]) -> NDArray[np.float64]:
    if fmt.act_format == ACT_F32:
        return x.astype(np.float64)
    q, scale = quantized(x, 32)
    return q.astype(np.float64) * np.repeat(scale.astype(np.float64), 32, axis=1)


def bound(fmt: Format, rows: NDArray[np.uint8], x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Largest rounding error allowed: roundings on the longest path, times u, times sum |a| |b|.

    A float product has one per two columns; others have one fma or two per 32 columns on the accumulator and less than 24
    inside (the factors, and those of the dequantised oracle). The last term covers products that underflow.
    """
    columns = x.shape[1]
    roundings = columns / 2 + 2 if fmt.act_format == ACT_F32 else 2 * columns / 32 + 24
    magnitude = np.abs(x) @ error_weights(fmt, rows).T
    return roundings * UNIT_ROUNDOFF * magnitude + columns * 2.0**-126


@by_format
@pytest.mark.parametrize("tokens", [1, 5, 8])
def test_ref_equals_numpy_in_double_within_rounding(fmt: Format, tokens: int) -> None:
    for columns in column_counts(fmt):
        rng = np.random.default_rng(columns + tokens)
        rows = random_rows(rng, fmt, 17, columns)
        x = activations(rng, tokens, columns)
        seen = as_kernels_see(fmt, x)
        expected = seen @ dequantized(fmt, rows).astype(np.float64).T
        error = np.abs(kernels.matmul("ref", fmt.id, rows, x) - expected)
        assert (error <= bound(fmt, rows, seen)).all()


@pytest.mark.parametrize("fmt", BLOCK_FORMATS, ids=lambda f: f.name)
def test_ref_corners_equal_numpy_in_double(fmt: Format) -> None:
    """Saturation anywhere in a product would show as an error far beyond rounding."""
    columns = 512
    for label, row in extreme_rows(fmt, columns).items():
        for x in (np.ones((1, columns)), -np.ones((1, columns)), np.resize([1.0, -1.0], (1, columns))):
            seen = as_kernels_see(fmt, x.astype(np.float32))
            expected = seen @ dequantized(fmt, row).astype(np.float64).T
            error = np.abs(kernels.matmul("ref", fmt.id, row, x.astype(np.float32)) - expected)
            assert (error <= bound(fmt, row, seen)).all(), label


@fast
@by_format
def test_tables_equal_ref_bit_for_bit(isa: str, fmt: Format) -> None:
    for columns in column_counts(fmt):
        for num_rows in (1, 15, 16, 17):
            rng = np.random.default_rng(columns + num_rows)
            rows = random_rows(rng, fmt, num_rows, columns)
            for tokens in range(1, 9):
                x = activations(rng, tokens, columns)
                assert_same_bits(kernels.matmul(isa, fmt.id, rows, x), kernels.matmul("ref", fmt.id, rows, x))


@fast
@pytest.mark.parametrize("fmt", BLOCK_FORMATS, ids=lambda f: f.name)
def test_tables_equal_ref_at_the_corners(isa: str, fmt: Format) -> None:
    columns = 512
    rows = np.concatenate(list(extreme_rows(fmt, columns).values()))
    signs = np.resize([1.0, -1.0], columns)
    x = np.stack([np.ones(columns), -np.ones(columns), signs, signs[::-1], np.zeros(columns), signs * 1e30]).astype(
        np.float32
    )
    assert_same_bits(kernels.matmul(isa, fmt.id, rows, x), kernels.matmul("ref", fmt.id, rows, x))


@fast
@pytest.mark.parametrize("fmt", FLOAT_FORMATS, ids=lambda f: f.name)
def test_float_tables_equal_ref_at_the_corners(isa: str, fmt: Format) -> None:
    specials = np.array([0.0, -0.0, 6e-8, 6e-5, 65504.0, -65504.0, np.inf, 1.0], np.float32)
    rows = {
        "F32": specials,
        "F16": specials.astype(np.float16),
        "BF16": (specials.view(np.uint32) >> 16).astype(np.uint16),
    }[fmt.name][:, None]
    for x in (1.0, -2.0, 1e-40, 3e38, np.inf, np.nan, 0.0):
        tokens = np.full((2, 1), x, np.float32)
        assert_same_bits(
            kernels.matmul(isa, fmt.id, rows.view(np.uint8), tokens),
            kernels.matmul("ref", fmt.id, rows.view(np.uint8), tokens),
        )


@pytest.mark.parametrize("isa", RUNNABLE_ISAS)
@by_format
def test_no_columns_give_zero(isa: str, fmt: Format) -> None:
    found = kernels.matmul(isa, fmt.id, np.zeros((3, 0), np.uint8), np.zeros((2, 0), np.float32))
    np.testing.assert_array_equal(found, np.zeros((2, 3), np.float32))


@pytest.mark.parametrize("isa", RUNNABLE_ISAS)
@by_format
def test_a_token_does_not_depend_on_its_neighbours(isa: str, fmt: Format) -> None:
    columns = 512
    rng = np.random.default_rng(7)
    rows = random_rows(rng, fmt, 16, columns)
    x = activations(rng, 8, columns)
    alone = np.concatenate([kernels.matmul(isa, fmt.id, rows, x[t : t + 1]) for t in range(8)])
    for tokens in range(2, 9):
        assert_same_bits(kernels.matmul(isa, fmt.id, rows, x[:tokens]), alone[:tokens])
    hostile = x.copy()
    hostile[1::2] = np.nan
    assert_same_bits(kernels.matmul(isa, fmt.id, rows, hostile)[::2], alone[::2])


@pytest.mark.parametrize("isa", RUNNABLE_ISAS)
@by_format
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_bad_activation_makes_its_token_nan_or_infinite(isa: str, fmt: Format, bad: float) -> None:
    rng = np.random.default_rng(3)
    rows = random_rows(rng, fmt, 16, 512)
    x = activations(rng, 2, 512)
    x[0, 300] = bad
    found = kernels.matmul(isa, fmt.id, rows, x)
    assert not np.isfinite(found[0]).any()
    assert np.isfinite(found[1]).all()
