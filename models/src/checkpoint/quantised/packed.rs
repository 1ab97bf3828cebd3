//! Codes of a few bits, packed into 32-bit words from their lowest bits on; a code may continue in the next word.

/// Returns the code at a position of a sequence of words, given the word of its lowest bit and the next one.
fn code(low: u32, next: u32, bits: usize, position: usize) -> u32 {
    let pair = u64::from(low) | (u64::from(next) << 32);
    let mask = (1_u64 << bits) - 1;
    u32::try_from((pair >> (position * bits % 32)) & mask).unwrap_or_default()
}

/// Number of words of `count` codes; `None` if it overflows.
pub(super) fn words(count: usize, bits: usize) -> Option<usize> {
    Some(count.checked_mul(bits)?.div_ceil(32))
}

/// Reads the first `count` codes of a row of words.
pub(super) fn row(words: &[u32], bits: usize, count: usize) -> impl Iterator<Item = u32> {
    let word = |index: usize| words.get(index).copied().unwrap_or_default();
    (0..count).map(move |position| {
        let first = position * bits / 32;
        code(word(first), word(first + 1), bits, position)
    })
}

/// Reads the codes at a position of all columns, of words that are packed along the rows of a matrix of `columns` columns.
pub(super) fn across(
    words: &[u32],
    columns: usize,
    bits: usize,
    position: usize,
) -> impl Iterator<Item = u32> {
    let line = position * bits / 32;
    let from = |line: usize| words.get(line * columns..).unwrap_or_default();
    // The next line does not exist after the last one, and no code continues there.
    let next = from(line + 1).iter().copied().chain(std::iter::repeat(0));
    let pairs = from(line).iter().take(columns).zip(next);
    pairs.map(move |(low, next)| code(*low, next, bits, position))
}
