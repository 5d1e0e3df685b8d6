"""`treadle cache`: what is kept, cleared, found damaged."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from command import Result, treadle
from oracles.tiny_model import TinyModel
from patience import PATIENCE_SECONDS
from stored_blocks import BLOCK_BYTES, FACTS, IDENTITY, block_files, keys, open_disk
from treadle.engine.kv.cache_folder import ModelFacts

OTHER = replace(IDENTITY, model=b"o" * 16)
ID, OTHER_ID = IDENTITY.digest.hex()[:8], OTHER.digest.hex()[:8]
DAY_NS = 86400 * 10**9


@pytest.fixture
def home(tmp_path: Path) -> Path:
    for identity, facts, count in ((IDENTITY, FACTS, 3), (OTHER, ModelFacts("Other", "/models/o.gguf", "l"), 2)):
        disk = open_disk(tmp_path, identity, facts=facts)
        for number in range(count):
            disk.put(keys(number)[0], np.full(BLOCK_BYTES, number, np.uint8), (number + 20000) * DAY_NS)
        disk.close(PATIENCE_SECONDS)
    return tmp_path


def cache(home: Path, *arguments: str) -> Result:
    result = treadle("cache", *arguments, TREADLE_HOME=str(home), TZ="UTC")
    assert "Traceback" not in result.err
    return result


def test_list_shows_models(home: Path) -> None:
    result = cache(home, "list")
    assert result.out == (
        "MODEL  ID        BLOCKS  TOKENS  SIZE    LAST USED\n"
        f"Other  {OTHER_ID}  2       64      6.2 kB  2024-10-05 00:00\n"
        f"Tiny   {ID}  3       96      9.2 kB  2024-10-06 00:00\n"
    )
    assert (result.code, result.err) == (0, f"15.4 kB in {home / 'kv-cache'}\n")


def test_list_as_json(home: Path) -> None:
    facts = json.loads(cache(home, "list", "--json").out)
    assert facts[1] == {
        "id": ID,
        "name": "Tiny",
        "path": "/models/tiny.gguf",
        "layout": "a test",
        "blocks": 3,
        "tokens": 96,
        "bytes": 9240,
        "last_used": "2024-10-06T00:00:00+00:00",
    }


def test_an_empty_folder_is_no_error(tmp_path: Path) -> None:
    assert cache(tmp_path, "list").out == ""
    assert json.loads(cache(tmp_path, "list", "--json").out) == []
    assert cache(tmp_path, "clear").err == "0 B set free\n"
    assert json.loads(cache(tmp_path, "verify", "--json").out) == {"blocks": 0, "bytes": 0, "problems": []}
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_lost_its_description_is_listed(home: Path) -> None:
    (home / "kv-cache" / IDENTITY.digest.hex() / "about.json").write_text("{")
    assert f"unknown  {ID}  3       0" in cache(home, "list").out
    assert cache(home, "clear", "-m", ID).err == "9.2 kB set free\n"


@pytest.mark.parametrize("name", ["tiny", "Tiny", ID])
def test_clear_takes_one_model(home: Path, name: str) -> None:
    assert cache(home, "clear", "--model", name).err == "9.2 kB set free\n"
    assert [path.parent.name[:8] for path in block_files(home)] == [OTHER_ID] * 2
    assert not (home / "kv-cache" / IDENTITY.digest.hex()).exists()


def test_clear_takes_all(home: Path) -> None:
    assert cache(home, "clear").err == "15.4 kB set free\n"
    assert block_files(home) == []
    assert cache(home, "list").out == ""


def test_clear_of_a_model_that_is_not_there_names_those_that_are(home: Path) -> None:
    result = cache(home, "clear", "--model", "smollm2")
    assert result.code == 1
    assert result.err == (
        f"error: no prompts of a model 'smollm2' are kept\nhint: there are: Other ({OTHER_ID}), Tiny ({ID})\n"
    )
    assert len(block_files(home)) == 5


def test_verify_deletes_what_is_damaged_and_leaves_what_is_foreign(home: Path) -> None:
    assert cache(home, "verify").err == "5 blocks read, 15.4 kB: 5 sound\n"
    files = block_files(home)
    torn, flipped, foreign = files[0], files[1], files[2]
    torn.write_bytes(torn.read_bytes()[:1000])
    flipped.write_bytes(flipped.read_bytes()[:-1] + b"!")
    foreign.write_bytes(b"no block" * 100)
    result = cache(home, "verify", "--json")
    found = json.loads(result.out)
    assert found["blocks"] == 5
    assert sorted(found["problems"], key=lambda problem: files.index(Path(problem["path"]))) == [
        {"path": str(torn), "problem": "has 1000 bytes, expected 3080", "deleted": True},
        {
            "path": str(flipped),
            "problem": "its contents do not have the checksum in the header",
            "deleted": True,
        },
        {"path": str(foreign), "problem": "not a KV block", "deleted": False},
    ]
    again = cache(home, "verify")
    assert (again.code, again.out) == (0, f"{foreign}: not a KV block (left alone)\n")
    assert again.err.endswith("sound\n")
    assert block_files(home) == files[2:]


def test_a_block_in_the_folder_of_another_model_is_foreign(home: Path) -> None:
    one, two = (home / "kv-cache" / identity.digest.hex() for identity in (IDENTITY, OTHER))
    file = next(one.glob("*.kv"))
    (two / file.name).write_bytes(file.read_bytes())
    assert "a block of another model, layout or text (left alone)" in cache(home, "verify").out


def test_a_command_keeps_its_prompt_and_warns_of_damage_once(tmp_path: Path) -> None:
    path = TinyModel().write(tmp_path / "tiny.gguf")
    run = ("run", "--raw", "-m", str(path), "--temperature", "0", "-n", "4", "--disk-cache", "1GiB", "in the inn " * 50)
    plain = treadle(*run, TREADLE_HOME=str(tmp_path))
    for file in block_files(tmp_path):
        file.write_bytes(file.read_bytes()[:-1] + b"?")
    damaged = treadle(*run, "--verbose", TREADLE_HOME=str(tmp_path))
    assert (plain.code, damaged.code, damaged.out) == (0, 0, plain.out)
    assert "prompts on disk: up to 1074 MB for all models" in damaged.err
    assert damaged.err.count("warning: ") == damaged.err.count("was damaged and is deleted") == 1
    assert cache(tmp_path, "verify").out == ""
