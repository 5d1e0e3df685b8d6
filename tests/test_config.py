from pathlib import Path

import platformdirs
import pytest

from treadle.config import Settings, parse_bytes
from treadle.errors import UsageError


def test_without_variables_files_go_to_the_cache_folder_of_the_platform() -> None:
    assert Settings.from_environment({}) == Settings(platformdirs.user_cache_path("treadle", appauthor=False))


def test_variables_are_read(tmp_path: Path) -> None:
    variables = {"TREADLE_HOME": str(tmp_path / "new"), "TREADLE_ISA": "avx2", "TREADLE_MEMORY": "6GiB"}
    variables |= {"TREADLE_RAM_CACHE": "1GiB", "TREADLE_DISK_CACHE": "4GB", "TREADLE_KV_TYPE": "q8_0"}
    found = Settings.from_environment(variables)
    assert found == Settings(tmp_path / "new", "avx2", "q8_0", 6 << 30, 1 << 30, 4 * 10**9)


def test_a_home_is_always_absolute(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "user"))
    assert Settings.from_environment({"TREADLE_HOME": "models"}).home == tmp_path / "models"
    assert Settings.from_environment({"TREADLE_HOME": "~/models"}).home == tmp_path / "user" / "models"


def test_an_empty_home_is_refused() -> None:
    with pytest.raises(UsageError, match="TREADLE_HOME: expected a folder, found an empty value"):
        Settings.from_environment({"TREADLE_HOME": " "})


def test_a_home_that_is_a_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(UsageError, match=f"TREADLE_HOME: expected a folder, found a file: {file}"):
        Settings.from_environment({"TREADLE_HOME": str(file)})


def test_a_misspelt_variable_is_refused_and_a_strange_one_is_not() -> None:
    with pytest.raises(UsageError, match="TREADLE_HOMR is set, but Treadle does not know it\nhint: did you mean"):
        Settings.from_environment({"TREADLE_HOMR": "/tmp"})
    Settings.from_environment({"TREADLE_TEST_MODELS": "/tmp"})


@pytest.mark.parametrize(
    ("text", "size"),
    [
        (0, 0),
        (12345, 12345),
        ("0", 0),
        ("512", 512),
        ("512 B", 512),
        ("6GiB", 6 << 30),
        (" 1.5 gib ", 3 << 29),
        ("2G", 2 << 30),
        ("800MB", 800_000_000),
        ("3kB", 3000),
        ("1T", 1 << 40),
    ],
)
def test_sizes_are_read(text: int | str, size: int) -> None:
    assert parse_bytes("memory", text) == size


@pytest.mark.parametrize("text", ["", "much", "-1", -1, True, "1e9", "5iB", "6 GiBs", "٣", "1.", "nan", "9" * 400])
def test_what_is_no_size_is_refused_by_name(text: int | str) -> None:
    with pytest.raises(UsageError, match="--memory: expected a size such as 6GiB or 800MB, found"):
        parse_bytes("--memory", text)


def test_a_variable_that_is_no_size_is_refused() -> None:
    with pytest.raises(UsageError, match="TREADLE_MEMORY: expected a size such as 6GiB or 800MB, found 'lots'"):
        Settings.from_environment({"TREADLE_MEMORY": "lots"})
    assert Settings.from_environment({"TREADLE_MEMORY": ""}).memory_bytes is None
