"""Takes a profile of a model on this machine.

Leaves to others: measuring (``profiler``), judging (``verdict``) and showing it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from treadle.engine.choose import choose_engine
from treadle.engine.embedding import check_answers
from treadle.engine.execution_plan import plan_execution
from treadle.engine.memory_plan import MAX_BATCH_TOKENS
from treadle.engine.outset import read_settings, view_machine
from treadle.engine.profile.cell_meter import Work
from treadle.engine.profile.profiler import Profiler
from treadle.engine.tuning import apply_tuning
from treadle.errors import UsageError
from treadle.hardware.counters import CounterSet, open_counters
from treadle.models.gguf import ModelFile
from treadle.models.store import resolve_model

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from treadle.engine.outset import PlanOptions
    from treadle.engine.profile.record import ProfileRecord

__all__ = ["DEFAULT_CONTEXT", "DEFAULT_PROMPTS", "DEFAULT_STREAMS", "profile", "works_of"]

DEFAULT_PROMPTS = (128, 512, 2048)
DEFAULT_STREAMS = (1, 2, 4, 8, 16)
DEFAULT_CONTEXT = 256


def profile(
    model: str | Path,
    *,
    prompts: Sequence[int] | None = None,
    streams: Sequence[int] | None = None,
    stream_context: int | None = None,
    seconds: float = 45.0,
    open_counters: Callable[[], CounterSet] = open_counters,
    progress: Callable[[str], None] = lambda _: None,
    **options: Unpack[PlanOptions],
) -> ProfileRecord:
    """Profile a model on this machine in about ``seconds``; a long prompt of a large model may take longer.

    Args:
        model: A stored model or a file.
        prompts: Lengths of prompts to read, in tokens; by default those of ``DEFAULT_PROMPTS`` that the model can read.
        streams: Numbers of streams that decode together.
        stream_context: How many tokens each stream holds.
        seconds: For everything.
        open_counters: Opens counters of events in all threads, once these run.
        progress: Hears what is being measured.
        options: As ``LLM`` takes them.

    Raises:
        UsageError: There is no such model, an option is out of range, or the core does not run the model.
        CapacityError: The model, or the streams, do not fit in memory.
    """
    settings, machine = read_settings(options), view_machine()
    file = ModelFile.open(resolve_model(model, pull=False))
    choice = choose_engine(file, settings.engine)
    if choice.name != "native":
        raise UsageError(
            f"{file.name} runs through {choice.name}, which does not tell where its time goes",
            hint="profile a model that the core runs; `treadle show MODEL` says whether it does",
        )
    check_answers(file, "a profile")
    works = works_of(file, prompts, streams, stream_context)
    settings = apply_tuning(settings, file, machine).override(context=max(2, *map(_length, works)))
    plan = plan_execution(file, settings, machine)
    return Profiler(file, plan, works, progress).run(seconds, settings.isa, open_counters)


def works_of(
    file: ModelFile,
    prompts: Sequence[int] | None = None,
    streams: Sequence[int] | None = None,
    stream_context: int | None = None,
) -> list[Work]:
    """Return what to measure; raises UsageError for what is out of range."""
    most = file.hyperparameters.context_length
    if prompts is None:
        prompts = [length for length in DEFAULT_PROMPTS if length <= most] or [most]
    context = min(DEFAULT_CONTEXT, most - 1) if stream_context is None else stream_context
    for length in prompts:
        if not 1 <= length <= most:
            raise UsageError(f"prompts: expected lengths of 1 to {most} tokens, found {length}")
    if not 1 <= context < most:
        raise UsageError(f"context: expected 1 to {most - 1} tokens, found {context}")
    for count in streams or ():
        if not 1 <= count <= MAX_BATCH_TOKENS:
            raise UsageError(f"streams: expected numbers of 1 to {MAX_BATCH_TOKENS}, found {count}")
    works = [Work("prompt", length) for length in sorted(set(prompts))]
    counts = DEFAULT_STREAMS if streams is None else streams
    works += [Work("decode", context, count) for count in sorted(set(counts))]
    if not works:
        raise UsageError("there is nothing to measure: neither prompts nor streams")
    return works


def _length(work: Work) -> int:
    return work.num_tokens + (work.kind == "decode")
