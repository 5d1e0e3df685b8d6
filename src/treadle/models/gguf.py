"""What a GGUF file says about its model: metadata, tensors and checked hyperparameters.

Parsing and checking bytes is the native reader's job; tokens and templates are for the modules beside this one.
"""

from __future__ import annotations

import math
import os
import re
import shlex
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from treadle import _native
from treadle.errors import ModelFileError, UsageError
from treadle.models.hyperparameters import Hyperparameters, read_hyperparameters, reads_both_ways

__all__ = ["FormatShare", "Hyperparameters", "ModelFile", "TensorEntry"]


class TensorEntry(NamedTuple):
    """One tensor of the file's directory; the first dimension is the contiguous one."""

    name: str
    format: str
    shape: tuple[int, ...]
    num_bytes: int


class FormatShare(NamedTuple):
    """What the tensors of one format make up."""

    num_tensors: int
    num_bytes: int


class ModelFile:
    """An open GGUF file, or all shards of a split one."""

    def __init__(self, native: _native.GgufFile) -> None:
        self.native = native
        self.path = Path(native.path)

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> ModelFile:
        """Open a file and check its header.

        Raises:
            UsageError: The path cannot be read, or is not the first shard of a split model.
            ModelFileError: The contents are not valid GGUF.
        """
        try:
            return cls(_native.GgufFile.open(path))
        except UsageError as error:
            hint = _reading_hint(path)
            raise UsageError(str(error), hint=hint) from None
        except ModelFileError as error:
            hint = "download the file again; if the error stays, the file was made wrong"
            raise ModelFileError(str(error), hint=hint) from None
        except ValueError as error:
            raise UsageError(f"{os.fspath(path)!r} cannot be a path: {error}") from None

    @cached_property
    def metadata(self) -> Mapping[str, Any]:
        """Every key in file order; arrays are lists."""
        return MappingProxyType(self.native.metadata())

    @cached_property
    def tensors(self) -> tuple[TensorEntry, ...]:
        """Every tensor in file order."""
        return tuple(
            TensorEntry(name, _native.GGUF_FORMATS[format_id], shape, num_bytes)
            for name, format_id, shape, num_bytes in self.native.tensors()
        )

    @property
    def architecture(self) -> str:
        """The family of the model, such as ``llama``."""
        found = self.metadata.get("general.architecture")
        if isinstance(found, str) and re.fullmatch(r"[\w.-]{1,64}", found, re.ASCII):
            return found
        problem = "is missing" if found is None else f"expected a short plain name, found {repr(found)[:80]}"
        raise ModelFileError(f"{self.path}: key 'general.architecture': {problem}")

    @property
    def is_encoder(self) -> bool:
        """Whether every token sees those behind it, too, so that texts become vectors and get no answers."""
        return reads_both_ways(self.architecture, self.metadata)

    @property
    def ranks(self) -> bool:
        """Whether the model says how well a document answers a query, and nothing else."""
        return any(tensor.name == "cls.output.weight" for tensor in self.tensors)

    @property
    def name(self) -> str:
        """The name the file gives its model, or else the file's own."""
        found = self.metadata.get("general.name")
        return found if isinstance(found, str) and found else self.path.stem

    @property
    def paths(self) -> tuple[Path, ...]:
        """The file, or every shard of a split one in order; the name tells, as it does when they are opened."""
        match = re.fullmatch(r"(.*-)00001(-of-(\d{5})\.gguf)", self.path.name, re.ASCII | re.DOTALL)
        if match is None:
            return (self.path,)
        names = [f"{match[1]}{index:05d}{match[2]}" for index in range(1, int(match[3]) + 1)]
        return tuple(self.path.with_name(name) for name in names)

    @property
    def file_bytes(self) -> int:
        """The size of the file, or of all shards."""
        return self.native.file_bytes

    @property
    def num_parameters(self) -> int:
        """The elements of all tensors."""
        return sum(math.prod(tensor.shape) for tensor in self.tensors)

    @property
    def quant_mix(self) -> dict[str, FormatShare]:
        """The formats of the tensors, the one with most bytes first."""
        mix: dict[str, FormatShare] = {}
        for tensor in self.tensors:
            share = mix.get(tensor.format, FormatShare(0, 0))
            mix[tensor.format] = FormatShare(share.num_tensors + 1, share.num_bytes + tensor.num_bytes)
        return dict(sorted(mix.items(), key=lambda item: item[1].num_bytes, reverse=True))

    @cached_property
    def hyperparameters(self) -> Hyperparameters:
        """The shape of the model, checked.

        Raises:
            ModelFileError: Keys or tensors are missing or contradict each other.
        """
        shapes = {tensor.name: tensor.shape for tensor in self.tensors}
        return read_hyperparameters(str(self.path), self.architecture, self.metadata, shapes)


def _reading_hint(path: str | os.PathLike[str]) -> str:
    """Return what to type about a file that cannot be read."""
    may_read = True
    try:
        Path(path).stat()
        may_read = os.access(path, os.R_OK)
    except PermissionError:  # of a folder above it
        may_read = False
    except OSError:  # there is no such file, nor can there be one of that name
        pass
    if not may_read:
        return f"let this user read it: chmod a+r {shlex.quote(os.fspath(path))}, and a+x on the folders above it"
    return "`treadle list` shows the models that are here, `treadle pull` fetches one"
