//! How many shards a process runs: threads that move the messages of its actors.

use std::num::NonZeroUsize;

/// Cores of a machine for each shard: the models compute on the others.
const CORES_PER_SHARD: usize = 4;

/// Most shards by default. A shard has a connection to the broker, and a broker serves each with work of its own.
const MAX_SHARDS: usize = 8;

/// Returns the default number of shards on a machine with that many cores: one per four, at least 1, at most 8.
pub fn default_shards(cores: NonZeroUsize) -> NonZeroUsize {
    let shards = (cores.get() / CORES_PER_SHARD).min(MAX_SHARDS);
    NonZeroUsize::new(shards).unwrap_or(NonZeroUsize::MIN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_one_shard_per_four_cores() {
        let shards = [1, 2, 7, 8, 16, 31, 32, 256].map(|cores| {
            let cores = NonZeroUsize::new(cores).unwrap();
            default_shards(cores).get()
        });
        assert_eq!(shards, [1, 1, 1, 2, 4, 7, 8, 8]);
    }
}
