"""Packing and reading back every weight format, against the `gguf` package, and the choice of kernel tables."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
from kernel_cases import (
    BLOCK_FORMATS,
    FORMATS,
    RUNNABLE_ISAS,
    Format,
    dequantized,
    expected_isas,
    extreme_rows,
    random_rows,
)

from treadle._native import kernels
from treadle.errors import UsageError

by_name = pytest.mark.parametrize("fmt", FORMATS, ids=lambda f: f.name)


def test_every_table_this_cpu_should_run_is_there() -> None:
    assert set(RUNNABLE_ISAS) >= set(expected_isas())
    assert RUNNABLE_ISAS[-1] == "ref"


def test_unknown_table_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="'avx9'"):
        kernels.gated("avx9", np.zeros(1, np.float32), np.zeros(1, np.float32))


@by_name
@pytest.mark.parametrize("num_rows", [0, 1, 15, 16, 17, 33])
@pytest.mark.parametrize("num_blocks", [0, 1, 3])
def test_dequantized_rows_equal_the_gguf_package(fmt: Format, num_rows: int, num_blocks: int) -> None:
    rng = np.random.default_rng(num_rows * 10 + num_blocks)
    columns = num_blocks * fmt.block_columns
    rows = random_rows(rng, fmt, num_rows, columns)
    found = kernels.dequantize(fmt.id, rows)
    expected = dequantized(fmt, rows) if columns and num_rows else np.zeros((num_rows, columns), np.float32)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("fmt", BLOCK_FORMATS, ids=lambda f: f.name)
def test_dequantized_corners_equal_the_gguf_package(fmt: Format) -> None:
    rows = np.concatenate(list(extreme_rows(fmt, 256).values()))
    np.testing.assert_array_equal(kernels.dequantize(fmt.id, rows), dequantized(fmt, rows))


def test_every_power_of_two_of_mxfp4_reads_as_the_gguf_package_reads_it() -> None:
    rows = np.random.default_rng(1).integers(0, 256, (256, 17), dtype=np.uint8)
    rows[:, 0] = np.arange(256)
    mxfp4 = gguf.GGMLQuantizationType.MXFP4
    with np.errstate(over="ignore"):
        expected = gguf.quants.dequantize(rows, mxfp4)
    np.testing.assert_array_equal(kernels.dequantize(int(mxfp4), rows), expected)


def test_every_f16_value_reads_as_numpy_reads_it() -> None:
    halves = np.arange(65536, dtype=np.uint16).reshape(256, 256)
    found = kernels.dequantize(int(gguf.GGMLQuantizationType.F16), halves.view(np.uint8))
    np.testing.assert_array_equal(found, halves.view(np.float16).astype(np.float32))


def test_odd_row_lengths_of_float_formats() -> None:
    for columns in (1, 2, 15, 17, 31, 100):
        values = np.random.default_rng(columns).normal(0, 1, (5, columns)).astype(np.float32)
        np.testing.assert_array_equal(kernels.dequantize(0, values.view(np.uint8)), values)


def test_rows_must_be_whole_blocks_of_a_known_format() -> None:
    with pytest.raises(UsageError, match="unknown weight format"):
        kernels.dequantize(16, np.zeros((1, 66), np.uint8))
    with pytest.raises(UsageError, match="whole blocks"):
        kernels.dequantize(2, np.zeros((1, 19), np.uint8))
