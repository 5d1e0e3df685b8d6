"""Runs the works of a comparison on every engine, round after round, and gathers what they measure.

Each engine has its own process and its turn in every round, so drifts of a shared machine hit all alike; results.py
says what the figures mean.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engines import LIMITS, OURS, EngineError, EngineGoneError, EngineProcess

WARM_UP_TOKENS = 512


@dataclass(frozen=True)
class Work:
    kind: str  # prompt or decode
    streams: int
    context: int  # tokens of the prompt

    @property
    def label(self) -> str:
        if self.kind == "prompt":
            return f"prompt {self.context}"
        return f"decode {self.streams} at {self.context}"


@dataclass
class Cell:
    """One work: tokens per second of each engine and the machine's limits, one value per round."""

    work: Work
    speeds: dict[str, list[float]] = field(default_factory=dict)
    limits: list[list[float]] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)

    def report(self) -> dict[str, Any]:
        return {
            "work": self.work.label,
            "kind": self.work.kind,
            "streams": self.work.streams,
            "context": self.work.context,
            "tokens_per_second": self.speeds,
            "read_bytes_per_second": [limit[0] for limit in self.limits],
            "int8_ops_per_second": [limit[1] for limit in self.limits],
            "failures": self.failures,
        }


class Comparison:
    """The engines that still run, and one cell per work."""

    def __init__(self, model: Path, threads: int, steps: int, works: list[Work]) -> None:
        self.model = model
        self.threads = threads
        self.steps = steps
        self.cells = [Cell(work) for work in works]
        self.engines: dict[str, EngineProcess] = {}
        self.facts: dict[str, dict[str, Any]] = {}
        self.failures: dict[str, str] = {}

    def start(self, interpreters: dict[str, str]) -> None:
        for name, python in interpreters.items():
            self._guarded(name, self.failures, self._start, name, python)

    def _start(self, name: str, python: str) -> None:
        print(f"starting {name}", file=sys.stderr)
        self.engines[name] = EngineProcess(name, python)
        try:
            self.facts[name] = self.engines[name].ask("load", path=str(self.model), threads=self.threads)
        except EngineError as error:
            raise EngineGoneError(str(error)) from error

    def _guarded(self, name: str, failures: dict[str, str], action: Callable[..., None], *arguments: Any) -> None:
        """An engine that fails is reported, and the others go on."""
        try:
            action(*arguments)
        except EngineError as error:
            failures[name] = str(error)
            if isinstance(error, EngineGoneError) and name in self.engines:
                self.failures[name] = str(error)
                self.engines.pop(name).close()

    def run(self, rounds: int) -> None:
        for number in range(rounds + 1):  # round 0 warms up and is not counted
            for cell in self.cells:
                print(f"round {number} of {rounds}: {cell.work.label}", file=sys.stderr)
                # Whoever comes second finds a warmer processor: the order alternates.
                names = list(self.engines) if number % 2 else list(reversed(self.engines))
                for name in names:
                    if name not in cell.failures:
                        self._guarded(name, cell.failures, self._measure, name, cell, number)

    def _measure(self, name: str, cell: Cell, number: int) -> None:
        engine, work = self.engines[name], cell.work
        if name == LIMITS:
            limit = engine.ask("call", method="measure")
            if number:
                cell.limits.append(limit)
            return
        prompts = [self._tokens(work.context, stream) for stream in range(work.streams)]
        if work.kind == "prompt":
            tokens = prompts[0] if number else prompts[0][:WARM_UP_TOKENS]
            seconds = engine.ask("call", method="prompt", tokens=tokens)
            done = len(tokens)
        else:
            seconds = engine.ask("call", method="decode", prompts=prompts, num_steps=self.steps)
            done = self.steps * work.streams
        if number:
            cell.speeds.setdefault(name, []).append(done / seconds)

    def close(self) -> None:
        for name in list(self.engines):
            self._guarded(name, self.failures, self._note_peak, name)
        for engine in self.engines.values():
            engine.close()

    def _note_peak(self, name: str) -> None:
        self.facts[name]["peak_bytes"] = self.engines[name].ask("peak_bytes")

    def report(self) -> dict[str, Any]:
        return {
            "engines": self.facts,
            "failures": self.failures,
            "steps": self.steps,
            "ours": OURS,
            "cells": [cell.report() for cell in self.cells],
        }

    def _tokens(self, count: int, seed: int) -> list[int]:
        """Token ids of no meaning: speed does not depend on them, and no engine's tokenizer is needed."""
        vocab_size = min(facts["vocab_size"] for facts in self.facts.values() if "vocab_size" in facts)
        source = random.Random(seed)
        return [source.randrange(vocab_size // 2) for _ in range(count)]
