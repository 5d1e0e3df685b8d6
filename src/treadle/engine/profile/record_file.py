"""A profile as JSON, and back; figures that follow from others are written for readers and not read again.

Leaves to others: what the fields mean (``record``).
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any, NoReturn

from treadle.engine.profile.record import SCHEMA, Cell, ProfileRecord
from treadle.errors import UsageError

__all__ = ["parse_record", "read_record", "record_dict", "record_text"]

_MOST_BYTES = 256 << 20
_HINT = "give a file that `treadle profile MODEL --json FILE` wrote"


def record_dict(record: ProfileRecord) -> dict[str, Any]:
    """Return the record as values for JSON, with what follows from them in ``derived``."""
    found = asdict(record)
    for cell, values in zip(record.cells, found["cells"], strict=True):
        values["derived"] = _derived(cell)
        for operator, described in zip(cell.operators, values["operators"], strict=True):
            described["derived"] = {
                "seconds": operator.seconds,
                "step_share": operator.seconds / cell.timed_seconds,
                "intensity": operator.intensity,
                "bytes_per_second": operator.num_bytes / operator.seconds if operator.seconds else None,
                "ops_per_second": operator.num_ops / operator.seconds if operator.seconds else None,
                "limit_seconds": operator.limit_seconds(cell.limits),
                "roofline_share": operator.roofline_share(cell.limits),
            }
    return found


def record_text(record: ProfileRecord) -> str:
    """Return the record as JSON."""
    return json.dumps(record_dict(record), allow_nan=False) + "\n"


def read_record(path: Path) -> ProfileRecord:
    """Read a record.

    Raises:
        UsageError: There is no such file, or it is no record of this release.
    """
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise UsageError(f"{path}: expected a profile, found a file of {path.stat().st_size:,} bytes", hint=_HINT)
        text = path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path}: the profile cannot be read: {error.strerror or error}", hint=_HINT) from None
    return parse_record(text, str(path))


def parse_record(text: bytes | str, name: str) -> ProfileRecord:
    """Return the record that ``text`` is the JSON of; raises UsageError, which names ``name``."""
    from pydantic import TypeAdapter, ValidationError  # noqa: PLC0415  slow to import, rarely wanted

    try:
        head = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{name}: expected the JSON of a profile, found {_short(error)}", hint=_HINT) from None
    schema = head.get("schema") if isinstance(head, dict) else None
    if schema != SCHEMA:
        found = "another JSON document" if schema is None else f"schema {schema!r:.20}"
        raise UsageError(f"{name}: expected a profile with schema {SCHEMA}, found {found}", hint=_HINT)
    try:
        record = TypeAdapter(ProfileRecord).validate_json(text, strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise UsageError(f"{name}: the profile is damaged at {where:.80}: {first['msg']}", hint=_HINT) from None
    if not all(cell.rates and all(0 < rate < float("inf") for rate in cell.rates) for cell in record.cells):
        raise UsageError(f"{name}: the profile is damaged: a rate is not above 0", hint=_HINT)
    return record


def _derived(cell: Cell) -> dict[str, Any]:
    return {
        "name": cell.name,
        "rate": cell.rate,
        "spread": cell.spread,
        "pass_seconds": cell.pass_seconds,
        "num_bytes": cell.num_bytes,
        "num_ops": cell.num_ops,
        "intensity": cell.num_ops / cell.num_bytes if cell.num_bytes else None,
        "read_share": cell.read_share,
        "ops_share": cell.ops_share,
        "limit_share": cell.limit_share,
    }


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"a number that is {name}")


def _short(error: BaseException) -> str:
    return "something nested too deep" if isinstance(error, RecursionError) else f"{error!s:.80}"
