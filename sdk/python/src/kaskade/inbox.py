"""The inbox of a client: one subscription for the replies to all its requests."""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import dataclass, field
from typing import Any

import nats.errors

from .connection import Link
from .errors import KaskadeError, NotPermitted, Unavailable
from .retry import Loss


@dataclass
class _Waiting:
    subject: str
    queue: asyncio.Queue[Any] = field(default_factory=asyncio.Queue)


class Inbox:
    """Gives every reply to the request that waits for it, and every failure of the connection to those that it concerns."""

    def __init__(self, link: Link) -> None:
        self.waiting: dict[str, _Waiting] = {}
        """The requests that wait, by token."""
        self._link = link
        self._prefix = ""
        self._subscribing = asyncio.Lock()
        link.on_lost.append(self._lost)
        link.on_refused.append(self._refused)

    async def open(self, subject: str) -> tuple[str, asyncio.Queue[Any]]:
        """Returns a token and the queue of the replies to a request on `subject`: messages, a `Loss`, or an error."""
        async with self._subscribing:
            if not self._prefix:
                prefix = self._link.nc.new_inbox()
                try:
                    await self._link.nc.subscribe(f"{prefix}.*", cb=self._received)
                except nats.errors.Error as error:
                    raise Unavailable(f"the connection to the broker: {error}") from error
                self._prefix = prefix
        token = secrets.token_hex(8)
        waiting = self.waiting[token] = _Waiting(subject)
        return token, waiting.queue

    def close(self, token: str) -> None:
        """Forgets a request."""
        self.waiting.pop(token, None)

    def reply(self, token: str, attempt: int | None = None) -> str:
        """Returns the subject of the replies to a request, or to one attempt of it."""
        return f"{self._prefix}.{token}" if attempt is None else f"{self._prefix}.{token}-{attempt}"

    def fail(self, error: KaskadeError) -> None:
        """Ends all requests with an error."""
        for waiting in self.waiting.values():
            waiting.queue.put_nowait(error)

    async def _received(self, message: Any) -> None:
        if waiting := self.waiting.get(message.subject.rpartition(".")[2].partition("-")[0]):
            waiting.queue.put_nowait(message)

    def _lost(self) -> None:
        for waiting in self.waiting.values():
            waiting.queue.put_nowait(Loss.CONNECTION)

    def _refused(self, text: str) -> None:
        error = NotPermitted(f"{text}; check the permissions of this client's user")
        # nats-py has the server's text in small letters. The server sends no reply.
        if self._prefix and f'for subscription to "{self._prefix}.'.lower() in text:
            # The next request subscribes again.
            self._prefix = ""
            return self.fail(error)
        for waiting in self.waiting.values():
            if f'for publish to "{waiting.subject}"'.lower() in text:
                waiting.queue.put_nowait(error)
