"""Messages above the broker's `max_payload`, sent in chunks.

Every chunk has the headers of the message and `Kaskade-Chunk: <16 hex digits>/<index>/<count>`; the bodies in order
are the message. Only the first names a reply subject.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from .errors import KaskadeError, Malformed, Overloaded, TooLarge, Unavailable

LARGEST_MESSAGE = 64 << 20
"""Largest message that is decoded, bytes."""
OVERHEAD = 128
"""Bytes accounted for each chunk besides its data, so that many small ones are not free."""

_HEADER = re.compile(r"([0-9a-f]{16})/([0-9]{1,10})/([0-9]{1,10})")


@dataclass(frozen=True)
class Chunk:
    """The position of a chunk in its message."""

    message: int
    index: int
    count: int

    @classmethod
    def parse(cls, text: str) -> Chunk:
        """Parses the header `Kaskade-Chunk`; raises `Malformed`."""
        match = _HEADER.fullmatch(text)
        if match:
            chunk = cls(int(match[1], 16), int(match[2]), int(match[3]))
            if chunk.index < chunk.count < 1 << 32:
                return chunk
        raise Malformed(f"header Kaskade-Chunk is {text[:64]!r}; it must be <16 hex digits>/<index>/<count>")

    def __str__(self) -> str:
        return f"{self.message:016x}/{self.index}/{self.count}"


def cut(message: int, payload: bytes, limit: int) -> Iterator[tuple[Chunk, bytes]]:
    """Splits a message into chunks of at most `limit` bytes, at least 1."""
    limit = max(limit, 1)
    count = -(-len(payload) // limit)
    for index in range(count):
        yield Chunk(message, index, count), payload[index * limit : (index + 1) * limit]


class AssemblyError(Exception):
    """A message that cannot be completed: the typed error, and the reply subject of its first chunk."""

    def __init__(self, error: KaskadeError, reply: str) -> None:
        super().__init__(str(error))
        self.error = error
        self.reply = reply


@dataclass
class _Partial:
    count: int
    reply: str
    until: float
    parts: list[bytes] = field(default_factory=list)
    size: int = 0

    def held(self) -> int:
        return self.size + OVERHEAD * (len(self.parts) + 1)


class Assembler:
    """Assembles messages from chunks. Its memory is bounded, and messages past their deadline are dropped."""

    def __init__(self, largest: int = LARGEST_MESSAGE, most: int = 4 * LARGEST_MESSAGE) -> None:
        self.largest = largest
        self.most = most
        self.held = 0
        self._partial: dict[int, _Partial] = {}

    def take(self, chunk: Chunk, data: bytes, reply: str, now: float, until: float) -> tuple[bytes, str] | None:
        """Adds a chunk; returns the message and its reply subject with the last one.

        `now` is the reader's clock, and `until` the time after which the message is not needed, in seconds. Raises
        `AssemblyError`; nothing of the message is held then.
        """
        partial = self._partial.pop(chunk.message, None)
        if partial is None:
            try:
                self._begin(chunk, len(data), now)
            except KaskadeError as error:
                raise AssemblyError(error, reply) from None
            partial = _Partial(chunk.count, reply, until)
        else:
            self.held -= partial.held()
        try:
            self._add(partial, chunk, data)
        except KaskadeError as error:
            raise AssemblyError(error, partial.reply) from None
        if chunk.index + 1 == chunk.count:
            return b"".join(partial.parts), partial.reply
        self.held += partial.held()
        self._partial[chunk.message] = partial
        return None

    def _begin(self, chunk: Chunk, size: int, now: float) -> None:
        for message in [message for message, partial in self._partial.items() if partial.until <= now]:
            self.held -= self._partial.pop(message).held()
        if chunk.index != 0:
            raise _gap(chunk.index, 0)
        # The last chunk may be short; the others are as long as the first.
        if size * (chunk.count - 1) > self.largest:
            raise self._too_large(chunk.count)

    def _add(self, partial: _Partial, chunk: Chunk, data: bytes) -> None:
        if chunk.index != len(partial.parts) or chunk.count != partial.count:
            raise _gap(chunk.index, len(partial.parts))
        if not data and chunk.count > 1:
            raise Malformed(f"assembling the message from chunks failed: chunk {chunk.index} is empty")
        partial.size += len(data)
        if partial.size > self.largest:
            raise self._too_large(chunk.count)
        partial.parts.append(data)
        if self.held + partial.held() > self.most:
            raise Overloaded(f"incomplete messages hold {self.held} bytes of at most {self.most}; try again later")

    def _too_large(self, count: int) -> TooLarge:
        return TooLarge(f"a message of {count} chunks exceeds the limit of {self.largest} bytes")


def _gap(index: int, expected: int) -> Unavailable:
    return Unavailable(f"chunk {index} arrived instead of chunk {expected}: a chunk is lost")
