//! Mutations of a corpus: bits and bytes, truncation, splices, and numbers where a length may stand.

use rand::Rng;

/// Numbers at the edge of something.
const EDGES: [u64; 8] = [0, 1, 0x7f, 0xff, 0x7fff_ffff, 0xffff_ffff, 1 << 40, u64::MAX];
/// Words at the edge of something.
const WORDS: [&str; 14] = [
    "-1",
    "1e999",
    "1e-999",
    "NaN",
    "18446744073709551616",
    "null",
    "[[[[[[",
    "{\"\":",
    "\"",
    "\\u0000",
    "\r\n",
    ".",
    "/",
    "\u{feff}",
];
/// The longest input.
const MAX_INPUT: usize = 16 << 10;

/// An entry of the corpus after a few mutations.
pub(crate) fn mutated(corpus: &[Vec<u8>], rng: &mut impl Rng) -> Vec<u8> {
    let mut bytes = any(corpus, rng).clone();
    for _ in 0..rng.random_range(1..=4) {
        mutate(&mut bytes, corpus, rng);
        bytes.truncate(MAX_INPUT);
    }
    bytes
}

fn mutate(bytes: &mut Vec<u8>, corpus: &[Vec<u8>], rng: &mut impl Rng) {
    let at = rng.random_range(0..=bytes.len());
    let until = rng.random_range(at..=bytes.len()).min(at + 64);
    match rng.random_range(0..8) {
        0 => overwrite(bytes, at, &[1 << rng.random_range(0..8)], |old, new| old ^ new),
        1 => overwrite(bytes, at, &[rng.random()], |_, new| new),
        2 => bytes.truncate(at),
        3 => {
            let other = any(corpus, rng);
            let from = rng.random_range(0..=other.len());
            bytes.truncate(at);
            bytes.extend_from_slice(&other[from..]);
        }
        4 => drop(bytes.drain(at..until)),
        5 => {
            let part = bytes[at..until].to_vec();
            bytes.splice(at..at, part);
        }
        6 => {
            let number = EDGES[rng.random_range(0..EDGES.len())];
            let size = 1 << rng.random_range(0..4);
            let (little, big) = (number.to_le_bytes(), number.to_be_bytes());
            let field = if rng.random() {
                &little[..size]
            } else {
                &big[8 - size..]
            };
            overwrite(bytes, at, field, |_, new| new);
        }
        _ => {
            let word = WORDS[rng.random_range(0..WORDS.len())];
            bytes.splice(at..until, word.bytes());
        }
    }
}

fn overwrite(bytes: &mut [u8], at: usize, with: &[u8], by: impl Fn(u8, u8) -> u8) {
    for (old, new) in bytes.iter_mut().skip(at).zip(with) {
        *old = by(*old, *new);
    }
}

fn any<'a>(corpus: &'a [Vec<u8>], rng: &mut impl Rng) -> &'a Vec<u8> {
    &corpus[rng.random_range(0..corpus.len())]
}
