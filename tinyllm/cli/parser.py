"""`Parser`: argparse, with one line for what is wrong, and a guess at what was meant."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Sequence
from typing import Any, Final, NoReturn

__all__ = ["Parser"]

ELSEWHERE: Final = {
    "--allowed-origins": "--cors-origins",
    "--api-key": "--api-key-file",
    "--reasoning-parser": "--reasoning",
    "--max-num-queued-reqs": "--max-waiting-requests",
    "--disable-uvicorn-access-log": "--no-access-log",
    "--disable-log-requests": "--no-access-log",
    "--ctx-size": "--max-model-len",
    "-c": "--max-model-len",
    "--parallel": "--max-num-seqs",
    "-np": "--max-num-seqs",
    "--threads": "--num-threads",
    "-t": "--num-threads",
    "--alias": "--served-model-name",
    "-a": "--served-model-name",
    "--timeout": "--request-timeout",
    "--log-jsonl": "--log-format",
    "--n-predict": "--max-tokens",
    "-n": "--max-tokens",
    "--temp": "--temperature",
}
"""What vLLM or llama.cpp call it -> what it is called here."""


class Parser(argparse.ArgumentParser):
    """Refuses unknown flags where they are, also those of a command, and flags cut short."""

    def __init__(self, **options: Any) -> None:
        super().__init__(allow_abbrev=False, **options)

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[Any, list[str]]:
        """Parse, and leave nothing over."""
        parsed, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}" + self._guess(unknown[0]))
        return parsed, []

    def error(self, message: str) -> NoReturn:
        """Say what is wrong, without the list of all flags."""
        self.exit(2, f"{self.prog}: error: {message}; {self.prog} --help shows what there is\n")

    def _guess(self, given: str) -> str:
        flag, flags = given.partition("=")[0], self._flags()
        same = ELSEWHERE.get(flag)
        near = [same] if same in flags else difflib.get_close_matches(flag, flags, n=1, cutoff=0.6)
        return f" (did you mean {near[0]}?)" if near else ""

    def _flags(self) -> list[str]:
        return [flag for action in self._actions for flag in action.option_strings if flag.startswith("--")]
