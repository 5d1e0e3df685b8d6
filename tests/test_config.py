from pathlib import Path

import platformdirs
import pytest

from treadle.config import Settings, parse_bytes
from treadle.errors import UsageError


def test_without_variables_files_go_to_the_cache_folder_of_the_platform() -> None:
    assert Settings.from_environment({}) == Settings(platformdirs.user_cache_path("treadle", appauthor=False))


def test_variables_are_read(tmp_path: Path) -> None:
    variables = {"TREADLE_HOME": str(tmp_path / "new"), "TREADLE_ISA": "avx2", "TREADLE_MEMORY": "6GiB"}
    variables |= {
        "TREADLE_RAM_CACHE": "1GiB",
        "TREADLE_DISK_CACHE": "4GB",
        "TREADLE_KV_TYPE": "q8_0",
        "TREADLE_ENGINE": "native",
    }
    found = Settings.from_environment(variables)
    assert found == Settings(tmp_path / "new", "avx2", "q8_0", 6 << 30, 1 << 30, 4 * 10**9, engine="native")


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


def test_settings_of_the_machine_are_read() -> None:
    variables = {"TREADLE_THREADS": "3", "TREADLE_PROMPT_THREADS": "4", "TREADLE_PIN": "off", "TREADLE_NUMA": "node"}
    variables |= {"TREADLE_HUGE_PAGES": "no", "TREADLE_ADAPT": "1", "TREADLE_MLOCK": "on", "TREADLE_CONTEXT": "4096"}
    found = Settings.from_environment(variables, [])
    assert (found.threads, found.prompt_threads, found.pin, found.numa) == (3, 4, False, "node")
    assert (found.huge_pages, found.adapt, found.mlock, found.context) == (False, True, True, 4096)


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("TREADLE_THREADS", "0", "expected a whole number above 0, found '0'"),
        ("TREADLE_THREADS", "two", "expected a whole number above 0, found 'two'"),
        ("TREADLE_PIN", "perhaps", "expected on or off, found 'perhaps'"),
    ],
)
def test_values_that_make_no_sense_are_refused_by_name(name: str, value: str, expected: str) -> None:
    with pytest.raises(UsageError, match=f"{name}: {expected}"):
        Settings.from_environment({name: value})


def test_arguments_win_over_variables_over_the_folder_over_the_user(tmp_path: Path) -> None:
    near, far = tmp_path / "near.toml", tmp_path / "far.toml"
    near.write_text('threads = 2\nkv_type = "q8_0"\npin = false\n')
    far.write_text('threads = 1\nmemory = "2GiB"\ncontext = 1024\n')
    found = Settings.from_environment({"TREADLE_KV_TYPE": "f16"}, [near, tmp_path / "missing.toml", far])
    found = found.override(context=512, memory=None)
    assert (found.threads, found.kv_type, found.pin, found.memory_bytes, found.context) == (
        2,
        "f16",
        False,
        2 << 30,
        512,
    )
    assert [found.why(name) for name in ("context", "kv_type", "threads")] == [
        "as asked for",
        "as TREADLE_KV_TYPE says",
        f"as {near} says",
    ]


def test_the_settings_files_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(platformdirs, "user_config_path", lambda *_, **__: tmp_path / "user")
    (tmp_path / "user").mkdir()
    (tmp_path / "user/treadle.toml").write_text('threads = 7\nisa = "ref"\n')
    (tmp_path / "treadle.toml").write_text("threads = 5\n")
    found = Settings.from_environment({})
    assert (found.threads, found.isa) == (5, "ref")
    assert found.why("threads") == "as treadle.toml says"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("thread = 2", "does not know the key 'thread'\nhint: did you mean threads?"),
        ("[http]\nport = 1", "does not know the key 'http'\nhint: it may hold adapt, adapter_memory, "),
        ("threads = true", "threads: expected a whole number above 0, found True"),
        ("memory = 1.5", "memory: expected a size such as 6GiB or 800MB, found 1.5"),
        ("isa = 5", "isa: expected text, found 5"),
        ("pin = 2", "pin: expected on or off, found 2"),
        ("threads 2\n", "line 1"),
        ("isa = '\\xff", "cannot be read"),
    ],
)
def test_a_settings_file_with_anything_strange_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "treadle.toml"
    path.write_bytes(text.replace("\\xff", "\xff").encode("latin-1"))
    with pytest.raises(UsageError) as caught:
        Settings.from_environment({}, [path])
    assert str(caught.value).startswith(f"{path}: ")
    assert message in str(caught.value)
