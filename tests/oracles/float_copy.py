"""Writes the copy of a model whose weights are float32, as the `gguf` package dequantises them.

An engine that runs the copy rounds no activations, so what it says is the reference for engines that do.
"""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np


def write_float_copy(source: Path, target: Path) -> Path:
    """One tensor in memory at a time: the copy of a large model is many gigabytes."""
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(target, reader.fields["general.architecture"].contents())
    for field in reader.fields.values():
        if field.name.startswith("GGUF.") or field.name == "general.architecture":
            continue
        element = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(field.name, field.contents(), field.types[0], sub_type=element)
    for tensor in reader.tensors:
        shape = tuple(int(size) for size in reversed(tensor.shape))
        writer.add_tensor_info(tensor.name, shape, np.dtype(np.float32), 4 * int(tensor.n_elements))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for tensor in reader.tensors:
        writer.write_tensor_data(gguf.quants.dequantize(tensor.data, tensor.tensor_type))
    writer.close()
    return target
