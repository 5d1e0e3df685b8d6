"""Shows what adapters cost: streams that decode with several different ones, and prompts, beside the same without.

Writes adapters (LoRA) of random weights for every projection of the model. Both turns have the same streams, are short,
and alternate, so neither a growing context nor a machine that drifts favours one of them.
"""

from __future__ import annotations

import argparse
import random
import re
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

import gguf
import numpy as np
from engines import add_common_arguments, describe_machine, write_report

from treadle.engine.adapters import Adapter, Adapters
from treadle.engine.engine import Engine
from treadle.engine.kv.block_pool import BlockPool
from treadle.engine.load import LoadedModel, load_model
from treadle.engine.memory_plan import KV_BLOCK_TOKENS, MAX_BATCH_TOKENS
from treadle.engine.output import TextOutput
from treadle.engine.request import AnswerRequest
from treadle.engine.sampling import SamplingParams
from treadle.engine.scheduler import Scheduler

TURN_STEPS = 8
PROJECTIONS = r"blk\.\d+\.(attn_q|attn_k|attn_v|attn_qkv|attn_output|ffn_gate|ffn_up|ffn_down)\.weight"


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_common_arguments(parser)
    parser.add_argument("--streams", type=int, default=8, help="streams to decode")
    parser.add_argument("--adapters", type=int, default=4, help="how many different ones the streams have")
    parser.add_argument("--rank", type=int, default=16, help="rank of the adapters")
    parser.add_argument("--context", type=int, default=128, help="tokens in each stream before decoding is timed")
    parser.add_argument("--prompt", type=int, default=512, help="length of the prompts to time")
    parser.add_argument("--rounds", type=int, default=8, help="turns of each kind")
    return parser.parse_args()


def write_adapter(path: Path, model: gguf.GGUFReader, rank: int, seed: int) -> None:
    """Write an adapter of random weights, small enough to leave the model nearly as it is."""
    rng = np.random.default_rng(seed)
    writer = gguf.GGUFWriter(path, model.fields["general.architecture"].contents())
    writer.add_type(gguf.GGUFType.ADAPTER)
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", float(rank))
    for tensor in model.tensors:
        if re.fullmatch(PROJECTIONS, tensor.name):
            columns, rows = (int(size) for size in tensor.shape)
            for part, shape in (("a", (rank, columns)), ("b", (rows, rank))):
                values = rng.normal(0, 0.01, shape).astype(np.float16)
                writer.add_tensor(f"{tensor.name}.lora_{part}", values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


class Bench:
    """A loaded model whose engine is stepped from here."""

    def __init__(self, loaded: LoadedModel, context: int, streams: int) -> None:
        self.loaded = loaded
        self.num_requests = 0
        self.engine = Engine(
            Scheduler(
                [
                    BlockPool(pool.num_blocks, KV_BLOCK_TOKENS, window=pool.window)
                    for pool in loaded.report.memory_plan.pools
                ],
                context=context,
                max_batch_tokens=MAX_BATCH_TOKENS,
                max_num_requests=streams,
                slowdown=None,
            ),
            loaded.runner,
        )

    def decode(self, adapters: Sequence[Adapter], streams: int, context: int, rounds: int) -> dict[str, list[float]]:
        """Return tokens per second of each turn, with and without adapters."""
        requests = [self._submit(context) for _ in range(streams)]
        while not all(request.answer_ids for request in requests):
            self.engine.step()

        def turn(used: Sequence[Adapter]) -> float:
            for index, request in enumerate(requests):
                request.adapter = used[index % len(used)] if used else None
            began = time.perf_counter()
            for _ in range(TURN_STEPS):
                self.engine.step()
            return streams * TURN_STEPS / (time.perf_counter() - began)

        speeds = in_turns(turn, adapters, rounds)
        for request in requests:
            self.engine.cancel(request)
        return speeds

    def prompt(self, adapters: Sequence[Adapter], length: int, rounds: int) -> dict[str, list[float]]:
        """Return tokens per second of prompts with an adapter and without."""

        def turn(used: Sequence[Adapter]) -> float:
            request = self._submit(length, used[0] if used else None)
            began = time.perf_counter()
            while not request.answer_ids:
                self.engine.step()
            seconds = time.perf_counter() - began
            self.engine.cancel(request)
            return length / seconds

        return in_turns(turn, adapters, rounds)

    def _submit(self, num_tokens: int, adapter: Adapter | None = None) -> AnswerRequest:
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
            adapter=adapter,
        )
        self.engine.submit(request)
        return request


def in_turns(
    turn: Callable[[Sequence[Adapter]], float], adapters: Sequence[Adapter], rounds: int
) -> dict[str, list[float]]:
    """Run turns with and without adapters, in an order that alternates; the first of each warms up."""
    speeds: dict[str, list[float]] = {"none": [], "adapters": []}
    for number in range(rounds + 1):
        order: list[tuple[str, Sequence[Adapter]]] = [("none", ()), ("adapters", adapters)]
        for name, used in order if number % 2 else reversed(order):
            speeds[name].append(turn(used))
    return {name: values[1:] for name, values in speeds.items()}


def load_adapters(loaded: LoadedModel, arguments: argparse.Namespace) -> list[Adapter]:
    """Write and load the adapters, and say what one takes."""
    model = gguf.GGUFReader(arguments.model)
    known = Adapters(loaded.runner.load_adapter, max_num=arguments.adapters, max_bytes=1 << 40)
    with tempfile.TemporaryDirectory() as folder:
        for index in range(arguments.adapters):
            path = Path(folder) / f"{index}.gguf"
            write_adapter(path, model, arguments.rank, index)
            began = time.perf_counter()
            info = known.load(str(index), path)
        print(f"an adapter of rank {arguments.rank}: {info.num_bytes / 1e6:.1f} MB, loaded in ", end="")
        print(f"{(time.perf_counter() - began) * 1e3:.0f} ms")
    return [known.find(info.name) for info in known.infos]


def main() -> None:
    arguments = parse_arguments()
    context = max(arguments.prompt, arguments.context + 2 * (arguments.rounds + 2) * TURN_STEPS) + 2
    loaded = load_model(arguments.model, context=context, threads=arguments.threads)
    print(f"{loaded.report.name}, {loaded.report.isa}, {arguments.threads} threads")
    adapters = load_adapters(loaded, arguments)
    bench = Bench(loaded, context, arguments.streams)
    works = {
        f"{arguments.streams} streams, {arguments.adapters} adapters": bench.decode(
            adapters, arguments.streams, arguments.context, arguments.rounds
        ),
        f"prompt of {arguments.prompt}, one adapter": bench.prompt(adapters, arguments.prompt, arguments.rounds),
    }
    print("\n| tokens per second | none | adapters | ratio |\n| --- | --- | --- | --- |")
    for work, speeds in works.items():
        ratio = median(mine / base for mine, base in zip(speeds["adapters"], speeds["none"], strict=True))
        print(f"| {work} | {median(speeds['none']):.1f} | {median(speeds['adapters']):.1f} | {ratio:.2f} |")
    write_report(arguments, {"machine": describe_machine(arguments), "rank": arguments.rank, "works": works})


if __name__ == "__main__":
    main()
