"""An MCP server that says what it is told to, however bad: its tools are a JSON file, its answers are named by it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

HELLO = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": {"name": "h", "version": "1"}}
script = json.loads(Path(sys.argv[1]).read_text())


def send(request: dict[str, Any], **fields: Any) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", "id": request["id"], **fields}) + "\n")
    sys.stdout.flush()


def answer(request: dict[str, Any]) -> None:
    method = request["method"]
    if method == "initialize":
        if script.get("is_silent"):
            sys.stdin.read()
        send(request, result=HELLO)
    elif method == "tools/list":
        page = int((request.get("params") or {}).get("cursor") or 0)
        more = {"nextCursor": str(page + 1)} if script.get("is_endless") else {}
        send(
            request,
            result={"tools": [{**tool, "name": f"{tool['name']}{page or ''}"} for tool in script["tools"]], **more},
        )
    elif method == "tools/call":
        name = request["params"]["name"]
        if name == "flood":
            sys.stderr.write("x" * 1_000_000 + "\n" + "y\n" * 1000)
            sys.stdout.write("this is no message\n" + "z" * (64 << 20))
            sys.stdout.flush()
        elif name == "wrong":
            send(request, result={"content": 7})
        else:
            send(request, result=script["result"])
    elif "id" in request:
        send(request, error={"code": -32601, "message": "unknown"})


for line in sys.stdin:
    received = json.loads(line)
    if "method" in received and (received.get("id") is not None):
        answer(received)
