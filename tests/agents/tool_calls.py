"""How tests call a tool: by its name, waiting for what the model would be shown."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import jsonschema

from treadle.agents.tool import Tool
from treadle.errors import ToolError


def call(tools: Sequence[Tool], name: str, **arguments: Any) -> str:
    """The text of a result, whose arguments satisfy the schema as the loop would see to."""
    (tool,) = (tool for tool in tools if tool.spec.name == name)
    jsonschema.validate(arguments, dict(tool.spec.parameters))
    return asyncio.run(tool.call(arguments)).text


def refusal(tools: Sequence[Tool], name: str, **arguments: Any) -> str:
    """The text of the ToolError that a call ends with."""
    try:
        text = call(tools, name, **arguments)
    except ToolError as error:
        return str(error)
    raise AssertionError(f"{name} was expected to fail but answered: {text}")
