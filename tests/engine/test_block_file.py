"""The file of a block: what is read is what was written, or an error says how it differs."""

from __future__ import annotations

import stat
import struct
import zlib
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stored_blocks import IDENTITY, keys
from treadle.engine.kv.block_file import (
    HEADER_BYTES,
    BlockHeader,
    CacheIdentity,
    DamagedBlockError,
    ForeignBlockError,
    block_path,
    key_of,
    read_block,
    read_header,
    write_block,
)

[KEY] = keys(1)
CONTENTS = bytes(range(250)) * 12
FIELDS = {
    "magic": 0,
    "version": 8,
    "tokens": 12,
    "bytes": 16,
    "model": 24,
    "layout": 40,
    "key": 56,
    "crc": 72,
    "head": 76,
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    write_block(tmp_path, IDENTITY, KEY, CONTENTS, used_ns=1_700_000_000_123_456_789)
    return block_path(tmp_path, KEY)


def read(path: Path, identity: CacheIdentity = IDENTITY, key: bytes = KEY) -> bytes:
    return bytes(read_block(path, identity, key, bytearray(identity.file_bytes)))


def test_a_block_is_read_as_it_was_written(path: Path) -> None:
    assert read(path) == CONTENTS
    assert path.stat().st_size == IDENTITY.file_bytes == HEADER_BYTES + len(CONTENTS)
    assert path.stat().st_mtime_ns == 1_700_000_000_123_456_789
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [each.name for each in path.parent.iterdir()] == [KEY.hex() + ".kv"]


DIGESTS = st.binary(min_size=16, max_size=16)


@given(st.binary(max_size=2000), st.tuples(DIGESTS, DIGESTS, st.integers(0, 2**32 - 1)), DIGESTS)
def test_any_block_is_read_as_it_was_written(
    tmp_path_factory: pytest.TempPathFactory, contents: bytes, kind: tuple[bytes, bytes, int], key: bytes
) -> None:
    folder = tmp_path_factory.mktemp("any")
    identity = CacheIdentity(*kind, len(contents))
    write_block(folder, identity, key, contents, used_ns=0)
    assert read(block_path(folder, key), identity, key) == contents
    header = read_header(block_path(folder, key).read_bytes())
    assert (header.identity, header.key) == (identity, key)
    assert key_of(block_path(folder, key).name) == key


@given(position=st.integers(0, IDENTITY.file_bytes - 1), change=st.integers(1, 255))
def test_no_changed_byte_goes_unnoticed(tmp_path_factory: pytest.TempPathFactory, position: int, change: int) -> None:
    folder = tmp_path_factory.mktemp("changed")
    write_block(folder, IDENTITY, KEY, CONTENTS, used_ns=0)
    file = block_path(folder, KEY)
    damaged = bytearray(file.read_bytes())
    damaged[position] ^= change
    file.write_bytes(damaged)
    with pytest.raises((DamagedBlockError, ForeignBlockError)):
        read(file)


@pytest.mark.parametrize(
    ("field", "error", "text"),
    [
        ("magic", ForeignBlockError, "not a KV block"),
        ("version", ForeignBlockError, "version 254 of the format, expected 1"),
        ("tokens", DamagedBlockError, "its header does not have the checksum"),
        ("bytes", DamagedBlockError, "its header does not have the checksum"),
        ("model", DamagedBlockError, "its header does not have the checksum"),
        ("layout", DamagedBlockError, "its header does not have the checksum"),
        ("key", DamagedBlockError, "its header does not have the checksum"),
        ("crc", DamagedBlockError, "its header does not have the checksum"),
        ("head", DamagedBlockError, "its header does not have the checksum"),
    ],
)
def test_damage_to_each_field_is_found(path: Path, field: str, error: type[Exception], text: str) -> None:
    damaged = bytearray(path.read_bytes())
    damaged[FIELDS[field]] ^= 0xFF
    path.write_bytes(damaged)
    with pytest.raises(error, match=text):
        read(path)


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [
        (0, "cut short: 0 bytes"),
        (79, "cut short: 79 bytes"),
        (80, "has 80 bytes, expected 3080"),
        (3079, "has 3079 bytes, expected 3080"),
        (3081, "has 3081 bytes, expected 3080"),
    ],
)
def test_a_torn_or_extended_file_is_damaged(path: Path, num_bytes: int, text: str) -> None:
    path.write_bytes((path.read_bytes() + b"\0")[:num_bytes])
    with pytest.raises(DamagedBlockError, match=text):
        read(path)


def test_a_file_that_a_power_cut_left_blank_is_damaged(path: Path) -> None:
    path.write_bytes(bytes(IDENTITY.file_bytes))
    with pytest.raises(DamagedBlockError, match="blank"):
        read(path)


def test_damaged_contents_are_found(path: Path) -> None:
    damaged = bytearray(path.read_bytes())
    damaged[-1] ^= 1
    path.write_bytes(damaged)
    with pytest.raises(DamagedBlockError, match="its contents do not have the checksum in the header"):
        read(path)


@pytest.mark.parametrize(
    ("identity", "key"),
    [
        (replace(IDENTITY, model=b"x" * 16), KEY),
        (replace(IDENTITY, layout=b"x" * 16), KEY),
        (replace(IDENTITY, block_tokens=16), KEY),
        (replace(IDENTITY, block_bytes=2999), KEY),
        (IDENTITY, keys(2)[0]),
    ],
)
def test_a_sound_block_of_something_else_is_foreign(path: Path, identity: CacheIdentity, key: bytes) -> None:
    assert identity.digest != IDENTITY.digest or key != KEY
    with pytest.raises(ForeignBlockError, match="a block of another model, layout or text"):
        read(path, identity, key)


def test_the_header_is_laid_out_as_documented() -> None:
    header = BlockHeader(IDENTITY, KEY, 0x01020304).pack()
    assert header[:8] == b"\x93TRDLKV\n"
    assert struct.unpack_from("<IIQ", header, 8) == (1, 32, 3000)
    assert header[24:72] == b"m" * 16 + b"l" * 16 + KEY
    assert header[72:] == bytes([4, 3, 2, 1]) + struct.pack("<I", zlib.crc32(header[:76]))


@pytest.mark.parametrize("name", ["x.kv", KEY.hex(), KEY.hex().upper() + ".kv", KEY.hex()[:-1] + "g.kv", "lock", ".kv"])
def test_other_names_are_of_no_block(name: str) -> None:
    assert key_of(name) is None


def test_a_write_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: Path, target: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(OSError, match="No space left"):
        write_block(tmp_path, IDENTITY, KEY, CONTENTS, used_ns=0)
    assert list(tmp_path.iterdir()) == []
