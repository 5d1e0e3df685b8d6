"""Chooses what computes a model file: the native core, or llama.cpp for what the core does not know.

Leaves to others: loading (``engine.load``) and the engines themselves.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from treadle.engine.embedding import RANKING
from treadle.engine.llamacpp.library import INSTALL_HINT, find_library
from treadle.engine.ranking import check_scores
from treadle.engine.runner import NativeRunner
from treadle.errors import UnsupportedModelError, UsageError
from treadle.models.text_encoder import check_tokenizer

if TYPE_CHECKING:
    from treadle.models.gguf import ModelFile

__all__ = ["ENGINES", "NATIVE", "EngineChoice", "choose_engine"]

ENGINES = ("native", "llamacpp")


@dataclass(frozen=True)
class EngineChoice:
    """One of ``ENGINES``; ``reason`` is a line for people, empty where the choice is what anyone expects."""

    name: str
    reason: str = ""


NATIVE = EngineChoice("native")


def choose_engine(file: ModelFile, wanted: str = "") -> EngineChoice:
    """Return what computes ``file``: what is ``wanted``, or else the core if it can and llama.cpp if not.

    Raises:
        UsageError: There is no such engine.
        UnsupportedModelError: The core does not run this file, and llama.cpp is not wanted or not installed.
        ModelFileError: The file is broken.
    """
    if wanted and wanted not in ENGINES:
        raise UsageError(f"engine: expected {' or '.join(ENGINES)}, found {wanted!r:.80}")
    if wanted == "llamacpp":
        return EngineChoice("llamacpp", "engine: llama.cpp, as asked for")
    try:
        if file.metadata.get(f"{file.architecture}.pooling_type") == RANKING and not file.ranks:
            raise UnsupportedModelError("a model that ranks (pooling type 4), but without its head (cls.output)")
        check_scores(file)
        NativeRunner.check(file)
        check_tokenizer(file.metadata)
    except UnsupportedModelError as error:
        problem = error.args[0].removeprefix(f"{file.path}: ")
        if wanted == "native":
            raise UnsupportedModelError(
                f"{file.path}: {problem}", hint="leave the engine open, and llama.cpp runs it"
            ) from None
        if find_library() is None:
            raise UnsupportedModelError(f"{file.path}: {problem}", hint=INSTALL_HINT) from None
        summary = re.sub(r" \([^()]*\)$", "", problem)  # without the list of what the core does run
        return EngineChoice("llamacpp", f"engine: llama.cpp, for {summary}")
    return NATIVE
