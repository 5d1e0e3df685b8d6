"""Opens whatever answers behind a name: a model file in this process, or an engine elsewhere.

Leaves to others: what each of them does (``AsyncLLM``, ``RemoteEngine``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from treadle.engine.remote.address import is_engine_url

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from treadle.engine.contract import AsyncEngine
    from treadle.engine.load import LoadOptions

__all__ = ["open_engine"]


async def open_engine(source: str, **options: Unpack[LoadOptions]) -> AsyncEngine:
    """Load a model or connect to an engine.

    Args:
        source: What ``AsyncLLM.load`` takes, or the URL of an engine, ``#`` and the name of a model after it.
        options: How to load a model; an engine elsewhere has its own.

    Raises:
        TreadleError: As ``AsyncLLM.load`` and ``RemoteEngine.connect`` do.
    """
    if is_engine_url(source):
        from treadle.engine.remote.engine import RemoteEngine  # noqa: PLC0415  slow to import, not always wanted

        return await RemoteEngine.connect(source)
    from treadle.engine.async_llm import AsyncLLM  # noqa: PLC0415  needs the native core

    return await AsyncLLM.load(source, **options)
