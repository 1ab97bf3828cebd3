//! Unique identifiers for spans, instances and inboxes. They are not secret.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// State of the sequence. It starts at a random value from the standard library's hash map seeds, which avoids a
/// dependency.
static NEXT: LazyLock<AtomicU64> =
    LazyLock::new(|| AtomicU64::new(RandomState::new().build_hasher().finish()));

/// Returns 64 bits that differ from those of every other call in this process and, with overwhelming probability, of
/// other processes. Never 0.
pub fn unique() -> u64 {
    // Odd steps visit all 2^64 values; the mixer (SplitMix64's, by Stafford) is a bijection, so no two calls return the
    // same value.
    let mut mixed = NEXT.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (mixed ^ (mixed >> 31)).max(1)
}

/// Returns [`unique`] as 16 lower-case hexadecimal digits: valid as a subject token or service instance id.
pub fn unique_token() -> String {
    format!("{:016x}", unique())
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn no_two_are_alike_across_threads() {
        let threads =
            (0..4).map(|_| std::thread::spawn(|| (0..10_000).map(|_| unique()).collect::<Vec<_>>()));
        let all = threads
            .collect::<Vec<_>>()
            .into_iter()
            .flat_map(|thread| thread.join().unwrap())
            .collect::<HashSet<_>>();
        assert_eq!(all.len(), 40_000);
        assert!(!all.contains(&0));
    }
}
