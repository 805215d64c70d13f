"""Write a GGUF file again with its matrices in another type.

    python -m tinyllm.bench.gguf_as IN.gguf OUT.gguf F32|BF16|Q8_0

So that llama.cpp runs the very weights that the others run: those of a quantised file, dequantised.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

import gguf
import numpy as np

__all__ = ["GGUF_TYPES", "convert"]

FILE_TYPES: Final = {
    "F32": gguf.LlamaFileType.ALL_F32,
    "BF16": gguf.LlamaFileType.MOSTLY_BF16,
    "Q8_0": gguf.LlamaFileType.MOSTLY_Q8_0,
}


GGUF_TYPES: Final = {"float32": "F32", "bfloat16": "BF16"}
"""Of each dtype."""


def convert(source: Path, target: Path, kind: str) -> None:
    """Copy metadata and tensors to ``target``, matrices as ``kind``: F32, BF16 or Q8_0.

    One-dimensional tensors become float32, as llama.cpp wants them.
    """
    reader = gguf.GGUFReader(source)
    architecture = reader.fields[gguf.Keys.General.ARCHITECTURE].contents()
    writer = gguf.GGUFWriter(target, architecture)
    for key, field in reader.fields.items():
        if key.startswith("GGUF.") or key in (gguf.Keys.General.ARCHITECTURE, gguf.Keys.General.FILE_TYPE):
            continue  # the writer's own
        sub_type = field.types[1] if field.types[0] is gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(key, field.contents(), field.types[0], sub_type=sub_type)
    writer.add_file_type(FILE_TYPES[kind])
    matrix_type = gguf.GGMLQuantizationType[kind]
    for tensor in reader.tensors:
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        if values.ndim == 1:
            writer.add_tensor(tensor.name, values)
        else:
            data = gguf.quants.quantize(values, matrix_type)
            writer.add_tensor(tensor.name, data, raw_dtype=matrix_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    convert(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
