"""The disk tier: limits, order of eviction, damage, full and read-only disks, several processes."""

from __future__ import annotations

import errno
import logging
import os
import stat
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from patience import PATIENCE_SECONDS
from stored_blocks import BLOCK_BYTES, CHARGE, FACTS, GENEROUS, IDENTITY, block_files, keys, open_disk
from treadle.engine.kv import disk_tier
from treadle.engine.kv.block_file import block_path, write_block
from treadle.engine.kv.cache_folder import CacheFolder
from treadle.engine.kv.disk_tier import PAUSE_SECONDS, DiskTier


def block(number: int) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    return np.random.default_rng(number).integers(0, 256, BLOCK_BYTES, dtype=np.uint8)


def fill(home: Path, *numbers: int, limit_bytes: int = GENEROUS) -> None:
    """Store blocks, each of them last used at the time of its number."""
    disk = open_disk(home, limit_bytes=limit_bytes)
    for number in numbers:
        assert disk.put(keys(number)[0], block(number), number)
    disk.close(PATIENCE_SECONDS)


def held(home: Path, *numbers: int) -> list[int]:
    disk = open_disk(home)
    found = [number for number in numbers if read(disk, number)]
    disk.close(PATIENCE_SECONDS)
    return found


def read(disk: DiskTier, number: int, used_ns: int = 0) -> bool:
    [key] = keys(number)
    if key not in disk:
        return False
    contents = disk.read(key, bytearray(IDENTITY.file_bytes), used_ns)
    assert contents is None or contents == block(number).tobytes()
    return contents is not None


def test_blocks_outlive_the_process_that_wrote_them(tmp_path: Path) -> None:
    fill(tmp_path, 1, 2, 3)
    assert held(tmp_path, 1, 2, 3, 4) == [1, 2, 3]


def test_a_block_that_waits_to_be_written_is_at_hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    may_write = threading.Event()

    def wait_and_write(*args: object, **kwargs: object) -> None:
        assert may_write.wait(PATIENCE_SECONDS)
        write_block(*args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(disk_tier, "write_block", wait_and_write)
    disk = open_disk(tmp_path, buffer_bytes=2 * BLOCK_BYTES)
    [a, b, c] = keys(1, 2, 3)
    assert disk.put(a, block(1), 1)
    assert disk.put(b, block(2), 2)
    assert not disk.is_accepting
    assert not disk.put(c, block(3), 3)
    assert a in disk
    assert b in disk
    assert c not in disk
    np.testing.assert_array_equal(disk.waiting(b), block(2))  # type: ignore[arg-type]
    may_write.set()
    disk.close(PATIENCE_SECONDS)
    assert held(tmp_path, 1, 2, 3) == [1, 2]
    assert not disk.put(c, block(3), 3)


def test_folders_and_files_are_private(tmp_path: Path) -> None:
    (tmp_path / "kv-cache").mkdir(mode=0o777)
    fill(tmp_path, 1)
    for path in (tmp_path / "kv-cache").rglob("*"):
        mode = stat.S_IMODE(path.stat().st_mode)
        assert mode == (0o700 if path.is_dir() else 0o600), path
    assert stat.S_IMODE((tmp_path / "kv-cache").stat().st_mode) == 0o700


def test_a_folder_of_another_user_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(PermissionError, match="kv-cache belongs to another user"):
        open_disk(tmp_path)


def test_the_least_recently_used_goes_when_the_limit_is_reached(tmp_path: Path) -> None:
    fill(tmp_path, *range(1, 9))
    disk = open_disk(tmp_path, limit_bytes=10 * CHARGE)
    assert read(disk, 1, used_ns=100)
    for number in (9, 10, 11):
        disk.put(keys(number)[0], block(number), number)
    disk.close(PATIENCE_SECONDS)
    found = held(tmp_path, *range(1, 12))
    assert found[0] == 1
    assert found[1:] == list(range(12 - len(found) + 1, 12))
    assert 7 <= len(found) <= 10


def test_a_touched_block_stays(tmp_path: Path) -> None:
    fill(tmp_path, *range(1, 9))
    disk = open_disk(tmp_path, limit_bytes=8 * CHARGE)
    disk.touch(keys(2)[0], 100)
    disk.touch(keys(77)[0], 100)
    for number in range(9, 13):
        disk.put(keys(number)[0], block(number), number)
    disk.close(PATIENCE_SECONDS)
    assert held(tmp_path, *range(1, 13))[0] == 2


def test_the_limit_holds_over_the_files_of_all_models(tmp_path: Path) -> None:
    limit = 40 * CHARGE
    for model in range(3):
        identity = replace(IDENTITY, model=bytes([model]) * 16)
        disk = open_disk(tmp_path, identity, limit_bytes=limit)
        for number in range(30):
            assert disk.put(keys(number)[0], block(number), 1000 * model + number)
            with CacheFolder(tmp_path).lock():  # a folder that is listed while files go shows some that are gone
                assert len(block_files(tmp_path)) <= 40
        disk.close(PATIENCE_SECONDS)
        assert len(block_files(tmp_path)) <= 40
    assert len(CacheFolder(tmp_path).models()) == 2  # nothing of the first is left, not even its folder


@pytest.mark.parametrize("limit_bytes", [0, CHARGE - 1])
def test_a_block_larger_than_the_limit_is_not_stored(tmp_path: Path, limit_bytes: int) -> None:
    disk = open_disk(tmp_path, limit_bytes=limit_bytes)
    assert not disk.put(keys(1)[0], block(1), 1)
    disk.close(PATIENCE_SECONDS)
    assert block_files(tmp_path) == []


def test_a_limit_of_one_block_keeps_the_last(tmp_path: Path) -> None:
    fill(tmp_path, 1, 2, 3, limit_bytes=CHARGE)
    assert held(tmp_path, 1, 2, 3) == [3]


def test_a_limit_that_was_lowered_is_kept_from_the_next_write_on(tmp_path: Path) -> None:
    fill(tmp_path, *range(20))
    fill(tmp_path, 20, limit_bytes=5 * CHARGE)
    assert len(block_files(tmp_path)) <= 5


def test_a_disk_short_of_room_shrinks_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path, *range(10))

    class Usage:
        free = 97 * CHARGE

    monkeypatch.setattr("shutil.disk_usage", lambda _: Usage)
    folder = CacheFolder(tmp_path)
    left = folder.shrink(GENEROUS, CHARGE, reserve_bytes=100 * CHARGE)
    assert sorted(file.used_ns for file in left) == [4, 5, 6, 7, 8, 9]
    with pytest.raises(OSError, match="No space left on device: less than 12 MiB are free"):
        folder.shrink(GENEROUS, CHARGE, reserve_bytes=200 * CHARGE)
    assert len(block_files(tmp_path)) == 6


def test_damage_is_deleted_with_one_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    fill(tmp_path, 1, 2, 3)
    for path in block_files(tmp_path)[:2]:
        path.write_bytes(path.read_bytes()[:-1] + b"\0\0"[:1])
    block_path(block_files(tmp_path)[0].parent, keys(9)[0]).write_bytes(b"")
    disk = open_disk(tmp_path)
    found = [number for number in (1, 2, 3, 9) if read(disk, number)]
    assert len(found) == 1
    assert (disk.num_damaged, len(disk)) == (3, 1)
    disk.close(PATIENCE_SECONDS)
    assert len(block_files(tmp_path)) == 1
    [record] = caplog.records
    assert record.levelno == logging.WARNING
    assert "was damaged and is deleted" in record.message


def test_foreign_files_are_left_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    fill(tmp_path, 1, 2)
    one, two = block_files(tmp_path)
    one.write_bytes(two.read_bytes())  # sound, but of another text than its name says
    newer = bytearray(two.read_bytes())
    newer[8] = 2
    two.write_bytes(newer)
    strange = two.parent / "notes.txt"
    strange.write_text("mine")
    odd = block_path(two.parent, keys(5)[0])
    odd.write_text("somebody else's file under such a name")
    assert held(tmp_path, 1, 2, 5) == []
    assert one.exists()
    assert two.exists()
    assert (strange.read_text(), odd.exists()) == ("mine", True)
    assert [record.message.count("is left alone") for record in caplog.records] == [1]
    fill(tmp_path, 1)
    assert held(tmp_path, 1) == [1]


def test_blocks_of_another_identity_are_not_seen(tmp_path: Path) -> None:
    fill(tmp_path, 1)
    for other in (
        replace(IDENTITY, model=b"n" * 16),
        replace(IDENTITY, layout=b"n" * 16),
        replace(IDENTITY, block_tokens=16),
        replace(IDENTITY, block_bytes=BLOCK_BYTES + 1),
    ):
        disk = open_disk(tmp_path, other)
        assert keys(1)[0] not in disk
        disk.close(PATIENCE_SECONDS)


def test_a_file_that_others_deleted_is_forgotten_silently(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    fill(tmp_path, 1, 2)
    disk = open_disk(tmp_path)
    block_path(block_files(tmp_path)[0].parent, keys(1)[0]).unlink()
    assert not read(disk, 1)
    assert keys(1)[0] not in disk
    assert read(disk, 2)
    disk.close(PATIENCE_SECONDS)
    assert caplog.records == []


def test_a_folder_that_was_cleared_is_made_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    fill(tmp_path, 1)
    disk = open_disk(tmp_path)
    folder = CacheFolder(tmp_path)
    [model] = folder.models()
    folder.clear(model)
    assert not model.folder.exists()
    disk.put(keys(2)[0], block(2), 2)
    disk.close(PATIENCE_SECONDS)
    assert held(tmp_path, 1, 2) == [2]
    assert [model.facts for model in folder.models()] == [FACTS]
    assert caplog.records == []


def test_a_full_disk_is_told_once_and_tried_again_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now = 0.0
    fails = True
    attempts = 0

    def write(*args: object, **kwargs: object) -> None:
        nonlocal attempts
        attempts += 1
        if fails:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write_block(*args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(disk_tier, "write_block", write)
    disk = DiskTier(
        CacheFolder(tmp_path),
        IDENTITY,
        FACTS,
        limit_bytes=GENEROUS,
        buffer_bytes=GENEROUS,
        reserve_bytes=0,
        clock=lambda: now,
    )
    for round_number in range(2):
        disk.put(keys(1)[0], block(1), 1)
        drain(disk)
        assert keys(1)[0] not in disk
        assert not disk.put(keys(2)[0], block(2), 2)
        assert attempts == disk.num_failed == round_number + 1
        now += PAUSE_SECONDS
    fails = False
    assert disk.put(keys(3)[0], block(3), 3)
    disk.close(PATIENCE_SECONDS)
    assert held(tmp_path, 1, 2, 3) == [3]
    [record] = caplog.records
    assert "No space left on device; KV blocks are not stored for now, answers go on" in record.message


def drain(disk: DiskTier) -> None:
    with disk._changed:
        assert disk._changed.wait_for(lambda: not disk._jobs, PATIENCE_SECONDS)


def test_a_read_only_folder_is_read_from(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    fill(tmp_path, 1)

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CacheFolder, "lock", refuse)
        patch.setattr(os, "utime", refuse)
        disk = open_disk(tmp_path, facts=replace(FACTS, name="Renamed"))
        assert read(disk, 1)
        disk.put(keys(2)[0], block(2), 2)
        disk.close(PATIENCE_SECONDS)
    assert held(tmp_path, 1, 2) == [1]
    assert ["Read-only file system" in record.message for record in caplog.records] == [True]


WRITER = """
import sys
from pathlib import Path
from patience import PATIENCE_SECONDS
from stored_blocks import CHARGE, keys, open_disk
import numpy as np

disk = open_disk(Path(sys.argv[1]), limit_bytes=int(sys.argv[4]), buffer_bytes=8 * 3000)
for number in range(int(sys.argv[2]), int(sys.argv[3])):
    block = np.random.default_rng(number).integers(0, 256, 3000, dtype=np.uint8)
    while not disk.put(keys(number)[0], block, number):
        pass
    if number % 100 == 99:
        print(number, flush=True)
disk.close(PATIENCE_SECONDS)
"""


def start_writer(home: Path, first: int, end: int, limit_bytes: int = GENEROUS) -> subprocess.Popen[str]:
    arguments = [sys.executable, "-c", WRITER, str(home), str(first), str(end), str(limit_bytes)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True, env=environment)


def test_two_processes_share_the_folder_and_its_limit(tmp_path: Path) -> None:
    limit = 200 * CHARGE
    with start_writer(tmp_path, 0, 400, limit) as one, start_writer(tmp_path, 200, 600, limit) as other:
        while one.poll() is None or other.poll() is None:
            assert len(block_files(tmp_path)) <= 200
        assert (one.returncode, other.returncode) == (0, 0)
    found = held(tmp_path, *range(600))
    assert 100 < len(found) <= 200
    assert len(found) == len(block_files(tmp_path))


def test_a_process_that_is_killed_leaves_sound_blocks_only(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with start_writer(tmp_path, 0, 10**9) as writer:
        assert writer.stdout is not None
        for _ in range(3):
            writer.stdout.readline()
        writer.kill()
    names = {path.name for path in block_files(tmp_path)}
    disk = open_disk(tmp_path)
    assert sum(read(disk, number) for number in range(2 * len(names))) == len(names) == len(disk)
    assert len(names) > 100
    assert caplog.records == []
    assert disk.put(keys(10**9)[0], block(1), 1)
    disk.close(PATIENCE_SECONDS)


def test_what_a_killed_process_was_writing_is_removed_later(tmp_path: Path) -> None:
    fill(tmp_path, 1)
    left, fresh = (block_files(tmp_path)[0].with_name(name) for name in ("left.tmp", "fresh.tmp"))
    left.write_bytes(b"half")
    fresh.write_bytes(b"half")
    os.utime(left, ns=(0, 0))
    fill(tmp_path, 2)
    assert not left.exists()
    assert fresh.exists()
    assert held(tmp_path, 1, 2) == [1, 2]


def test_blocks_of_other_processes_are_found_with_the_next_look(tmp_path: Path) -> None:
    disk = open_disk(tmp_path, limit_bytes=16 * CHARGE)  # small enough that every write looks
    fill(tmp_path, 1)
    assert keys(1)[0] not in disk
    disk.put(keys(2)[0], block(2), 2)
    drain(disk)
    assert read(disk, 1)
    disk.close(PATIENCE_SECONDS)
