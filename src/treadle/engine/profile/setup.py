"""What ran, where and how: the part of a profile that tells whether another one can be compared with it.

Leaves to others: finding it out (``facts``).
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["MachineFacts", "ModelFacts", "ProfileSettings"]


@dataclass(frozen=True)
class ModelFacts:
    """The model; ``decode_bytes`` is what one token of one stream reads of the weights, ``formats`` bytes of each."""

    name: str
    architecture: str
    file_bytes: int
    weight_bytes: int
    decode_bytes: int
    num_parameters: int
    num_layers: int
    formats: dict[str, int]


@dataclass(frozen=True)
class MachineFacts:
    """The machine; ``quota`` is in CPUs, None without one, ``cache_bytes`` the largest cache of each level."""

    processor: str
    architecture: str
    num_cores: int
    num_nodes: int
    cache_bytes: dict[str, int]
    memory_bytes: int
    huge_pages: str | None
    quota: float | None
    kernel: str
    hypervisor: str | None
    container: str | None


@dataclass(frozen=True)
class ProfileSettings:
    """How the model ran; CPUs are -1 for threads that the system places."""

    kernels: str
    cpus: tuple[int, ...]
    prompt_cpus: tuple[int, ...]
    kv_type: str
    huge_pages: bool
    mlock: bool
    memory_nodes: str
    batch_tokens: int
