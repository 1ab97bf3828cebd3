"""The selection part of a validation set: what calibrations may be fitted on, so that the rest proves a plan.

`kaskade plan cascade --max-loss` splits the samples in the same way: it shuffles their places with ChaCha8, seeded by
`SEED`, as Rust's `rand` 0.9 does, and certifies on the first part. Rust's tests hold the same places.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

SEED = 0x5EED
CERTIFICATION_SHARE = 0.6

_MASK_32, _MASK_64 = (1 << 32) - 1, (1 << 64) - 1


def selection_part(samples: int) -> list[int]:
    """Returns the places of that many samples that calibrations are fitted on."""
    certification = min(int(samples * CERTIFICATION_SHARE), max(samples - 1, 0))
    return shuffled(samples)[certification:]


def shuffled(samples: int, seed: int = SEED) -> list[int]:
    """Returns the places of that many samples in a random order, always the same of a seed."""
    places = list(range(samples))
    words = _words(seed)
    # Several indices are taken from one random number, as long as the product of their ranges fits into 32 bits.
    chunk, remaining = 0, 0
    for index in range(1, samples):
        if remaining == 0:
            bound, remaining = index + 1, 1
            while bound * (index + 1 + remaining) <= _MASK_32:
                bound *= index + 1 + remaining
                remaining += 1
            chunk = _below(bound, words)
        remaining -= 1
        # The last of them is what is left.
        chunk, other = (0, chunk) if remaining == 0 else divmod(chunk, index + 1)
        places[index], places[other] = places[other], places[index]
    return places


def _below(bound: int, words: Iterator[int]) -> int:
    """Returns a random number below a bound (Canon's method with one correction)."""
    high, low = divmod(next(words) * bound, 1 << 32)
    if low > (-bound & _MASK_32):
        high += (low + (next(words) * bound >> 32)) >> 32
    return high


def _words(seed: int) -> Iterator[int]:
    """Yields the 32-bit words of ChaCha8 whose key PCG32 makes of a seed."""
    key = []
    for _ in range(8):
        seed = (seed * 6364136223846793005 + 11634580027462260723) & _MASK_64
        word, rotation = (((seed >> 18) ^ seed) >> 27) & _MASK_32, seed >> 59
        key.append((word >> rotation | word << (-rotation & 31)) & _MASK_32)
    constants = struct.unpack("<4I", b"expand 32-byte k")
    counter = 0
    while True:
        start = [*constants, *key, counter & _MASK_32, counter >> 32, 0, 0]
        state = list(start)
        for _ in range(4):
            for a, b, c, d in _COLUMNS_AND_DIAGONALS:
                _quarter_round(state, a, b, c, d)
        yield from ((one + other) & _MASK_32 for one, other in zip(state, start, strict=True))
        counter += 1


_COLUMNS_AND_DIAGONALS = (
    (0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15),
    (0, 5, 10, 15), (1, 6, 11, 12), (2, 7, 8, 13), (3, 4, 9, 14),
)  # fmt: skip


def _quarter_round(state: list[int], a: int, b: int, c: int, d: int) -> None:
    for into, other, rotated, bits in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
        state[into] = (state[into] + state[other]) & _MASK_32
        word = state[rotated] ^ state[into]
        state[rotated] = (word << bits | word >> (32 - bits)) & _MASK_32
