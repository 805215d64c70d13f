"""`SchedulerConfig`: the options that the scheduler follows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tinyllm.config import EngineConfig

__all__ = ["SchedulerConfig"]


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """The options of `EngineConfig` that the scheduler follows; their meaning is written there."""

    max_model_len: int
    max_num_seqs: int = 32
    max_num_batched_tokens: int = 512
    max_num_partial_prefills: int = 4
    long_prefill_threshold: int = 0
    max_prefill_slowdown: float = 2.5
    max_step_seconds: float = 0.08
    prefill_mode: Literal["chunked", "one-shot"] = "chunked"
    max_waiting_requests: int = 256
    max_waiting_tokens: int = 1_000_000
    stall_timeout: float = 60.0
    priority_ageing: float = 10.0

    @classmethod
    def from_engine_config(cls, config: EngineConfig, max_model_len: int) -> SchedulerConfig:
        """Take the scheduler's options from the engine's; ``max_model_len`` is the resolved one."""
        return cls(
            max_model_len=max_model_len,
            max_num_seqs=config.max_num_seqs,
            max_num_batched_tokens=config.max_num_batched_tokens,
            max_num_partial_prefills=config.max_num_partial_prefills,
            long_prefill_threshold=config.long_prefill_threshold,
            max_prefill_slowdown=config.max_prefill_slowdown,
            max_step_seconds=config.max_step_seconds,
            prefill_mode=config.prefill_mode,
            max_waiting_requests=config.max_waiting_requests,
            max_waiting_tokens=config.max_waiting_tokens,
            stall_timeout=config.stall_timeout,
            priority_ageing=config.priority_ageing,
        )
