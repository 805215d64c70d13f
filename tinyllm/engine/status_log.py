"""`StatusLog`: one line now and then that says how busy the engine is, without a word of anybody's prompt."""

from __future__ import annotations

import logging

from tinyllm.metrics import StepStats

__all__ = ["StatusLog"]

logger = logging.getLogger("tinyllm.status")


class StatusLog:
    """Adds up steps, and logs their rates every ``interval`` seconds while there is work; 0 is never."""

    def __init__(self, interval: float) -> None:
        self._interval = interval
        self._since: float | None = None
        self._sum = StepStats()

    def add(self, stats: StepStats, now: float) -> None:
        """Take a step; log if it is time."""
        if self._interval == 0:
            return
        if self._since is None:
            self._since = now
        total = self._sum
        total.prompt_tokens += stats.prompt_tokens
        total.generation_tokens += stats.generation_tokens
        total.prefix_cache_queries += stats.prefix_cache_queries
        total.prefix_cache_hits += stats.prefix_cache_hits
        busy = stats.num_running + stats.num_waiting > 0
        if busy and now - self._since >= self._interval:
            self._log(stats, now - self._since)
        if not busy or now - self._since >= self._interval:
            self._since, self._sum = (now if busy else None), StepStats()

    def _log(self, stats: StepStats, seconds: float) -> None:
        total = self._sum
        logger.info(
            "running %d, waiting %d, stalled %d; prompt %.1f tokens/s, generation %.1f tokens/s; "
            "KV cache %.1f%%, prefix cache hits %.1f%%",
            stats.num_running,
            stats.num_waiting,
            stats.num_stalled,
            total.prompt_tokens / seconds,
            total.generation_tokens / seconds,
            100 * stats.kv_cache_usage,
            100 * total.prefix_cache_hits / max(1, total.prefix_cache_queries),
        )
