//! A hash that is the same in every process and release: FNV-1a of 64 bits.
//!
//! It seeds choices and names things; it resists no attack.

/// Returns the hash of values, one step for each: of the bytes of a text, or of whole numbers such as tokens.
pub fn fnv1a<T: Into<u64>>(values: impl IntoIterator<Item = T>) -> u64 {
    values.into_iter().fold(0xcbf2_9ce4_8422_2325, |hash, value| {
        (hash ^ value.into()).wrapping_mul(0x0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The vectors of the algorithm's authors (draft-eastlake-fnv).
    #[test]
    fn texts_have_the_published_hashes() {
        for (text, hash) in [
            ("", 0xcbf2_9ce4_8422_2325),
            ("a", 0xaf63_dc4c_8601_ec8c),
            ("foobar", 0x8594_4171_f739_67e8),
        ] {
            assert_eq!(fnv1a(text.bytes()), hash, "{text}");
        }
    }
}
