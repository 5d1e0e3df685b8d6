"""The other side of a tool that runs in a process of its own: waits for calls, answers each with text.

Leaves to others: starting and killing the process (``worker_pool``).
"""

from __future__ import annotations

import importlib
import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

from treadle.agents.bounded_text import bounded
from treadle.agents.result_text import as_result
from treadle.agents.signature import Signature
from treadle.agents.tool import ToolResult
from treadle.errors import ToolError

__all__ = ["MAX_ANSWER_CHARS", "call_function", "find_function", "work"]

# What crosses the pipe is bounded here already, so that a flood stays in the process that made it.
MAX_ANSWER_CHARS = 1 << 20


def work(connection: Connection, module: str, name: str) -> None:
    """Answer calls until the connection ends, which is all that ever ends this.

    A call is a mapping of arguments, an answer a ``ToolResult`` and the CPU seconds it took. The process leads a
    session of its own, so that whatever the function starts can be killed with it.
    """
    with suppress(AttributeError, OSError):  # not on every system
        os.setsid()
    with suppress(EOFError, OSError):
        function = find_function(module, name)
        signature = Signature(function)
        while True:
            arguments = connection.recv()
            began = time.process_time()
            answer = _answer(function, signature, arguments)
            connection.send((answer, time.process_time() - began))


def find_function(module: str, name: str) -> Callable[..., Any]:
    """Return the function of that qualified name, from beneath the tool that a decorator made of it."""
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    return getattr(found, "function", found)  # type: ignore[no-any-return]


def call_function(function: Callable[..., Any], values: dict[str, Any]) -> ToolResult:
    """Call a function, and tell in the result what it returned or raised."""
    try:
        result = as_result(function(**values))
    except ToolError as error:
        return ToolResult(str(error), is_error=True)
    except Exception as error:
        return ToolResult(describe_error(error), is_error=True)
    return ToolResult(bounded(result.text, MAX_ANSWER_CHARS), result.is_error)


def describe_error(error: BaseException) -> str:
    """Return the kind and the text of an error, for the model."""
    return f"{type(error).__name__}: {error}".removesuffix(": ")


def _answer(function: Callable[..., Any], signature: Signature, arguments: dict[str, Any]) -> ToolResult:
    try:
        return call_function(function, signature.read(arguments))
    except ToolError as error:
        return ToolResult(str(error), is_error=True)
    except SystemExit as error:
        return ToolResult(describe_error(error), is_error=True)
    finally:
        with suppress(AttributeError, OSError, ValueError):
            sys.stdout.flush()
