"""Runs blocking work of tools in threads of its own.

The pool of the event loop is small, and the engine prepares prompts in it: tools that block would starve the model.
Those threads also keep no program from ending.

Leaves to others: how many run at a time (whoever calls).
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

__all__ = ["in_own_thread"]

T = TypeVar("T")


async def in_own_thread(function: Callable[..., T], *arguments: Any, **keywords: Any) -> T:
    """Return what the function returns, called in a new thread with the context of this task.

    Cancelling the task leaves the thread alone, as nothing can end one; what it returns is dropped then.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()
    call = partial(contextvars.copy_context().run, function, *arguments, **keywords)

    def settle(value: T | None, error: Exception | None) -> None:
        if future.done():
            return
        if error is None:
            future.set_result(value)  # type: ignore[arg-type]  # the function's own result
        else:
            future.set_exception(error)

    def work() -> None:
        value: T | None = None
        error: Exception | None = None
        try:
            value = call()
        except Exception as raised:
            # A future would take this one for its own end.
            error = RuntimeError("StopIteration") if isinstance(raised, StopIteration) else raised
        except BaseException as raised:  # it would end the event loop
            error = RuntimeError(f"{type(raised).__name__}: {raised}")
        with suppress(RuntimeError):  # the loop was closed meanwhile
            loop.call_soon_threadsafe(settle, value, error)

    threading.Thread(target=work, name="treadle-tool", daemon=True).start()
    return await future
