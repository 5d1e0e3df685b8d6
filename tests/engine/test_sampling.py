"""SamplingParams: what is refused and how the refusal reads, and what is normalised."""

from __future__ import annotations

import copy
import dataclasses
import math
import pickle
from typing import Any

import numpy as np
import pytest

from treadle.engine.sampling import DEFAULT_MAX_TOKENS, SamplingParams
from treadle.errors import UsageError


def test_defaults() -> None:
    params = SamplingParams()
    assert (params.max_tokens, params.temperature, params.top_p) == (DEFAULT_MAX_TOKENS, 0.7, 0.95)
    assert (params.top_k, params.min_p, params.seed, params.logprobs) == (0, 0.0, None, None)
    assert (params.repetition_penalty, params.presence_penalty, params.frequency_penalty) == (1.0, 0.0, 0.0)
    assert (params.stop_strings, dict(params.logit_bias), params.ignore_eos) == ((), {}, False)


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("max_tokens", 0, "expected a whole number, at least 1"),
        ("min_tokens", -1, "min_tokens is -1"),
        ("min_tokens", DEFAULT_MAX_TOKENS + 1, f"at most max_tokens, {DEFAULT_MAX_TOKENS}"),
        ("n", 0, "n is 0, expected a whole number, 1 to 128"),
        ("n", 129, "n is 129"),
        ("stop_token_ids", "12", "expected up to 128 token ids"),
        ("stop_token_ids", [-1], "a token id of stop_token_ids is -1"),
        ("stop_token_ids", range(129), "expected up to 128 token ids"),
        ("max_tokens", -1, "max_tokens is -1"),
        ("max_tokens", 3.0, "max_tokens is 3.0"),
        ("max_tokens", True, "max_tokens is True"),
        ("temperature", -1, "temperature is -1, expected 0 to 100"),
        ("temperature", "hot", "temperature is 'hot', expected a number, 0 to 100"),
        ("temperature", 1e39, r"temperature is 1e\+39"),
        ("temperature", 10**400, "temperature is 1000"),
        ("temperature", math.nan, "temperature is nan"),
        ("temperature", math.inf, "temperature is inf"),
        ("temperature", True, "temperature is True"),
        ("temperature", None, "temperature is None"),
        ("top_k", 1.5, "top_k is 1.5, expected a whole number"),
        ("top_k", None, "top_k is None"),
        ("top_p", 0, "top_p is 0, expected above 0, at most 1"),
        ("top_p", 1.001, "top_p is 1.001"),
        ("top_p", math.nan, "top_p is nan"),
        ("min_p", 2, "min_p is 2, expected 0 to 1"),
        ("min_p", -0.1, "min_p is -0.1"),
        ("repetition_penalty", 0, "repetition_penalty is 0, expected 0.01 to 100"),
        ("presence_penalty", 2.1, "presence_penalty is 2.1, expected -2 to 2"),
        ("frequency_penalty", -3, "frequency_penalty is -3, expected -2 to 2"),
        ("logit_bias", [(1, 2.0)], "logit_bias is .* expected a mapping"),
        ("logit_bias", {-1: 1}, "a token id of logit_bias is -1, expected a whole number, 0 to 2147483647"),
        ("logit_bias", {2**31: 1}, "token id"),
        ("logit_bias", {"5": 1}, "token id of logit_bias is '5'"),
        ("logit_bias", {5: 101}, r"logit_bias\[5\] is 101, expected -100 to 100"),
        ("logit_bias", {5: math.nan}, r"logit_bias\[5\] is nan"),
        ("seed", -1, "seed is -1, expected a whole number, 0 to 18446744073709551615"),
        ("seed", 2**64, "seed is 18446744073709551616"),
        ("seed", 1.5, "seed is 1.5"),
        pytest.param("seed", 10**5000, "seed is int of very many digits", id="seed-huge"),
        ("logprobs", 21, "logprobs is 21, expected a whole number, 0 to 20"),
        ("logprobs", -1, "logprobs is -1"),
        ("stop", "", "stop is '', expected a text or up to 16 texts, none of them empty"),
        ("stop", ["a", ""], "stop is"),
        ("stop", ["a"] * 17, "stop is"),
        ("stop", [1], "stop is"),
        ("stop", b"ab", "stop is"),
        ("stop", 5, "stop is 5"),
        ("stop", {"a"}, "stop is"),
        ("ignore_eos", 1, "ignore_eos is 1, expected True or False"),
    ],
)
def test_refusals_name_field_value_and_range(field: str, value: Any, expected: str) -> None:
    with pytest.raises(UsageError, match=expected):
        SamplingParams(**{field: value})


def test_unknown_and_positional_settings_are_refused() -> None:
    with pytest.raises(TypeError, match="temprature"):
        SamplingParams(**{"temprature": 1})
    with pytest.raises(TypeError):
        SamplingParams(*(5,))


@pytest.mark.parametrize(
    ("field", "value", "kept"),
    [
        ("max_tokens", None, None),
        ("max_tokens", np.int64(5), 5),
        ("temperature", 0, 0.0),
        ("temperature", np.float32(0.5), 0.5),
        ("top_k", -7, 0),
        ("top_k", 10**12, 2**31 - 1),
        ("seed", 2**63, 2**63),
        ("seed", 2**64 - 1, 2**64 - 1),
        ("logprobs", 0, 0),
        ("stop", "ab", ("ab",)),
        ("stop", ["a", "b"], ("a", "b")),
        ("stop", [], ()),
        ("stop", None, ()),
        ("logit_bias", {3: -100}, {3: -100.0}),
    ],
)
def test_values_are_kept_in_one_form(field: str, value: Any, kept: Any) -> None:
    held = getattr(SamplingParams(**{field: value}), field)
    assert held == kept
    assert type(held) is type(kept)


def test_params_are_frozen_values() -> None:
    bias = {1: 2.0}
    params = SamplingParams(stop=["x"], logit_bias=bias, seed=3)
    bias[1] = 9.0
    assert params.logit_bias == {1: 2.0}
    with pytest.raises(dataclasses.FrozenInstanceError):
        params.seed = 4  # type: ignore[misc]
    assert pickle.loads(pickle.dumps(params)) == params == copy.deepcopy(params)
    changed = dataclasses.replace(params, temperature=0)
    assert (changed.temperature, changed.stop_strings, changed.seed) == (0.0, ("x",), 3)
