"""Byte-exact GGUF files for tests, also ones no honest writer would make.

Values are written as asked, never checked; files meant to be valid come from the ``gguf`` package instead.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

U8, I8, U16, I16, U32, I32, F32, BOOL, STR, ARR, U64, I64, F64 = range(13)
TYPE_F32, TYPE_F16, TYPE_Q4_0, TYPE_Q6_K = 0, 1, 2, 14

_FORMATS = {
    U8: "B",
    I8: "b",
    U16: "H",
    I16: "h",
    U32: "I",
    I32: "i",
    F32: "f",
    BOOL: "B",
    U64: "Q",
    I64: "q",
    F64: "d",
}


def header(num_tensors: int, num_keys: int, *, version: int = 3, magic: bytes = b"GGUF") -> bytes:
    return magic + struct.pack("<IQQ", version, num_tensors, num_keys)


def string(text: str | bytes, *, length: int | None = None) -> bytes:
    """A string, with another length than its own if asked."""
    raw = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(raw) if length is None else length) + raw


def value(kind: int, content: object) -> bytes:
    if kind == STR:
        assert isinstance(content, str | bytes)
        return string(content)
    return struct.pack(f"<{_FORMATS[kind]}", content)


def key(name: str | bytes, kind: int, content: object) -> bytes:
    return string(name) + struct.pack("<I", kind) + value(kind, content)


def array(kind: int, contents: Sequence[object], *, count: int | None = None) -> bytes:
    """The value of an array key: element type, count, elements."""
    return array_head(kind, len(contents) if count is None else count) + b"".join(value(kind, c) for c in contents)


def array_head(kind: int, count: int) -> bytes:
    return struct.pack("<IQ", kind, count)


def array_key(name: str | bytes, kind: int, contents: Sequence[object], *, count: int | None = None) -> bytes:
    return string(name) + struct.pack("<I", ARR) + array(kind, contents, count=count)


def tensor(name: str | bytes, dims: Sequence[int], kind: int, offset: int, *, num_dims: int | None = None) -> bytes:
    dims_bytes = b"".join(struct.pack("<Q", dim % 2**64) for dim in dims)
    return (
        string(name)
        + struct.pack("<I", len(dims) if num_dims is None else num_dims)
        + dims_bytes
        + struct.pack("<IQ", kind, offset)
    )


def padded(head: bytes, alignment: int = 32) -> bytes:
    """The header with zeros up to where the data section starts."""
    return head + bytes(-len(head) % alignment)
