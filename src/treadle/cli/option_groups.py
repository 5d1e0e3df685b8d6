"""Groups of options that several commands share: a command takes a group as one argument, users type its options.

Leaves to others: how each option is spelled and explained (``cli.options``).
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from typing import TYPE_CHECKING, Any, TypeGuard, cast, get_type_hints

from treadle.cli import options
from treadle.engine.sampling import SamplingParams

if TYPE_CHECKING:
    from treadle.engine.outset import PlanOptions

__all__ = ["ConsoleOptions", "EngineOptions", "PlacementOptions", "SamplingOptions", "expand_groups"]


@dataclass(frozen=True)
class SamplingOptions:
    """How an answer is sampled, and where it ends."""

    max_tokens: options.MaxTokens = SamplingParams.max_tokens
    temperature: options.Temperature = SamplingParams.temperature
    top_k: options.TopK = SamplingParams.top_k
    top_p: options.TopP = SamplingParams.top_p
    min_p: options.MinP = SamplingParams.min_p
    repetition_penalty: options.RepetitionPenalty = SamplingParams.repetition_penalty
    seed: options.Seed = None
    stop: options.Stop = None

    def params(self) -> SamplingParams:
        """Return them as the engine takes them."""
        return SamplingParams(**vars(self))


@dataclass(frozen=True)
class PlacementOptions:
    """How a model uses this machine."""

    context: options.Context = None
    memory: options.Memory = None
    ram_cache: options.RamCache = None
    disk_cache: options.DiskCache = None
    kv_type: options.KvType = None
    threads: options.Threads = None
    prompt_threads: options.PromptThreads = None
    reserve_cores: options.ReserveCores = None
    pin: options.Pin = None
    numa: options.Numa = None
    huge_pages: options.HugePages = None
    adapt: options.Adapt = None
    mlock: options.Mlock = None

    def as_arguments(self) -> PlanOptions:
        """Return them as the arguments of ``LLM``."""
        return cast("PlanOptions", dict(vars(self)))


@dataclass(frozen=True)
class EngineOptions(PlacementOptions):
    """What computes, and how it uses this machine."""

    engine: options.Engine = None


@dataclass(frozen=True)
class ConsoleOptions:
    """How much is said; the callbacks of the two have told the console."""

    quiet: options.Quiet = False
    verbose: options.Verbose = False


def expand_groups(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command in the form that typer reads: the options of each group stand where the group stood."""
    signature = inspect.signature(command, eval_str=True)
    groups = {name: each.annotation for name, each in signature.parameters.items() if _is_group(each.annotation)}

    @functools.wraps(command)
    def expanded(**given: Any) -> None:
        for name, group in groups.items():
            given[name] = group(**{field.name: given.pop(field.name) for field in fields(group)})
        command(**given)

    parameters: list[inspect.Parameter] = []
    for parameter in signature.parameters.values():
        group = groups.get(parameter.name)
        parameters += [parameter] if group is None else _parameters_of(group)
    expanded.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    expanded.__annotations__ = {each.name: each.annotation for each in parameters}
    return expanded


def _is_group(annotation: object) -> TypeGuard[type[Any]]:
    return isinstance(annotation, type) and is_dataclass(annotation)


def _parameters_of(group: type[Any]) -> list[inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    return [
        inspect.Parameter(
            field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=hints[field.name]
        )
        for field in fields(group)
    ]
