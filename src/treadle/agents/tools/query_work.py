"""Asks tables with SQL, in a child process because a query may take for ever or all memory.

The tables are copied into a database in memory that can only be read; nothing a query says reaches a file.

Leaves to others: reading the files (``table_file``), starting and stopping the process (``child``).
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

from treadle.agents.tools.table_file import TABLE_ENDINGS, read_table
from treadle.agents.tools.text import head
from treadle.agents.tools.workspace import Workspace, shown
from treadle.errors import ToolError

__all__ = ["work"]

_MAX_FILE_BYTES = 64 << 20
_MAX_TABLES = 8
_MAX_ROWS, _MAX_COUNTED_ROWS = 50, 100_000
_NUM_FIRST_ROWS = 3
_MAX_CELL_CHARS = 200
_ALLOWED = (sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE)
# Strings and comments, which are passed over, and names in double quotes, which are looked at.
_TOKENS = re.compile(r"'(?:[^']|'')*'|--[^\n]*|/\*.*?\*/|\"((?:[^\"]|\"\")*)\"", re.DOTALL)
_ALIAS = re.compile(r"\bas\s+(?:\"([^\"]*)\"|(\w+))", re.IGNORECASE)
_NO_TABLE = re.compile(r"no such table: (?:main\.)?(.+)")


def work(request: Mapping[str, Any]) -> str:
    """Return the answer to ``sql``, or what the file has in it if that is empty.

    Raises:
        ToolError: The file is no table, or the query is wrong; the text names the columns.
    """
    workspace = Workspace(request["root"], fd=request["fd"])
    database = _Database(workspace, workspace.names_of(request["file"]))
    sql = request["sql"].strip()
    return head("\n".join([*(database.answer(sql) if sql else database.describe()), *database.notes()]))


class _Database:
    def __init__(self, workspace: Workspace, names: tuple[str, ...]) -> None:
        self._workspace = workspace
        self._folder = names[:-1]
        self._columns: dict[str, Sequence[str]] = {}  # of each table
        self._types: Sequence[str] = ()
        self._notes: list[str] = []
        self._is_loading = True
        self._connection = sqlite3.connect(":memory:", isolation_level=None)
        self._connection.set_authorizer(self._authorize)
        self._name = shown("/".join(names))
        self._types = self._load("data", names)
        stem = PurePosixPath(names[-1]).stem
        if stem.casefold() != "data":
            self._connection.execute(f"CREATE VIEW {_quoted(stem)} AS SELECT * FROM data")
            self._columns[stem] = self._columns["data"]
        self._is_loading = False

    def answer(self, sql: str) -> Iterator[str]:
        cursor = self._run(sql)
        titles = [each[0] for each in cursor.description or ()]
        rows = self._fetch(cursor)
        yield " | ".join(titles)
        yield from (_row_text(row) for row in rows[:_MAX_ROWS])
        if len(rows) <= _MAX_ROWS:
            yield f"({len(rows)} row{'s' * (len(rows) != 1)})"
        else:
            more = "more than " if len(rows) > _MAX_COUNTED_ROWS else ""
            yield f"[cut: the first {_MAX_ROWS} of {more}{min(len(rows), _MAX_COUNTED_ROWS):,} rows; use LIMIT or sums]"

    def describe(self) -> Iterator[str]:
        ((num_rows,),) = self._connection.execute("SELECT count(*) FROM data")
        yield f"{self._name} is the table data: {num_rows:,} row{'s' * (num_rows != 1)} with the columns"
        for name, kind in zip(self._columns["data"], self._types, strict=True):
            yield f"- {_as_typed(name)}{f' ({kind})' if kind else ''}"
        yield "first rows:"
        rows = self._connection.execute(f"SELECT * FROM data LIMIT {_NUM_FIRST_ROWS}")
        yield from (_row_text(row) for row in rows)

    def notes(self) -> list[str]:
        return [f"[note: {note}]" for note in self._notes]

    def _run(self, sql: str) -> sqlite3.Cursor:
        for _ in range(_MAX_TABLES):
            try:
                cursor = self._connection.execute(sql)
            except (sqlite3.Error, sqlite3.Warning) as error:
                missing = _NO_TABLE.fullmatch(str(error))
                if missing is None:
                    self._check_quotes(sql)
                if missing is None or not self._load_beside(missing[1]):
                    raise self._refusal(error) from None
            else:
                self._check_quotes(sql)
                return cursor
        raise ToolError(f"a query may use at most {_MAX_TABLES} files")

    def _fetch(self, cursor: sqlite3.Cursor) -> list[Sequence[Any]]:
        try:
            rows = cursor.fetchmany(_MAX_ROWS + 1)
            while len(rows) > _MAX_ROWS and len(rows) <= _MAX_COUNTED_ROWS and (more := cursor.fetchmany(1000)):
                rows += [()] * len(more)
        except sqlite3.Error as error:
            raise self._refusal(error) from None
        return rows

    def _load(self, table: str, names: tuple[str, ...]) -> Sequence[str]:
        read = read_table(self._workspace.read(names, _MAX_FILE_BYTES), "/".join(names))
        columns = ", ".join(f"{_quoted(name)} {kind}" for name, kind in zip(read.columns, read.types, strict=True))
        places = ", ".join("?" * len(read.columns))
        self._connection.execute("BEGIN")
        self._connection.execute(f"CREATE TABLE {_quoted(table)} ({columns})")
        self._connection.executemany(f"INSERT INTO {_quoted(table)} VALUES ({places})", read.rows())
        self._connection.execute("COMMIT")
        self._columns[table] = read.columns
        self._notes += [f"{shown('/'.join(names))}: {note}" for note in read.notes]
        return read.types

    def _load_beside(self, table: str) -> bool:
        """Read the file beside the first one that a query means by the name of a table, if there is one."""
        for entry in self._workspace.entries(self._folder):
            path = PurePosixPath(entry.names[-1])
            if (
                entry.is_file
                and path.suffix in TABLE_ENDINGS
                and table.casefold() in (path.stem.casefold(), path.name.casefold())
            ):
                self._is_loading = True
                self._load(table, entry.names)
                self._is_loading = False
                return True
        return False

    def _check_quotes(self, sql: str) -> None:
        """Refuse what SQLite would take for text although it is written as a name: a typo would find nothing."""
        known = {name.casefold() for table, columns in self._columns.items() for name in (table, *columns)}
        known |= {(quoted or plain).casefold() for quoted, plain in _ALIAS.findall(sql)}
        for name in _TOKENS.findall(sql):
            if name and name.replace('""', '"').casefold() not in known:
                raise ToolError(f'"{name}" is no column; text stands in single quotes. {self._known()}')

    def _refusal(self, error: Exception) -> ToolError:
        if "not authorized" in str(error) or "prohibited" in str(error):
            return ToolError("only one SELECT statement can be run, and it cannot change anything")
        return ToolError(f"the query failed: {error}. {self._known()}")

    def _known(self) -> str:
        return ". ".join(
            f"The table {_as_typed(table)} has the columns {', '.join(map(_as_typed, columns))}"
            for table, columns in self._columns.items()
            if table == "data" or columns is not self._columns["data"]
        )

    def _authorize(self, action: int, *_: object) -> int:
        return sqlite3.SQLITE_OK if self._is_loading or action in _ALLOWED else sqlite3.SQLITE_DENY


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _as_typed(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) else _quoted(name)


def _row_text(row: Sequence[Any]) -> str:
    return " | ".join(map(_cell_text, row))


def _cell_text(value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, float):
        return f"{value:.12g}"
    text = str(value).replace("\n", "\\n").replace("\r", "\\r")
    return text if len(text) <= _MAX_CELL_CHARS else f"{text[:_MAX_CELL_CHARS]}..."
