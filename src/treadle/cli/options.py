"""The options that several commands share, spelled and explained once.

Leaves to others: what the values may be (``SamplingParams``, ``LLM``).
"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from treadle.cli.console import console

__all__ = [
    "DEFAULT_MODEL",
    "Adapt",
    "Adapter",
    "AdapterMemory",
    "Adapters",
    "Context",
    "DiskCache",
    "Engine",
    "HugePages",
    "KvType",
    "MaxAdapters",
    "MaxTokens",
    "Memory",
    "MinP",
    "Mlock",
    "Model",
    "Numa",
    "Pin",
    "PromptThreads",
    "Quiet",
    "RamCache",
    "RepetitionPenalty",
    "ReserveCores",
    "Seed",
    "Stop",
    "System",
    "Temperature",
    "Threads",
    "TopK",
    "TopP",
    "Verbose",
]

DEFAULT_MODEL = "smollm2:135m"


def _set_quiet(value: bool) -> bool:
    console.is_quiet = value
    return value


def _set_verbose(value: bool) -> bool:
    console.is_verbose = value
    return value


def _sampling(*names: str, help: str) -> Any:
    return typer.Option(*names, help=help, rich_help_panel="Sampling")


def _machine(*names: str, help: str) -> Any:
    return typer.Option(*names, help=help, rich_help_panel="Machine")


Model = Annotated[
    str | None,
    typer.Option(
        "--model",
        "-m",
        help=f"Name, hf:org/repo[:quant], URL, or path of a .gguf file; by default {DEFAULT_MODEL}.",
    ),
]
System = Annotated[str | None, typer.Option("--system", "-s", help="System message that opens the conversation.")]
Context = Annotated[
    int | None,
    typer.Option("--context", help="Most tokens of prompt and answer; by default up to 8192, if memory allows."),
]
Memory = Annotated[
    str | None,
    typer.Option("--memory", help="For weights, KV blocks and caches, such as 6GiB; by default what is free."),
]
RamCache = Annotated[
    str | None, typer.Option("--ram-cache", help="Memory for prompts computed before, such as 1GiB; none by default.")
]
DiskCache = Annotated[
    str | None, typer.Option("--disk-cache", help="Disk for prompts computed before, such as 4GiB; none by default.")
]
Adapter = Annotated[
    str | None, typer.Option("--adapter", help="LoRA adapter that answers, as PATH or PATH@SCALE of a GGUF file.")
]
Adapters = Annotated[
    list[str] | None,
    typer.Option(
        "--adapter", help="LoRA adapter of the first model, as NAME=PATH or NAME=PATH@SCALE; may be given again."
    ),
]
AdapterMemory = Annotated[
    str | None, typer.Option("--adapter-memory", help="Memory set aside for adapters; by default what is left.")
]
MaxAdapters = Annotated[int | None, typer.Option("--max-adapters", help="Most adapters in memory; 16 by default.")]
KvType = Annotated[
    str | None,
    typer.Option("--kv-type", help="How the context is kept: f16, or q8_0, which takes half the memory."),
]
Engine = Annotated[
    str | None,
    typer.Option(
        "--engine",
        help="What computes: native, llamacpp or the URL of a server; by default native for the models it knows.",
    ),
]
Threads = Annotated[
    int | None, typer.Option("--threads", "-t", help="Threads that compute; by default the usable physical cores.")
]
PromptThreads = Annotated[
    int | None, _machine("--prompt-threads", help="Threads that read prompts; by default as many.")
]
ReserveCores = Annotated[
    int | None, _machine("--reserve-cores", help="Cores that are left to other programs; none by default.")
]
Pin = Annotated[
    bool | None,
    _machine("--pin/--no-pin", help="Keep threads on their CPUs; by default if they fill the usable cores."),
]
Numa = Annotated[
    str | None,
    _machine(
        "--numa",
        help="Where memory comes from if there are several nodes: auto, node, interleave, replicated or default.",
    ),
]
HugePages = Annotated[
    bool | None, _machine("--huge-pages/--no-huge-pages", help="Ask for huge pages; done by default.")
]
Adapt = Annotated[
    bool | None,
    _machine("--adapt/--no-adapt", help="Run fewer threads while others take the CPUs; done by default."),
]
Mlock = Annotated[bool | None, typer.Option("--mlock/--no-mlock", help="Keep the model out of swap; not by default.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", callback=_set_quiet, help="Print the answer and errors only.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", callback=_set_verbose, help="Say what is chosen and why.")]

MaxTokens = Annotated[int | None, _sampling("--max-tokens", "-n", help="Most tokens of the answer.")]
Temperature = Annotated[float, _sampling("--temperature", help="0 always takes the likeliest token.")]
TopK = Annotated[int, _sampling("--top-k", help="Keep this many of the likeliest tokens; 0 keeps all.")]
TopP = Annotated[float, _sampling("--top-p", help="Keep the likeliest tokens up to this sum.")]
MinP = Annotated[float, _sampling("--min-p", help="Drop tokens below this share of the likeliest.")]
RepetitionPenalty = Annotated[float, _sampling("--repetition-penalty", help="Above 1 discourages repeats.")]
Seed = Annotated[int | None, _sampling("--seed", help="The same seed gives the same answer.")]
Stop = Annotated[list[str] | None, _sampling("--stop", help="Text that ends the answer; may be given again.")]
