"""The sampling fields that every generating route takes, and the engine's parameters made from them.

Leaves to others: the ranges of what the engine has itself (``engine.sampling`` refuses in the same words everywhere).
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints, model_validator

from treadle.engine.sampling import MAX_SEED, SamplingParams
from treadle.engine.structured.form import MAX_CHOICES as MAX_TEXTS
from treadle.engine.structured.form import AnswerForm, ChoiceForm, JsonForm, RegexForm
from treadle.errors import UsageError
from treadle.server.schema.base import MAX_CHOICES, Body, Unsupported, Whole, mistake

__all__ = ["SamplingFields", "Stop", "StopText", "token_biases"]

_MAX_BIASES = 1024
StopText = Annotated[str, StringConstraints(min_length=1, max_length=1024)]
Stop = StopText | Annotated[list[StopText], Field(max_length=16)]
_Text = Annotated[str, StringConstraints(min_length=1)]


class StructuredOutputs(Body):
    """What the text of an answer must be, in vLLM's words: JSON of a schema, a match of a pattern, or one of a list."""

    json_: dict[str, Any] | bool | None = Field(None, alias="json")
    regex: _Text | None = None
    choice: Annotated[list[_Text], Field(min_length=1, max_length=MAX_TEXTS)] | None = None
    grammar: Unsupported = None
    structural_tag: Unsupported = None

    @model_validator(mode="after")
    def _one(self) -> StructuredOutputs:
        if sum(each is not None for each in (self.json_, self.regex, self.choice)) != 1:
            raise mistake("", "expected one of json, regex and choice")
        return self

    @property
    def form(self) -> AnswerForm:
        """Return what the text of the answer must be."""
        if self.regex is not None:
            return RegexForm(self.regex)
        if self.choice is not None:
            return ChoiceForm(self.choice)
        assert self.json_ is not None
        return JsonForm(self.json_)


class SamplingFields(Body):
    """Sampling as the OpenAI API names it, then what engines besides OpenAI's add to it.

    What a request leaves out takes the default of ``SamplingParams``.
    """

    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, gt=0, le=1)
    n: Whole | None = Field(None, ge=1, le=MAX_CHOICES)
    stop: Stop | None = None
    seed: Whole | None = Field(None, ge=-(2**63), le=MAX_SEED)
    presence_penalty: float | None = Field(None, ge=-2, le=2)
    frequency_penalty: float | None = Field(None, ge=-2, le=2)
    logit_bias: dict[str, float] | None = Field(None, max_length=_MAX_BIASES)
    top_k: Whole | None = None
    min_p: float | None = Field(None, ge=0, le=1)
    repetition_penalty: float | None = Field(None, ge=0.01, le=100)
    min_tokens: Whole | None = Field(None, ge=0)
    ignore_eos: bool | None = None
    stop_token_ids: Annotated[list[Whole], Field(max_length=64)] | None = None
    structured_outputs: StructuredOutputs | None = None
    priority: Literal["interactive", "batch"] | None = None

    @property
    def form(self) -> AnswerForm | None:
        """Return what the text of the answer must be."""
        return None if self.structured_outputs is None else self.structured_outputs.form

    def sampling(self, *, vocab_size: int | None, max_tokens: int | None, logprobs: int | None) -> SamplingParams:
        """Return the engine's parameters; raises UsageError for what it refuses."""
        given: dict[str, Any] = {
            "temperature": self.temperature,
            "top_p": self.top_p,
            "n": self.n,
            "stop": self.stop,
            # OpenAI allows negative seeds; the engine's are unsigned.
            "seed": None if self.seed is None else self.seed % (MAX_SEED + 1),
            "presence_penalty": self.presence_penalty,
            "frequency_penalty": self.frequency_penalty,
            "logit_bias": token_biases(self.logit_bias, vocab_size),
            "top_k": self.top_k,
            "min_p": self.min_p,
            "repetition_penalty": self.repetition_penalty,
            "min_tokens": self.min_tokens,
            "stop_token_ids": self.stop_token_ids,
            "ignore_eos": self.ignore_eos,
        }
        given = {name: value for name, value in given.items() if value is not None}
        return SamplingParams(max_tokens=max_tokens, logprobs=logprobs, form=self.form, **given)


def token_biases(biases: dict[str, float] | None, vocab_size: int | None) -> dict[int, float] | None:
    """Turn the API's text keys into token ids.

    Raises:
        UsageError: A key is not the id of a token of this model.
    """
    if biases is None:
        return None
    result = {}
    for key, bias in biases.items():
        if not (key.isascii() and key.isdigit() and len(key) <= 10 and (vocab_size is None or int(key) < vocab_size)):
            expected = "a whole number" if vocab_size is None else f"0 to {vocab_size - 1}"
            problem = f"logit_bias: {key!r:.40} is not a token id of this model, expected {expected}"
            raise UsageError(problem, field="logit_bias")
        result[int(key)] = bias
    return result
