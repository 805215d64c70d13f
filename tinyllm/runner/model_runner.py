"""`ModelRunner`: one step of the model, from what the scheduler planned to tokens."""

from __future__ import annotations

import time
from typing import Protocol

import torch
from torch import Tensor

from tinyllm.artifacts.model import ModelConfig
from tinyllm.attention.metadata import AttentionBackend, AttentionMetadata, KVCacheSpec, LayerKVCache
from tinyllm.core.step import ModelRunnerOutput, SampledToken, SchedulerOutput, TokenScores
from tinyllm.errors import RequestFailedError
from tinyllm.runner.batch import Batch, BatchBuilder, PromptRows
from tinyllm.runner.logprobs import score_tokens
from tinyllm.runner.sampler import Sampler

__all__ = ["Model", "ModelRunner"]

_SCORED_ROWS = 64
"""Prompt rows whose logits are held at once: a long prompt's would take gigabytes."""


class Model(Protocol):
    """What the runner needs of a model (`tinyllm.models.causal_lm.CausalLM` is one)."""

    config: ModelConfig
    device: torch.device

    def __call__(
        self,
        input_ids: Tensor,
        positions: Tensor,
        kv_caches: list[LayerKVCache],
        metadata: AttentionMetadata,
        /,
    ) -> Tensor:
        """Store keys and values, and return hidden states ``[num_tokens, hidden_size]``."""
        ...

    def compute_logits(self, hidden: Tensor, /) -> Tensor:
        """Return float32 logits ``[rows, vocab_size]``, a new tensor."""
        ...


class ModelRunner:
    """Owns the physical KV cache and runs the model on a step's flat batch. One thread only."""

    def __init__(
        self,
        model: Model,
        backend: AttentionBackend,
        kv_cache_spec: KVCacheSpec,
        num_blocks: int,
        *,
        vocab_size: int,
        max_num_batched_tokens: int = 512,
    ) -> None:
        """Allocate ``num_blocks`` blocks. ``vocab_size`` is the tokenizer's: ids beyond it are padding."""
        self._model = model
        self._vocab_size = min(vocab_size, model.config.vocab_size)
        self._kv_caches = backend.allocate(kv_cache_spec, num_blocks)
        self._builder = BatchBuilder(backend, kv_cache_spec, max_num_batched_tokens)
        self._sampler = Sampler(self._vocab_size, model.device)

    @torch.inference_mode()
    def execute_model(self, scheduler_output: SchedulerOutput) -> ModelRunnerOutput:
        """Compute the scheduled tokens, and sample for the requests that are to.

        A fault of one request (a hook that raises, logits that are NaN) is the ``error`` of its entry in
        ``sampled``, which it also gets when only its prompt was to be scored. Whatever is raised is a fault
        of the step. ``timings`` has ``build``, ``forward`` and ``sample`` (scores of prompts included); on
        CUDA the forward runs on while ``sample`` waits for it.
        """
        output = ModelRunnerOutput()
        if not scheduler_output.scheduled:
            return output
        started = time.perf_counter()
        batch = self._builder.build(scheduler_output.scheduled)
        built = time.perf_counter()
        hidden = self._model(batch.input_ids, batch.positions, self._kv_caches, batch.metadata)
        computed = time.perf_counter()
        self._sample(batch, hidden, output)
        self._score_prompts(batch, hidden, output)
        output.timings = {
            "build": built - started,
            "forward": computed - built,
            "sample": time.perf_counter() - computed,
        }
        return output

    def _sample(self, batch: Batch, hidden: Tensor, output: ModelRunnerOutput) -> None:
        if batch.sampling:
            logits = self._model.compute_logits(hidden[batch.sample_rows])
            sampled = self._sampler.sample(logits, batch.sampling)
            for request, token in zip(batch.sampling, sampled, strict=True):
                output.sampled[request.request_id] = token

    def _score_prompts(self, batch: Batch, hidden: Tensor, output: ModelRunnerOutput) -> None:
        for rows in batch.prompt_rows:
            request_id = rows.request.request_id
            try:
                output.prompt_scores[request_id] = self._scores(rows, hidden)
            except RequestFailedError as error:
                output.sampled[request_id] = SampledToken(0, error=error)

    def _scores(self, rows: PromptRows, hidden: Tensor) -> list[TokenScores]:
        """Score a request's prompt tokens, a few rows at a time."""
        num_top = rows.request.params.prompt_logprobs or 0
        scores: list[TokenScores] = []
        for first in range(0, len(rows.target_ids), _SCORED_ROWS):
            targets = rows.target_ids[first : first + _SCORED_ROWS]
            row = rows.first_row + first
            logits = self._model.compute_logits(hidden[row : row + len(targets)])
            if not logits.amax(dim=-1).isfinite().all():
                raise RequestFailedError("the model's logits for the prompt are NaN or infinite")
            logprobs = logits.log_softmax(dim=-1)
            scores += score_tokens(logprobs, targets, [num_top] * len(targets), self._vocab_size)
        return scores
