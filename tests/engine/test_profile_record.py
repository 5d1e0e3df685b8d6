"""A profile as a file: what is written is read again, and what is broken is refused with one clear error."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from profile_cases import LIMITS, decode, operator, record

from treadle.engine.profile.record import Cell
from treadle.engine.profile.record_file import parse_record, read_record, record_dict, record_text
from treadle.errors import UsageError

SAMPLE = Path(__file__).parent / "profiles" / "smollm2.json"
READING = operator("gate_up", 0.025, wait=0.005, num_bytes=1e9, num_ops=4e9)


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    made = record(decode(READING, counts={"cycles": None, "context_switches": 5}), decode(READING, streams=16))
    path = tmp_path / "profile.json"
    path.write_text(record_text(made))
    assert read_record(path) == made


def test_the_sample_is_a_record_and_stays_as_it_is() -> None:
    sample = read_record(SAMPLE)
    assert [cell.name for cell in sample.cells[:4]] == [
        "prompt of 128",
        "prompt of 512",
        "prompt of 1024",
        "decode, 1 stream",
    ]
    assert json.loads(record_text(sample)) == json.loads(SAMPLE.read_text())


def test_figures_that_follow_are_written_for_readers() -> None:
    found = record_dict(record(decode(READING)))["cells"][0]
    assert found["derived"]["read_share"] == pytest.approx(0.8)
    assert found["derived"]["name"] == "decode, 1 stream"
    derived = found["operators"][0]["derived"]
    assert derived["roofline_share"] == pytest.approx(0.8)  # 20 ms of reading at the least, in 25 ms
    assert derived["intensity"] == pytest.approx(4.0)
    assert derived["step_share"] == pytest.approx(1.0)


def test_an_operator_without_work_has_no_limit() -> None:
    idle = operator("sample", 0.001)
    assert idle.limit_seconds(LIMITS) is None and idle.roofline_share(LIMITS) is None and idle.intensity is None


@pytest.mark.parametrize(
    ("rates", "spread"),
    [((10.0,), None), ((9.0, 11.0), 0.2), ((8.0, 9.0, 10.0, 11.0, 30.0), 0.2), ((10.0,) * 4, 0.0)],
)
def test_the_spread_is_that_of_the_middle_half(rates: tuple[float, ...], spread: float | None) -> None:
    cell = decode(READING, rates=rates)
    assert cell.spread == (None if spread is None else pytest.approx(spread))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "expected the JSON of a profile"),
        ("{", "expected the JSON of a profile"),
        ("\x00\xff", "expected the JSON of a profile"),
        ("[" * 100_000, "nested too deep"),
        ("[]", "found another JSON document"),
        ("7", "found another JSON document"),
        ('{"schema": 99}', "found schema 99"),
        ('{"schema": 1}', "damaged at created"),
        ('{"schema": 1, "seconds": NaN}', "a number that is NaN"),
    ],
)
def test_what_is_no_profile_is_refused(text: str, words: str) -> None:
    with pytest.raises(UsageError, match=words) as refused:
        parse_record(text, "old.json")
    assert str(refused.value).startswith("old.json: ")
    assert "treadle profile MODEL --json FILE" in (refused.value.hint or "")


def _cell(found: dict[str, Any]) -> dict[str, Any]:
    cell: dict[str, Any] = found["cells"][0]
    return cell


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda found: _cell(found).pop("limits"), "damaged at cells.0.limits"),
        (lambda found: _cell(found).update(kind="sleep"), "damaged at cells.0.kind"),
        (lambda found: _cell(found).update(rates=[]), "a rate is not above 0"),
        (lambda found: _cell(found).update(rates=[-1.0]), "a rate is not above 0"),
        (lambda found: _cell(found).update(num_streams="two"), "damaged at cells.0.num_streams"),
        (lambda found: _cell(found)["operators"][0].update(num_ops=None), "damaged at cells.0.operators.0.num_ops"),
        (lambda found: found.update(machine=[]), "damaged at machine"),
    ],
)
def test_a_damaged_profile_is_refused_where_it_is(damage: Callable[[dict[str, Any]], Any], words: str) -> None:
    found = record_dict(record(decode(READING)))
    damage(found)
    with pytest.raises(UsageError, match=words):
        parse_record(json.dumps(found), "old.json")


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"missing\.json: the profile cannot be read"):
        read_record(tmp_path / "missing.json")
    with pytest.raises(UsageError, match="cannot be read"):
        read_record(tmp_path)


def test_a_cell_without_operators_reads_nothing() -> None:
    cell: Cell = replace(decode(READING), operators=())
    assert (cell.num_bytes, cell.num_ops, cell.read_share) == (0, 0, 0)
