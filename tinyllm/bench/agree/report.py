"""The whole check: ask every engine, and report as a dict for JSON and as Markdown."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import combinations
from typing import Any, Final

from tinyllm.bench.agree.answers import TIES, Answer, first_difference, pairs
from tinyllm.bench.agree.engines import Job, Peer, PeerFailedError, answers_of_tinyllm, ask
from tinyllm.bench.environment import environment
from tinyllm.bench.table import environment_line, markdown_table
from tinyllm.config import EngineConfig
from tinyllm.engine.async_engine import AsyncEngine
from tinyllm.runner.device import default_num_threads
from tinyllm.text.tokenizer import Tokenizer

__all__ = ["PROMPTS", "agree_lines", "run_agree"]

PROMPTS: Final = (
    "The capital of France is",
    "Once upon a time, in a village at the foot of a mountain,",
    "def fibonacci(n: int) -> int:\n    ",
    "Water boils at 100 degrees Celsius because",
    "List three reasons why people keep bees.\n1.",
    '{"name": "Ada", "born": 1815, "works": [',
    "Translate to German: The library opens at nine o'clock.\nGerman:",
    "Q: A train leaves at 14:05 and arrives at 16:50. How long is the journey?\nA:",
)
"""What is asked unless told otherwise: prose, code, JSON, numbers, another language."""


async def run_agree(
    config: EngineConfig,
    peers: Sequence[Peer],
    prompts: Sequence[str],
    *,
    max_tokens: int,
    note: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Ask tinyllm, then each of ``peers``, one engine in memory at a time; a peer that fails is left out."""
    note("tinyllm")
    async with AsyncEngine(config) as engine:
        info, tokenizer = engine.info, engine.tokenizer
        ids = [await engine.encode(prompt) for prompt in prompts]
        job = Job(ids, info.dtype, config.num_threads or default_num_threads(), max_tokens)
        answers = {"tinyllm": await answers_of_tinyllm(engine, job)}
    engines: dict[str, Any] = {"tinyllm": {"attention_backend": info.attention_backend}}
    left_out = {}
    for peer in peers:
        note(peer.name)
        try:
            version, answers[peer.name] = ask(peer, job)
            engines[peer.name] = {"version": version}
        except PeerFailedError as error:
            left_out[peer.name] = str(error)
            note(str(error))
    tolerance = TIES[info.dtype]
    return {
        "schema": 1,
        "kind": "agree",
        "environment": environment(job.threads),
        "model": info.model,
        "dtype": info.dtype,
        "max_tokens": max_tokens,
        "tie": tolerance,
        "engines": engines,
        "left_out": left_out,
        "pairs": [asdict(pair) | {"verdict": pair.verdict} for pair in pairs(answers, tolerance)],
        "prompts": [
            {
                "prompt": prompt,
                "prompt_tokens": len(ids[number]),
                "answers": {name: list(each[number].token_ids) for name, each in answers.items()},
                "differences": list(_differences(answers, number, tolerance, tokenizer)),
            }
            for number, prompt in enumerate(prompts)
        ],
    }


def _differences(
    answers: Mapping[str, Sequence[Answer]], number: int, tolerance: float, tokenizer: Tokenizer | None
) -> Iterator[dict[str, Any]]:
    """Yield where each pair of engines parts on one prompt."""
    for names in combinations(answers, 2):
        difference = first_difference(*(answers[name][number] for name in names))
        if difference is not None:
            yield asdict(difference) | {
                "engines": names,
                "tokens": [tokenizer.decode([token]) if tokenizer else "" for token in difference.token_ids],
                "is_tie": difference.is_tie(tolerance),
            }


def agree_lines(report: dict[str, Any]) -> Iterator[str]:
    """Yield the report as Markdown: every pair of engines, then every first difference."""
    yield f"{report['model']} in {report['dtype']}, greedy, {report['max_tokens']} tokens"
    yield environment_line(report["environment"])
    yield ""
    header = ("engines", "equal", "ties", "different", "equal tokens", "")
    total = report["max_tokens"] * len(report["prompts"])
    yield from markdown_table(
        header,
        [
            (
                " = ".join(pair["engines"]),
                *(str(pair[name]) for name in ("equal", "ties", "different")),
                f"{pair['equal_tokens']} of {total}",
                pair["verdict"],
            )
            for pair in report["pairs"]
        ],
    )
    rows = [
        (
            _shown(prompt["prompt"]),
            ", ".join(difference["engines"]),
            str(difference["position"]),
            " / ".join(map(_shown, difference["tokens"])),
            " / ".join(f"{margin:.4f}" for margin in difference["margins"]),
            "tie" if difference["is_tie"] else "DIFFERENT",
        )
        for prompt in report["prompts"]
        for difference in prompt["differences"]
    ]
    if rows:
        yield ""
        yield from markdown_table(("prompt", "engines", "first at", "tokens", "margins", ""), rows)
    for name, reason in report["left_out"].items():
        yield f"left out: {reason if reason.startswith(name) else f'{name}: {reason}'}"


def _shown(text: str) -> str:
    """Quote a text for a cell of a table."""
    return repr(text if len(text) <= 32 else text[:31] + "…").replace("|", "\\|")
