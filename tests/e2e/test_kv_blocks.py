"""KV blocks as bytes: what was read out and written back, into whatever block, continues as if it had never left."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from core import Core
from gguf import GGMLQuantizationType as Format
from numpy.typing import NDArray

from oracles.tiny_model import TinyModel
from treadle import _native
from treadle.errors import UsageError

PROMPT = [(7 * i) % 50 for i in range(70)]


@pytest.fixture(scope="module")
def tiny_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return TinyModel(format=Format.Q8_0).write(tmp_path_factory.mktemp("blocks") / "tiny.gguf")


def read_block(blocks: _native.KvBlocks, block_id: int) -> NDArray[np.uint8]:
    out = np.empty(blocks.kv_block_bytes, np.uint8)
    blocks.read_kv_block(block_id, out)
    return out


def test_a_block_holds_keys_and_values_of_every_layer(tiny_path: Path) -> None:
    core = Core(tiny_path)
    model = core.model
    values = model.num_layers * model.num_kv_heads * model.head_dim * _native.KV_BLOCK_TOKENS * 2
    assert core.blocks.kv_block_bytes == values * 2
    sequence = core.sequence(len(PROMPT))
    core.read(sequence, PROMPT, chunk=64)
    full = read_block(core.blocks, sequence.blocks[0]).view(np.float16).reshape(-1, _native.KV_BLOCK_TOKENS)
    assert (full != 0).any(axis=1).all()
    assert not read_block(core.blocks, 40).any()


@pytest.mark.parametrize("as_data", [np.asarray, bytes, bytearray, memoryview])
def test_blocks_moved_to_another_runtime_continue_alike(tiny_path: Path, as_data: Callable[[object], object]) -> None:
    core, other = Core(tiny_path), Core(tiny_path)
    assert core.blocks.kv_layout == other.blocks.kv_layout
    sequence, moved = core.sequence(100), other.sequence(100)
    moved.blocks.reverse()
    core.read(sequence, PROMPT, chunk=64)
    for source, target in zip(sequence.blocks, moved.blocks, strict=True):
        other.blocks.write_kv_block(target, as_data(read_block(core.blocks, source)))
    moved.tokens = list(PROMPT)
    np.testing.assert_array_equal(other.step([(moved, [1, 2, 3])])[0], core.step([(sequence, [1, 2, 3])])[0])


def test_a_copied_block_parts_from_its_source(tiny_path: Path) -> None:
    core = Core(tiny_path)
    sequence, fork = core.sequence(100), core.sequence(100)
    core.read(sequence, PROMPT, chunk=64)
    fork.blocks[:2], fork.tokens = sequence.blocks[:2], list(PROMPT)
    core.blocks.copy_kv_block(sequence.blocks[2], fork.blocks[2])
    core.step([(fork, [9, 9])])
    expected = Core(tiny_path)
    alone = expected.sequence(100)
    expected.read(alone, PROMPT, chunk=64)
    np.testing.assert_array_equal(core.step([(sequence, [5])])[0], expected.step([(alone, [5])])[0])


def test_the_layout_is_the_same_for_every_kernel_table(tiny_path: Path) -> None:
    cores = [Core(tiny_path, isa=isa) for isa in _native.kernels.runnable_isas()]
    assert len({core.blocks.kv_layout for core in cores}) == 1
    blocks = []
    for core in cores:
        sequence = core.sequence(len(PROMPT))
        core.read(sequence, PROMPT, chunk=64)
        blocks.append(read_block(core.blocks, sequence.blocks[1]))
    for block in blocks[1:]:
        np.testing.assert_array_equal(block, blocks[0])


def test_the_layout_names_what_shapes_a_block(tiny_path: Path, tmp_path: Path) -> None:
    other = TinyModel(format=Format.F32, head_dim=24).write(tmp_path / "other.gguf")
    assert Core(tiny_path).blocks.kv_layout != Core(other).blocks.kv_layout
    assert "head_dim=24" in Core(other).blocks.kv_layout


def test_q8_0_blocks_take_17_bytes_instead_of_32(tiny_path: Path) -> None:
    cores = Core(tiny_path), Core(tiny_path, kv_type="q8_0")
    assert [core.runtime.kv_type for core in cores] == ["f16", "q8_0"]
    plain, small = (core.blocks for core in cores)
    assert 32 * small.kv_block_bytes == 17 * plain.kv_block_bytes
    assert small.kv_layout != plain.kv_layout


def test_kv_types_that_do_not_fit_are_refused(tiny_path: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match='kv_type is "q4_0", expected f16 or q8_0'):
        Core(tiny_path, kv_type="q4_0")
    odd = TinyModel(format=Format.F32, head_dim=24).write(tmp_path / "odd.gguf")
    with pytest.raises(UsageError, match="groups of 32 values, and this model's heads have 24"):
        Core(odd, kv_type="q8_0")


def test_q8_0_logits_are_near_those_of_f16(tiny_path: Path) -> None:
    cores = [Core(tiny_path, kv_type=kv_type) for kv_type in ("f16", "q8_0")]
    exact, rounded = (core.read(core.sequence(len(PROMPT)), PROMPT, chunk=64).astype(np.float64) for core in cores)
    assert (exact != rounded).any()
    # Eight bits round a value by up to 1/254 of the largest of 32, the softmax and two layers spread that.
    assert np.abs(exact - rounded).max() < 0.05 * np.abs(exact).max()


def test_blocks_move_while_steps_run(tiny_path: Path) -> None:
    core = Core(tiny_path, threads=2)
    sequence = core.sequence(len(PROMPT))
    expected = Core(tiny_path).continue_greedily(PROMPT, 1)[1]
    pattern = np.random.default_rng(1).integers(0, 256, core.blocks.kv_block_bytes, dtype=np.uint8)

    def move() -> NDArray[np.uint8]:
        for _ in range(50):
            core.blocks.write_kv_block(50, pattern)
            core.blocks.copy_kv_block(50, 51)
        return read_block(core.blocks, 51)

    with ThreadPoolExecutor(1) as executor:
        moving = executor.submit(move)
        logits = core.read(sequence, PROMPT, chunk=7)
        np.testing.assert_array_equal(moving.result(), pattern)
    np.testing.assert_array_equal(logits, expected)


def test_wrong_blocks_and_sizes_are_refused(tiny_path: Path) -> None:
    blocks = Core(tiny_path, num_blocks=5).blocks
    block = read_block(blocks, 4)
    with pytest.raises(UsageError, match="read_kv_block: block id 5, expected 0 to 4"):
        blocks.read_kv_block(5, block)
    with pytest.raises(UsageError, match="write_kv_block: block id -1, expected 0 to 4"):
        blocks.write_kv_block(-1, block)
    with pytest.raises(UsageError, match="copy_kv_block: block id 7, expected 0 to 4"):
        blocks.copy_kv_block(0, 7)
    with pytest.raises(UsageError, match=f"read_kv_block: out has 10 bytes, a KV block has {len(block)}"):
        blocks.read_kv_block(0, np.empty(10, np.uint8))
    with pytest.raises(UsageError, match=f"write_kv_block: data has 3 bytes, a KV block has {len(block)}"):
        blocks.write_kv_block(0, b"abc")
    with pytest.raises(TypeError):
        blocks.read_kv_block(0, bytes(len(block)))
