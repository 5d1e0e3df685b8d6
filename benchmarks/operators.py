"""Shows where a step spends its time: operator by operator in the core, and in the Python around it.

Runs the engine as `treadle` does, for prompts and for streams that decode. The time of an operator is the mean over the
workers and includes their waiting for each other at its barriers; GB/s counts weights and KV blocks, GOP/s
multiplications and additions. Steps with the timers on take turns with steps without, so their own cost shows too.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from statistics import mean, median

from engines import add_common_arguments, describe_machine, write_report

from treadle import _native
from treadle.engine.block_pool import BlockPool
from treadle.engine.engine import Engine
from treadle.engine.load import LoadedModel, load_model
from treadle.engine.memory_plan import KV_BLOCK_TOKENS, MAX_BATCH_TOKENS, MAX_NUM_REQUESTS
from treadle.engine.output import TextOutput
from treadle.engine.request import AnswerRequest
from treadle.engine.runner import NativeRunner
from treadle.engine.sampling import SamplingParams
from treadle.engine.scheduler import Scheduler

TURN_STEPS = 8
# Timers off and on take turns, so that neither a growing context nor a machine that drifts favours one of them.
ORDERS = ((False, True), (True, False))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_common_arguments(parser)
    parser.add_argument("--streams", type=int, nargs="*", default=[1, 8, 16], help="numbers of streams to decode")
    parser.add_argument("--context", type=int, default=128, help="tokens in each stream before decoding is timed")
    parser.add_argument("--prompt", type=int, nargs="*", default=[512], help="prompt lengths to time")
    parser.add_argument("--steps", type=int, default=64, help="tokens decoded in each stream while the timers are on")
    parser.add_argument("--prompts", type=int, default=3, help="how often each prompt is read with the timers on")
    return parser.parse_args()


@dataclass
class Row:
    """One operator; all numbers are of the average step, times those of the average worker."""

    name: str
    calls: float
    seconds: float
    wait_seconds: float = 0.0
    bytes: float = 0.0
    operations: float = 0.0


class Meter:
    """Adds up steps that ran with the timers on, and for comparison others that ran with them off."""

    def __init__(self, runner: NativeRunner) -> None:
        self.runner = runner
        self.turns: dict[bool, list[float]] = {True: [], False: []}  # seconds per step of each turn
        self.seconds = 0.0
        self.num_steps = 0
        self.native_seconds = 0.0
        self.rows: dict[str, Row] = {}

    def run(self, step: Callable[[], None], num_steps: int, *, timed: bool) -> None:
        self.runner.set_timing(timed)
        start = time.perf_counter()
        for _ in range(num_steps):
            step()
        seconds = time.perf_counter() - start
        self.turns[timed].append(seconds / num_steps)
        if not timed:
            return
        self.seconds += seconds
        self.num_steps += num_steps
        timings = self.runner.timings()
        self.native_seconds += timings.seconds
        for operator in timings.operators:
            self._add(operator)

    def _add(self, operator: _native.OperatorTiming) -> None:
        row = self.rows.setdefault(operator.name, Row(operator.name, 0, 0.0))
        row.calls += operator.num_calls
        row.seconds += mean(operator.busy_seconds) + mean(operator.wait_seconds)
        row.wait_seconds += mean(operator.wait_seconds)
        row.bytes += operator.bytes
        row.operations += operator.operations

    def table(self) -> list[Row]:
        """The operators, what the core spent outside them, and what Python spent around the core."""
        rows = [
            Row(row.name, *(getattr(row, each.name) / self.num_steps for each in fields(Row)[1:]))
            for row in self.rows.values()
            if row.calls
        ]
        native_seconds = self.native_seconds / self.num_steps
        rows.append(Row("end of the step", 1, native_seconds - sum(row.seconds for row in rows)))
        rows.append(Row("Python", 1, self.step_seconds() - native_seconds))
        return rows

    def step_seconds(self) -> float:
        return self.seconds / self.num_steps

    def cost(self) -> float:
        """How much longer a step takes with the timers on."""
        return median(self.turns[True]) / median(self.turns[False]) - 1


class Bench:
    """A loaded model whose engine is stepped from here, so that the Python around the core is timed as well."""

    def __init__(self, loaded: LoadedModel, context: int) -> None:
        self.loaded = loaded
        self.num_requests = 0
        self.engine = Engine(
            Scheduler(
                BlockPool(loaded.report.memory_plan.num_blocks, KV_BLOCK_TOKENS),
                context=context,
                max_batch_tokens=MAX_BATCH_TOKENS,
                max_num_requests=MAX_NUM_REQUESTS,
            ),
            loaded.runner,
        )

    def decode(self, streams: int, context: int, steps: int) -> Meter:
        requests = [self._submit(context) for _ in range(streams)]
        while not all(request.answer_ids for request in requests):
            self.engine.step()
        meter = Meter(self.loaded.runner)
        for turn in range(-(-steps // TURN_STEPS)):
            for timed in ORDERS[turn % 2]:
                meter.run(self.engine.step, TURN_STEPS, timed=timed)
        for request in requests:
            self.engine.cancel(request)
        return meter

    def prompt(self, length: int, repeats: int) -> Meter:
        meter = Meter(self.loaded.runner)
        for number in range(repeats):
            for timed in ORDERS[number % 2]:
                request = self._submit(length)
                while not request.answer_ids:
                    meter.run(self.engine.step, 1, timed=timed)
                self.engine.cancel(request)
        return meter

    def _submit(self, num_tokens: int) -> AnswerRequest:
        self.num_requests += 1  # a prompt of its own, of which nothing is in the cache
        seed, vocab_size = self.num_requests, self.loaded.tokenizer.vocab_size
        prompt = [random.Random(f"{seed} {index}").randrange(vocab_size // 2) for index in range(num_tokens)]
        request = AnswerRequest(
            request_id=seed,
            prompt_ids=prompt,
            max_length=self.engine.scheduler.context,
            end_ids=frozenset(),
            sampler=self.loaded.runner.create_sampler(SamplingParams(temperature=0), seed, prompt),
            output=TextOutput(self.loaded.tokenizer.stream()),
            deliver=lambda _: None,
        )
        self.engine.submit(request)
        return request


def print_table(work: str, meter: Meter) -> None:
    total = meter.step_seconds()
    print(f"\n{work}: {total * 1e3:.2f} ms per step; the timers themselves cost {meter.cost():+.1%}\n")
    print("| operator | calls | ms | of the step | waiting | GB/s | GOP/s |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for row in meter.table():
        rates = [f"{count / row.seconds / 1e9:.1f}" if count else "" for count in (row.bytes, row.operations)]
        waiting = f"{row.wait_seconds / total:.1%}" if row.wait_seconds else ""
        cells = [
            row.name,
            f"{row.calls:.0f}",
            f"{row.seconds * 1e3:.3f}",
            f"{row.seconds / total:.1%}",
            waiting,
            *rates,
        ]
        print("| " + " | ".join(cells) + " |")


def main() -> None:
    arguments = parse_arguments()
    context = max([*arguments.prompt, arguments.context + 2 * arguments.steps + 4 * TURN_STEPS]) + 2
    loaded = load_model(
        arguments.model, context=context, threads=arguments.threads, mlock=False, isa=None, progress=None
    )
    bench = Bench(loaded, context)
    print(f"{loaded.report.name}, {loaded.report.isa}, {arguments.threads} threads")
    tables = {}
    for length in arguments.prompt:
        tables[f"prompt of {length} tokens"] = bench.prompt(length, arguments.prompts)
    for streams in arguments.streams:
        work = f"decode, {streams} streams of {arguments.context} tokens and more"
        tables[work] = bench.decode(streams, arguments.context, arguments.steps)
    for work, meter in tables.items():
        print_table(work, meter)
    report = {
        "machine": describe_machine(arguments),
        "steps": {
            work: {
                "seconds": meter.step_seconds(),
                "cost_of_timers": meter.cost(),
                "operators": [asdict(row) for row in meter.table()],
            }
            for work, meter in tables.items()
        },
    }
    write_report(arguments, report)


if __name__ == "__main__":
    main()
