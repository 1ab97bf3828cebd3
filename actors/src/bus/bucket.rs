//! An in-memory value with revisions: the equivalent of a JetStream key-value bucket with one key.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::SystemTime;

use tokio::sync::watch;

/// Number of revisions kept.
const HISTORY: usize = 16;

/// A value with its newest and past revisions. Clones share the state.
#[derive(Debug, Clone)]
pub(crate) struct Bucket(Arc<watch::Sender<VecDeque<Revision>>>);

/// A revision of the value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Revision {
    /// The value.
    pub(crate) bytes: Arc<[u8]>,
    /// Revision number: 1 for the first, then increasing by 1.
    pub(crate) number: u64,
    /// Time of the write.
    pub(crate) written_at: SystemTime,
}

impl Default for Bucket {
    fn default() -> Self {
        Self(Arc::new(watch::Sender::new(VecDeque::new())))
    }
}

impl Bucket {
    /// Returns the newest revision; `None` before the first write.
    pub(crate) fn newest(&self) -> Option<Revision> {
        self.0.borrow().back().cloned()
    }

    /// Returns the kept revisions, oldest first.
    pub(crate) fn history(&self) -> Vec<Revision> {
        self.0.borrow().iter().cloned().collect()
    }

    /// Returns a watch channel that notifies of new revisions.
    pub(crate) fn subscribe(&self) -> watch::Receiver<VecDeque<Revision>> {
        self.0.subscribe()
    }

    /// Writes `bytes` if the newest revision is still `expected` (`None`: no revision exists), and returns the new
    /// revision number.
    ///
    /// # Errors
    /// The newest revision, if it differs from `expected`.
    pub(crate) fn swap(&self, bytes: Vec<u8>, expected: Option<u64>) -> Result<u64, Option<Revision>> {
        let mut outcome = Err(None);
        self.0.send_if_modified(|revisions| {
            let newest = revisions.back();
            let newest_number = newest.map(|revision| revision.number);
            if newest_number != expected {
                outcome = Err(newest.cloned());
                return false;
            }
            let number = newest_number.unwrap_or(0) + 1;
            revisions.push_back(Revision {
                bytes: bytes.into(),
                number,
                written_at: SystemTime::now(),
            });
            if revisions.len() > HISTORY {
                revisions.pop_front();
            }
            outcome = Ok(number);
            true
        });
        outcome
    }

    /// Drops all revisions, as if the bucket was deleted and created again.
    #[cfg(test)]
    pub(crate) fn recreate(&self) {
        self.0.send_replace(VecDeque::new());
    }
}
