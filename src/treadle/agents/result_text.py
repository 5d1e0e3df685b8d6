"""Turns what a Python function returned into what the model is shown.

Leaves to others: how long that may be (``bounded_text``).
"""

from __future__ import annotations

import json
from typing import Any

from treadle.agents.tool import ToolResult
from treadle.errors import ToolError

__all__ = ["as_result"]


def as_result(value: Any) -> ToolResult:
    """Return text as it is, a ``ToolResult`` too, and everything else as JSON: models, dataclasses, dates, sets.

    Raises:
        ToolError: The value cannot be written as JSON.
    """
    if isinstance(value, ToolResult):
        return value
    if isinstance(value, str):
        return ToolResult(value)
    from pydantic_core import PydanticSerializationError, to_jsonable_python  # noqa: PLC0415

    try:
        return ToolResult(json.dumps(to_jsonable_python(value), ensure_ascii=False))
    except (PydanticSerializationError, ValueError, RecursionError) as error:
        reason = str(error).partition("\n")[0][:200]
        raise ToolError(
            f"the tool returned {type(value).__name__}, which cannot be written as JSON: {reason}"
        ) from None
