"""When a client sends a request again: pure decisions, with time and randomness as arguments."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from .errors import KaskadeError, NoReply, UnknownApp


class Loss(Enum):
    """A failure without an answer."""

    CONNECTION = "connection"
    """The connection broke: the request or its reply may be lost."""


@dataclass(frozen=True)
class RetryPolicy:
    """Pauses and limits of retries. Every retry has the same request id and what is left of the budget."""

    attempts: int = 20
    """Largest number of attempts, the first one included. 1 disables retries."""
    first_pause: float = 0.02
    """Upper bound of the first pause, seconds. It doubles with every attempt."""
    longest_pause: float = 1.0
    """Largest upper bound of a pause, seconds."""
    no_responders_grace: float = 1.0
    """Time for which "no responders" of an app that has answered before is retried, seconds."""

    def pause(
        self, failure: KaskadeError | Loss, attempt: int, elapsed: float, left: float, served: bool, draw: float
    ) -> float | None:
        """Returns the pause before the next attempt, seconds; `None` if the failure is the result.

        `attempt` counts from 1, `elapsed` and `left` are parts of the budget, `served` is whether the app has ever
        answered this client, and `draw` is a random number in [0, 1).
        """
        if attempt >= self.attempts or left <= 0:
            return None
        if isinstance(failure, Loss):
            # The client waits for the connection anyway.
            return 0.0
        if isinstance(failure, UnknownApp):
            if not served or elapsed >= self.no_responders_grace:
                return None
        elif isinstance(failure, NoReply) or not failure.retryable:
            # Without a reply the budget is spent.
            return None
        # Half of the pause is random, so that clients refused together do not return together.
        bound = min(self.longest_pause, self.first_pause * 2.0 ** min(attempt - 1, 30))
        pause = bound * (0.5 + 0.5 * draw)
        return pause if pause < left else None
