"""What real models are bound by on this machine; these need it for themselves."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from oracles.tiny_model import TinyModel
from treadle.engine.profile.record import ProfileRecord, VerdictKind
from treadle.engine.profile.run import profile

pytestmark = pytest.mark.slow

_CODER = "qwen2.5-coder-1.5b-instruct-Q4_K_M.gguf"


def expect(taken: ProfileRecord, *allowed: set[VerdictKind]) -> None:
    """Each cell is bound by what it may be; a machine that others use says nothing about that."""
    found = [cell.verdict for cell in taken.cells]
    for verdict, kinds in zip(found, allowed, strict=True):
        assert verdict is not None
        if verdict.kind in ("robbed", "throttled", "swapped"):
            pytest.skip(f"NOT tested what bounds the model: the profile was disturbed ({verdict.because})")
        assert verdict.kind in kinds, verdict.because


def test_one_stream_is_bound_by_memory_and_sixteen_by_arithmetic(model_path: Callable[[str], Path]) -> None:
    taken = profile(model_path(_CODER), prompts=[128], streams=[1, 16], seconds=10)
    expect(taken, {"compute-bound"}, {"DRAM-bound"}, {"compute-bound"})


def test_a_tiny_model_waits_for_barriers_or_caches(tmp_path: Path) -> None:
    path = TinyModel().write(tmp_path / "tiny.gguf")
    taken = profile(path, prompts=[], streams=[1], stream_context=16, seconds=2, threads=2)
    expect(taken, {"barrier-bound", "cache-bound"})
