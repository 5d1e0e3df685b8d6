"""Looks into JSON documents with JMESPath, in a child process because documents and paths may be hostile.

Leaves to others: the language (https://jmespath.org), starting and stopping the process (``child``).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import jmespath
from jmespath.exceptions import JMESPathError

from treadle.agents.tools.table_file import read_json_document
from treadle.agents.tools.text import head
from treadle.agents.tools.workspace import Workspace
from treadle.errors import ToolError

__all__ = ["work"]

_MAX_FILE_BYTES = 64 << 20
_OUTLINE_DEPTH, _OUTLINE_KEYS, _OUTLINE_LINES = 4, 20, 60


def work(request: Mapping[str, Any]) -> str:
    """Return what is at ``path``, or the outline of the document if that is empty.

    Raises:
        ToolError: The file is no JSON, or the path is none.
    """
    workspace = Workspace(request["root"], fd=request["fd"])
    names = workspace.names_of(request["file"])
    document = read_json_document(workspace.read(names, _MAX_FILE_BYTES), "/".join(names))
    path = _as_jmespath(request["path"].strip())
    if not path:
        return head("\n".join(_outline(document, "", 0)))
    try:
        found = jmespath.search(path, document)
    except (JMESPathError, RecursionError, ValueError) as error:
        problem = str(error).partition("\n")[0] or type(error).__name__
        hint = "it should be like items[0].name, or items[?price > `5`].name"
        raise ToolError(f"{path!r} is no JMESPath: {problem}; {hint}") from None
    if found is None:
        return "\n".join(["nothing is there; the document has", *list(_outline(document, "", 0))[:_OUTLINE_LINES]])
    return head(found if isinstance(found, str) else json.dumps(found, ensure_ascii=False, indent=1))


def _as_jmespath(path: str) -> str:
    """Return a path without the `$` or the dot that other languages begin one with."""
    if path.startswith(("$", ".")):
        path = path.removeprefix("$").removeprefix(".")
        return path or "@"
    return path


def _outline(value: Any, path: str, depth: int) -> Iterator[str]:
    """Yield a line for each part of a document, as paths with what is there; of a list the first item is shown."""
    yield f"{path or '@'}: {_kind(value)}"
    if depth == _OUTLINE_DEPTH:
        return
    if isinstance(value, dict):
        for key in list(value)[:_OUTLINE_KEYS]:
            step = key if key.isidentifier() and key.isascii() else json.dumps(key, ensure_ascii=False)
            yield from _outline(value[key], f"{path}.{step}" if path else step, depth + 1)
    elif isinstance(value, list) and value:
        yield from _outline(value[0], f"{path}[0]", depth + 1)


def _kind(value: Any) -> str:
    if isinstance(value, dict):
        return f"object with {len(value)} key{'s' * (len(value) != 1)}"
    if isinstance(value, list):
        return f"list of {len(value)}"
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:60]}..."
