"""Reads what the keywords of a JSON schema hold: texts, counts, bounds and whole values.

Leaves to others: keywords that hold schemas (``structured.json_schema``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, NoReturn

from treadle.errors import UsageError

__all__ = ["plain_text", "plain_value", "read_count", "read_number", "read_step", "refuse"]

_MAX_EXACT = 2**53  # the grammar engine counts in floating point
_MAX_COUNT = 2**31 - 1
_MAX_STEP = 10_000  # a step needs as many states as it has units
_MIN_POWER = -9
_MAX_DEPTH = 48
_MAX_PATH = 120
_ESCAPED = frozenset("\b\f\n\r\t")


def refuse(path: str, problem: str) -> NoReturn:
    """Say which part of a schema is at fault."""
    shown = "".join(each if each.isprintable() else repr(each)[1:-1] for each in path)
    if len(shown) > _MAX_PATH:
        shown = f"{shown[: _MAX_PATH // 2]}…{shown[-_MAX_PATH // 2 :]}"
    raise UsageError(f"the schema cannot be enforced: {shown}: {problem}", field="form")


def plain_text(value: Any, path: str) -> str:
    """Check a text that answers have to spell."""
    if not isinstance(value, str):
        refuse(path, f"expected text, found {value!r:.80}")
    for character in value:
        if "\ud800" <= character <= "\udfff" or (character < " " and character not in _ESCAPED):
            refuse(path, f"the character U+{ord(character):04X} cannot be enforced")
    return value


def plain_value(value: Any, path: str, depth: int = 0) -> Any:
    """Check a value that answers have to spell."""
    if depth > _MAX_DEPTH:
        refuse(path, f"the value has more than {_MAX_DEPTH} levels")
    if isinstance(value, str):
        return plain_text(value, path)
    if isinstance(value, Mapping):
        return {plain_text(key, path): plain_value(each, path, depth + 1) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain_value(each, path, depth + 1) for each in value]
    if isinstance(value, int | float) and not isinstance(value, bool):
        if isinstance(value, int) and abs(value) > _MAX_EXACT:
            refuse(path, f"{value!r:.40} is beyond 2^53 and cannot be enforced exactly")
        if not math.isfinite(value):
            refuse(path, f"{value!r} is no JSON number")
    return value


def read_number(value: Any, path: str) -> int | float:
    """Check a bound."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        refuse(path, f"expected a number, found {value!r:.80}")
    if not abs(value) <= _MAX_EXACT:
        refuse(path, f"{value!r:.40} is beyond 2^53 and cannot be enforced exactly")
    if 0 < abs(value) < 1e-30:
        refuse(path, f"{value!r} is nearer to zero than 1e-30 and cannot be enforced exactly")
    return value


def read_step(value: Any, path: str) -> int | float:
    """Check what numbers have to be a multiple of."""
    step = read_number(value, path)
    if step <= 0:
        refuse(path, f"expected more than 0, found {step!r}")
    _, digits, power = Decimal(repr(step)).normalize().as_tuple()
    units = int("".join(map(str, digits)))
    assert isinstance(power, int)
    if power < _MIN_POWER or units * 10 ** max(power, 0) > _MAX_STEP:
        refuse(
            path,
            f"steps of {step!r} cannot be enforced, only those of up to {_MAX_STEP} units of 1e{_MIN_POWER} or more",
        )
    return step


def read_count(value: Any, path: str) -> int:
    """Check a length or number of parts; 3.0 is 3."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0 or value != value // 1:
        refuse(path, f"expected a whole number from 0 on, found {value!r:.80}")
    return min(int(value), _MAX_COUNT)
