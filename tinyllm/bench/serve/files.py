"""Datasets in files: custom JSONL, ShareGPT's JSON, OASST1's JSONL, and BurstGPT's CSV."""

from __future__ import annotations

import csv
import gzip
import itertools
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

from tinyllm.bench.serve.samples import Prompt
from tinyllm.bench.serve.synthetic import TraceRow
from tinyllm.errors import ConfigError

__all__ = ["CustomRow", "Talk", "read_burstgpt", "read_custom", "read_oasst1", "read_sharegpt"]

Talk = list[tuple[str, str]]
"""A conversation: what was asked and what was answered, in turn."""

_COLUMNS: Final = ("Timestamp", "Request tokens", "Response tokens")
_ASKERS: Final = ("human", "user")
_ANSWERERS: Final = ("gpt", "chatgpt", "bing", "bard", "assistant")


@dataclass(frozen=True, slots=True)
class CustomRow:
    """A line of a custom file."""

    prompt: Prompt
    output_tokens: int | None
    label: str
    timestamp: float | None


def read_custom(path: Path) -> Iterator[CustomRow]:
    """Read JSONL: ``prompt`` (text, token ids or messages), ``output_tokens``, ``label``, ``timestamp``.

    Raises `ConfigError` that names the line.
    """
    for number, line in _objects(path):
        prompt = line.get("prompt", line.get("messages"))
        fits = isinstance(prompt, str) or (
            isinstance(prompt, list)
            and bool(prompt)
            and (
                all(isinstance(each, int) for each in prompt)
                or all(isinstance(each, dict) for each in prompt)
            )
        )
        output, stamp = line.get("output_tokens"), line.get("timestamp")
        if not fits or not prompt:
            raise _wrong(path, number, "'prompt' must be a text, token ids or messages")
        if output is not None and not (isinstance(output, int) and output > 0):
            raise _wrong(path, number, "'output_tokens' must be a number above 0")
        if stamp is not None and not isinstance(stamp, (int, float)):
            raise _wrong(path, number, "'timestamp' must be a number of seconds")
        yield CustomRow(prompt, output, str(line.get("label", "")), stamp)


def read_sharegpt(path: Path) -> Iterator[Talk]:
    """Read ShareGPT's JSON: a list of ``{"conversations": [{"from", "value"}, ...]}``.

    Raises `ConfigError`.
    """
    with _open(path) as file:
        try:
            entries = json.load(file)
        except ValueError as error:
            raise ConfigError(f"{path.name} is no JSON: {error}") from None
    if not isinstance(entries, list):
        raise ConfigError(f"{path.name} is not in ShareGPT's format: a list of conversations")
    for entry in entries:
        said = (
            entry.get("conversations") or entry.get("conversation") or () if isinstance(entry, dict) else ()
        )
        talk = _talk(
            (_role(turn.get("from", turn.get("role"))), turn.get("value", turn.get("content")))
            for turn in said
        )
        if talk:
            yield talk


def read_oasst1(path: Path) -> Iterator[Talk]:
    """Read OASST1's JSONL, of message trees or of single messages; of several replies the best-ranked.

    Raises `ConfigError` that names the line.
    """
    roots: list[dict[str, Any]] = []
    messages: dict[str, dict[str, Any]] = {}
    for number, line in _objects(path):
        if isinstance(line.get("prompt"), dict):
            roots.append(line["prompt"])
        elif "message_id" in line:
            messages[line["message_id"]] = line | {"replies": []}
        else:
            raise _wrong(path, number, "neither a message tree nor a message of OASST1")
    for message in messages.values():
        parent = messages.get(message.get("parent_id") or "")
        (parent["replies"] if parent else roots).append(message)
    for root in roots:
        if talk := _talk((_role(message.get("role")), message.get("text")) for message in _path(root)):
            yield talk


def read_burstgpt(path: Path, start: int, count: int) -> list[TraceRow]:
    """Read a window of BurstGPT's CSV: ``count`` requests from the ``start``-th on, failed ones left out.

    Raises `ConfigError` if it is no such file or ends before.
    """
    with _open(path) as file:
        reader = csv.DictReader(file)
        if missing := [name for name in _COLUMNS if name not in (reader.fieldnames or ())]:
            raise ConfigError(f"{path.name} is not in BurstGPT's format: it has no column {missing[0]!r}")
        try:
            rows = list(itertools.islice(_answered(reader), start, start + count))
        except (ValueError, TypeError):
            raise ConfigError(f"{path.name}, line {reader.line_num}: no request of BurstGPT") from None
    if len(rows) < count:
        raise ConfigError(
            f"{path.name} has fewer than {start + count} answered requests: take a lower --window"
        )
    return rows


def _answered(reader: csv.DictReader[str]) -> Iterator[TraceRow]:
    for row in reader:
        stamp, prompt, output = (float(row[name]) for name in _COLUMNS)
        if prompt > 0 and output > 0:
            yield TraceRow(stamp, int(prompt), int(output))


def _path(root: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the messages from a root along the best replies."""
    message: Mapping[str, Any] | None = root
    while message is not None:
        yield message
        message = min(message.get("replies") or (), key=_rank, default=None)


def _rank(message: Mapping[str, Any]) -> float:
    rank = message.get("rank")
    return float("inf") if rank is None else float(rank)


def _talk(said: Iterator[tuple[str, Any]]) -> Talk:
    """Return the pairs of question and answer at the beginning, until something else comes."""
    texts = list(said)
    if texts and texts[0][0] == "system":
        del texts[0]
    talk: Talk = []
    for (asker, question), (answerer, answer) in zip(texts[::2], texts[1::2], strict=False):
        if (asker, answerer) != ("user", "assistant") or not question or not answer:
            break
        talk.append((str(question), str(answer)))
    return talk


def _role(name: object) -> str:
    if name in _ASKERS or name == "prompter":
        return "user"
    return "assistant" if name in _ANSWERERS else str(name)


def _objects(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the lines of a JSONL file, with their numbers."""
    with _open(path) as file:
        for number, text in enumerate(file, 1):
            if not text.strip():
                continue
            try:
                line = json.loads(text)
            except ValueError:
                line = None
            if not isinstance(line, dict):
                raise _wrong(path, number, "no JSON object")
            yield number, line


def _open(path: Path) -> IO[str]:
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8")
    return path.open(encoding="utf-8", newline="")


def _wrong(path: Path, number: int, problem: str) -> ConfigError:
    return ConfigError(f"{path.name}, line {number}: {problem}")
