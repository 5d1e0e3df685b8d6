"""Norm, rotary embedding, gated activation and KV stores: against NumPy, and between tables."""

from __future__ import annotations

import numpy as np
import pytest
from kernel_cases import FAST_ISAS, RUNNABLE_ISAS, UNIT_ROUNDOFF, assert_same_bits
from numpy.typing import NDArray

from treadle._native import kernels

every_isa = pytest.mark.parametrize("isa", RUNNABLE_ISAS)
fast = pytest.mark.parametrize("isa", FAST_ISAS)
LENGTHS = (1, 7, 8, 9, 15, 16, 17, 31, 33, 100, 576, 1536)


@pytest.mark.parametrize("n", LENGTHS)
def test_rms_norm_equals_numpy_in_double(n: int) -> None:
    rng = np.random.default_rng(n)
    x, weight = rng.normal(0, 3, (2, n)).astype(np.float32)
    wide = x.astype(np.float64)
    expected = wide / np.sqrt((wide * wide).mean() + 1e-5) * weight
    # Roundings: n / 16 + 5 in a sum of squares, halved by the root, and six after it.
    found = kernels.rms_norm("ref", x, weight, 1e-5)
    assert (np.abs(found - expected) <= ((n / 16 + 6) / 2 + 6) * UNIT_ROUNDOFF * np.abs(expected)).all()


@fast
@pytest.mark.parametrize("n", LENGTHS)
def test_rms_norm_equals_ref(isa: str, n: int) -> None:
    for size in (1e-20, 1.0, 1e15, np.inf, np.nan):
        x, weight = np.random.default_rng(n).normal(0, 3, (2, n)).astype(np.float32)
        x[n // 2] = size
        expected = kernels.rms_norm("ref", x, weight, 1e-6)
        assert_same_bits(kernels.rms_norm(isa, x, weight, 1e-6), expected)
        assert_same_bits(kernels.rms_norm(isa, x, weight, 1e-6, in_place=True), expected)


@every_isa
@pytest.mark.parametrize("half", [0, 1, 3, 4, 7, 8, 9, 16, 17, 32, 48, 64, 128])
@pytest.mark.parametrize("adjacent", [False, True])
def test_rope_equals_numpy(isa: str, half: int, adjacent: bool) -> None:
    """The order of operations is given, so NumPy in f32 has the same bits."""
    rng = np.random.default_rng(half)
    head = rng.normal(0, 1, 2 * half).astype(np.float32)
    angle = rng.uniform(0, 1000, half)
    cos, sin = np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)
    expected = head.copy()
    a, b = (head[0::2], head[1::2]) if adjacent else (head[:half], head[half:])
    first, second = (slice(0, None, 2), slice(1, None, 2)) if adjacent else (slice(0, half), slice(half, None))
    expected[first], expected[second] = a * cos - b * sin, a * sin + b * cos
    assert_same_bits(kernels.rope(isa, head, cos, sin, adjacent), expected)


@pytest.mark.parametrize("n", (0, *LENGTHS))
def test_silu_mul_equals_numpy_in_double(n: int) -> None:
    rng = np.random.default_rng(n)
    gate, up = (rng.normal(0, 1, (2, n)) * 20).astype(np.float32)
    wide = gate.astype(np.float64)
    expected = wide / (1 + np.exp(-wide)) * up
    # exp is good to 1.02 ulp; the sum, the quotient and the product round once each.
    bound = 6 * UNIT_ROUNDOFF * np.abs(expected) + 2.0**-126
    assert (np.abs(kernels.gated("ref", gate, up) - expected) <= bound).all()


def test_exponential_against_double() -> None:
    """silu(-x) = -x / (1 + e^x): from 17 on the sum is e^x but for its rounding, so the error of exp shows."""
    x = np.linspace(17.0, 88.0, 400_001).astype(np.float32)
    found = kernels.gated("ref", -x, np.ones_like(x)).astype(np.float64)
    wide = x.astype(np.float64)
    # 1 + e^x and the quotient round once each, and 1.02 ulp of exp are up to 2.04 roundings.
    assert (np.abs(found * (1 + np.exp(wide)) / -wide - 1) <= 4.1 * UNIT_ROUNDOFF).all()


def special_gates() -> NDArray[np.float32]:
    limits = [-3e38, -1000, -104, -89, -87.5, -1e-40, -0.0, 0.0, 1e-40, 87, 89, 1000, 3e38]
    return np.array([*limits, np.inf, -np.inf, np.nan], np.float32)


def test_silu_mul_of_large_and_special_values() -> None:
    gate = special_gates()
    found = kernels.gated("ref", gate, np.ones_like(gate))
    with np.errstate(over="ignore", invalid="ignore"):
        wide = gate.astype(np.float64)
        expected = wide / (1 + np.exp(-wide))
    # Below -87.3 exp nears the end of the f32 range, where the result is smaller than 1e-35.
    np.testing.assert_allclose(found, expected, rtol=6 * UNIT_ROUNDOFF, atol=1e-35)


@pytest.mark.parametrize("n", (0, *LENGTHS))
def test_gelu_mul_equals_numpy_in_double(n: int) -> None:
    rng = np.random.default_rng(n)
    gate, up = (rng.normal(0, 1, (2, n)) * 2).astype(np.float32)
    wide = gate.astype(np.float64)
    z = 2 * np.sqrt(2 / np.pi) * (wide + 0.044715 * wide**3)
    expected = wide / (1 + np.exp(-z)) * up
    # z is off by five roundings, constants included, which exp turns into as many times |z|; the rest is as for silu.
    bound = (6 + 5 * np.abs(z)) * UNIT_ROUNDOFF * np.abs(expected) + 2.0**-126
    assert (np.abs(kernels.gated("ref", gate, up, gelu=True) - expected) <= bound).all()


def test_gelu_mul_of_large_values() -> None:
    gate = np.array([1e30, -1e30, 3e38, -3e38, 50, -50, np.inf, 0.0, np.nan], np.float32)
    found = kernels.gated("ref", gate, np.ones_like(gate), gelu=True)
    np.testing.assert_array_equal(found, [gate[0], 0, gate[2], 0, 50, 0, np.inf, 0, np.nan])


@every_isa
@pytest.mark.parametrize("gelu", [False, True])
@pytest.mark.parametrize("n", (0, *LENGTHS))
def test_gated_equals_ref(isa: str, n: int, gelu: bool) -> None:
    gate, up = (np.random.default_rng(n).normal(0, 1, (2, n)) * 20).astype(np.float32)
    expected = kernels.gated("ref", gate, up, gelu=gelu)
    for into in ("out", "gate", "up"):
        assert_same_bits(kernels.gated(isa, gate, up, into, gelu), expected)


@fast
@pytest.mark.parametrize("gelu", [False, True])
def test_gated_equals_ref_over_the_whole_range(isa: str, gelu: bool) -> None:
    """Every 509th bit pattern, all exponents and both signs, then a fine grid where exp is neither 0 nor infinite."""
    patterns = np.arange(0, 2**32, 509, dtype=np.uint64).astype(np.uint32).view(np.float32)
    gate = np.concatenate([special_gates(), patterns, np.linspace(-110, 110, 400_001).astype(np.float32)])
    up = np.resize(np.array([1.0, -3.7, 1e-30, 1e30], np.float32), gate.shape)
    assert_same_bits(kernels.gated(isa, gate, up, gelu=gelu), kernels.gated("ref", gate, up, gelu=gelu))


@pytest.mark.parametrize("cap", [0.5, 30.0, 50.0])
def test_soft_cap_equals_numpy_in_double(cap: float) -> None:
    x = np.concatenate([np.linspace(-20, 20, 4001) * cap, [1e-6, 1e30, -1e30, np.inf, -np.inf]]).astype(np.float32)
    y = x.astype(np.float64) / cap
    # Of 1 - 2 / (exp(2y) + 1): 2y is off by three roundings, exp by two, and none of the parts is above 2.
    with np.errstate(invalid="ignore"):
        bound = (6 + 6 * np.abs(y) * np.exp(-2 * np.abs(y))) * cap * UNIT_ROUNDOFF
    found = kernels.soft_cap("ref", x, cap)
    assert (np.abs(found[:-2] - cap * np.tanh(y[:-2])) <= bound[:-2]).all()
    assert found[-2:].tolist() == [cap, -cap]
    assert np.isnan(kernels.soft_cap("ref", np.array([np.nan], np.float32), cap)[0])


@fast
@pytest.mark.parametrize("n", (0, *LENGTHS, 40_001))
def test_soft_cap_equals_ref(isa: str, n: int) -> None:
    rng = np.random.default_rng(n)
    x = np.concatenate([rng.normal(0, 30, n), special_gates()[: n % 17]]).astype(np.float32)
    for cap in (1.0, 30.0):
        assert_same_bits(kernels.soft_cap(isa, x, cap), kernels.soft_cap("ref", x, cap))


@every_isa
@pytest.mark.parametrize("head_dim", [8, 16, 24, 64, 128])
@pytest.mark.parametrize("position", [0, 1, 30, 31])
def test_stores_write_their_position_only(isa: str, head_dim: int, position: int) -> None:
    rng = np.random.default_rng(head_dim + position)
    values = (rng.normal(0, 1, head_dim) * 10.0 ** rng.integers(-9, 6, head_dim)).astype(np.float32)
    values[:6] = [np.inf, -np.inf, 65519.0, 65520.0, 2.0**-25, -0.0]
    with np.errstate(over="ignore"):
        halves = values.astype(np.float16).view(np.uint16)
    k_block = rng.integers(0, 65536, (head_dim, 32), dtype=np.uint16)
    v_block = np.ascontiguousarray(k_block.reshape(32, head_dim))
    expected_k, expected_v = k_block.copy(), v_block.copy()
    expected_k[:, position] = halves
    expected_v[position] = halves
    np.testing.assert_array_equal(kernels.store(isa, values, position, k_block, True), expected_k)
    np.testing.assert_array_equal(kernels.store(isa, values, position, v_block, False), expected_v)


@every_isa
def test_f16_rounding_equals_numpy_everywhere(isa: str) -> None:
    """Every half, the midpoints between neighbours, and the floats beside the midpoints."""
    halves = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(np.float32)
    middles = (halves[:-1] + halves[1:]) / 2
    values = np.concatenate([halves, middles, np.nextafter(middles, 0), np.nextafter(middles, np.float32(np.inf))])
    values = np.concatenate([values, -values, [np.nan, np.inf]]).astype(np.float32)
    values = np.resize(values, (len(values) + 7) // 8 * 8)
    block = kernels.store(isa, values, 0, np.zeros((32, len(values)), np.uint16), False)
    with np.errstate(over="ignore"):
        expected = values.astype(np.float16)
    found = block[0].view(np.float16)
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(np.signbit(found), np.signbit(expected))
