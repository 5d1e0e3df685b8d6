"""Files that lie, are cut or are not GGUF: each ends in one error that names the object, never in a crash."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oracles import gguf_bytes as g
from treadle import _native
from treadle.errors import ModelFileError, UsageError
from treadle.models.gguf import ModelFile

Write = Callable[[bytes], Path]
ALIGNMENT = "general.alignment"


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write_file(content: bytes) -> Path:
        path = tmp_path / "hostile.gguf"
        path.write_bytes(content)
        return path

    return write_file


def refused(path: Path, *fragments: str) -> None:
    with pytest.raises(ModelFileError) as caught:
        ModelFile.open(path)
    text = str(caught.value)
    for fragment in (path.name, *fragments):
        assert fragment in text


def one_tensor(dims: list[int], kind: int = g.TYPE_F32, offset: int = 0, tail: int = 32, **extra: int) -> bytes:
    return g.padded(g.header(1, 0) + g.tensor("t", dims, kind, offset, **extra)) + bytes(tail)


def nested_arrays(depth: int) -> bytes:
    nested = g.array_head(g.ARR, 1) * (depth - 1) + g.array(g.U8, [7])
    return g.header(0, 1) + g.string("deep") + struct.pack("<I", g.ARR) + nested


TWO_TENSORS = g.header(2, 0) + g.tensor("first", [8], g.TYPE_F32, 0)
LYING_FILES = {
    # truncation
    "one byte short": (one_tensor([1024], tail=4095), 4159, ["tensor 't'", "4096 bytes", "4160", "4159"]),
    "magic only": (b"GGUF", 4, ["version", "needs 4 bytes", "0 of the file's 4"]),
    "half a magic": (b"GG", 2, ["magic", "needs 4 bytes", "2 of the file's 2"]),
    "no data at all": (one_tensor([8], tail=0), 64, ["tensor 't'", "96", "64"]),
    "counts cut": (g.header(0, 0)[:-1], 23, ["key count", "needs 8 bytes"]),
    # offsets
    "offset wraps": (one_tensor([8], offset=2**64 - 32), 96, ["tensor 't'", str(2**64 - 32), "96 bytes"]),
    "offset at the end": (one_tensor([8], offset=96), 96, ["tensor 't'", "192", "96"]),
    "offset not aligned": (one_tensor([8], offset=16, tail=64), 128, ["tensor 't'", "offset 16", "alignment 32"]),
    "same offset": (
        g.padded(TWO_TENSORS + g.tensor("b", [8], g.TYPE_F32, 0)) + bytes(32),
        128,
        ["tensor 'b'", "overlaps tensor 'first'"],
    ),
    "partial overlap": (
        g.padded(g.header(2, 0) + g.tensor("a", [16], 0, 0) + g.tensor("b", [8], 0, 32)) + bytes(64),
        160,
        ["tensor 'b'", "overlaps tensor 'a'"],
    ),
    "second offset not aligned": (
        g.padded(g.header(2, 0) + g.tensor("a", [8], 0, 0) + g.tensor("b", [8], 0, 16)) + bytes(64),
        160,
        ["tensor 'b'", "offset 16"],
    ),
    # sizes
    "element count wraps": (one_tensor([4, 2**30 - 1, 2**30 + 1]), 128, ["tensor 't'", "1073741823", "2^63"]),
    "element count far too big": (one_tensor([2**42 + 1, 2**22]), 128, ["tensor 't'", "2^63"]),
    "byte size wraps": (one_tensor([2**62 - 32]), 96, ["tensor 't'", "2^63 - 1 bytes"]),
    "negative dimension": (one_tensor([-1]), 96, ["tensor 't'", str(2**64 - 1)]),
    "nine dimensions": (one_tensor([1] * 9), 160, ["tensor 't'", "1 to 4 dimensions", "found 9"]),
    "four billion dimensions": (one_tensor([1], num_dims=2**32 - 1), 96, ["tensor 't'", "found 4294967295"]),
    "no dimension": (one_tensor([], offset=0), 96, ["tensor 't'", "found 0"]),
    "zero dimension": (one_tensor([4, 0]), 128, ["tensor 't'", "[4, 0]", "dimension of 0"]),
    "unknown type": (one_tensor([8], kind=2**32 - 1), 96, ["tensor 't'", "4294967295", "known ggml type"]),
    "removed type": (one_tensor([32], kind=4), 96, ["tensor 't'", "type 4 "]),
    "row of part blocks": (one_tensor([8, 64], kind=g.TYPE_Q6_K, tail=420), 516, ["tensor 't'", "256", "rows of 8"]),
    # counts
    "key count lies": (g.header(0, 3) + g.key("a", g.U8, 1), None, ["key 2 of 3", "cut short"]),
    "too many keys": (g.header(0, 2**64 - 1), 24, ["65536 keys", str(2**64 - 1)]),
    "too many tensors": (g.header(2**64 - 1, 0), 24, ["tensors", str(2**64 - 1)]),
    "array length lies": (g.header(0, 1) + g.array_key("a", g.U8, [1], count=2**61), None, ["key 'a'", str(2**61)]),
    "string array lies": (
        g.header(0, 1) + g.array_key("a", g.STR, ["x"], count=2**61),
        None,
        ["key 'a'", "at least 8"],
    ),
    "array of wrapping size": (g.header(0, 1) + g.array_key("a", g.U64, [], count=2**61), None, ["key 'a'"]),
    "string length lies": (g.header(0, 1) + g.string("k", length=2**64 - 1), None, [str(2**64 - 1)]),
    "string of the array lies": (
        g.header(0, 1) + g.array_key("a", g.U8, [])[:-12] + g.array_head(g.STR, 1) + g.string("x", length=9),
        None,
        ["key 'a'", "needs 9 bytes"],
    ),
    # types and values
    "unknown value type": (g.header(0, 1) + g.string("k") + struct.pack("<IQ", 13, 0), None, ["key 'k'", "found 13"]),
    "unknown element type": (
        g.header(0, 1) + g.string("k") + struct.pack("<IIQ", g.ARR, 99, 0),
        None,
        ["key 'k'", "found 99"],
    ),
    "bool of 2": (g.header(0, 1) + g.key("k", g.BOOL, 2), None, ["key 'k'", "bool", "found 2"]),
    "arrays too deep": (nested_arrays(9), None, ["key 'deep'", "nested deeper", "8"]),
    "arrays far too deep": (nested_arrays(100_000), None, ["key 'deep'", "nested deeper"]),
    # names and text
    "key twice": (g.header(0, 2) + g.key("k", g.U8, 1) * 2, None, ["key 'k'", "twice"]),
    "tensor twice": (
        g.padded(g.header(2, 0) + g.tensor("t", [8], 0, 0) + g.tensor("t", [8], 0, 32)) + bytes(64),
        None,
        ["tensor 't'", "twice"],
    ),
    "key without a name": (g.header(0, 1) + g.key("", g.U8, 1), None, ["key 1 of 1", "empty"]),
    "tensor without a name": (one_tensor([8]).replace(b"\x01" + bytes(7) + b"t", bytes(8), 1), None, ["tensor 1 of 1"]),
    "key too long": (g.header(0, 1) + g.key("k" * 65536, g.U8, 1), None, ["key 1 of 1", "65536 bytes"]),
    "key not text": (g.header(0, 1) + g.key(b"k\xff", g.U8, 1), None, ["key 1 of 1", r"'k\xff'", "UTF-8"]),
    "value not text": (
        g.header(0, 1) + g.key("k", g.STR, b"\xed\xa0\x80"),
        None,
        ["key 'k'", r"\xed\xa0\x80", "UTF-8"],
    ),
    "token not text": (
        g.header(0, 1) + g.array_key("tokenizer.ggml.tokens", g.STR, ["a", b"\xc0\x80"]),
        None,
        ["key 'tokenizer.ggml.tokens'", "element 1", r"'\xc0\x80'", "UTF-8"],
    ),
    "tensor name not text": (
        g.padded(g.header(1, 0) + g.tensor(b"t\x80", [8], 0, 0)) + bytes(32),
        None,
        ["tensor 1 of 1", r"'t\x80'", "UTF-8"],
    ),
    "name that clears the screen": (g.header(0, 1) + g.key("\x1b[2J\x9bm", g.BOOL, 9), None, [r"'\x1b[2J\xc2\x9bm'"]),
    # alignment
    "alignment 0": (g.header(0, 1) + g.key(ALIGNMENT, g.U32, 0), 57, [ALIGNMENT, "power of two", "found 0"]),
    "alignment 24": (g.header(0, 1) + g.key(ALIGNMENT, g.U32, 24), 57, [ALIGNMENT, "power of two", "found 24"]),
    "alignment 2^31": (g.header(0, 1) + g.key(ALIGNMENT, g.U32, 2**31), 57, [ALIGNMENT, "found 2147483648"]),
    "alignment 4": (g.header(0, 1) + g.key(ALIGNMENT, g.U32, 4), 57, [ALIGNMENT, "from 8", "found 4"]),
    "alignment as int32": (g.header(0, 1) + g.key(ALIGNMENT, g.I32, 32), 57, [ALIGNMENT, "uint32", "found int32"]),
    "alignment as array": (g.header(0, 1) + g.array_key(ALIGNMENT, g.U32, [32]), None, [ALIGNMENT, "found array"]),
    # not GGUF, or a kind that cannot be read
    "other magic": (g.header(0, 0, magic=b"PK\x03\x04"), 24, ["not a GGUF file", r"'PK\x03\x04'"]),
    "version 1": (g.header(0, 0, version=1), 24, ["version 2 or 3", "found 1"]),
    "version 4": (g.header(0, 0, version=4), 24, ["version 2 or 3", "found 4"]),
    "big-endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), 24, ["big-endian"]),
}


@pytest.mark.parametrize("case", LYING_FILES)
def test_a_lying_file_is_refused(case: str, write: Write) -> None:
    content, num_bytes, fragments = LYING_FILES[case]
    if num_bytes is not None:
        assert len(content) == num_bytes
    refused(write(content), *fragments)


def test_every_truncation_is_refused(write: Write) -> None:
    keys = g.key("s", g.STR, "text") + g.array_key("a", g.STR, ["x", "yz"]) + nested_arrays(2)[24:]
    whole = g.padded(g.header(1, 3) + keys + g.tensor("t", [8], 0, 0)) + bytes(32)
    ModelFile.open(write(whole))
    for length in range(len(whole)):
        refused(write(whole[:length]))


@given(st.data())
def test_a_damaged_file_is_refused_or_consistent(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    keys = g.key(ALIGNMENT, g.U32, 32) + g.array_key("a", g.STR, ["x", "yz"]) + nested_arrays(3)[24:]
    entries = g.tensor("t", [32, 2], g.TYPE_Q4_0, 0) + g.tensor("u", [3, 2], g.TYPE_F16, 64)
    damaged = bytearray(g.padded(g.header(2, 3) + keys + entries) + bytes(96))
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(damaged) - 1))
        damaged[place] = data.draw(st.sampled_from([0, 1, 0x7F, 0x80, 0xFF]) | st.integers(0, 255))
    path = tmp_path_factory.getbasetemp() / "damaged.gguf"
    path.write_bytes(damaged)
    try:
        model = ModelFile.open(path)
    except ModelFileError:
        return
    for tensor in model.tensors:
        assert len(model.native.read(tensor.name, 0, tensor.num_bytes)) == tensor.num_bytes
    assert isinstance(dict(model.metadata), dict)


def test_accepted_neighbours_of_refused_files(write: Write) -> None:
    """The least change that makes a refused file right is accepted, so the cases above fail for their reason."""
    for content in [
        one_tensor([1024], tail=4096),
        g.padded(g.header(2, 0) + g.tensor("a", [8], 0, 0) + g.tensor("b", [8], 0, 32)) + bytes(64),
        one_tensor([256, 2], kind=g.TYPE_Q6_K, tail=420),
        one_tensor([2, 2, 2, 1]),
        nested_arrays(8),
        g.header(0, 1) + g.key(ALIGNMENT, g.U32, 32),
        g.header(0, 1) + g.key("k" * 65535, g.U8, 1),
        g.header(0, 0, version=2),
    ]:
        ModelFile.open(write(content))


def test_shrinking_after_opening_is_an_error_not_a_signal(write: Write) -> None:
    path = write(g.padded(g.header(1, 1) + g.key("k", g.STR, "kept") + g.tensor("t", [1024], 0, 0)) + bytes(4096))
    model = ModelFile.open(path)
    size = path.stat().st_size
    os.truncate(path, size - 1)
    with pytest.raises(ModelFileError, match=f"tensor 't'.* {size} bytes.* ends at {size - 1}"):
        model.native.read("t", 0, 4096)
    os.truncate(path, 0)
    assert model.metadata["k"] == "kept"
    with pytest.raises(ModelFileError, match="tensor 't'"):
        model.native.read("t", 0, 1)


def test_reading_outside_a_tensor_is_the_callers_mistake(write: Write) -> None:
    native = ModelFile.open(write(one_tensor([8]))).native
    assert native.read("t", 32, 0) == b""
    for offset, count in [(0, 33), (33, 0), (2**64 - 1, 2), (1, 2**64 - 1)]:
        with pytest.raises(IndexError):
            native.read("t", offset, count)
    with pytest.raises(KeyError):
        native.read("u", 0, 1)


@pytest.mark.model
def test_a_cut_model_names_what_is_missing(smollm2_path: Path, tmp_path: Path) -> None:
    size = smollm2_path.stat().st_size
    with smollm2_path.open("rb") as file:
        head = file.read(4 << 20)
    path = tmp_path / "cut.gguf"

    def cut_to(length: int) -> Path:
        path.write_bytes(head[:length])
        os.truncate(path, length)  # sparse beyond the header, whose bytes are all that opening reads
        return path

    ModelFile.open(cut_to(size))
    refused(cut_to(size - 1), "tensor", str(size), str(size - 1))
    refused(cut_to(size // 2), "tensor", str(size // 2))
    refused(cut_to(24), "key 1 of", "24")
    refused(cut_to(100_000), "tokenizer.ggml.tokens", "100000")


def test_paths_that_cannot_be_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.gguf")
    paths: dict[str | Path, str] = {
        tmp_path / "absent.gguf": "No such file",
        tmp_path: "directory",
        tmp_path / "pipe.gguf": "pipe",
        "/dev/null": "device",
        tmp_path / ("x" * 300): "name too long",
        "a\0b": "null",
        "": "No such file",
    }
    for path, reason in paths.items():
        with pytest.raises(UsageError, match=reason):
            ModelFile.open(path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads every file")
def test_a_file_without_permission(write: Write) -> None:
    path = write(g.header(0, 0))
    path.chmod(0)
    with pytest.raises(UsageError, match="Permission denied"):
        ModelFile.open(path)


def test_an_empty_file(write: Write) -> None:
    refused(write(b""), "empty file")


def test_a_path_that_is_not_utf8(tmp_path: Path) -> None:
    path = Path(os.fsdecode(bytes(tmp_path) + b"/\xff.gguf"))
    path.write_bytes(g.header(0, 0))
    assert ModelFile.open(path).path == path
    path.write_bytes(b"GGUF")
    with pytest.raises(ModelFileError, match=r"\\xff\.gguf"):
        ModelFile.open(path)


def test_errors_of_other_rooms_survive_such_a_path(tmp_path: Path) -> None:
    path = Path(os.fsdecode(bytes(tmp_path) + b"/\xff.gguf"))
    path.write_bytes(g.header(0, 0))
    with pytest.raises(ModelFileError, match=r"\\xff\.gguf"):
        _native.Model.load(ModelFile.open(path).native, cpus=[-1])


def test_limits_on_what_a_header_may_hold(tmp_path: Path) -> None:
    """Sparse files: the limits are far above real models, and nothing may be allocated to find them passed."""
    path = tmp_path / "huge.gguf"
    path.write_bytes(g.header(0, 1) + g.array_key("a", g.U8, [], count=2**24 + 1))
    os.truncate(path, 2**25)
    refused(path, "key 'a'", "16777217 elements", "limit of 16777216")
    path.write_bytes(g.header(0, 1) + g.string("s") + struct.pack("<I", g.STR) + g.string("", length=2**30))
    os.truncate(path, 2**31)
    refused(path, "key 's'", "header is longer than the limit of 1073741824 bytes")
