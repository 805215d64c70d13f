"""Worker: llama.cpp through llama-cpp-python's C interface.

    python -m benches.peers.llamacpp FILE.gguf DTYPE

Prompts are decoded in batches of up to 2,048 tokens, answers in one batch a step, as llama.cpp's own
``batched-bench`` does; only the last token of a prompt asks for logits.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Sequence
from typing import Any

import llama_cpp
import numpy as np

from benches.peers.worker import Prompts, serve

BATCH_TOKENS = 2048
Row = tuple[int, int, int, bool]
"""Token, position, sequence, and whether its logits are wanted."""


class Llama:
    """A model, and a context for each shape of batch; the last one is kept."""

    def __init__(self, path: str, threads: int) -> None:
        self._quiet = llama_cpp.llama_log_callback(lambda level, text, data: None)
        llama_cpp.llama_log_set(self._quiet, ctypes.c_void_p(0))
        llama_cpp.llama_backend_init()
        params = llama_cpp.llama_model_default_params()
        self._model = llama_cpp.llama_model_load_from_file(path.encode(), params)
        if not self._model:
            raise RuntimeError("the model could not be loaded")
        self.vocab_size = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self._model))
        self._threads = threads
        self._shape = (0, 0)
        self._context: Any = None
        self._batch = llama_cpp.llama_batch_init(BATCH_TOKENS, 0, 1)

    def generate(self, prompts: Prompts, output_tokens: int) -> None:
        """Complete every prompt greedily."""
        self._make_room(len(prompts), len(prompts[0]) + output_tokens)
        rows = [
            (token, position, sequence, position == len(prompt) - 1)
            for sequence, prompt in enumerate(prompts)
            for position, token in enumerate(prompt)
        ]
        tokens: list[int] = []
        for first in range(0, len(rows), BATCH_TOKENS):
            tokens += self._decode(rows[first : first + BATCH_TOKENS])
        for position in range(len(prompts[0]), len(prompts[0]) + output_tokens - 1):
            tokens = self._decode(
                [(token, position, sequence, True) for sequence, token in enumerate(tokens)]
            )

    def _make_room(self, sequences: int, length: int) -> None:
        shape = (sequences, -(-length // 64) * 64)
        if shape != self._shape:
            if self._context is not None:
                llama_cpp.llama_free(self._context)
            params = llama_cpp.llama_context_default_params()
            params.n_ctx = shape[0] * shape[1]
            params.n_batch, params.n_ubatch = BATCH_TOKENS, 512
            params.n_seq_max, params.kv_unified = sequences, True
            params.n_threads = params.n_threads_batch = self._threads
            self._context = llama_cpp.llama_init_from_model(self._model, params)
            self._shape = shape
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self._context), True)

    def _decode(self, rows: Sequence[Row]) -> list[int]:
        """Compute rows, and return the most likely token after each that wants its logits."""
        batch = self._batch
        batch.n_tokens = len(rows)
        for i, (token, position, sequence, wants_logits) in enumerate(rows):
            batch.token[i], batch.pos[i], batch.logits[i] = token, position, wants_logits
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, sequence
        if llama_cpp.llama_decode(self._context, batch) != 0:
            raise RuntimeError("llama_decode failed")
        llama_cpp.llama_synchronize(self._context)
        shape = (self.vocab_size,)
        return [
            int(np.ctypeslib.as_array(llama_cpp.llama_get_logits_ith(self._context, i), shape).argmax())
            for i, row in enumerate(rows)
            if row[3]
        ]


def main() -> None:
    """Serve measurements."""
    path, dtype = sys.argv[1:]
    threads = int(os.environ.get("BENCH_THREADS", os.cpu_count() or 1))
    llama = Llama(path, threads)
    serve("llama.cpp", llama.vocab_size, llama.generate, dtype=dtype, version=llama_cpp.__version__)


if __name__ == "__main__":
    main()
