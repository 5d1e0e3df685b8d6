"""Keys of files and of the environment, and keys that change while the server runs."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from treadle.errors import UsageError
from treadle.server.keys import Keyring, read_keys
from treadle.server.reload import Reload
from treadle.server.settings import ServerSettings


@pytest.fixture(autouse=True)
def _no_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TREADLE_API_KEY", raising=False)


def test_a_file_has_one_key_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "keys"
    path.write_bytes("\ufefffirst\r\n\n# for the staff\n  zweiter-schlüssel\t\n#third\nfirst\n".encode())
    assert read_keys(path) == ("first", "zweiter-schlüssel")
    monkeypatch.setenv("TREADLE_API_KEY", " mine ")
    assert read_keys(path) == ("mine", "first", "zweiter-schlüssel")
    assert read_keys(None) == ("mine",)
    monkeypatch.setenv("TREADLE_API_KEY", " ")
    assert read_keys(None) == ()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "there is no key in it"),
        (b"# none yet\n\n", "there is no key in it"),
        (b"first\nse-cret  # alice\n", "line 2: expected a key without spaces"),
        (b"se-cret\0\n", "line 1: expected a key without spaces"),
        (b"\xff\xfe\n", "can't decode"),
    ],
)
def test_a_file_that_is_no_list_of_keys_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes, message: str
) -> None:
    monkeypatch.setenv("TREADLE_API_KEY", "mine")
    (tmp_path / "keys").write_bytes(content)
    with pytest.raises(UsageError, match=message) as caught:
        read_keys(tmp_path / "keys")
    assert "se-cret" not in str(caught.value)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file"):
        read_keys(tmp_path / "keys")


def test_a_key_is_found_by_its_id() -> None:
    keys = Keyring(["first", "schlüssel"])
    assert keys
    assert keys.find(b"firs") is None
    assert keys.find("schlüssel".encode()) not in (None, keys.find(b"first"))
    assert not Keyring()


def test_keys_are_read_again_and_stay_if_the_file_does_not_fit(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "keys"
    path.write_text("old\n")
    settings = ServerSettings(api_keys=read_keys(path), api_key_file=path)
    keys = Keyring(settings.api_keys)
    reload = Reload(settings, keys, None)
    assert reload.has_files
    path.write_text("new\nnewer\n")
    with caplog.at_level(logging.INFO, logger="treadle.server"):
        reload()
        assert keys.find(b"old") is None
        assert keys.find(b"newer")
        path.write_text("# emptied by mistake\n")
        reload()
    assert keys.find(b"new")
    assert [record.levelname for record in caplog.records if record.name == "treadle.server"] == ["INFO", "ERROR"]
    assert not Reload(ServerSettings(), Keyring(), None).has_files
