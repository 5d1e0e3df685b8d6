import re

import pytest

from treadle.models.catalog import (
    CatalogEntry,
    HubSource,
    PackageSource,
    UrlSource,
    find_entry,
    load_catalog,
    unknown_model,
)
from treadle.models.sources.hub import parse_hub_reference

ENTRIES = list(load_catalog().values())


def test_the_catalog_is_of_the_size_its_readers_expect() -> None:
    assert 20 <= len(ENTRIES) <= 40


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_every_entry_is_complete(entry: CatalogEntry) -> None:
    assert re.fullmatch(r"[a-z0-9.-]+:[0-9.]+[mb]", entry.name)
    assert entry.architecture in ("llama", "qwen2")
    assert entry.title and entry.licence and entry.sources


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_the_size_in_a_name_is_the_number_of_parameters(entry: CatalogEntry) -> None:
    number, unit = re.fullmatch(r".*:([0-9.]+)([mb])", entry.name).groups()  # type: ignore[union-attr]
    named = float(number) * {"m": 1e6, "b": 1e9}[unit]
    assert named * 0.9 < entry.parameters < named * 1.25


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_every_source_is_well_formed(entry: CatalogEntry) -> None:
    for source in entry.sources:
        if isinstance(source, HubSource):
            assert parse_hub_reference(str(source)) == source
        elif isinstance(source, PackageSource):
            assert all(re.fullmatch(r"[\w-]+==[\d.]+", requirement) for requirement in source.requirements)
            assert re.fullmatch(r"[0-9a-f]{64}", source.sha256)
            assert source.file.endswith(".gguf")
        else:
            assert isinstance(source, UrlSource)


def test_names_are_found_in_any_letter_case() -> None:
    assert find_entry("SmolLM2:135M") is load_catalog()["smollm2:135m"]
    assert find_entry("smollm2") is None


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("smolm2:135m", "did you mean smollm2:135m"),
        ("Qwen2.5", "did you mean qwen2.5:0.5b, qwen2.5:1.5b, qwen2.5:3b, qwen2.5:7b, qwen2.5-coder:0.5b?"),
        ("my-own", "did you mean my-own-7b?"),
        ("", "`treadle list --catalog`"),
        ("xyzzy", "`treadle list --catalog`"),
    ],
)
def test_an_unknown_name_brings_up_those_that_are_close(name: str, hint: str) -> None:
    error = unknown_model(name, known=["my-own-7b"])
    assert f"unknown model {name!r}" in str(error)
    assert hint in (error.hint or "")
