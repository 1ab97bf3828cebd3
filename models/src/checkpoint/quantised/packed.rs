//! Unpacks codes of a few bits from 32-bit words, from the lowest bits on; a code may span two words.

/// Returns the code at a position, given the word with its lowest bit and the next word.
fn code(low: u32, next: u32, bits: usize, position: usize) -> u32 {
    let pair = u64::from(low) | (u64::from(next) << 32);
    let mask = (1_u64 << bits) - 1;
    u32::try_from((pair >> (position * bits % 32)) & mask).unwrap_or_default()
}

/// Returns the number of words for `count` codes; `None` on overflow.
pub(super) fn words(count: usize, bits: usize) -> Option<usize> {
    Some(count.checked_mul(bits)?.div_ceil(32))
}

/// Unpacks the first `count` codes of a row of words.
pub(super) fn row(words: &[u32], bits: usize, count: usize) -> impl Iterator<Item = u32> {
    let word = |index: usize| words.get(index).copied().unwrap_or_default();
    (0..count).map(move |position| {
        let first = position * bits / 32;
        code(word(first), word(first + 1), bits, position)
    })
}

/// Unpacks the codes at a position of all columns, from words packed along the rows of a matrix with `columns`
/// columns.
pub(super) fn across(
    words: &[u32],
    columns: usize,
    bits: usize,
    position: usize,
) -> impl Iterator<Item = u32> {
    let line = position * bits / 32;
    let from = |line: usize| words.get(line * columns..).unwrap_or_default();
    // The last line has no next line, and no code continues there.
    let next = from(line + 1).iter().copied().chain(std::iter::repeat(0));
    let pairs = from(line).iter().take(columns).zip(next);
    pairs.map(move |(low, next)| code(*low, next, bits, position))
}
