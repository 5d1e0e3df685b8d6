"""Finds what the references of a JSON schema point to.

Leaves to others: what is found there (``structured.json_schema``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import unquote

from treadle.engine.structured.schema_values import refuse

__all__ = ["child_path", "find_target"]


def child_path(path: str, key: object) -> str:
    """Return the JSON pointer of a part of what is at ``path``."""
    return f"{path}/{str(key).replace('~', '~0').replace('/', '~1')}"


def find_target(root: Any, ref: Any, path: str) -> tuple[str, Any]:
    """Return the pointer and the schema that a reference at ``path`` means.

    Raises:
        UsageError: It leads outside of the schema, or to nothing.
    """
    if not isinstance(ref, str):
        refuse(path, f"expected text, found {ref!r:.80}")
    base, _, fragment = ref.partition("#")
    if base and base != (root.get("$id") if isinstance(root, Mapping) else None):
        refuse(path, f"{ref!r:.80} leads outside of the schema, and nothing is fetched")
    pointer = unquote(fragment)
    if pointer and not pointer.startswith("/"):
        found = next(_anchored(root, "#", pointer), None)
        if found is None:
            refuse(path, f"nothing has the anchor {pointer!r:.80}")
        return found
    target, at = root, "#"
    for step in pointer.split("/")[1:]:
        key = step.replace("~1", "/").replace("~0", "~")
        if isinstance(target, Mapping) and key in target:
            target = target[key]
        elif isinstance(target, list) and key.isdecimal() and int(key) < len(target):
            target = target[int(key)]
        else:
            refuse(path, f"{ref!r:.80} leads to nothing")
        at = child_path(at, key)
    return at, target


def _anchored(node: Any, path: str, name: str) -> Iterator[tuple[str, Any]]:
    if isinstance(node, Mapping):
        if node.get("$anchor") == name:
            yield path, node
        for key, each in node.items():
            yield from _anchored(each, child_path(path, key), name)
    elif isinstance(node, list):
        for index, each in enumerate(node):
            yield from _anchored(each, child_path(path, index), name)
