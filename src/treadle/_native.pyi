"""The native core of Treadle."""

from collections.abc import Callable, Sequence
from os import PathLike
from typing import Annotated, Any

import numpy
from numpy.typing import NDArray


class GgufFile:
    """A GGUF file, or all shards of a split model, checked on opening."""

    @staticmethod
    def open(path: str | bytes | PathLike[str]) -> GgufFile:
        """Open a file given as str, bytes or PathLike."""

    @property
    def path(self) -> str: ...

    @property
    def file_bytes(self) -> int: ...

    def metadata(self) -> dict[str, Any]:
        """A new dict of every key in file order; arrays are lists."""

    def tensors(self) -> list[tuple[str, int, tuple[int, ...], int]]:
        """
        (name, format_id, shape with the contiguous dimension first, num_bytes) of each tensor.
        """

    def read(self, name: str, offset: int, count: int) -> bytes:
        """Bytes of a tensor's data."""

GGUF_FORMATS: dict[int, str]

class SampleResult:
    @property
    def token(self) -> int: ...

    @property
    def bad_logits(self) -> bool: ...

    @property
    def logprob(self) -> float: ...

    @property
    def top_logprobs(self) -> list[tuple[int, float]]: ...

class Sampler:
    def __init__(self, vocab_size: int, *, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0, repetition_penalty: float = 1.0, presence_penalty: float = 0.0, frequency_penalty: float = 0.0, seed: int = 0, num_logprobs: int = -1, logit_bias: Sequence[tuple[int, float]] = []) -> None: ...

    def add_prompt(self, tokens: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> None: ...

    def accept(self, token: int) -> None: ...

    def set_mask(self, mask: Annotated[NDArray[numpy.uint32], dict(shape=(None,), order='C', device='cpu', writable=False)] | None) -> None:
        """
        Allow the tokens whose bits are set, lowest bit first, until replaced; None allows all. The words are copied.
        """

    def sample(self, logits: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> SampleResult: ...

KV_BLOCK_TOKENS: int = 32

def trim_heap() -> None:
    """Give memory that was freed back to the system."""

class Model:
    """Packed weights of one model file."""

    @staticmethod
    def load(gguf: GgufFile, *, isa: str = '', cpus: Sequence[int], progress: Callable[[int, int], None] | None = None, context_length: int = 0, copies: Sequence[tuple[int, Sequence[int]]] = ()) -> Model:
        """
        Read, check and pack a model; `progress(bytes_done, bytes_total)` is called now and then. `context_length`, 0 for the model's own, chooses between factors for short and long contexts. `copies` are memory nodes that each get a copy of all weights, with the CPUs that read it; by default there is one copy, wherever the system puts it.
        """

    @staticmethod
    def check(gguf: GgufFile) -> None:
        """
        Raise ModelFileError, or UnsupportedModelError, if this core could not load the file.
        """

    @property
    def isa(self) -> str: ...

    @property
    def architecture(self) -> str: ...

    @property
    def num_layers(self) -> int: ...

    @property
    def hidden_size(self) -> int: ...

    @property
    def state_size(self) -> int:
        """Numbers of a state that leaves the model."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def num_heads(self) -> int: ...

    @property
    def num_kv_heads(self) -> int: ...

    @property
    def head_dim(self) -> int: ...

    @property
    def context_length(self) -> int: ...

    @property
    def weight_bytes(self) -> int:
        """Bytes of packed weights in memory."""

    @property
    def weight_address(self) -> int:
        """
        Where they begin, copy after copy: for tools that ask the system on which node a page is.
        """

    @property
    def decode_bytes(self) -> int:
        """Weight bytes read for one decoded token."""

    def lock_memory(self) -> int:
        """Keep the weights in RAM; returns 0 or the errno of mlock."""

class Adapter:
    """A low-rank adapter (LoRA) of one loaded model."""

    @staticmethod
    def load(gguf: GgufFile, model: Model, *, cpus: Sequence[int], strength: float = 1.0) -> Adapter:
        """
        Read and check an adapter; `strength` multiplies the scale that its file gives.
        """

    @property
    def num_bytes(self) -> int:
        """Bytes in memory."""

class StepOutput:
    """What one step produced, in the order of its logit rows."""

    @property
    def samples(self) -> list[SampleResult]: ...

    @property
    def logits(self) -> Annotated[NDArray[numpy.float32], dict(shape=(None, None))] | None: ...

class OperatorTiming:
    """Where the time of one operator went, one entry per worker."""

    @property
    def name(self) -> str: ...

    @property
    def num_calls(self) -> int:
        """Once per layer and step."""

    @property
    def bytes(self) -> int:
        """Bytes of weights or KV blocks read, all workers together."""

    @property
    def operations(self) -> int:
        """Multiplications and additions, all workers together."""

    @property
    def busy_seconds(self) -> list[float]: ...

    @property
    def wait_seconds(self) -> list[float]:
        """Seconds at barriers."""

class StepTimings:
    """Where the time of steps went."""

    @property
    def num_steps(self) -> int: ...

    @property
    def seconds(self) -> float:
        """Seconds inside the steps."""

    @property
    def operators(self) -> list[OperatorTiming]: ...

class KvBlocks:
    """The KV blocks of the layers of one runtime that see equally far back."""

    def read_kv_block(self, block_id: int, out: NDArray[numpy.uint8] | bytearray | memoryview) -> None:
        """
        Copy a block's bytes into a writable uint8 buffer, with the GIL released. Like write_kv_block and copy_kv_block, may run during a step that does not use the block.
        """

    def write_kv_block(self, block_id: int, data: NDArray[numpy.uint8] | bytes | bytearray | memoryview) -> None:
        """
        Replace a block's bytes by those of a uint8 buffer that read_kv_block filled under the same kv_layout.
        """

    def copy_kv_block(self, src: int, dst: int) -> None:
        """Copy block `src` over block `dst`."""

    @property
    def window(self) -> int:
        """
        Positions that a token sees in these layers, itself included; 0 for all before it.
        """

    @property
    def num_blocks(self) -> int: ...

    @property
    def kv_block_bytes(self) -> int:
        """Bytes of one KV block over all layers of the group."""

    @property
    def kv_layout(self) -> str:
        """
        What gives a block's bytes their meaning; the same for every kernel table.
        """

class Runtime:
    """
    Worker threads, KV blocks and scratch memory that run steps of one model.
    """

    def __init__(self, model: Model, *, cpus: Sequence[int], num_blocks: int | Sequence[int], max_batch_tokens: int = 512, kv_type: str = 'f16') -> None: ...

    def step(self, token_ids: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], query_lens: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], start_positions: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], block_tables: Annotated[NDArray[numpy.int32], dict(shape=(None, None), order='C', device='cpu', writable=False)], logit_rows: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], samplers: Sequence[Sampler], return_logits: bool = False, state_sums: Sequence[tuple[int, int, Annotated[NDArray[numpy.float64], dict(shape=(None,), order='C', device='cpu')]]] = [], adapters: Sequence[Adapter] = []) -> StepOutput:
        """
        Run one step with the GIL released; see StepInput in runtime.h. `block_tables` has one row for each sequence, or for each sequence of each group of KV blocks, group after group. `state_sums` are of first row, number of rows and the float64 array of state_size to which their states are added. `adapters` has one entry for each sequence, None for the model as it is, or none at all.
        """

    @property
    def kv_type(self) -> str: ...

    @property
    def kv_blocks(self) -> list[KvBlocks]:
        """
        The blocks of layers that see everything, then those of layers with a window; of models with one kind only that one.
        """

    def set_cpus(self, cpus: Sequence[int]) -> None:
        """Replace the worker threads, between steps."""

    def set_sitting_out(self, on: bool) -> None:
        """
        Whether threads whose CPUs are busy with other programs sit out, as they do at first.
        """

    def set_timing(self, on: bool) -> None:
        """Start timing operators from zero, or stop; costs nothing while off."""

    def timings(self) -> StepTimings:
        """What was timed since set_timing(True) or set_cpus(); empty while off."""

    @property
    def num_threads(self) -> int: ...

    @property
    def num_present(self) -> int:
        """
        Of the threads, those that take part; others sit out while their CPUs are busy. Between steps.
        """

    @property
    def max_batch_tokens(self) -> int: ...

    def lock_memory(self) -> int:
        """Keep KV blocks and scratch in RAM; returns 0 or the errno of mlock."""

class LimitProbe:
    """Measures what the machine gives at this moment, all threads together."""

    def __init__(self, cpus: Sequence[int], num_bytes: int, isa: str = '') -> None:
        """
        Allocates the memory to read: `num_bytes`, more than every cache together. `isa` names the kernels whose instructions are measured, the best this CPU runs by default.
        """

    def fill(self) -> bool:
        """
        Takes the next MiB of the memory for each thread from the system, which may be slow; false when that was the last. `measure` takes what is left.
        """

    def measure(self, windows: int, seconds: float) -> tuple[float, float, float]:
        """
        Bytes read from memory per second, int8 multiplications and additions per second in registers, and the same of floats: each the best of so many windows of so many seconds, which take turns.
        """

    @property
    def isa(self) -> str:
        """The kernels whose instructions are measured."""

class LatencyProbe:
    """Measures how long one thread waits for what it reads."""

    def __init__(self, cpu: int, num_bytes: int) -> None:
        """Allocates the memory to read, for a thread on this CPU (-1: on any)."""

    def measure(self, num_bytes: int, seconds: float) -> float:
        """
        Seconds from one load to the next one that depends on it, in the first `num_bytes`, over so many seconds.
        """
