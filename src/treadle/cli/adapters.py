"""Reads what ``--adapter`` says, and has the one adapter of a command answer.

Leaves to others: loading adapters (the engines).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from treadle.errors import UsageError

if TYPE_CHECKING:
    from treadle.engine.llm import LLM
    from treadle.engine.remote.llm import RemoteLLM

__all__ = ["NamedAdapter", "load_adapter", "read_adapters"]

_NAME = "adapter"


class NamedAdapter(NamedTuple):
    """An adapter file, what clients call it, and what its own scale is multiplied with."""

    name: str
    path: str
    scale: float


def read_adapters(texts: list[str] | None) -> list[NamedAdapter]:
    """Read NAME=PATH and NAME=PATH@SCALE; raises UsageError for anything else."""
    adapters = []
    for text in texts or ():
        name, separator, rest = text.partition("=")
        if not (separator and name and rest):
            raise UsageError(f"--adapter {text!r}: expected NAME=PATH or NAME=PATH@SCALE")
        adapters.append(NamedAdapter(name, *_split(rest)))
    return adapters


def load_adapter(llm: LLM | RemoteLLM, text: str | None) -> str | None:
    """Load what PATH or PATH@SCALE says, if anything, and return its name for requests.

    Raises:
        TreadleError: It cannot be loaded, or ``llm`` takes no adapters.
    """
    if text is None:
        return None
    if llm.report is None:
        raise UsageError(
            "--adapter: an engine elsewhere has adapters of its own", hint="name it as the model: URL#ADAPTER"
        )
    path, scale = _split(text)
    return llm.load_adapter(_NAME, path, scale).name


def _split(text: str) -> tuple[str, float]:
    path, separator, scale = text.rpartition("@")
    try:
        number = float(scale) if separator else math.nan
    except ValueError:
        number = math.nan
    return (text, 1.0) if math.isnan(number) or not path else (path, number)
