"""`Admission`: how much may be accepted at once. Counted where requests come in, so it is exact."""

from __future__ import annotations

from dataclasses import dataclass

from tinyllm.config import EngineConfig
from tinyllm.errors import ContextLengthError, EngineOverloadedError

__all__ = ["Admission", "Ticket"]


@dataclass(slots=True)
class Ticket:
    """One accepted request's share."""

    answers: int
    waiting_tokens: int = 0
    """Its prompt's tokens, until it runs."""


class Admission:
    """Bounds the answers accepted and not ended, and the prompt tokens accepted and not yet running.

    At most ``max_num_seqs + max_waiting_requests`` answers, and ``max_waiting_tokens`` tokens.
    """

    def __init__(self, config: EngineConfig) -> None:
        self._max_answers = config.max_num_seqs + config.max_waiting_requests
        self._max_tokens = config.max_waiting_tokens
        self.answers = 0
        self.waiting_tokens = 0

    def enter(self, answers: int) -> Ticket:
        """Take room for a request, or raise `EngineOverloadedError`."""
        if self.answers + answers > self._max_answers:
            raise EngineOverloadedError(
                f"the engine has accepted {self.answers} answers and takes at most {self._max_answers} "
                "(max_num_seqs + max_waiting_requests): try again later"
            )
        self.answers += answers
        return Ticket(answers)

    def add_tokens(self, ticket: Ticket, tokens: int) -> None:
        """Take room for the request's prompt, or raise `EngineOverloadedError`.

        Raises `ContextLengthError` if it would not fit an empty queue either.
        """
        if tokens > self._max_tokens:
            raise ContextLengthError(
                f"the prompt has {tokens} tokens, and the queue holds {self._max_tokens} "
                "(max_waiting_tokens): shorten it",
                param="prompt",
            )
        if self.waiting_tokens + tokens > self._max_tokens:
            raise EngineOverloadedError(
                f"{self.waiting_tokens} prompt tokens are waiting, and with this prompt's {tokens} they "
                f"would be more than {self._max_tokens} (max_waiting_tokens): try again later"
            )
        self.waiting_tokens += tokens
        ticket.waiting_tokens = tokens

    def starts(self, ticket: Ticket) -> None:
        """Give back the prompt's room: the request runs."""
        self.waiting_tokens -= ticket.waiting_tokens
        ticket.waiting_tokens = 0

    def leave(self, ticket: Ticket) -> None:
        """Give everything back: the request has ended. Once for each ticket."""
        self.starts(ticket)
        self.answers -= ticket.answers
