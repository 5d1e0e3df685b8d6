"""Runs the works of a comparison on every engine, round after round, and gathers what they measure.

Each engine has its own process and its turn in every round, so drifts of a shared machine hit all alike; results.py
says what the figures mean.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engines import LIMITS, OURS, EngineError, EngineGoneError, EngineProcess

WARM_UP_TOKENS = 512


@dataclass(frozen=True)
class Work:
    """A prompt of `context` tokens, steps of so many streams that hold `context` each, or so many texts to embed."""

    kind: str  # prompt, decode or texts
    streams: int
    context: int

    @property
    def label(self) -> str:
        if self.kind == "prompt":
            return f"prompt {self.context}"
        if self.kind == "texts":
            return f"{self.streams} texts of {self.context}"
        return f"decode {self.streams} at {self.context}"


@dataclass(frozen=True)
class Settings:
    """How long everything takes."""

    threads: int
    steps: int  # of each decode call
    turn_seconds: float  # calls are repeated until so much time was measured
    rounds: int
    max_seconds: float  # no work begins later


@dataclass
class Cell:
    """One work: tokens per second of each engine and the machine's limits, one value per round."""

    work: Work
    speeds: dict[str, list[float]] = field(default_factory=dict)
    limits: list[list[float]] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0  # how long the last round took

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

    def __init__(self, model: Path, settings: Settings, works: list[Work]) -> None:
        self.model = model
        self.settings = settings
        self.cells = [Cell(work) for work in works]
        self.engines: dict[str, EngineProcess] = {}
        self.facts: dict[str, dict[str, Any]] = {}
        self.failures: dict[str, str] = {}
        self.num_rounds = 0  # that counted, for every work
        self.began = time.monotonic()

    def start(self, interpreters: dict[str, str]) -> None:
        for name, python in interpreters.items():
            self._say(f"starting {name}")
            self._guarded(name, self.failures, self._start, name, python)

    def _start(self, name: str, python: str) -> None:
        self.engines[name] = EngineProcess(name, python)
        try:
            self.facts[name] = self.engines[name].ask("load", path=str(self.model), threads=self.settings.threads)
        except EngineError as error:
            raise EngineGoneError(str(error)) from error

    def _guarded(self, name: str, failures: dict[str, str], action: Callable[..., None], *arguments: Any) -> None:
        """An engine that fails is reported, and the others go on."""
        try:
            action(*arguments)
        except EngineError as error:
            failures[name] = str(error)
            self._say(f"{name} failed: {error}")
            if isinstance(error, EngineGoneError) and name in self.engines:
                self.failures[name] = str(error)
                self.engines.pop(name).close()

    def run(self) -> None:
        for number in range(self.settings.rounds + 1):  # round 0 warms up and is not counted
            for index, cell in enumerate(self.cells):
                if self._elapsed() > self.settings.max_seconds:
                    self._say(f"time is up after {self.num_rounds} whole rounds")
                    return
                self._say(f"round {number} of {self.settings.rounds}: {cell.work.label}{self._outlook(number, index)}")
                started = time.monotonic()
                self._run_cell(cell, number)
                cell.seconds = time.monotonic() - started
            self.num_rounds = number

    def _run_cell(self, cell: Cell, number: int) -> None:
        # Whoever comes second finds a warmer processor: the order alternates. The limits stay next to our own turn.
        names = list(self.engines) if number % 2 else list(reversed(self.engines))
        for name in names:
            if name not in cell.failures:
                self._guarded(name, cell.failures, self._take_turn, name, cell, number)

    def _take_turn(self, name: str, cell: Cell, number: int) -> None:
        if name == LIMITS:
            limits = self.engines[name].ask("call", method="measure")
            if number:
                cell.limits.append(limits)
            return
        measure = {"prompt": self._prompt, "decode": self._decode, "texts": self._embed}[cell.work.kind]
        if cell.work.kind == "decode" and number:
            measure(self.engines[name], cell.work, number, 0)  # the caches are full of what the engine before it read
        num_tokens, seconds = 0, 0.0
        for repetition in range(sys.maxsize):
            tokens, took = measure(self.engines[name], cell.work, number, repetition)
            num_tokens, seconds = num_tokens + tokens, seconds + took
            if not number or seconds >= self.settings.turn_seconds:
                break
        if number:
            cell.speeds.setdefault(name, []).append(num_tokens / seconds)

    def _prompt(self, engine: EngineProcess, work: Work, number: int, repetition: int) -> tuple[int, float]:
        # New tokens every time, or a prefix cache would have the answer; the same ones for every engine.
        length = work.context if number else min(work.context, WARM_UP_TOKENS)
        tokens = self._tokens(length, f"{number} {repetition} {work.context}")
        return length, engine.ask("call", method="prompt", tokens=tokens)

    def _decode(self, engine: EngineProcess, work: Work, number: int, repetition: int) -> tuple[int, float]:
        del number, repetition  # always the same prompts, which stay in the cache
        prompts = [self._tokens(work.context, f"stream {stream}") for stream in range(work.streams)]
        steps = self.settings.steps
        return steps * work.streams, engine.ask("call", method="decode", prompts=prompts, num_steps=steps)

    def _embed(self, engine: EngineProcess, work: Work, number: int, repetition: int) -> tuple[int, float]:
        texts = self.texts(work, f"{number} {repetition}")
        return work.streams * work.context, engine.ask("call", method="embed", texts=texts)

    def texts(self, work: Work, seed: str) -> list[list[int]]:
        """Token ids of the texts of a work."""
        return [self._tokens(work.context, f"{seed} {work.context} {text}") for text in range(work.streams)]

    def _tokens(self, count: int, seed: str) -> list[int]:
        """Token ids of no meaning: speed does not depend on them, and no engine's tokenizer is needed."""
        vocab_size = min(facts["vocab_size"] for facts in self.facts.values() if "vocab_size" in facts)
        source = random.Random(seed)
        return [source.randrange(vocab_size // 2) for _ in range(count)]

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
            "steps": self.settings.steps,
            "rounds": self.num_rounds,
            "rounds_wanted": self.settings.rounds,
            "seconds": self._elapsed(),
            "ours": OURS,
            "cells": [cell.report() for cell in self.cells],
        }

    def _elapsed(self) -> float:
        return time.monotonic() - self.began

    def _outlook(self, number: int, index: int) -> str:
        if number < 2:  # the warm-up says little about a round
            return ""
        rest = sum(cell.seconds for cell in self.cells[index:])
        rest += (self.settings.rounds - number) * sum(cell.seconds for cell in self.cells)
        return f", about {rest:.0f} s to go"

    def _say(self, text: str) -> None:
        print(f"[{self._elapsed():4.0f} s] {text}", file=sys.stderr, flush=True)
