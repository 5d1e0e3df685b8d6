"""Honest files, written by the ``gguf`` package or found in the wild, read back equal to what that package reads."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from oracles import gguf_bytes
from treadle import _native
from treadle.errors import ModelFileError, UsageError
from treadle.models.gguf import FormatShare, ModelFile

VALUES: dict[str, tuple[Any, gguf.GGUFValueType]] = {
    "u8": (255, gguf.GGUFValueType.UINT8),
    "i8": (-128, gguf.GGUFValueType.INT8),
    "u16": (65535, gguf.GGUFValueType.UINT16),
    "i16": (-32768, gguf.GGUFValueType.INT16),
    "u32": (2**32 - 1, gguf.GGUFValueType.UINT32),
    "i32": (-(2**31), gguf.GGUFValueType.INT32),
    "u64": (2**64 - 1, gguf.GGUFValueType.UINT64),
    "i64": (-(2**63), gguf.GGUFValueType.INT64),
    "f32": (0.15625, gguf.GGUFValueType.FLOAT32),
    "f64": (1e-300, gguf.GGUFValueType.FLOAT64),
    "yes": (True, gguf.GGUFValueType.BOOL),
    "no": (False, gguf.GGUFValueType.BOOL),
    "empty": ("", gguf.GGUFValueType.STRING),
    "text": ("naïve 안녕 😀\0end", gguf.GGUFValueType.STRING),
}
ARRAYS: dict[str, list[Any]] = {
    "ints": [-1, 0, 2**31 - 1],
    "floats": [0.5, -0.25],
    "flags": [True, False, True],
    "words": ["", "a", "Ġthe"],
    "nested": [["a", "b"], [""], ["c"]],
    "deep": [[[1], [2, 3]], [[4]]],
}


def add_contents(writer: gguf.GGUFWriter) -> dict[str, Any]:
    expected: dict[str, Any] = {}
    for key, (value, kind) in VALUES.items():
        writer.add_key_value(key, value, kind)
        expected[key] = value
    for key, items in ARRAYS.items():
        writer.add_array(key, items)
        expected[key] = items
    return expected


def sample_tensors() -> dict[str, np.ndarray[Any, Any]]:
    rng = np.random.default_rng(7)
    return {
        "one.weight": rng.standard_normal(5).astype(np.float32),
        "two.weight": rng.standard_normal((3, 4)).astype(np.float16),
        "four.weight": rng.standard_normal((2, 3, 1, 2)).astype(np.float32),
        "bytes": rng.integers(-128, 127, (3, 7)).astype(np.int8),
    }


def finish(writer: gguf.GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def read_all(model: ModelFile, name: str) -> bytes:
    tensor = next(tensor for tensor in model.tensors if tensor.name == name)
    return model.native.read(name, 0, tensor.num_bytes)


@pytest.mark.parametrize("alignment", [None, 8, 4096, 1 << 20])
@pytest.mark.parametrize("version", [2, 3])
def test_round_trip(tmp_path: Path, alignment: int | None, version: int) -> None:
    path = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    if alignment is not None:
        writer.add_custom_alignment(alignment)
    expected = add_contents(writer)
    for name, array in sample_tensors().items():
        writer.add_tensor(name, array)
    finish(writer)
    content = bytearray(path.read_bytes())
    content[4] = version  # both versions share one layout; the writer only writes the newer
    path.write_bytes(content)

    model = ModelFile.open(path)
    found = dict(model.metadata)
    assert found.pop("general.architecture") == "llama"
    assert found.pop("general.alignment", None) == alignment
    assert found == expected
    assert [type(found[key]) for key in expected] == [type(value) for value in expected.values()]
    assert model.file_bytes == len(content)
    for name, array in sample_tensors().items():
        entry = next(tensor for tensor in model.tensors if tensor.name == name)
        assert entry.shape == tuple(reversed(array.shape))
        assert read_all(model, name) == array.tobytes()
    assert model.native.read("two.weight", 2, 6) == sample_tensors()["two.weight"].tobytes()[2:8]


def test_empty_arrays(tmp_path: Path) -> None:
    """The gguf package writes none, other writers do."""
    kinds = [kind for kind in range(13) if kind != gguf_bytes.ARR]
    keys = [gguf_bytes.array_key(str(kind), kind, []) for kind in kinds]
    path = tmp_path / "empty.gguf"
    path.write_bytes(gguf_bytes.header(0, len(keys)) + b"".join(keys))
    assert ModelFile.open(path).metadata == {str(kind): [] for kind in kinds}


def test_formats_are_those_of_the_specification(tmp_path: Path) -> None:
    """Every tensor type the gguf package knows opens with that package's name and size."""
    known = {int(kind): kind.name for kind in gguf.GGMLQuantizationType if kind in gguf.GGML_QUANT_SIZES}
    assert {key: _native.GGUF_FORMATS.get(key) for key in known} == known
    path = tmp_path / "all.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    for kind, (block_elements, block_bytes) in gguf.GGML_QUANT_SIZES.items():
        rows = np.full((3, 2 * block_bytes), int(kind), np.uint8)
        writer.add_tensor(kind.name, rows, raw_shape=rows.shape, raw_dtype=kind)
        assert block_elements > 0
    finish(writer)
    for name, form, shape, num_bytes in ModelFile.open(path).tensors:
        block_elements, block_bytes = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name]]
        assert (form, shape, num_bytes) == (name, (2 * block_elements, 3), 6 * block_bytes)


def test_summary(tmp_path: Path) -> None:
    path = tmp_path / "small.gguf"
    writer = gguf.GGUFWriter(path, "mamba")
    for name, array in sample_tensors().items():
        writer.add_tensor(name, array)
    finish(writer)
    model = ModelFile.open(str(path))
    assert (model.architecture, model.name, model.path) == ("mamba", "small", path)
    assert model.num_parameters == 5 + 12 + 12 + 21
    assert list(model.quant_mix.items()) == [
        ("F32", FormatShare(2, 68)),
        ("F16", FormatShare(1, 24)),
        ("I8", FormatShare(1, 21)),
    ]


@pytest.mark.parametrize("found", [None, 3, "", "a b", "\x1b[2J", "x" * 65])
def test_an_architecture_that_is_no_name(tmp_path: Path, found: object) -> None:
    path = tmp_path / "odd.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    del writer.kv_data[0]["general.architecture"]
    if isinstance(found, int):
        writer.add_uint32("general.architecture", found)
    elif isinstance(found, str):
        writer.kv_data[0]["general.architecture"] = gguf.gguf_writer.GGUFValue(found, gguf.GGUFValueType.STRING)
    finish(writer)
    with pytest.raises(ModelFileError, match=r"odd\.gguf: key 'general\.architecture'"):
        _ = ModelFile.open(path).architecture


@pytest.fixture
def split_model(tmp_path: Path) -> list[Path]:
    """A model of four tensors in two files."""
    writer = gguf.GGUFWriter(tmp_path / "big.gguf", "llama", split_max_tensors=2)
    writer.add_name("Big")
    for name, array in sample_tensors().items():
        writer.add_tensor(name, array)
    finish(writer)
    paths = sorted(tmp_path.glob("*.gguf"))
    assert [path.name for path in paths] == ["big-00001-of-00002.gguf", "big-00002-of-00002.gguf"]
    return paths


def test_split_files_read_as_one(split_model: list[Path]) -> None:
    model = ModelFile.open(split_model[0])
    assert model.name == "Big"
    assert model.file_bytes == sum(path.stat().st_size for path in split_model)
    assert model.paths == tuple(split_model)
    assert [tensor.name for tensor in model.tensors] == list(sample_tensors())
    for name, array in sample_tensors().items():
        assert read_all(model, name) == array.tobytes()


def rewrite(path: Path, old: bytes, new: bytes) -> None:
    content = path.read_bytes()
    assert content.count(old) == 1
    path.write_bytes(content.replace(old, new))


def split_key(name: str, value: int) -> bytes:
    kind, width = (gguf_bytes.I32, 4) if name == "split.tensors.count" else (gguf_bytes.U16, 2)
    return name.encode() + kind.to_bytes(4, "little") + value.to_bytes(width, "little")


def refused(path: Path, *fragments: str) -> None:
    with pytest.raises(ModelFileError) as caught:
        ModelFile.open(path)
    for fragment in fragments:
        assert fragment in str(caught.value)


def test_a_file_that_may_not_be_read_says_what_to_type(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError) as caught:
        ModelFile.open(tmp_path / "missing.gguf")
    assert "treadle pull" in str(caught.value.hint)
    (tmp_path / "a b").mkdir()  # which cannot be read whoever runs the tests
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(UsageError) as caught:
        ModelFile.open(tmp_path / "a b")
    assert f"chmod a+r '{tmp_path}/a b'" in str(caught.value.hint)


def test_a_missing_shard(split_model: list[Path]) -> None:
    split_model[1].unlink()
    refused(split_model[0], "shard 2 of 2", split_model[1].name)


def test_a_later_shard_points_to_the_first(split_model: list[Path]) -> None:
    with pytest.raises(UsageError, match=r"shard 2 of 2; open the first, .*big-00001-of-00002\.gguf"):
        ModelFile.open(split_model[1])


def test_a_shard_under_a_name_of_its_own(split_model: list[Path]) -> None:
    renamed = split_model[0].rename(split_model[0].with_name("renamed.gguf"))
    refused(renamed, "split.count", "expected 1", "found 2")


def test_a_whole_model_under_the_name_of_a_shard(tmp_path: Path) -> None:
    path = tmp_path / "x-00001-of-00002.gguf"
    finish(gguf.GGUFWriter(path, "llama"))
    refused(path, "shard 2 of 2 is missing", "x-00002-of-00002.gguf")
    (tmp_path / "x-00002-of-00002.gguf").write_bytes(path.read_bytes())
    refused(path, path.name, "split.count", "expected 2", "no such key")


def test_one_shard_of_one_needs_no_split_keys(tmp_path: Path) -> None:
    path = tmp_path / "x-00001-of-00001.gguf"
    finish(gguf.GGUFWriter(path, "llama"))
    assert ModelFile.open(path).architecture == "llama"


@pytest.mark.parametrize(
    ("key", "right", "wrong"), [("split.count", 2, 3), ("split.no", 1, 0), ("split.tensors.count", 4, 5)]
)
def test_counts_that_disagree(split_model: list[Path], key: str, right: int, wrong: int) -> None:
    rewrite(split_model[1], split_key(key, right), split_key(key, wrong))
    refused(split_model[0], split_model[1].name, key, f"expected {right}", f"found {wrong}")


def test_a_negative_count(split_model: list[Path]) -> None:
    rewrite(split_model[1], split_key("split.tensors.count", 4), split_key("split.tensors.count", 2**32 - 1))
    refused(split_model[0], "split.tensors.count", "non-negative")


def test_a_shard_of_another_model(split_model: list[Path], tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    writer = gguf.GGUFWriter(other / "big.gguf", "llama", split_max_tensors=2)
    for name in ["a", "b", "c", "one.weight"]:
        writer.add_tensor(name, np.zeros(8, np.float32))
    finish(writer)
    split_model[1].write_bytes((other / split_model[1].name).read_bytes())
    refused(split_model[0], split_model[1].name, "'one.weight'", "twice")


def test_shards_that_contradict_each_other(tmp_path: Path) -> None:
    paths = [tmp_path / f"x-0000{number}-of-00002.gguf" for number in (1, 2)]
    for index, path in enumerate(paths):
        writer = gguf.GGUFWriter(path, "llama")
        writer.add_uint16("split.no", index)
        writer.add_uint16("split.count", 2)
        writer.add_int32("split.tensors.count", 0)
        writer.add_array("same", [["a"], ["b"]])
        writer.add_array("differs", [["a"], ["b" * (index + 1)]])
        finish(writer)
    refused(paths[0], paths[1].name, "'differs'", "another model")


def test_a_cut_shard_is_named(split_model: list[Path]) -> None:
    content = split_model[1].read_bytes()
    split_model[1].write_bytes(content[:-32])
    refused(split_model[0], split_model[1].name, "tensor 'bytes'", str(len(content) - 32))


@pytest.mark.model
def test_a_real_model_equals_what_the_reference_reads(smollm2_path: Path) -> None:
    reference = gguf.GGUFReader(smollm2_path)
    model = ModelFile.open(smollm2_path)
    fields = {key: field for key, field in reference.fields.items() if not key.startswith("GGUF.")}
    assert list(model.metadata) == list(fields)
    for key, field in fields.items():
        assert model.metadata[key] == field.contents(), key
    assert len(model.tensors) == len(reference.tensors)
    for entry, tensor in zip(model.tensors, reference.tensors, strict=True):
        assert entry == (tensor.name, tensor.tensor_type.name, tuple(tensor.shape), tensor.n_bytes)
    last = reference.tensors[-1]
    assert read_all(model, last.name) == last.data.tobytes()


@pytest.mark.slow
def test_a_large_vocabulary_opens_in_no_time(model_path: Callable[[str], Path]) -> None:
    path = model_path("qwen2.5-coder-1.5b-instruct-Q4_K_M.gguf")
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        assert len(ModelFile.open(path).metadata["tokenizer.ggml.tokens"]) == 151_936
        seconds.append(time.perf_counter() - start)
    assert min(seconds) < 0.2
