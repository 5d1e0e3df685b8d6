"""Reads files of rows as tables: CSV and its relatives however they are written, JSON and JSON lines.

Leaves to others: asking the tables (``query_work``).
"""

from __future__ import annotations

import csv
import io
import itertools
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

from treadle.agents.tools.text import decode
from treadle.errors import ToolError

__all__ = ["TABLE_ENDINGS", "Table", "read_json_document", "read_table"]

TABLE_ENDINGS = (".csv", ".tsv", ".jsonl", ".ndjson", ".json", ".txt")
Value = str | int | float | None

_JSON_LINES = (".jsonl", ".ndjson")
_MAX_COLUMNS = 500
_MAX_FIELD_CHARS = 1 << 20
_DELIMITERS = ",;\t|"
_SAMPLE_CHARS, _SAMPLE_ROWS = 1 << 16, 50
# Leading zeros, and more digits than a number holds, mean that it is no number: a post code, an account.
_INTEGER = re.compile(r"[+-]?(0|[1-9][0-9]{0,17})")
_REAL = re.compile(r"[+-]?((0|[1-9][0-9]{0,14})(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]{1,3})?")
_COMMA_REAL = re.compile(r"[+-]?(0|[1-9][0-9]{0,14}),[0-9]+")
# What stands for a missing number in a column of numbers.
_MISSING = frozenset({"", "NA", "N/A", "n/a", "NaN", "nan", "null", "NULL", "None", "-"})


@dataclass(frozen=True)
class Table:
    """Columns with their types ("integer", "real", "text" or, unknown, ""), and the rows, each as long as they are.

    ``notes`` say what was odd about the file. ``rows`` can be called again for the same rows.
    """

    columns: Sequence[str]
    types: Sequence[str]
    rows: Callable[[], Iterator[Sequence[Value]]]
    notes: Sequence[str] = field(default=())


def read_table(content: bytes, name: str) -> Table:
    """Return the table that a file has.

    Raises:
        ToolError: It is empty, binary, or no table; the text says where it stops being one.
    """
    text, _ = decode(content, name)
    if not text.strip():
        raise ToolError(f"{name} is empty")
    ending = PurePosixPath(name).suffix.lower()
    if ending == ".json" or ending in _JSON_LINES:
        return _json_table(_parse_json(text, name, ending), name)
    return _csv_table(text, name)


def read_json_document(content: bytes, name: str) -> Any:
    """Return what is in a JSON file; JSON lines are an array.

    Raises:
        ToolError: It is no JSON; the text says where.
    """
    text, _ = decode(content, name)
    ending = PurePosixPath(name).suffix.lower()
    if ending in (".csv", ".tsv"):
        raise ToolError(f"{name} is a table and no JSON; query_table reads it")
    return _parse_json(text, name, ending)


def _parse_json(text: str, name: str, ending: str) -> Any:
    try:
        if ending not in _JSON_LINES:
            return json.loads(text)
    except ValueError as error:
        raise ToolError(f"{name} is no JSON: {error}") from None
    except RecursionError:
        raise ToolError(f"{name} is nested too deep") from None
    lines = []
    for number, line in enumerate(text.split("\n"), start=1):
        try:
            if line.strip():
                lines.append(json.loads(line))
        except (ValueError, RecursionError) as error:
            raise ToolError(f"{name}, line {number}, is no JSON: {error}") from None
    return lines


def _json_table(document: Any, name: str) -> Table:
    if not isinstance(document, list):
        keys = f" with {', '.join(list(document)[:20])}" if isinstance(document, dict) else ""
        raise ToolError(f"{name} is one {_kind(document)}{keys} and no list of rows; query_json reads it")
    rows = [row if isinstance(row, dict) else {"value": row} for row in document]
    columns = list(dict.fromkeys(key for row in rows for key in row))
    if len(columns) > _MAX_COLUMNS:
        raise ToolError(f"{name} has {len(columns)} different keys; a table has at most {_MAX_COLUMNS} columns")
    names = _unique(columns)
    return Table(names, [""] * len(names), lambda: (tuple(_plain(row.get(key)) for key in columns) for row in rows))


def _kind(value: Any) -> str:
    return {dict: "object", str: "text", bool: "truth value", type(None): "null"}.get(type(value), "number")


def _plain(value: Any) -> Value:
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, int):
        return value if -(2**63) <= value < 2**63 else str(value)
    return value if value is None or isinstance(value, (str, float)) else json.dumps(value, ensure_ascii=False)


def _csv_table(text: str, name: str) -> Table:
    first, _, rest = text.partition("\n")
    if re.fullmatch(r"sep=.\r?", first.strip("\r")):  # a line for spreadsheets
        text, delimiter = rest, first[4]
    else:
        delimiter = _delimiter(text)
    scan = _Scan(name, delimiter)
    for number, row in _csv_rows(text, delimiter, name):
        scan.take(number, row)
    if not scan.header:
        raise ToolError(f"{name} has no rows")
    return scan.table(lambda: (row for _, row in _csv_rows(text, delimiter, name)))


def _csv_rows(text: str, delimiter: str, name: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the rows with the line that each ends in; blank lines are none."""
    csv.field_size_limit(_MAX_FIELD_CHARS)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, skipinitialspace=True)
    try:
        for row in reader:
            if row:
                yield reader.line_num, row
    except csv.Error as error:
        hint = "; a quote may not be closed" if "limit" in str(error) else ""
        raise ToolError(f"{name}, line {reader.line_num}, is no CSV: {error}{hint}") from None


def _delimiter(text: str) -> str:
    """Return the delimiter by which most of the first lines have as many fields as the first."""
    sample = text[:_SAMPLE_CHARS]
    if len(sample) < len(text):
        sample = sample.rpartition("\n")[0] or sample

    def score(delimiter: str) -> tuple[float, int]:
        reader = csv.reader(io.StringIO(sample, newline=""), delimiter=delimiter, skipinitialspace=True)
        try:
            rows = list(itertools.islice((row for row in reader if row), _SAMPLE_ROWS))
        except csv.Error:
            return 0, 0
        width = len(rows[0]) if rows else 0
        return (sum(len(row) == width for row in rows) / len(rows), width) if width > 1 else (0, 0)

    return max(_DELIMITERS, key=score)


class _Scan:
    """The header of a CSV file, what its columns have in common, and which rows are odd."""

    def __init__(self, name: str, delimiter: str) -> None:
        self.header: list[str] = []
        self._name = name
        self._is_comma_decimal = delimiter == ";"
        self._columns: list[_Column] = []
        self._num_short = 0
        self._num_long = 0

    def take(self, line: int, row: list[str]) -> None:
        if len(row) > _MAX_COLUMNS:
            raise ToolError(f"{self._name}, line {line}, has {len(row)} fields; a table has at most {_MAX_COLUMNS}")
        if not self.header:
            self.header = row
            self._columns = [_Column() for _ in row]
            return
        self._num_short += len(row) < len(self.header)
        if len(row) > len(self.header):
            self._num_long += 1
            self._columns += [_Column() for _ in range(len(row) - len(self._columns))]
        for column, value in zip(self._columns, row, strict=False):
            column.take(value)

    def table(self, rows: Callable[[], Iterable[list[str]]]) -> Table:
        readers = [column.reader(self._is_comma_decimal) for column in self._columns]
        num_columns = len(readers)

        def typed() -> Iterator[Sequence[Value]]:
            for row in itertools.islice(rows(), 1, None):
                padded = row + [""] * (num_columns - len(row))
                yield [read(value) for (_, read), value in zip(readers, padded, strict=True)]

        names = _unique([*self.header, *[""] * (num_columns - len(self.header))])
        return Table(names, [kind for kind, _ in readers], typed, self._notes())

    def _notes(self) -> list[str]:
        notes = []
        if self._num_short:
            notes.append(f"rows with fewer fields than the header: {self._num_short}; what they lack is NULL")
        if self._num_long:
            notes.append(f"rows with more fields than the header: {self._num_long}; they have columns without a name")
        if any(column.has_missing and column.kind(self._is_comma_decimal) != "text" for column in self._columns):
            notes.append("NA, n/a, null and the like among numbers are NULL")
        return notes


class _Column:
    """What all values of a column are so far."""

    def __init__(self) -> None:
        self.has_missing = False
        self._is_integer = self._is_real = self._is_comma_real = True
        self._has_values = False

    def take(self, value: str) -> None:
        value = value.strip()
        if value in _MISSING:
            self.has_missing |= value != ""
            return
        self._has_values = True
        if self._is_integer and not _INTEGER.fullmatch(value):
            self._is_integer = False
        if self._is_integer:
            return
        self._is_real = self._is_real and _REAL.fullmatch(value) is not None
        self._is_comma_real = self._is_comma_real and (
            _COMMA_REAL.fullmatch(value) is not None or _INTEGER.fullmatch(value) is not None
        )

    def kind(self, is_comma_decimal: bool) -> str:
        if not self._has_values:
            return "text"
        if self._is_integer:
            return "integer"
        return "real" if self._is_real or (self._is_comma_real and is_comma_decimal) else "text"

    def reader(self, is_comma_decimal: bool) -> tuple[str, Callable[[str], Value]]:
        """Return the type of the column, and what makes a value of a field."""
        kind = self.kind(is_comma_decimal)
        if kind == "text":
            return kind, lambda text: text or None
        if kind == "integer":
            return kind, lambda text: None if text.strip() in _MISSING else int(text)
        return kind, lambda text: None if text.strip() in _MISSING else float(text.replace(",", "."))


def _unique(header: Sequence[str]) -> list[str]:
    """Return names for columns, no two of which differ in case only."""
    names: list[str] = []
    taken: set[str] = set()
    for number, title in enumerate(header, start=1):
        name = base = " ".join(title.split()) or f"column_{number}"
        repeat = itertools.count(2)
        while name.casefold() in taken:
            name = f"{base}_{next(repeat)}"
        taken.add(name.casefold())
        names.append(name)
    return names
