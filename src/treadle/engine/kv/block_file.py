"""The file of one stored KV block: a header that says whose block it is, the contents, a checksum over each.

Leaves to others: where files lie and when they go (``cache_folder``), and what is in a block (the native runtime).

The header, little-endian, is followed by the contents:

====== ===== ========================================================
offset bytes meaning
====== ===== ========================================================
0      8     magic
8      4     version of this format
12     4     tokens of the block
16     8     bytes of the contents
24     16    digest of the model file, its tokenizer included
40     16    digest of the KV layout and of the core that computes it
56     16    key: hash of all tokens up to the end of the block
72     4     CRC-32 of the contents
76     4     CRC-32 of the header up to here
====== ===== ========================================================
"""

from __future__ import annotations

import os
import struct
import zlib
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

from treadle.engine.private_file import write_private

__all__ = [
    "HEADER_BYTES",
    "KEY_BYTES",
    "BlockHeader",
    "CacheIdentity",
    "DamagedBlockError",
    "ForeignBlockError",
    "block_path",
    "key_of",
    "mark_used",
    "read_block",
    "read_header",
    "write_block",
]

KEY_BYTES = 16
_SUFFIX = ".kv"
_MAGIC = b"\x93TRDLKV\n"
_VERSION = 1
_FIELDS = struct.Struct("<8sIIQ16s16s16sI")
_CHECKSUM = struct.Struct("<I")
HEADER_BYTES = _FIELDS.size + _CHECKSUM.size


class DamagedBlockError(Exception):
    """A file of ours that lost some of its bytes, or has others than were written; it is of no use to anyone."""


class ForeignBlockError(Exception):
    """A file that is not ours, or that another release or another model wrote; somebody may still want it."""


@dataclass(frozen=True)
class CacheIdentity:
    """What two blocks must have in common, beside their tokens, to be the same: digests are of 16 bytes."""

    model: bytes
    layout: bytes
    block_tokens: int
    block_bytes: int

    @property
    def digest(self) -> bytes:
        """16 bytes that stand for all of it and for the version of the format."""
        fields = struct.pack("<I16s16sIQ", _VERSION, self.model, self.layout, self.block_tokens, self.block_bytes)
        return blake2b(fields, digest_size=16).digest()

    @property
    def file_bytes(self) -> int:
        """The size of the file of a block."""
        return HEADER_BYTES + self.block_bytes


@dataclass(frozen=True)
class BlockHeader:
    """What the header of a file says, once its own checksum has been found right."""

    identity: CacheIdentity
    key: bytes
    checksum: int

    def pack(self) -> bytes:
        """Return the header as it stands in the file."""
        identity = self.identity
        fields = _FIELDS.pack(
            _MAGIC,
            _VERSION,
            identity.block_tokens,
            identity.block_bytes,
            identity.model,
            identity.layout,
            self.key,
            self.checksum,
        )
        return fields + _CHECKSUM.pack(zlib.crc32(fields))


def block_path(folder: Path, key: bytes) -> Path:
    """Return the file of the block of ``key`` in the folder of its model."""
    return folder / (key.hex() + _SUFFIX)


def key_of(name: str) -> bytes | None:
    """Return the key of the block whose file has that name, None for what is no name of such a file."""
    stem = name.removesuffix(_SUFFIX)
    if stem == name or len(stem) != 2 * KEY_BYTES or stem != stem.lower():
        return None
    try:
        return bytes.fromhex(stem)
    except ValueError:
        return None


def read_header(head: bytes | memoryview) -> BlockHeader:
    """Take a header apart.

    Raises:
        DamagedBlockError: It is cut short, blank, or does not have its own checksum.
        ForeignBlockError: It is no header of this version.
    """
    start = bytes(head[: len(_MAGIC)])
    if start and not any(start):  # what a power cut leaves of a file whose name got to the disk before its contents
        raise DamagedBlockError("blank")
    if not _MAGIC.startswith(start):
        raise ForeignBlockError("not a KV block")
    if len(head) < HEADER_BYTES:
        raise DamagedBlockError(f"cut short: {len(head)} bytes of the {HEADER_BYTES} of a header")
    _, version, block_tokens, block_bytes, model, layout, key, checksum = _FIELDS.unpack_from(head)
    if version != _VERSION:
        raise ForeignBlockError(f"version {version} of the format, expected {_VERSION}")
    if _CHECKSUM.unpack_from(head, _FIELDS.size)[0] != zlib.crc32(head[: _FIELDS.size]):
        raise DamagedBlockError("its header does not have the checksum written into it")
    return BlockHeader(CacheIdentity(model, layout, block_tokens, block_bytes), key, checksum)


def read_block(path: Path, identity: CacheIdentity, key: bytes, buffer: bytearray) -> memoryview:
    """Read the file of a block, check all of it, and return the contents as a view into ``buffer``.

    Args:
        path: The file.
        identity: What the block must be of.
        key: Which block it must be.
        buffer: ``identity.file_bytes`` bytes to read into, so that many reads need one allocation.

    Raises:
        DamagedBlockError: The file is not what was written.
        ForeignBlockError: The file is not ours, or of something else.
        OSError: It cannot be read.
    """
    view = memoryview(buffer)
    num_read = 0
    with path.open("rb", buffering=0) as file:
        file_bytes = os.fstat(file.fileno()).st_size
        while num_read < len(view) and (count := file.readinto(view[num_read:])):
            num_read += count
    header = read_header(view[: min(num_read, HEADER_BYTES)])
    if (header.identity, header.key) != (identity, key):
        raise ForeignBlockError("a block of another model, layout or text")
    if num_read < len(view) or file_bytes != len(view):
        raise DamagedBlockError(f"has {file_bytes} bytes, expected {len(view)}")
    contents = view[HEADER_BYTES:]
    if zlib.crc32(contents) != header.checksum:
        raise DamagedBlockError("its contents do not have the checksum in the header")
    return contents


def mark_used(path: Path, used_ns: int) -> None:
    """Note when a block was last used, if that can be; the system's own access times are often switched off."""
    with suppress(OSError):
        os.utime(path, ns=(used_ns, used_ns))


def write_block(
    folder: Path, identity: CacheIdentity, key: bytes, contents: bytes | memoryview, *, used_ns: int
) -> None:
    """Write the file of a block; ``used_ns`` becomes its time of last use. Raises OSError.

    It is not flushed to the disk: losing a block costs less than making every other program wait for the disk, and
    the checksums find what a power cut has torn.
    """
    header = BlockHeader(identity, key, zlib.crc32(contents)).pack()
    write_private(block_path(folder, key), header, contents, used_ns=used_ns)
