"""Divides the memory that was set for a server among its models.

Leaves to others: unloading one where there is not enough for another (``server.hub``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, cast

from treadle.engine.load import LoadOptions
from treadle.engine.outset import PlanOptions, read_settings, usual_memory_bytes
from treadle.engine.remote.address import is_engine_url
from treadle.errors import CapacityError

if TYPE_CHECKING:
    from treadle.engine.contract import AsyncEngine

__all__ = ["share_memory"]


async def share_memory(
    source: str,
    options: LoadOptions,
    loaded: Iterable[AsyncEngine],
    *,
    usual_bytes: Callable[..., int] = usual_memory_bytes,
) -> LoadOptions:
    """Return ``options`` with the part of their memory that the model ``source`` gets beside those that are loaded.

    It is what the model takes where it is not told. Only alone it may be less, and then it is all there is.

    Raises:
        CapacityError: The others have left too little.
        TreadleError: The model cannot be loaded at all.
    """
    plan = cast(PlanOptions, {name: value for name, value in options.items() if name in PlanOptions.__annotations__})
    total_bytes = read_settings(plan).memory_bytes
    if total_bytes is None or is_engine_url(source):
        return options
    reports = [engine.report for engine in loaded if engine.report is not None]
    left_bytes = total_bytes - sum(report.plan.memory.available_bytes for report in reports)
    needed_bytes = await asyncio.to_thread(usual_bytes, source, **plan)
    if needed_bytes > left_bytes and reports:
        raise CapacityError(
            f"{source} needs {needed_bytes / 1e6:,.0f} MB, and other models leave it {left_bytes / 1e6:,.0f} MB of the "
            f"{total_bytes / 1e6:,.0f} MB for all",
            hint="try again when they are idle, or serve with more --memory or a smaller --context",
        )
    return {**options, "memory": min(needed_bytes, left_bytes)}
