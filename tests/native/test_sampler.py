"""The native sampler against NumPy in double precision: the distribution it draws from, log-probabilities, limits, purity."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from treadle import _native
from treadle.engine.sampling import SamplingParams
from treadle.errors import UsageError

VOCAB = 97  # ragged against every lane and block width
NUM_DRAWS = 4000


def random_logits(vocab_size: int = VOCAB, *, seed: int = 0, spread: float = 2.0) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal(vocab_size) * spread).astype(np.float32)


def log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits.astype(np.float64) - logits.max()
    return shifted - math.log(np.exp(shifted).sum())


def rank(values: np.ndarray) -> np.ndarray:
    """Ids from most to least likely; equals by id, lowest first."""
    return np.argsort(-values, kind="stable")


def expected_distribution(
    logits: np.ndarray, prompt: list[int], output: list[int], params: dict[str, Any]
) -> np.ndarray:
    """What the header of the sampler says, written plainly."""
    values = logits.astype(np.float64)
    for token, bias in params.get("logit_bias", []):
        values[token] += bias
    penalty = params.get("repetition_penalty", 1.0)
    for token in set(prompt) | set(output):
        values[token] = values[token] / penalty if values[token] > 0 else values[token] * penalty
    for token in set(output):
        values[token] -= params.get("presence_penalty", 0.0) + params.get("frequency_penalty", 0.0) * output.count(
            token
        )
    values /= params.get("temperature", 1.0)
    weights = np.exp(values - values.max())
    order = rank(weights)
    if params.get("top_k", 0) > 0:
        weights[order[params["top_k"] :]] = 0.0
    weights[weights < params.get("min_p", 0.0)] = 0.0
    if params.get("top_p", 1.0) < 1.0:
        cumulative = np.cumsum(weights[order])
        last = int(np.searchsorted(cumulative, params["top_p"] * cumulative[-1]))
        weights[order[last + 1 :]] = 0.0
    return weights / weights.sum()


def draw_counts(sampler: _native.Sampler, logits: np.ndarray, num_draws: int) -> np.ndarray:
    """Token counts; the stream advances by accepting tokens, so only for settings without output penalties."""
    counts = np.zeros(len(logits), dtype=np.int64)
    for _ in range(num_draws):
        token = sampler.sample(logits).token
        counts[token] += 1
        sampler.accept(token)
    return counts


def assert_fits(counts: np.ndarray, distribution: np.ndarray) -> None:
    """Chi-square over the cells that expect at least 5, the rest pooled; nothing outside the support."""
    assert counts[distribution == 0.0].sum() == 0
    expected = distribution * counts.sum()
    big = expected >= 5
    observed = np.append(counts[big], counts[~big].sum())
    wanted = np.append(expected[big], expected[~big].sum())
    keep = wanted > 0
    statistic = float((((observed - wanted)[keep] ** 2) / wanted[keep]).sum())
    freedom = int(keep.sum()) - 1
    # Wilson-Hilferty: the cube root of chi-square / freedom is close to normal; 4 deviations = 3e-5.
    limit = freedom * (1 - 2 / (9 * freedom) + 4 * math.sqrt(2 / (9 * freedom))) ** 3 if freedom else 1e-9
    assert statistic <= limit, f"chi-square {statistic:.1f} over {freedom} degrees of freedom, limit {limit:.1f}"


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"temperature": 0.5},
        {"temperature": 2.5},
        {"temperature": 100.0},
        {"top_k": 7},
        {"top_k": VOCAB},
        {"top_k": 1000},
        {"top_k": -1},
        {"top_p": 0.9},
        {"top_p": 0.3, "temperature": 1.7},
        {"min_p": 0.1},
        {"min_p": 0.02, "temperature": 1.5, "top_p": 0.95, "top_k": 30},
        {"top_k": 20, "top_p": 0.8},
        {"logit_bias": [(3, 4.0), (90, -100.0)]},
        {"repetition_penalty": 1.8, "temperature": 0.8},
    ],
    ids=str,
)
def test_draws_fit_the_distribution(params: dict[str, Any]) -> None:
    logits = random_logits(seed=3)
    prompt = [1, 5, 5, 40, *[int(token) for token in rank(logits)[:3]]]
    num_draws = 1 if "repetition_penalty" in params else NUM_DRAWS
    if num_draws == 1:  # accepting would change the distribution: one draw from each of many streams instead
        counts = np.zeros(VOCAB, dtype=np.int64)
        for seed in range(NUM_DRAWS):
            sampler = _native.Sampler(VOCAB, seed=seed, **params)
            sampler.add_prompt(np.array(prompt, dtype=np.int32))
            counts[sampler.sample(logits).token] += 1
    else:
        counts = draw_counts(_native.Sampler(VOCAB, seed=11, **params), logits, NUM_DRAWS)
    assert_fits(counts, expected_distribution(logits, prompt if num_draws == 1 else [], [], params))


@pytest.mark.parametrize(
    "params",
    [
        {"presence_penalty": 1.5},
        {"frequency_penalty": 0.7},
        {"presence_penalty": -1.0, "frequency_penalty": 2.0, "repetition_penalty": 1.3, "temperature": 0.9},
        {"frequency_penalty": 0.5, "logit_bias": [(2, 3.0)], "top_p": 0.9},
    ],
    ids=str,
)
def test_penalties_fit_the_distribution(params: dict[str, Any]) -> None:
    logits = random_logits(seed=4)
    likely = [int(token) for token in rank(logits)[:4]]
    prompt, output = [likely[0], 9, 9], [likely[1], likely[2], likely[1], 2, 9]
    counts = np.zeros(VOCAB, dtype=np.int64)
    for seed in range(NUM_DRAWS):
        sampler = _native.Sampler(VOCAB, seed=seed, **params)
        sampler.add_prompt(np.array(prompt, dtype=np.int32))
        for token in output:
            sampler.accept(token)
        counts[sampler.sample(logits).token] += 1
    assert_fits(counts, expected_distribution(logits, prompt, output, params))


@pytest.mark.parametrize("params", [{}, {"top_k": 3000}, {"top_p": 0.7}, {"top_k": 40, "top_p": 0.9}], ids=str)
def test_draws_from_a_big_vocabulary_stay_in_the_support(params: dict[str, Any]) -> None:
    logits = random_logits(30_011, seed=5, spread=1.0)
    counts = draw_counts(_native.Sampler(len(logits), seed=2, **params), logits, 500)
    assert_fits(counts, expected_distribution(logits, [], [], params))


@pytest.mark.parametrize(("params", "num_kept"), [({"top_k": 10}, 10), ({"top_p": 0.1}, 95)], ids=str)
def test_equal_logits_keep_the_lowest_ids(params: dict[str, Any], num_kept: int) -> None:
    logits = np.zeros(1000, dtype=np.float32)
    logits[700] = 2.0  # top-p: the peak weighs 1 of 136.2, each other e^-2: 13.62 needs the peak and 94 of them
    counts = draw_counts(_native.Sampler(1000, seed=1, **params), logits, 3000)
    assert set(np.flatnonzero(counts)) == {700, *range(num_kept - 1)}


@pytest.mark.parametrize("vocab_size", [1, 2, 15, 16, 17, 1023, 1024, 1025, 5000])
def test_greedy_is_the_first_largest(vocab_size: int) -> None:
    rng = np.random.default_rng(vocab_size)
    sampler = _native.Sampler(vocab_size, temperature=0.0)
    for _ in range(20):
        logits = rng.integers(-5, 5, vocab_size).astype(np.float32)  # many ties
        assert sampler.sample(logits).token == int(np.argmax(logits))
    assert sampler.sample(np.full(vocab_size, -3.4e38, dtype=np.float32)).token == 0


def test_negative_zero_ties_with_zero() -> None:
    assert _native.Sampler(4, temperature=0.0).sample(np.array([-1, -0.0, 0.0, -2], dtype=np.float32)).token == 1


@pytest.mark.parametrize("top_k", [-5, 0, 1, 50])
@pytest.mark.parametrize("seed", [1, 2, 2**64 - 1])
def test_temperature_zero_is_argmax_whatever_else_is_set(top_k: int, seed: int) -> None:
    logits = random_logits(seed=6)
    sampler = _native.Sampler(VOCAB, temperature=0.0, top_k=top_k, top_p=0.1, min_p=0.5, seed=seed)
    assert draw_counts(sampler, logits, 5)[np.argmax(logits)] == 5


@pytest.mark.parametrize("params", [{"min_p": 1.0}, {"top_k": 1}], ids=str)
def test_filters_that_leave_one_token_are_argmax(params: dict[str, Any]) -> None:
    logits = np.array([1, 3, 3, 3, 0], dtype=np.float32)
    assert draw_counts(_native.Sampler(5, seed=9, **params), logits, 50)[1] == 50


@pytest.mark.parametrize("temperature", [1e-6, 1e-38, 1e-45])
def test_tiny_temperature_does_not_overflow(temperature: float) -> None:
    logits = random_logits(seed=7, spread=1e4)
    assert draw_counts(_native.Sampler(VOCAB, temperature=temperature), logits, 20)[np.argmax(logits)] == 20


def test_extreme_finite_logits_are_no_error() -> None:
    logits = np.array([-3.4e38, 3.4e38, 3.3e38, 0.0], dtype=np.float32)
    result = _native.Sampler(4, repetition_penalty=0.01, num_logprobs=4).sample(logits)
    assert (result.token, result.bad_logits, result.logprob) == (1, False, 0.0)
    sampler = _native.Sampler(4, repetition_penalty=0.01)
    sampler.add_prompt(np.arange(4, dtype=np.int32))
    assert not sampler.sample(logits).bad_logits


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("position", [0, 16, VOCAB - 1])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_broken_logits_are_reported(bad: float, position: int, temperature: float) -> None:
    logits = random_logits(seed=8)
    logits[position] = bad
    result = _native.Sampler(VOCAB, temperature=temperature, num_logprobs=2, logit_bias=[(1, 1.0)]).sample(logits)
    assert (result.token, result.bad_logits, result.top_logprobs) == (-1, True, [])


@pytest.mark.parametrize("params", [{"temperature": 0.0}, {"temperature": 0.3, "top_k": 5, "logit_bias": [(0, 9.0)]}])
@pytest.mark.parametrize("vocab_size", [1, VOCAB, 2500])
def test_logprobs_are_the_models_own(vocab_size: int, params: dict[str, Any]) -> None:
    logits = random_logits(vocab_size, seed=10, spread=5.0)
    reference = log_softmax(logits)
    result = _native.Sampler(vocab_size, num_logprobs=20, **params).sample(logits)
    # exp() is within 3 eps, so is the sum; then one rounding of a value up to its own size.
    eps = float(np.finfo(np.float32).eps)
    bound = 4 * eps + eps * np.abs(reference).max()
    assert abs(result.logprob - reference[result.token]) <= bound
    assert [token for token, _ in result.top_logprobs] == rank(logits)[:20].tolist()
    for token, logprob in result.top_logprobs:
        assert abs(logprob - reference[token]) <= bound


def test_equal_top_logprobs_come_by_id() -> None:
    result = _native.Sampler(6, temperature=0.0, num_logprobs=4).sample(np.array([0, 2, 1, 2, 1, 1], dtype=np.float32))
    assert [token for token, _ in result.top_logprobs] == [1, 3, 2, 4]


@pytest.mark.parametrize(("num_logprobs", "num_top"), [(-1, 0), (0, 0), (3, 3)])
def test_number_of_logprobs(num_logprobs: int, num_top: int) -> None:
    result = _native.Sampler(VOCAB, temperature=0.0, num_logprobs=num_logprobs).sample(random_logits())
    assert len(result.top_logprobs) == num_top
    assert (result.logprob == 0.0) == (num_logprobs < 0)


def test_output_penalties_ignore_the_prompt() -> None:
    logits = random_logits(seed=12)
    favourite = int(np.argmax(logits))
    results = []
    for penalty in (0.0, 2.0):
        sampler = _native.Sampler(VOCAB, frequency_penalty=penalty, presence_penalty=penalty, seed=4, num_logprobs=5)
        sampler.add_prompt(np.full(50, favourite, dtype=np.int32))
        result = sampler.sample(logits)
        results.append((result.token, result.logprob, result.top_logprobs))
    assert results[0] == results[1]


def test_sample_is_pure_and_ignores_neighbours() -> None:
    rows = [random_logits(seed=seed) for seed in range(30)]
    alone = _native.Sampler(VOCAB, seed=7)
    beside = _native.Sampler(VOCAB, seed=7)
    neighbours = [_native.Sampler(VOCAB, seed=seed) for seed in (7, 8, 9)]
    for row in rows:
        token = alone.sample(row).token
        assert alone.sample(row).token == token
        for neighbour in neighbours:
            neighbour.accept(neighbour.sample(rows[0]).token)
        assert beside.sample(row).token == token
        alone.accept(token)
        beside.accept(token)


def test_seeds_and_positions_differ() -> None:
    logits = np.zeros(10_000, dtype=np.float32)
    streams = []
    for seed in (0, 1, 2, 2**63, 2**64 - 1):
        sampler = _native.Sampler(10_000, seed=seed)
        stream = []
        for _ in range(20):
            stream.append(sampler.sample(logits).token)
            sampler.accept(0)
        streams.append(stream)
        assert len(set(stream)) > 15
    assert len({tuple(stream) for stream in streams}) == len(streams)


def test_logit_bias_bans_and_forces() -> None:
    logits = random_logits(seed=13)
    first, second = (int(token) for token in rank(logits)[:2])
    last = int(np.argmin(logits))
    assert _native.Sampler(VOCAB, temperature=0.0, logit_bias=[(first, -100.0)]).sample(logits).token == second
    assert _native.Sampler(VOCAB, temperature=0.0, logit_bias=[(last, 100.0)]).sample(logits).token == last
    assert draw_counts(_native.Sampler(VOCAB, logit_bias=[(first, -100.0)]), logits, 300)[first] == 0


def mask_of(*tokens: int, num_words: int = (VOCAB + 31) // 32) -> np.ndarray:
    mask = np.zeros(num_words, dtype=np.uint32)
    for token in tokens:
        mask[token // 32] |= np.uint32(1 << token % 32)
    return mask


@pytest.mark.parametrize(
    "params", [{}, {"top_k": 7}, {"top_p": 0.8, "temperature": 0.7}, {"logit_bias": [(5, 9.0)]}], ids=str
)
def test_a_mask_leaves_what_it_allows_to_the_other_settings(params: dict[str, Any]) -> None:
    logits = random_logits(seed=14)
    allowed = [0, 5, 31, 32, 33, 63, 64, 95, 96]
    sampler = _native.Sampler(VOCAB, seed=3, **params)
    sampler.set_mask(mask_of(*allowed))
    kept = expected_distribution(logits, [], [], {"logit_bias": params.get("logit_bias", [])})
    masked = np.full(VOCAB, -1e30)
    masked[allowed] = np.log(kept[allowed])
    rest = {key: value for key, value in params.items() if key != "logit_bias"}
    assert_fits(draw_counts(sampler, logits, NUM_DRAWS), expected_distribution(masked, [], [], rest))


def test_a_mask_binds_greedy_sampling_and_leaves_logprobs_alone() -> None:
    logits = random_logits(seed=15)
    order = rank(logits)
    sampler = _native.Sampler(VOCAB, temperature=0.0, num_logprobs=1)
    free = sampler.sample(logits)
    sampler.set_mask(mask_of(*(int(token) for token in order[3:])))
    bound = sampler.sample(logits)
    assert bound.token == order[3]
    assert bound.top_logprobs == free.top_logprobs
    sampler.accept(bound.token)
    assert sampler.sample(logits).token == order[3]  # stays until it is replaced
    sampler.set_mask(None)
    assert sampler.sample(logits).token == order[0]


def test_a_mask_allows_one_token_however_unlikely() -> None:
    logits = random_logits(seed=16, spread=30.0)
    token = int(np.argmin(logits))
    sampler = _native.Sampler(VOCAB, temperature=0.1, top_k=1, seed=1)
    sampler.set_mask(mask_of(token))
    assert sampler.sample(logits).token == token


def test_tokens_past_the_end_of_a_mask_are_not_allowed() -> None:
    logits = np.arange(VOCAB, dtype=np.float32)
    sampler = _native.Sampler(VOCAB, temperature=0.0)
    sampler.set_mask(np.full(2, 0xFFFFFFFF, dtype=np.uint32))
    assert sampler.sample(logits).token == 63


@pytest.mark.parametrize(
    ("mask", "text"),
    [
        (mask_of(), "allows no token"),
        (mask_of(VOCAB), "allows no token"),
        (np.array([], dtype=np.uint32), "a mask of no words"),
        (np.ones(5, dtype=np.uint32), "a mask of 5 words, expected at most 4 for a vocabulary of 97"),
    ],
)
def test_masks_that_leave_nothing_or_do_not_fit_are_refused(mask: np.ndarray, text: str) -> None:
    sampler = _native.Sampler(VOCAB, temperature=0.0)
    with pytest.raises(UsageError, match=text):
        sampler.set_mask(mask)
    assert sampler.sample(np.arange(VOCAB, dtype=np.float32)).token == VOCAB - 1


@pytest.mark.parametrize(
    ("params", "name"),
    [
        ({"temperature": -1.0}, "temperature"),
        ({"temperature": 1e39}, "temperature"),
        ({"temperature": math.nan}, "temperature"),
        ({"top_p": 0.0}, "top_p"),
        ({"top_p": 1.01}, "top_p"),
        ({"top_p": math.nan}, "top_p"),
        ({"min_p": 2.0}, "min_p"),
        ({"min_p": -0.1}, "min_p"),
        ({"repetition_penalty": 0.0}, "repetition_penalty"),
        ({"repetition_penalty": math.inf}, "repetition_penalty"),
        ({"presence_penalty": 2.5}, "presence_penalty"),
        ({"frequency_penalty": math.nan}, "frequency_penalty"),
        ({"num_logprobs": 21}, "num_logprobs"),
        ({"num_logprobs": -2}, "num_logprobs"),
        ({"logit_bias": [(999_999_999, 5.0)]}, "999999999"),
        ({"logit_bias": [(-1, 1.0)]}, "-1"),
        ({"logit_bias": [(1, math.nan)]}, "logit_bias"),
        ({"logit_bias": [(1, -101.0)]}, "logit_bias"),
    ],
    ids=str,
)
def test_parameters_out_of_range_are_refused(params: dict[str, Any], name: str) -> None:
    with pytest.raises(UsageError, match=name):
        _native.Sampler(VOCAB, **params)


def test_tokens_and_rows_outside_the_vocabulary_are_refused() -> None:
    sampler = _native.Sampler(VOCAB)
    with pytest.raises(UsageError, match=f"token {VOCAB}, expected an id of the vocabulary, 0 to {VOCAB - 1}"):
        sampler.accept(VOCAB)
    with pytest.raises(UsageError, match="token -1"):
        sampler.add_prompt(np.array([-1], dtype=np.int32))
    with pytest.raises(UsageError, match=f"{VOCAB - 1} logits for a vocabulary of {VOCAB}"):
        sampler.sample(random_logits(VOCAB - 1))
    with pytest.raises(UsageError, match="vocab_size"):
        _native.Sampler(0)


@pytest.mark.parametrize(
    ("field", "limits"),
    [
        ("temperature", (0, 100)),
        ("top_p", (1e-6, 1)),
        ("min_p", (0, 1)),
        ("repetition_penalty", (0.01, 100)),
        ("presence_penalty", (-2, 2)),
        ("frequency_penalty", (-2, 2)),
        ("seed", (0, 2**64 - 1)),
        ("top_k", (-(10**12), 10**12)),
        ("logit_bias", ({0: -100}, {0: 100})),
    ],
)
def test_the_limits_of_sampling_params_are_taken(field: str, limits: tuple[Any, Any]) -> None:
    for limit in limits:
        held = getattr(SamplingParams(**{field: limit}), field)
        _native.Sampler(8, **{field: list(held.items()) if field == "logit_bias" else held})
