"""When a client sends a request again: pure decisions, with time and randomness as arguments."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from .errors import KaskadeError, NoReply, UnknownApp


class Loss(Enum):
    """A failure without an answer."""

    CONNECTION = "connection"
    """The connection broke: the request or its reply may be lost."""


@dataclass
class Allowance:
    """The resends that refusals for want of capacity and silence may take. Answers and time fill it, so that in an overload most
    requests are sent once."""

    most: float = 200.0
    """Resends that may be saved up."""
    per_answer: float = 0.25
    """Resends that each answered request adds."""
    per_second: float = 20.0
    """Resends that each second adds."""
    _spent: float = 0.0
    _now: float | None = None

    def answered(self) -> None:
        """Notes an answer."""
        self._spent = max(self._spent - self.per_answer, 0.0)

    def take(self, now: float) -> bool:
        """Takes a resend at `now`, seconds on a monotonic clock; `False` if none is left."""
        passed = 0.0 if self._now is None else max(now - self._now, 0.0)
        self._now = now
        self._spent = max(self._spent - passed * self.per_second, 0.0)
        if self._spent + 1.0 > self.most:
            return False
        self._spent += 1.0
        return True


@dataclass
class Latency:
    """The longest recent latency of the app, and with it the silence after which a request counts as lost. The Rust client has
    the same (`plans/policy/src/client_retry.rs`)."""

    factor: float = 4.0
    """The silence, in multiples of the longest recent latency."""
    late_factor: float = 1.25
    """The shortest silence, in multiples of it, once half of the budget is over."""
    shortest: float = 0.25
    """Shortest silence, seconds."""
    decay: float = 0.02
    """Part by which the longest recent latency shrinks with each faster answer."""
    _longest: float | None = None

    def answered(self, latency: float) -> None:
        """Notes an answer, `latency` seconds after its request was sent."""
        before = latency if self._longest is None else self._longest
        self._longest = max(latency, before + (latency - before) * self.decay)

    def silence(self, resends: int, left: float) -> float | None:
        """Returns the silence after which a request counts as lost that has been sent again `resends` times and has `left`
        of its budget, seconds; `None` before the first answer. It doubles with each resend and is at most half of what is
        left, unless recent requests took as long."""
        if self._longest is None:
            return None
        longest = max(left / 2, self._longest * self.late_factor, self.shortest)
        return float(min(max(self._longest * self.factor, self.shortest) * 2.0 ** min(resends, 30), longest))


@dataclass(frozen=True)
class RetryPolicy:
    """Pauses and limits of retries. Every retry has the same request id and what is left of the budget."""

    attempts: int = 20
    """Largest number of attempts, the first one included. 1 disables retries."""
    first_pause: float = 0.02
    """Upper bound of the first pause, seconds. It doubles with every attempt."""
    longest_pause: float = 1.0
    """Largest upper bound of a pause, seconds."""

    def pause(
        self, failure: KaskadeError | Loss, attempt: int, left: float, served: bool, draw: float
    ) -> float | None:
        """Returns the pause before the next attempt, seconds; `None` if the failure is the result.

        `attempt` counts from 1, `left` is what is left of the budget, `served` is whether the app has ever answered
        this client or the client's connection was lost, and `draw` is a random number in [0, 1).
        """
        if attempt >= self.attempts or left <= 0:
            return None
        if isinstance(failure, Loss):
            # The client waits for the connection anyway.
            return 0.0
        if isinstance(failure, UnknownApp):
            # An app that has answered is started again, or its ingress is; another name is a mistake.
            if not served:
                return None
        elif isinstance(failure, NoReply) or not failure.retryable:
            # Without a reply the budget is spent.
            return None
        # Half of the pause is random, so that clients refused together do not return together.
        bound = min(self.longest_pause, self.first_pause * 2.0 ** min(attempt - 1, 30))
        pause = bound * (0.5 + 0.5 * draw)
        return pause if pause < left else None
