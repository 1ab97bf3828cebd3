"""When the queue of a replica becomes a batch: pure decisions, with the time as an argument."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Batching:
    """Triggers of a batch, as `[batching]` of app.toml names them."""

    max_batch: int = 32
    """Largest number of requests in a batch."""
    max_wait: float = 0.002
    """A replica starts when the oldest request has waited this long, seconds."""
    min_queue: int = 1
    """An idle replica starts when this many requests wait."""

    def __post_init__(self) -> None:
        for name in ("max_batch", "min_queue"):
            check_count(name, getattr(self, name))
        if not 0 <= self.max_wait < math.inf:
            raise ValueError(f"max_wait is {self.max_wait!r}; it must be a finite number of seconds, and not negative")


def check_count(name: str, value: int) -> None:
    """Raises `ValueError` if a setting is no integer of at least 1."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{name} is {value!r}; it must be an integer of at least 1")


@dataclass(frozen=True)
class Waiting(Generic[T]):
    """A request in the queue, with the times when it arrived and when its budget ends, seconds."""

    item: T
    since: float
    deadline: float


@dataclass(frozen=True)
class Step(Generic[T]):
    """What the replica does next."""

    expired: list[Waiting[T]]
    """Requests whose budget has ended: answer them with an error."""
    batch: list[Waiting[T]]
    """Requests to run now, oldest first; empty if there is nothing to run."""
    wait_until: float | None = None
    """When to poll again; `None`: when a request arrives."""


class BatchQueue(Generic[T]):
    """The bounded queue of one replica."""

    def __init__(self, batching: Batching, capacity: int) -> None:
        self.batching = batching
        self.capacity = capacity
        self._waiting: deque[Waiting[T]] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def push(self, item: T, now: float, deadline: float) -> bool:
        """Queues a request; returns whether there was room."""
        if len(self._waiting) >= self.capacity:
            return False
        self._waiting.append(Waiting(item, now, deadline))
        return True

    def discard(self, unwanted: Callable[[T], bool]) -> int:
        """Drops the requests that are unwanted; returns how many."""
        before = len(self._waiting)
        self._waiting = deque(waiting for waiting in self._waiting if not unwanted(waiting.item))
        return before - len(self._waiting)

    def take(self) -> list[T]:
        """Takes all requests out of the queue."""
        taken = [waiting.item for waiting in self._waiting]
        self._waiting.clear()
        return taken

    def poll(self, now: float, draining: bool = False) -> Step[T]:
        """Returns what an idle replica does at `now`. A draining replica does not wait for more requests."""
        batching = self.batching
        expired: list[Waiting[T]] = []
        if any(waiting.deadline <= now for waiting in self._waiting):
            expired = [waiting for waiting in self._waiting if waiting.deadline <= now]
            self._waiting = deque(waiting for waiting in self._waiting if waiting.deadline > now)
        if not self._waiting:
            return Step(expired, [])
        due = self._waiting[0].since + batching.max_wait
        full = len(self._waiting) >= min(batching.min_queue, batching.max_batch)
        if full or draining or now >= due:
            size = min(len(self._waiting), batching.max_batch)
            return Step(expired, [self._waiting.popleft() for _ in range(size)])
        return Step(expired, [], min(due, min(waiting.deadline for waiting in self._waiting)))
