"""The bodies of ``/v1/load_lora_adapter`` and ``/v1/unload_lora_adapter``, in the words of vLLM."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from treadle.server.schema.base import Body, ModelName

__all__ = ["LoadAdapterRequest", "UnloadAdapterRequest"]


class LoadAdapterRequest(Body):
    """An adapter file of the machine that serves; ``scale`` multiplies the one the file gives."""

    lora_name: Annotated[str, Field(min_length=1, max_length=200)]
    lora_path: Annotated[str, Field(min_length=1, max_length=4096)]
    scale: float | None = None
    model: ModelName | None = None


class UnloadAdapterRequest(Body):
    """The adapter that is to go."""

    lora_name: str
