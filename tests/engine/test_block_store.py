"""The store over both tiers: what was saved comes back, loads end whatever happens, closing is final."""

from __future__ import annotations

import tempfile
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from patience import PATIENCE_SECONDS
from stored_blocks import BLOCK_BYTES, CHARGE, ArrayMemory, block_files, keys, open_store
from treadle.engine.kv import block_store, disk_tier
from treadle.engine.kv.block_file import write_block
from treadle.engine.kv.block_store import TieredStore

ZEROS = np.zeros(BLOCK_BYTES, np.uint8)


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_store, "_CLOSE_SECONDS", PATIENCE_SECONDS)


def num_held(store: TieredStore, keys: list[bytes]) -> int:
    """How many of the leading keys a store holds."""
    return next((index for index, key in enumerate(keys) if key not in store), len(keys))


def load(store: TieredStore, numbers: list[int], block_ids: list[int]) -> int:
    return store.load(keys(*numbers), block_ids).result(PATIENCE_SECONDS)


def test_blocks_come_back_in_a_later_process(tmp_path: Path) -> None:
    memory = ArrayMemory()
    expected = memory.blocks[:5].copy()
    store = open_store(tmp_path, memory)
    assert num_held(store, keys(0, 1, 2)) == 0
    store.save(keys(0, 1, 2, 3, 4), [0, 1, 2, 3, 4])
    memory.blocks[:] = 0  # what is saved is saved at once
    store.close()
    later = open_store(tmp_path, memory)
    assert num_held(later, keys(0, 1, 2, 3, 4, 5)) == 5
    assert num_held(later, keys(5, 0)) == 0
    assert load(later, [0, 1, 2, 3, 4], [10, 11, 12, 13, 14]) == 5
    np.testing.assert_array_equal(memory.blocks[10:15], expected)
    assert (later.stats().num_loaded_from_disk, later.stats().num_on_disk) == (5, 5)
    later.close()


def test_memory_alone_keeps_the_most_recently_used() -> None:
    memory = ArrayMemory()
    expected = memory.blocks.copy()
    store = open_store(None, memory, ram_blocks=4)
    store.save(keys(0, 1, 2), [0, 1, 2])
    assert load(store, [0, 1], [10, 11]) == 2
    store.save(keys(3, 4), [3, 4])
    assert [num_held(store, keys(number)) for number in range(5)] == [1, 1, 0, 1, 1]
    np.testing.assert_array_equal(memory.blocks[10:12], expected[:2])
    assert (store.stats().num_in_ram, store.stats().num_loaded_from_ram) == (4, 2)
    store.save(keys(5), [5])
    assert num_held(store, keys(0, 1)) == 1  # of one text the end goes first
    store.close()


def test_what_memory_evicts_is_still_on_disk(tmp_path: Path) -> None:
    memory = ArrayMemory()
    expected = memory.blocks.copy()
    store = open_store(tmp_path, memory, ram_blocks=2)
    store.save(keys(*range(6)), list(range(6)))
    assert store.stats().num_in_ram == 2
    assert num_held(store, keys(*range(6))) == 6
    assert load(store, list(range(6)), list(range(20, 26))) == 6
    np.testing.assert_array_equal(memory.blocks[20:26], expected[:6])
    store.close()


def test_what_found_no_place_on_disk_gets_it_when_memory_evicts_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = ArrayMemory()
    store = open_store(tmp_path, memory, ram_blocks=2)
    with monkeypatch.context() as patch:
        patch.setattr(disk_tier.DiskTier, "is_accepting", False)
        store.save(keys(0, 1), [0, 1])
    store.save(keys(2), [2])
    store.close()
    later = open_store(tmp_path, memory)
    assert [num_held(later, keys(number)) for number in range(3)] == [0, 1, 1]
    later.close()


def test_blocks_that_are_held_are_not_copied_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = ArrayMemory()
    store = open_store(tmp_path, memory)
    store.save(keys(0, 1), [0, 1])
    copied: list[int] = []
    monkeypatch.setattr(memory, "read_kv_block", lambda block_id, _: copied.append(block_id))
    store.save(keys(0, 1, 2), [0, 1, 2])
    assert copied == [2]
    store.close()
    assert store.stats().num_saved == 3


def test_a_full_queue_drops_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    may_write = threading.Event()

    def wait_and_write(*args: object, **kwargs: object) -> None:
        assert may_write.wait(PATIENCE_SECONDS)
        write_block(*args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(disk_tier, "write_block", wait_and_write)
    memory = ArrayMemory()
    expected = memory.blocks.copy()
    store = open_store(tmp_path, memory, queue_blocks=3)
    store.save(keys(0, 1, 2, 3, 4), [0, 1, 2, 3, 4])
    assert num_held(store, keys(0, 1, 2, 3, 4)) == 3
    assert (store.stats().num_saved, store.stats().num_dropped) == (3, 2)
    assert load(store, [0, 1, 2], [10, 11, 12]) == 3  # from the queue
    np.testing.assert_array_equal(memory.blocks[10:13], expected[:3])
    may_write.set()
    store.close()
    assert len(block_files(tmp_path)) == 3


@pytest.mark.parametrize("bad", [0, 2, 4])
def test_a_load_stops_counting_at_the_first_bad_block(
    tmp_path: Path, bad: int, caplog: pytest.LogCaptureFixture
) -> None:
    memory = ArrayMemory()
    expected = memory.blocks.copy()
    store = open_store(tmp_path, memory)
    store.save(keys(*range(5)), list(range(5)))
    store.close()
    [path] = [path for path in block_files(tmp_path) if path.stem == keys(bad)[0].hex()]
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    later = open_store(tmp_path, memory)
    assert load(later, list(range(5)), list(range(20, 25))) == bad
    np.testing.assert_array_equal(memory.blocks[20 : 20 + bad], expected[:bad])
    assert num_held(later, keys(*range(5))) == bad
    assert later.stats().num_damaged == 1
    later.close()
    assert len(caplog.records) == 1


def test_a_pool_that_refuses_a_block_fails_the_load_only(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    memory = ArrayMemory(num_blocks=8)
    store = open_store(tmp_path, memory, ram_blocks=8)
    store.save(keys(0, 1), [0, 1])
    assert load(store, [0, 1], [2, 99]) == 1
    assert "IndexError" in caplog.text
    assert load(store, [0, 1], [2, 3]) == 2
    store.close()


def test_loading_nothing_and_loading_what_is_not_there(tmp_path: Path) -> None:
    store = open_store(tmp_path, ArrayMemory())
    assert load(store, [], []) == 0
    assert load(store, [1, 2], [1, 2]) == 0
    assert num_held(store, []) == 0
    store.close()


def test_a_closed_store_holds_back(tmp_path: Path) -> None:
    memory = ArrayMemory()
    store = open_store(tmp_path, memory, ram_blocks=4)
    store.save(keys(0), [0])
    store.close()
    store.close()
    before = memory.blocks.copy()
    assert load(store, [0], [5]) == 0
    store.save(keys(1), [1])
    np.testing.assert_array_equal(memory.blocks, before)
    assert len(block_files(tmp_path)) == 1


def test_closing_ends_a_load_under_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = ArrayMemory()
    store = open_store(None, memory, ram_blocks=60)
    store.save(keys(*range(60)), list(range(60)))
    is_writing, may_write = threading.Event(), threading.Event()

    def write(block_id: int, data: object) -> None:
        is_writing.set()
        assert may_write.wait(PATIENCE_SECONDS)

    monkeypatch.setattr(memory, "write_kv_block", write)
    result = store.load(keys(*range(60)), list(range(60)))
    assert is_writing.wait(PATIENCE_SECONDS)
    closing = threading.Thread(target=store.close)
    closing.start()
    may_write.set()
    closing.join(PATIENCE_SECONDS)
    assert result.done()
    assert 0 <= result.result(0) <= 60


def test_no_read_or_write_of_a_file_happens_in_the_callers_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = ArrayMemory()
    earlier = open_store(tmp_path, memory)
    earlier.save(keys(0), [0])
    earlier.close()
    store, later = open_store(tmp_path, memory), open_store(tmp_path, memory)
    caller = threading.current_thread()
    opened: list[threading.Thread] = []
    real_open = Path.open

    def spy(self: Path, *args: object, **kwargs: object) -> object:
        opened.append(threading.current_thread())
        return real_open(self, *args, **kwargs)  # type: ignore[call-overload]

    monkeypatch.setattr(Path, "open", spy)
    monkeypatch.setattr(tempfile, "mkstemp", lambda *_, **__: opened.append(threading.current_thread()))
    store.save(keys(1, 2), [1, 2])
    assert load(store, [0], [3]) == 1
    store.close()
    later.close()
    assert len(opened) == 2
    assert caller not in opened


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    saves=st.lists(st.lists(st.integers(0, 30), min_size=1, max_size=8, unique=True), min_size=1, max_size=12),
    ram_blocks=st.sampled_from([0, 1, 5, 100]),
    disk_blocks=st.sampled_from([0, 1, 7, 1000]),
)
def test_whatever_is_found_is_what_was_saved(
    tmp_path_factory: pytest.TempPathFactory, saves: list[list[int]], ram_blocks: int, disk_blocks: int
) -> None:
    home = tmp_path_factory.mktemp("walk")
    memory = ArrayMemory(num_blocks=64)
    expected = memory.blocks[:31].copy()
    for _ in range(2):
        store = open_store(
            home if disk_blocks else None, memory, ram_blocks=ram_blocks, limit_bytes=disk_blocks * CHARGE
        )
        for numbers in saves:
            num_found = num_held(store, keys(*numbers))
            num_loaded = load(store, numbers, list(range(40, 40 + len(numbers))))
            assert num_loaded <= num_found  # the limit may take a block at any time
            np.testing.assert_array_equal(memory.blocks[40 : 40 + num_loaded], expected[numbers[:num_loaded]])
            store.save(keys(*numbers), numbers)
            assert store.stats().num_in_ram <= ram_blocks
        store.close()
        assert len(block_files(home)) <= disk_blocks
