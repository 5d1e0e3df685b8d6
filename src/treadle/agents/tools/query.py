"""The tools that ask the tables and the JSON documents of a workspace.

Leaves to others: the answers (``query_work``, ``json_work``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from treadle.agents.gate import ToolGate
from treadle.agents.tool import ToolResult, ToolSpec
from treadle.agents.tools.child import ChildLimits, run_child
from treadle.agents.tools.local_tool import LocalTool, parameters
from treadle.agents.tools.text import without_fence
from treadle.agents.tools.workspace import Workspace
from treadle.errors import ToolError

__all__ = ["query_tools"]

_LIMITS = ChildLimits(cpu_seconds=20, wall_seconds=120.0)
_MAX_QUERY_CHARS = 10_000
_WORK = {"query_table": "treadle.agents.tools.query_work", "query_json": "treadle.agents.tools.json_work"}

_TABLE = ToolSpec(
    "query_table",
    "Ask a table file (CSV, TSV, JSON lines) with a SQLite SELECT. The table is named data; files beside it are tables "
    "by their names. Without sql it shows the columns and the first rows: look at them first.",
    parameters(
        {"file": {"type": "string", "description": "Path of the file, relative to the workspace."}},
        {
            "sql": {
                "type": "string",
                "description": "Such as: SELECT SUM(price) FROM data WHERE city = 'Lima'",
            }
        },
    ),
    is_read_only=True,
)
_JSON = ToolSpec(
    "query_json",
    "Look into a JSON file with a JMESPath. Without path it shows what is in the file: look at that first.",
    parameters(
        {"file": {"type": "string", "description": "Path of the file, relative to the workspace."}},
        {"path": {"type": "string", "description": "Such as: users[0].name, or length(users), or users[*].email"}},
    ),
    is_read_only=True,
)


def query_tools(
    workspace: Workspace, *, gate: ToolGate | None = None, limits: ChildLimits | None = None
) -> list[LocalTool]:
    """Return the tools that ask the files of a workspace, which the caller closes when they are no longer used.

    Args:
        workspace: The folder.
        gate: What a query passes before it starts.
        limits: What a query may take.
    """

    async def ask(name: str, file: str, key: str, question: str) -> ToolResult:
        if len(question) > _MAX_QUERY_CHARS or "\0" in question:
            raise ToolError(f"{key} has at most {_MAX_QUERY_CHARS:,} characters, none of them NUL")
        request = {
            "root": str(workspace.root),
            "fd": workspace.fd,
            "file": file,
            key: without_fence(question),
        }
        return await run_child(_WORK[name], request, name=name, fds=[workspace.fd], gate=gate, limits=limits or _LIMITS)

    async def ask_table(arguments: Mapping[str, Any]) -> ToolResult:
        return await ask(_TABLE.name, arguments["file"], "sql", arguments.get("sql", ""))

    async def ask_json(arguments: Mapping[str, Any]) -> ToolResult:
        return await ask(_JSON.name, arguments["file"], "path", arguments.get("path", ""))

    return [LocalTool(_TABLE, ask_table), LocalTool(_JSON, ask_json)]
