"""What a caller may ask of sampling, checked once at the door; the drawing itself is the native core's."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from numbers import Real
from typing import Any

from treadle.engine.structured.form import AnswerForm
from treadle.errors import UsageError

__all__ = ["DEFAULT_MAX_TOKENS", "SamplingParams", "choice_seed"]

DEFAULT_MAX_TOKENS = 512
MAX_ANSWERS = 128
MAX_ID = 2**31 - 1  # token ids and counts of them are 32 bits wide in the native core
MAX_LOGPROBS = 20
MAX_SEED = 2**64 - 1
MAX_STOP_STRINGS = 16
MAX_STOP_TOKENS = 128


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """How one request turns logits into tokens, and when it ends.

    The steps apply in this order: logit bias, repetition penalty, presence and frequency penalty, temperature, top-k,
    min-p, top-p; each filter looks at what the earlier ones left. ``temperature=0`` is greedy: the most likely token
    after bias and penalties, whatever the filters and the seed. ``repetition_penalty`` counts prompt and output,
    ``presence_penalty`` and ``frequency_penalty`` the output only. Log-probabilities are those of the model itself,
    before any of these settings.

    Args:
        max_tokens: Most tokens to generate, at least 1; None goes on until the context is full.
        min_tokens: Neither an end token nor a stop text ends the answer before it has so many tokens.
        temperature: 0 to 100.
        top_k: Keep this many of the most likely tokens; 0 or less keeps all.
        top_p: Above 0, at most 1: keep the most likely tokens that together reach this probability.
        min_p: 0 to 1: keep tokens at least this likely relative to the most likely one.
        repetition_penalty: 0.01 to 100; 1 is off.
        presence_penalty: -2 to 2; 0 is off.
        frequency_penalty: -2 to 2; 0 is off.
        logit_bias: Token id to a number from -100 to 100 that is added to its logit.
        seed: 0 to 2**64 - 1; the same request with the same seed gives the same text. None draws a fresh one.
        logprobs: 0 reports the log-probability of each sampled token, n up to 20 also the n most likely; None nothing.
        stop: Text, or up to 16 texts, at which the answer ends; the stop text is not part of the answer.
        stop_token_ids: Up to 128 tokens that end the answer besides the model's own, even with ``ignore_eos``; their
            text is not part of the answer.
        n: How many answers to give to the prompt, 1 to 128. The first is the one that ``n=1`` gives.
        ignore_eos: Go on after the model ended its answer, for measurements.
        form: What the text of the answer must be: a ``JsonForm``, ``RegexForm`` or ``ChoiceForm``; None leaves it free.
    """

    max_tokens: int | None = DEFAULT_MAX_TOKENS
    min_tokens: int = 0
    temperature: float = 0.7
    top_k: int = 0
    top_p: float = 0.95
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int | None = None
    logprobs: int | None = None
    stop: str | Sequence[str] | None = ()
    stop_token_ids: Sequence[int] = ()
    n: int = 1
    ignore_eos: bool = False
    form: AnswerForm | None = None

    def __post_init__(self) -> None:
        if self.max_tokens is not None:
            self._set("max_tokens", _integer("max_tokens", self.max_tokens, 1))
        self._set("min_tokens", _integer("min_tokens", self.min_tokens, 0, MAX_ID))
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise _refusal("min_tokens", self.min_tokens, f"at most max_tokens, {self.max_tokens}")
        self._set("temperature", _number("temperature", self.temperature, 0, 100))
        self._set("top_k", min(max(_integer("top_k", self.top_k), 0), MAX_ID))
        self._set("top_p", _number("top_p", self.top_p, 0, 1, above_low=True))
        self._set("min_p", _number("min_p", self.min_p, 0, 1))
        self._set("repetition_penalty", _number("repetition_penalty", self.repetition_penalty, 0.01, 100))
        self._set("presence_penalty", _number("presence_penalty", self.presence_penalty, -2, 2))
        self._set("frequency_penalty", _number("frequency_penalty", self.frequency_penalty, -2, 2))
        self._set("logit_bias", _logit_bias(self.logit_bias))
        if self.seed is not None:
            self._set("seed", _integer("seed", self.seed, 0, MAX_SEED))
        if self.logprobs is not None:
            self._set("logprobs", _integer("logprobs", self.logprobs, 0, MAX_LOGPROBS))
        self._set("stop_token_ids", _token_ids("stop_token_ids", self.stop_token_ids))
        self._set("n", _integer("n", self.n, 1, MAX_ANSWERS))
        self._set("stop", _stop_strings(self.stop))
        if not isinstance(self.ignore_eos, bool):
            raise _refusal("ignore_eos", self.ignore_eos, "True or False")
        if not isinstance(self.form, AnswerForm | None):
            raise _refusal("form", self.form, "a JsonForm, RegexForm or ChoiceForm")

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """The stop texts as a tuple, however ``stop`` was given."""
        return tuple(self.stop or ())


def _refusal(name: str, value: object, expected: str) -> UsageError:
    try:
        shown = repr(value)
    except ValueError:  # an integer beyond the digits Python is willing to print
        shown = f"{type(value).__name__} of very many digits"
    field = name.rpartition(" ")[2].partition("[")[0]
    return UsageError(f"SamplingParams: {name} is {shown[:80]}, expected {expected}", field=field)


def _number(name: str, value: object, low: float, high: float, *, above_low: bool = False) -> float:
    expected = f"above {low}, at most {high}" if above_low else f"{low} to {high}"
    if isinstance(value, bool) or not isinstance(value, Real):
        raise _refusal(name, value, f"a number, {expected}")
    try:
        number = float(value)
    except OverflowError:
        raise _refusal(name, value, expected) from None
    # A comparison with NaN is false, so NaN is refused.
    if not (low <= number <= high) or (above_low and number == low):
        raise _refusal(name, value, expected)
    return number


def _integer(name: str, value: Any, low: int | None = None, high: int | None = None) -> int:
    expected = "a whole number"
    if low is not None:
        expected += f", at least {low}" if high is None else f", {low} to {high}"
    try:
        number = operator.index(value)
    except TypeError:
        raise _refusal(name, value, expected) from None
    if isinstance(value, bool) or (low is not None and number < low) or (high is not None and number > high):
        raise _refusal(name, value, expected)
    return number


def _logit_bias(value: object) -> dict[int, float]:
    if not isinstance(value, Mapping):
        raise _refusal("logit_bias", value, "a mapping from token ids to numbers")
    return {
        _integer("a token id of logit_bias", token, 0, MAX_ID): _number(f"logit_bias[{token}]", bias, -100, 100)
        for token, bias in value.items()
    }


def _token_ids(name: str, value: object) -> tuple[int, ...]:
    if isinstance(value, str) or not isinstance(value, Sequence) or len(value) > MAX_STOP_TOKENS:
        raise _refusal(name, value, f"up to {MAX_STOP_TOKENS} token ids")
    return tuple(_integer(f"a token id of {name}", token_id, 0, MAX_ID) for token_id in value)


def _stop_strings(value: object) -> tuple[str, ...]:
    expected = f"a text or up to {MAX_STOP_STRINGS} texts, none of them empty"
    if value is None:
        return ()
    texts = (value,) if isinstance(value, str) else value
    if not isinstance(texts, Sequence) or len(texts) > MAX_STOP_STRINGS:
        raise _refusal("stop", value, expected)
    if not all(isinstance(text, str) and text for text in texts):
        raise _refusal("stop", value, expected)
    return tuple(texts)


def choice_seed(seed: int, index: int) -> int:
    """Return the seed of one of several answers: that of the request for the first, unrelated ones for the others."""
    if index == 0:
        return seed
    return int.from_bytes(blake2b(f"{seed}/{index}".encode(), digest_size=8).digest(), "little")
