"""A loaded model whose native parts are fakes, for the tests of the Python APIs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fakes import FakeModelRunner, FakeTemplate, FakeTokenizer
from treadle.engine.batching import Batching
from treadle.engine.execution_plan import ExecutionPlan
from treadle.engine.kv.block_pool import BlockPool
from treadle.engine.load import LoadedModel, LoadReport
from treadle.engine.memory_plan import MemoryPlan
from treadle.hardware.placement import Placement
from treadle.hardware.plan import ThreadPlan


@pytest.fixture
def runner() -> FakeModelRunner:
    return FakeModelRunner(BlockPool(11, 32))


@pytest.fixture
def loaded(runner: FakeModelRunner) -> LoadedModel:
    """A model with a context of 320 tokens and 11 KV blocks."""
    report = LoadReport(
        path=Path("fake.gguf"),
        name="fake",
        architecture="none",
        isa="none",
        weight_bytes=0,
        decode_bytes=0,
        plan=ExecutionPlan(
            threads=ThreadPlan([-1], "a test"),
            prompt_threads=ThreadPlan([-1], "a test"),
            placement=Placement("default", (), None, "a test"),
            memory=MemoryPlan(320, 11, 0, 0, 0, 0, "a test", "a test"),
            huge_pages=True,
            adapts=False,
            locks_memory=False,
            reasons={},
        ),
        load_seconds=0.0,
        batching=Batching(slowdown=None),  # steps must not depend on how long others took
    )
    fakes: Any = (FakeTokenizer(), FakeTemplate(), runner)
    return LoadedModel(*fakes, report)
