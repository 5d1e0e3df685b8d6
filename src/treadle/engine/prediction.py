"""Predicts how fast a model would run on a machine, and what memory it would take, from its outline alone.

Leaves to others: the machine's speed (``hardware.machine_speed``) and what kernels reach of it (``hardware.roofline``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from treadle.engine.kv.kv_memory import MAX_BATCH_TOKENS, context_kv_bytes
from treadle.engine.memory_plan import MemoryPlan
from treadle.engine.step_work import StepWork, decode_bytes_of, work_of
from treadle.hardware.roofline import Roofline, Work

if TYPE_CHECKING:
    from treadle.models.gguf import ModelFile
    from treadle.models.outline import ModelOutline

__all__ = ["DECODE_CONTEXT", "FIRST_TOKEN_PROMPTS", "STREAMS", "Prediction", "predict"]

STREAMS = (1, 4, 8, 16)
FIRST_TOKEN_PROMPTS = (512, 2048)
DECODE_CONTEXT = 128  # tokens that each stream holds
_PROMPT_TOKENS = 512  # of the prompt that the rate is of
_MOST_STREAMS = 256
_LEAST_INT8_SHARE = 0.9  # of the weights; models with more of them in floats compute otherwise


@dataclass(frozen=True)
class Prediction:
    """What a model would do; rates are tokens per second, None where the machine's int8 rate would have to be known.

    One that gives no answers has neither decode rates nor a first token.

    Args:
        decode_rates: Of all streams together, by their number.
        prompt_rate: Of reading a prompt, or a text to embed, of 512 tokens.
        first_token_seconds: By the length of the prompt.
        memory_bytes: Weights, scratch memory and the KV blocks of one full context.
        largest_context: Tokens that fit in memory, at most what the model was trained for.
        compute_bound_streams: From how many streams on products take longer than reading the weights.
    """

    decode_rates: dict[int, float | None]
    prompt_rate: float | None
    first_token_seconds: dict[int, float | None]
    memory_bytes: int
    largest_context: int
    compute_bound_streams: int | None


def predict(model: ModelFile | ModelOutline, memory: MemoryPlan, roofline: Roofline) -> Prediction:
    """Predict for a model whose memory is planned."""
    counter = _Counter(model, memory.kv_type, roofline)
    knows_compute = roofline.knows_compute and counter.int8_share >= _LEAST_INT8_SHARE

    def decode_rate(streams: int) -> float | None:
        if streams > 1 and not knows_compute:
            return None
        return streams / roofline.seconds(counter.decode(streams))

    def prompt_seconds(num_tokens: int) -> float | None:
        return sum(map(roofline.seconds, counter.prompt(num_tokens))) if knows_compute else None

    answers = not model.hyperparameters.is_encoder
    prompt = prompt_seconds(_PROMPT_TOKENS)
    bound = (count for count in range(1, _MOST_STREAMS + 1) if roofline.is_compute_bound(counter.decode(count)))
    return Prediction(
        decode_rates={count: decode_rate(count) for count in STREAMS if answers},
        prompt_rate=None if prompt is None else _PROMPT_TOKENS / prompt,
        first_token_seconds={length: prompt_seconds(length) for length in FIRST_TOKEN_PROMPTS if answers},
        memory_bytes=memory.weight_bytes
        + memory.scratch_bytes
        + context_kv_bytes(model.hyperparameters, memory.kv_type, memory.context),
        largest_context=memory.largest_context,
        compute_bound_streams=next(bound, None) if knows_compute and answers else None,
    )


class _Counter:
    """Counts the work of steps of one model."""

    def __init__(self, model: ModelFile | ModelOutline, kv_type: str, roofline: Roofline) -> None:
        self._shape = model.hyperparameters
        self.work: StepWork = work_of(
            model, weight_bytes=decode_bytes_of(model), kv_type=kv_type, cost_of=roofline.cost_of
        )
        shape = self._shape
        self._windowed_share = shape.windowed_kv_bytes_per_token / max(1, shape.kv_bytes_per_token)
        layers = [tensor for tensor in model.tensors if len(tensor.shape) > 1 and tensor.name.startswith("blk.")]
        floats = sum(tensor.num_bytes for tensor in layers if tensor.format in ("F32", "F16", "BF16"))
        self.int8_share = 1 - floats / max(1, sum(tensor.num_bytes for tensor in layers))

    def decode(self, streams: int) -> Work:
        """One token more for each stream."""
        kv_bytes = streams * self.work.kv_bytes_of(DECODE_CONTEXT - 1, 1)
        return self._step(streams, streams, kv_bytes, streams * self._pairs(DECODE_CONTEXT - 1, DECODE_CONTEXT))

    def prompt(self, num_tokens: int) -> list[Work]:
        """The steps of one prompt, up to its first token."""
        steps = []
        for start in range(0, num_tokens, MAX_BATCH_TOKENS):
            end = min(num_tokens, start + MAX_BATCH_TOKENS)
            kv_bytes = self.work.kv_bytes_of(start, end - start)
            steps.append(self._step(end - start, int(end == num_tokens), kv_bytes, self._pairs(start, end)))
        return steps

    def _pairs(self, start: int, end: int) -> float:
        """How many tokens those from ``start`` to ``end`` look at, in the mean of all layers with attention."""
        whole = (end * (end + 1) - start * (start + 1)) / 2
        windowed = sum(min(position + 1, self._shape.window) for position in range(start, end))
        return (1 - self._windowed_share) * whole + self._windowed_share * windowed

    def _step(self, num_tokens: int, num_sampled: int, kv_bytes: int, num_pairs: float) -> Work:
        """``num_pairs`` of a token that asks and one that answers are compared."""
        shape = self._shape
        return Work(
            weight_bytes=self.work.weight_bytes,
            kv_bytes=kv_bytes,
            int8_ops=self.work.token_ops * num_tokens + self.work.logit_ops * num_sampled,
            float_ops=4.0 * shape.num_heads * shape.head_dim * (shape.num_layers - shape.num_convolutions) * num_pairs,
            num_elements=num_tokens * shape.num_layers * shape.hidden_size,
            num_layers=shape.num_layers,
        )
