"""Prompts kept in memory or on disk: answers are those of a model without any cache, and nothing is computed twice."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from gguf import GGMLQuantizationType as Format

from oracles.tiny_model import TinyModel
from patience import PATIENCE_SECONDS
from stored_blocks import block_files
from treadle import LLM, SamplingParams
from treadle.engine import load as load_module
from treadle.engine.kv import block_store, disk_tier
from treadle.engine.kv.cache_folder import CacheFolder
from treadle.engine.runner import NativeRunner

GREEDY = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
PROMPTS = [[(number * 31 + 7 * i) % 200 for i in range(400)] for number in range(20)]
NUM_FULL_BLOCKS = (400 - 1) // 32
ASK = """
import json, os, signal, sys
from treadle import LLM, SamplingParams
from treadle.engine.kv import block_store

block_store._CLOSE_SECONDS = float(sys.argv[3])
with LLM(sys.argv[1], disk_cache="1GiB") as llm:
    answer = llm.generate(json.loads(sys.argv[2]), SamplingParams(temperature=0, max_tokens=8, ignore_eos=True))
    print(json.dumps([answer.token_ids, llm._host.scheduler.counters().num_store_hit_tokens]), flush=True)
    if len(sys.argv) > 4:
        os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(scope="module")
def tiny_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return TinyModel(format=Format.Q8_0).write(tmp_path_factory.mktemp("kept") / "tiny.gguf")


@pytest.fixture(scope="module")
def expected(tiny_path: Path) -> list[list[int]]:
    with LLM(tiny_path) as llm:
        return [answer.token_ids for answer in llm.generate(PROMPTS, GREEDY)]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TREADLE_HOME", str(tmp_path))
    # A busy disk may take longer than the seconds that closing a model may take.
    monkeypatch.setattr(block_store, "_CLOSE_SECONDS", PATIENCE_SECONDS)
    return tmp_path


def num_restored(llm: LLM) -> int:
    return llm._host.scheduler.counters().num_store_hit_tokens


def ask(path: Path, prompt: list[int], *more: str) -> tuple[list[int], int]:
    done = subprocess.run(
        [sys.executable, "-c", ASK, str(path), json.dumps(prompt), str(PATIENCE_SECONDS), *more],
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert done.returncode == (-signal.SIGKILL if more else 0), done.stderr
    assert done.stderr == ""
    token_ids, num_tokens = json.loads(done.stdout)
    return token_ids, num_tokens


def test_a_later_process_restores_instead_of_computing(tiny_path: Path, expected: list[list[int]]) -> None:
    assert ask(tiny_path, PROMPTS[0]) == (expected[0], 0)
    assert ask(tiny_path, PROMPTS[0]) == (expected[0], NUM_FULL_BLOCKS * 32)
    shared = PROMPTS[0][:100] + PROMPTS[1]
    with LLM(tiny_path) as plain:
        alone = plain.generate(shared, GREEDY).token_ids
    assert ask(tiny_path, shared) == (alone, 96)


def test_a_later_process_goes_on_with_what_convolutions_kept(tmp_path: Path) -> None:
    path = TinyModel("lfm2", format=Format.Q8_0).write(tmp_path / "lfm2.gguf")
    with LLM(path) as plain:
        alone = plain.generate(PROMPTS[0], GREEDY).token_ids
    assert ask(path, PROMPTS[0]) == (alone, 0)
    assert ask(path, PROMPTS[0]) == (alone, NUM_FULL_BLOCKS * 32)


def test_a_process_that_is_killed_leaves_a_store_that_serves(
    tiny_path: Path, expected: list[list[int]], home: Path
) -> None:
    ask(tiny_path, PROMPTS[0], "die")
    token_ids, _ = ask(tiny_path, PROMPTS[0])
    assert token_ids == expected[0]
    assert ask(tiny_path, PROMPTS[0]) == (expected[0], NUM_FULL_BLOCKS * 32)
    # A write that the kill cut off leaves a temporary file, which belongs to no block.
    (model,) = CacheFolder(home).models()
    verdicts = list(CacheFolder(home).verify_all(model.files))
    assert len(verdicts) >= NUM_FULL_BLOCKS
    assert not [verdict.problem for verdict in verdicts if verdict.problem]


def test_all_prompts_are_restored_by_many_requests_at_once(tiny_path: Path, expected: list[list[int]]) -> None:
    for restored in (0, len(PROMPTS) * NUM_FULL_BLOCKS * 32):
        with LLM(tiny_path, disk_cache="1GiB") as llm:
            assert [answer.token_ids for answer in llm.generate(PROMPTS, GREEDY)] == expected
            assert num_restored(llm) == restored


def test_memory_keeps_what_the_pool_evicts(tiny_path: Path, expected: list[list[int]], home: Path) -> None:
    with LLM(tiny_path, ram_cache="100MB") as llm:
        assert llm.report.memory_plan.num_blocks < len(PROMPTS) * NUM_FULL_BLOCKS
        assert llm.report.memory_plan.ram_cache_bytes == 100_000_000
        for _ in range(2):
            for prompt, token_ids in zip(PROMPTS, expected, strict=True):
                assert llm.generate(prompt, GREEDY).token_ids == token_ids
        assert num_restored(llm) > len(PROMPTS) * NUM_FULL_BLOCKS * 32 // 2
    assert not (home / "kv-cache").exists()


def test_damaged_blocks_are_computed_again(
    tiny_path: Path, expected: list[list[int]], home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with LLM(tiny_path, disk_cache="1GiB") as llm:
        llm.generate(PROMPTS[0], GREEDY)
    files = block_files(home)
    for path in files[::2]:
        damaged = bytearray(path.read_bytes())
        damaged[len(damaged) // 2] ^= 0x40
        path.write_bytes(damaged)
    with LLM(tiny_path, disk_cache="1GiB") as llm:
        assert llm.generate(PROMPTS[0], GREEDY).token_ids == expected[0]
        assert num_restored(llm) < NUM_FULL_BLOCKS * 32
    assert len(caplog.records) == 1
    assert ask(tiny_path, PROMPTS[0]) == (expected[0], NUM_FULL_BLOCKS * 32)


def test_a_full_disk_does_not_disturb_answers(
    tiny_path: Path, expected: list[list[int]], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(disk_tier, "write_block", fail)
    with LLM(tiny_path, disk_cache="1GiB") as llm:
        assert [answer.token_ids for answer in llm.generate(PROMPTS, GREEDY)] == expected
    assert len(caplog.records) == 1


def test_the_same_file_elsewhere_shares_and_another_file_does_not(
    tiny_path: Path, expected: list[list[int]], tmp_path: Path
) -> None:
    ask(tiny_path, PROMPTS[0])
    assert ask(Path(shutil.copy(tiny_path, tmp_path / "copy.gguf")), PROMPTS[0]) == (expected[0], NUM_FULL_BLOCKS * 32)
    other = TinyModel(format=Format.Q8_0, seed=1).write(tmp_path / "other.gguf")
    assert ask(other, PROMPTS[0])[1] == 0


def test_a_file_that_changes_while_it_loads_is_not_trusted(
    tiny_path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = Path(shutil.copy(tiny_path, tmp_path / "copy.gguf"))
    load_parts = load_module._load_parts

    def load_and_touch(*arguments: object) -> object:
        parts = load_parts(*arguments)  # type: ignore[arg-type]
        os.utime(path, ns=(1, 1))
        return parts

    monkeypatch.setattr(load_module, "_load_parts", load_and_touch)
    with pytest.warns(RuntimeWarning, match="has changed since the model was read from it") as caught:
        LLM(path, disk_cache="1GiB").close()
    assert caught[0].filename == __file__


def test_a_folder_that_cannot_be_is_done_without(
    tiny_path: Path, expected: list[list[int]], home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "kv-cache").write_text("in the way")
    monkeypatch.setenv("TREADLE_DISK_CACHE", "1GiB")
    with pytest.warns(RuntimeWarning, match="prompts are not kept on disk: .*kv-cache"), LLM(tiny_path) as llm:
        assert llm.generate(PROMPTS[0], GREEDY).token_ids == expected[0]


def test_every_kernel_table_reads_what_another_wrote(tiny_path: Path, expected: list[list[int]]) -> None:
    with LLM(tiny_path, disk_cache="1GiB", isa="ref") as llm:
        llm.generate(PROMPTS[0], GREEDY)
    with LLM(tiny_path, disk_cache="1GiB") as llm:
        assert llm.generate(PROMPTS[0], GREEDY).token_ids == expected[0]
        assert num_restored(llm) == NUM_FULL_BLOCKS * 32


def test_another_build_of_the_core_reads_nothing(
    tiny_path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ask(tiny_path, PROMPTS[0])
    core = tmp_path / "core.so"
    core.write_bytes(b"another build")
    monkeypatch.setattr(load_module, "CORE_PATH", core)
    with LLM(tiny_path, disk_cache="1GiB") as llm:
        llm.generate(PROMPTS[0], GREEDY)
        assert num_restored(llm) == 0


def test_loading_fails_no_worse_with_a_store(tiny_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(NativeRunner, "run", lambda *_: 1 / 0)
    with LLM(tiny_path, disk_cache="1GiB") as llm, pytest.raises(Exception, match="ZeroDivisionError"):
        llm.generate(PROMPTS[0], GREEDY)


@pytest.mark.model
def test_a_real_model_goes_on_from_a_restored_prompt(smollm2_path: Path) -> None:
    text = "The lighthouse keeper wrote down the weather of every day, and on some days he wrote more. " * 60
    with LLM(smollm2_path) as plain:
        prompt = plain.tokenize(text)[:1000]
        expected = plain.generate(prompt, GREEDY).token_ids
    assert ask(smollm2_path, prompt) == (expected, 0)
    assert ask(smollm2_path, prompt) == (expected, 31 * 32)


@pytest.mark.parametrize("cache", [{"disk_cache": "1GiB"}, {"disk_cache": "1GiB", "ram_cache": "50MB"}], ids=str)
def test_windows_are_kept_beside_the_other_blocks(tmp_path: Path, home: Path, cache: dict[str, str]) -> None:
    """Layers that see 70 tokens need three blocks before the one where a prompt goes on."""
    keys = {"attention.sliding_window": 70, "context_length": 1024}
    path = TinyModel("gemma3", num_layers=6, keys=keys).write(tmp_path / "gemma.gguf")
    parting = [*PROMPTS[0][:300], 1, 2, 3]
    with LLM(path) as llm:
        expected = [answer.token_ids for answer in llm.generate([*PROMPTS[:4], parting], GREEDY)]
        assert [pool.window is None for pool in llm.report.memory_plan.pools] == [True, False]
    with LLM(path, **cache) as llm:
        assert [answer.token_ids for answer in llm.generate(PROMPTS[:4], GREEDY)] == expected[:4]
        assert llm.generate(parting, GREEDY).token_ids == expected[4]
    sizes = [len(model.files) for model in CacheFolder(home).models()]
    # The ends of four prompts and of the one that parts, and where it does: each of three blocks and one more, at most.
    assert sorted(sizes)[0] <= 6 * 4 < 4 * NUM_FULL_BLOCKS <= sorted(sizes)[1]
    with LLM(path, **cache) as llm:
        assert [answer.token_ids for answer in llm.generate(PROMPTS[:4], GREEDY)] == expected[:4]
        assert num_restored(llm) == 4 * NUM_FULL_BLOCKS * 32
    with LLM(path, **cache) as llm:
        assert llm.generate(parting, GREEDY).token_ids == expected[4]
        assert num_restored(llm) == 288
