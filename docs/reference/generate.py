"""Writes the pages of this folder from their sources: command line, docstrings, routes of the server, catalog.

With --check it writes nothing and fails if a page is not what it would write.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import re
import sys
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer
from http_page import http_page

import treadle
from treadle.cli.main import application
from treadle.models.catalog import load_catalog

FOLDER = Path(__file__).parent
NOTE = "<!-- Written by docs/reference/generate.py; change the source instead. -->"


def cli_page() -> Iterator[str]:
    yield from ("# Command line", "", NOTE, "")
    yield "Data goes to stdout, everything else to stderr. Exit codes: 0 done, 1 a request, file or machine that does"
    yield "not fit, 2 a bug in Treadle, 3 an agent that was stopped before it was done, 130 stopped by Ctrl-C."
    for name, command in commands(typer.main.get_command(application())):
        arguments = " ".join(f"[{parameter.name}]" for parameter in command.params if is_argument(parameter))
        yield from ("", f"## treadle {name}", "", f"`treadle {name} [OPTIONS] {arguments}".rstrip() + "`", "")
        yield from inspect.cleandoc(command.help or "").splitlines()
        yield from ("", "| option | meaning | default |", "| --- | --- | --- |")
        for parameter in command.params:
            yield f"| {spelling(parameter)} | {cell(parameter.help or '')} | {default(parameter)} |"


def commands(group: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every command with its full name, those of groups after the group's own name."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, f"{prefix}{name} ")
        else:
            yield prefix + name, command


def is_argument(parameter: Any) -> bool:
    return not parameter.opts[0].startswith("-")


def spelling(parameter: Any) -> str:
    names = ", ".join(f"`{name}`" for name in (*parameter.opts, *parameter.secondary_opts))
    return names if is_argument(parameter) or parameter.is_flag else f"{names} {parameter.name.upper()}"


def default(parameter: Any) -> str:
    value = parameter.default
    if value is None or value is False or value == () or callable(value):
        return ""
    return f"`{value}`"


def cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def python_page() -> Iterator[str]:
    yield from ("# Python", "", NOTE, "", "Everything here is imported from `treadle`.")
    for name in treadle.__all__:
        yield from ("", f"## {name}", "")
        yield from describe(name, getattr(treadle, name))


def describe(name: str, thing: Any) -> Iterator[str]:
    """A class: its signature, its words, its public methods and properties. A function: the first two."""
    is_error = isinstance(thing, type) and issubclass(thing, BaseException)
    if typing.is_typeddict(thing):
        yield from fence([f"{key}: {kind}" for key, kind in own_annotations(thing).items()])
    elif not is_error:
        yield from fence(signature(name, thing).splitlines())
    yield from prose(thing)
    if is_error or typing.is_typeddict(thing) or not isinstance(thing, type):
        return
    ours = [base for base in reversed(thing.__mro__) if base.__module__.startswith("treadle.")]
    for member_name, entry in {key: value for base in ours for key, value in vars(base).items()}.items():
        member = entry.__func__ if isinstance(entry, classmethod) else entry
        if member_name.startswith("_") or not (inspect.isfunction(member) or isinstance(member, property)):
            continue
        title = f"### {name}.{member_name}"
        if isinstance(member, property):
            yield from ("", title, "", *prose(member))
        else:
            yield from ("", title, "", *fence(signature(member_name, member).splitlines()))
            yield from prose(member)


def prose(thing: Any) -> Iterator[str]:
    """A docstring as Markdown: its sections of arguments and errors become lists."""
    for line in inspect.cleandoc(thing.__doc__ or "").replace("``", "`").splitlines():
        entry = re.fullmatch(r"    (\w+): (.*)", line)
        if line in ("Args:", "Raises:"):
            yield from (f"**{'Arguments' if line == 'Args:' else 'Raises'}**", "")
        elif entry:
            yield f"- `{entry[1]}`: {entry[2]}"
        else:
            yield line.replace("        ", "  ", 1) if line.startswith("        ") else line


def own_annotations(thing: Any) -> dict[str, str]:
    found: dict[str, str] = {}
    for base in reversed(getattr(thing, "__orig_bases__", ())):
        found |= own_annotations(base)
    return found | {key: getattr(kind, "__forward_arg__", str(kind)) for key, kind in thing.__annotations__.items()}


def signature(name: str, thing: Any) -> str:
    """One parameter a line when there is more than one, as written in the source."""
    if dataclasses.is_dataclass(thing):
        lines = ["*"] if dataclasses.fields(thing)[0].kw_only else []
        lines += [f"{field.name}: {field.type}{field_default(field)}" for field in dataclasses.fields(thing)]
        return f"{name}(\n" + "".join(f"    {line},\n" for line in lines) + ")"
    parameters = inspect.signature(thing)
    kept = [parameter for key, parameter in parameters.parameters.items() if key not in ("self", "cls")]
    text = str(parameters.replace(parameters=kept))
    return f"{name}{text}".replace("'", "")


def field_default(field: Any) -> str:
    if field.default is not dataclasses.MISSING:
        return f" = {field.default!r}"
    if field.default_factory is not dataclasses.MISSING:
        return f" = {field.default_factory()!r}"
    return ""


def fence(lines: list[str]) -> list[str]:
    return ["```", *lines, "```", ""]


def catalog_page() -> Iterator[str]:
    yield from ("# Catalog", "", NOTE, "", "Names that `treadle pull` and `-m` know.", "")
    yield from ("| name | model | parameters | licence |", "| --- | --- | --- | --- |")
    for entry in load_catalog().values():
        yield f"| `{entry.name}` | {entry.title} | {entry.parameters / 1e6:,.0f} M | {entry.licence} |"


PAGES = {
    "cli.md": cli_page,
    "python.md": python_page,
    "http.md": functools.partial(http_page, NOTE),
    "catalog.md": catalog_page,
}


def main() -> None:
    is_check = sys.argv[1:] == ["--check"]
    stale = []
    for name, page in PAGES.items():
        text = "\n".join(page()) + "\n"
        path = FOLDER / name
        if is_check and (not path.is_file() or path.read_text() != text):
            stale.append(name)
        elif not is_check:
            path.write_text(text)
    if stale:
        sys.exit(f"not current: {', '.join(stale)}; type `python docs/reference/generate.py`")


if __name__ == "__main__":
    main()
