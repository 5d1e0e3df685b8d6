"""The dialect for models that were taught none: a fenced block of JSON, explained to the model in the system message.

The rule: a block fenced as ``tool_call`` or ``json`` is a call if it is one JSON object with the ``name`` of an offered
function and its ``arguments``, and content otherwise.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from treadle.models.tool_dialects.call_json import calls_in
from treadle.models.tool_dialects.marked import MarkedParser
from treadle.models.tool_dialects.parts import AnswerParser, ToolCall, ToolSchemas

__all__ = ["CLOSING", "OPENING", "explain_tools", "fenced_parser"]

OPENING = "```tool_call\n"
CLOSING = "\n```"

_EXPLANATION = """You can call these functions:

{functions}

To call one, write nothing but a block of this form, with the arguments as JSON:

```tool_call
{{"name": "function_name", "arguments": {{"argument": "value"}}}}
```

The result comes in the next message. Answer in plain text when no function helps."""


def fenced_parser(tools: ToolSchemas) -> AnswerParser:
    """Read calls of offered functions in fenced blocks."""

    def read(body: str) -> list[ToolCall] | None:
        calls = calls_in(body, tools)
        return calls if calls and all(call.name in tools for call in calls) else None

    return MarkedParser((OPENING, "```json\n"), CLOSING, read)


def explain_tools(messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Write tools, calls and results into plain messages, for a template that knows none of them.

    Messages are in the form ``normalise_messages`` gives them.
    """
    plain = [_plain(message) for message in messages]
    if not tools:
        return plain
    functions = "\n".join(json.dumps(tool.get("function", tool), ensure_ascii=False) for tool in tools)
    explanation = _EXPLANATION.format(functions=functions)
    if plain and plain[0]["role"] == "system":
        plain[0]["content"] = f"{plain[0]['content']}\n\n{explanation}"
    else:
        plain.insert(0, {"role": "system", "content": explanation})
    return plain


def _plain(message: Mapping[str, Any]) -> dict[str, Any]:
    if message["role"] == "tool":
        name = message.get("name") or message.get("tool_call_id") or "the function"
        return {"role": "user", "content": f"Result of {name}:\n{message['content']}"}
    blocks = [_block(call["function"]) for call in message.get("tool_calls") or ()]
    content = "\n".join(part for part in (message["content"], *blocks) if part)
    return {"role": message["role"], "content": content}


def _block(function: Mapping[str, Any]) -> str:
    call = {"name": function["name"], "arguments": function["arguments"]}
    return f"{OPENING}{json.dumps(call, ensure_ascii=False)}{CLOSING}"
