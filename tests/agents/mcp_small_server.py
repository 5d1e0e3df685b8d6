"""A small MCP server made with the SDK, over stdio, or over HTTP at the port given."""

from __future__ import annotations

import os
import subprocess
import sys
import time

from mcp.server.mcpserver import Image, MCPServer
from mcp_types import ToolAnnotations

server = MCPServer("small")


@server.tool(annotations=ToolAnnotations(read_only_hint=True))
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@server.tool()
def echo(text: str, times: int = 1) -> str:
    """Say it again."""
    return text * times


@server.tool()
def fail() -> str:
    raise ValueError("no luck")


@server.tool()
def hang() -> str:
    time.sleep(600)
    return ""


@server.tool()
def picture() -> Image:
    return Image(data=b"\x89PNG", format="png")


@server.tool()
def pids() -> str:
    """Start a process that outlives its parent; its id and our own."""
    child = subprocess.Popen(["sleep", "600"])
    return f"{os.getpid()} {child.pid}"


@server.tool()
def die() -> str:
    sys.stderr.write("goodbye, cruel world\n")
    sys.stderr.flush()
    os._exit(3)


if __name__ == "__main__":
    sys.stderr.write("ready to serve\n")
    sys.stderr.flush()
    if len(sys.argv) > 1:
        server.run("streamable-http", port=int(sys.argv[1]))
    else:
        server.run("stdio")
