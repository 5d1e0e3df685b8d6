"""Opens whatever answers behind a name: a model file in this process, or an engine elsewhere.

Leaves to others: what each of them does (``AsyncLLM``, ``RemoteEngine``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from treadle.config import Settings
from treadle.engine.remote.address import is_engine_url
from treadle.errors import UsageError

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from treadle.engine.contract import AsyncEngine
    from treadle.engine.load import LoadOptions

__all__ = ["find_engine_url", "open_engine"]


def find_engine_url(model: str | None, engine: str | None) -> tuple[str, str | None] | None:
    """Return the URL of the engine that is meant and its name for the model; None when this process computes.

    Args:
        model: The name or file of a model, or the URL of an engine itself.
        engine: What is to compute; by default what ``TREADLE_ENGINE`` says.

    Raises:
        UsageError: The model is at a URL, and another engine is asked for.
    """
    wanted = engine or ("" if engine is not None else Settings.from_environment().engine)
    if is_engine_url(wanted):
        return wanted, model
    if model is None or not is_engine_url(model):
        return None
    if engine:
        raise UsageError(f"engine: {engine!r:.80} cannot compute what is at {model}", hint="leave the engine out")
    return model, None


async def open_engine(source: str, **options: Unpack[LoadOptions]) -> AsyncEngine:
    """Load a model or connect to an engine.

    Args:
        source: What ``AsyncLLM.load`` takes, or the URL of an engine, ``#`` and the name of a model after it.
        options: How to load a model, or the URL of an ``engine`` that has it; that one has its own settings.

    Raises:
        TreadleError: As ``AsyncLLM.load`` and ``RemoteEngine.connect`` do.
    """
    # Of several models those at a URL have their engine; the option is for the others.
    found = find_engine_url(source, None if is_engine_url(source) else options.get("engine"))
    if found is not None:
        from treadle.engine.remote.engine import RemoteEngine  # noqa: PLC0415  slow to import, not always wanted

        return await RemoteEngine.connect(*found)
    from treadle.engine.async_llm import AsyncLLM  # noqa: PLC0415  needs the native core

    return await AsyncLLM.load(source, **options)
