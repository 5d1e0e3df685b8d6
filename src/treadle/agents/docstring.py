"""Reads what a docstring in Google's style says of a function and of its parameters.

Leaves to others: which parameters there are (``signature``).
"""

from __future__ import annotations

import inspect
import re

__all__ = ["read_docstring"]

_PARAMETER_SECTIONS = {"Args:", "Arguments:", "Parameters:"}
_SECTION = re.compile(r"[A-Z][A-Za-z ]*:")
_ENTRY = re.compile(r"\*{0,2}(\w+)\s*(?:\([^)]*\))?:\s*(.*)")


def read_docstring(text: str | None) -> tuple[str, dict[str, str]]:
    """Return the text before the first section, and what is said of each parameter, each in one line per paragraph."""
    lines = inspect.cleandoc(text or "").splitlines()
    first = next((index for index, line in enumerate(lines) if _is_section(lines, index)), len(lines))
    described: dict[str, str] = {}
    for index in range(first, len(lines)):
        if lines[index] in _PARAMETER_SECTIONS:
            described |= _entries(_indented(lines[index + 1 :]))
    return _paragraphs(lines[:first]), described


def _is_section(lines: list[str], index: int) -> bool:
    """Tell whether a line is the head of a section: a title alone, with indented lines below."""
    is_title = _SECTION.fullmatch(lines[index]) is not None
    return is_title and index + 1 < len(lines) and lines[index + 1].startswith(" ")


def _indented(lines: list[str]) -> list[str]:
    end = next((index for index, line in enumerate(lines) if line and not line.startswith(" ")), len(lines))
    return inspect.cleandoc("\n" + "\n".join(lines[:end])).splitlines()


def _entries(lines: list[str]) -> dict[str, str]:
    found: dict[str, list[str]] = {}
    name = None
    for line in lines:
        entry = None if line.startswith(" ") else _ENTRY.fullmatch(line)
        if entry is not None:
            name = entry[1]
            found[name] = [entry[2]]
        elif name is not None:
            found[name].append(line.strip())
    return {name: " ".join(part for part in parts if part) for name, parts in found.items()}


def _paragraphs(lines: list[str]) -> str:
    paragraphs = re.split(r"\n\s*\n", "\n".join(lines).strip())
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)
