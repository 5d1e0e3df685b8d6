"""Random and extreme inputs for the kernel tests, and the NumPy side of their oracles.

Weights are read by the `gguf` package; what a kernel makes of them is the tests' business.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
from numpy.typing import NDArray

from treadle._native import kernels

UNIT_ROUNDOFF = 2.0**-24

ACT_F32, ACT_Q8 = 0, 1

RUNNABLE_ISAS = kernels.runnable_isas()
# Tables other than the oracle.
FAST_ISAS = [isa for isa in RUNNABLE_ISAS if isa != "ref"]


@dataclass(frozen=True)
class Format:
    """A weight format: where its scale and minimum lie in a block (f16, MXFP4 an exponent), and its activations."""

    name: str
    act_format: int
    scale_at: int | None = None
    min_at: int | None = None

    @property
    def type(self) -> gguf.GGMLQuantizationType:
        return gguf.GGMLQuantizationType[self.name]

    @property
    def id(self) -> int:
        return int(self.type)

    @property
    def block_columns(self) -> int:
        return gguf.constants.GGML_QUANT_SIZES[self.type][0]

    @property
    def block_bytes(self) -> int:
        return gguf.constants.GGML_QUANT_SIZES[self.type][1]


FORMATS = [
    Format("F32", ACT_F32),
    Format("F16", ACT_F32),
    Format("BF16", ACT_F32),
    Format("Q4_0", ACT_Q8, 0),
    Format("Q4_1", ACT_Q8, 0, 2),
    Format("Q5_0", ACT_Q8, 0),
    Format("Q5_1", ACT_Q8, 0, 2),
    Format("Q8_0", ACT_Q8, 0),
    Format("IQ4_NL", ACT_Q8, 0),
    Format("MXFP4", ACT_Q8, 0),
    Format("Q2_K", ACT_Q8, 80, 82),
    Format("Q3_K", ACT_Q8, 108),
    Format("Q4_K", ACT_Q8, 0, 2),
    Format("Q5_K", ACT_Q8, 0, 2),
    Format("Q6_K", ACT_Q8, 208),
    Format("IQ4_XS", ACT_Q8, 0),
    Format("TQ1_0", ACT_Q8, 52),
    Format("TQ2_0", ACT_Q8, 64),
]
FLOAT_FORMATS = [f for f in FORMATS if f.act_format == ACT_F32]
BLOCK_FORMATS = [f for f in FORMATS if f.act_format != ACT_F32]


def expected_isas() -> list[str]:
    """Tables that must run here: TREADLE_EXPECT_ISAS (comma list), else what Linux says about the CPU."""
    named = os.environ.get("TREADLE_EXPECT_ISAS")
    if named is not None:
        return [isa for isa in named.split(",") if isa]
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    flags = next((set(line.split()) for line in lines if line.startswith(("flags", "Features"))), set())
    needs = {
        "avx512_vnni": {"avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni"},
        "avx2_vnni": {"avx2", "fma", "f16c", "avx_vnni"},
        "avx2": {"avx2", "fma", "f16c"},
        "neon_i8mm": {"asimddp", "i8mm"},
        "neon_dotprod": {"asimddp"},
        "ref": set(),
    }
    return [isa for isa, needed in needs.items() if needed <= flags]


def set_factor(rows: NDArray[np.uint8], fmt: Format, at: int | None, values: NDArray[np.float64] | float) -> None:
    """Write f16 values at offset `at` of every block (one value per block, or the same for all).

    MXFP4 takes the power of two next to their magnitude.
    """
    if at is None:
        return
    blocks = rows.reshape(rows.shape[0], rows.shape[1] // fmt.block_bytes, fmt.block_bytes)
    if fmt.name == "MXFP4":
        magnitudes = np.maximum(np.abs(values), 2.0**-127)
        blocks[:, :, at] = np.rint(np.log2(magnitudes)) + 128
    else:
        halves = np.broadcast_to(np.asarray(values, np.float16), blocks.shape[:2])
        blocks[:, :, at : at + 2] = np.ascontiguousarray(halves)[..., None].view(np.uint8)


def random_rows(rng: np.random.Generator, fmt: Format, num_rows: int, columns: int) -> NDArray[np.uint8]:
    """GGUF rows with every quant and scale pattern possible and f16 factors near 0.05 of either sign."""
    if fmt in FLOAT_FORMATS:
        values = rng.normal(0, 1, (num_rows, columns)).astype(np.float32)
        if fmt.name == "F16":
            return values.astype(np.float16).view(np.uint8)
        # bf16 is the upper half of f32; cutting is as good as rounding for random input.
        return (
            values.view(np.uint8)
            if fmt.name == "F32"
            else (values.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
        )
    num_blocks = columns // fmt.block_columns
    rows = rng.integers(0, 256, (num_rows, num_blocks * fmt.block_bytes), dtype=np.uint8)
    for at in (fmt.scale_at, fmt.min_at):
        set_factor(rows, fmt, at, rng.normal(0, 0.05, (num_rows, num_blocks)))
    return rows


def extreme_rows(fmt: Format, columns: int) -> dict[str, NDArray[np.uint8]]:
    """Single rows at the corners of a block format: all bits off or on, largest, subnormal and negative factors."""
    num_blocks = columns // fmt.block_columns
    corners = {}
    for bits in (0x00, 0xFF, 0x80, 0x7F, 0x0F, 0xF0):
        for label, factor in (
            ("zero", 0.0),
            ("one", 1.0),
            ("largest", 65504.0),
            ("negative", -3.0),
            ("subnormal", 6e-8),
        ):
            row = np.full((1, num_blocks * fmt.block_bytes), bits, np.uint8)
            set_factor(row, fmt, fmt.scale_at, factor)
            set_factor(row, fmt, fmt.min_at, -factor)
            corners[f"{bits:02x}-{label}"] = row
    return corners


def dequantized(fmt: Format, rows: NDArray[np.uint8]) -> NDArray[np.float32]:
    """What the `gguf` package reads from GGUF rows."""
    if fmt.name == "F32":
        return rows.view(np.float32)
    if fmt.name == "F16":
        return rows.view(np.float16).astype(np.float32)
    return gguf.quants.dequantize(rows, fmt.type)


def error_weights(fmt: Format, rows: NDArray[np.uint8]) -> NDArray[np.float64]:
    """For every weight the sum of the magnitudes a kernel adds up for it: the |a| of the bound eps * sum |a| |b|."""
    if fmt.min_at is not None:  # the d * q part and the minimum part, each alone
        total = np.zeros(dequantized(fmt, rows).shape)
        for silenced in (fmt.scale_at, fmt.min_at):
            part = rows.copy()
            set_factor(part, fmt, silenced, 0.0)
            total += np.abs(dequantized(fmt, part).astype(np.float64))
        return total
    magnitude = np.abs(dequantized(fmt, rows).astype(np.float64))
    if fmt.name == "Q6_K":  # q - 32 is applied in two parts: up to 63 and 32 times the scale
        zero_quants = rows.copy().reshape(rows.shape[0], -1, fmt.block_bytes)
        zero_quants[:, :, :192] = 0
        magnitude += 2 * np.abs(dequantized(fmt, zero_quants.reshape(rows.shape)).astype(np.float64))
    return magnitude


def quantized(x: NDArray[np.float32], block: int) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """int8 quants [tokens, columns] and scales [tokens, columns / block] as formats.h defines them."""
    blocks = x.reshape(x.shape[0], -1, block)
    amax = np.abs(blocks).max(axis=2)  # NaN wins, as in the kernels
    usable = np.isfinite(amax) & (amax >= np.float32(1e-36))
    safe = np.where(usable, amax, np.float32(1))
    scale = np.where(np.isfinite(amax), np.where(usable, amax / np.float32(127), np.float32(0)), np.float32(np.nan))
    finite = np.where(usable[..., None], blocks, np.float32(0))
    q = np.rint(finite * (np.float32(127) / safe)[..., None])
    return q.astype(np.int8).reshape(x.shape), scale


def assert_same_bits(found: NDArray[np.float32], expected: NDArray[np.float32]) -> None:
    """Equal bit for bit; a NaN equals any other NaN."""
    assert found.shape == expected.shape
    both_nan = np.isnan(found) & np.isnan(expected)
    differ = (found.view(np.uint32) != expected.view(np.uint32)) & ~both_nan
    assert not differ.any(), (
        f"{differ.sum()} of {differ.size} differ, first {found[differ][0]} for {expected[differ][0]}"
    )
