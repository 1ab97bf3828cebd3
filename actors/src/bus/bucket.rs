//! One value in memory with a revision: what a JetStream key-value bucket with one key keeps.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::SystemTime;

use tokio::sync::watch;

/// Revisions that are kept.
const HISTORY: usize = 16;

/// A value, its revision and past revisions. Clones share what they hold.
#[derive(Debug, Clone)]
pub(crate) struct Bucket(Arc<watch::Sender<VecDeque<Revision>>>);

/// A revision of the value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Revision {
    /// The value.
    pub(crate) bytes: Arc<[u8]>,
    /// Its number: 1 for the first, one more for every next.
    pub(crate) number: u64,
    /// When it was written.
    pub(crate) written_at: SystemTime,
}

impl Default for Bucket {
    fn default() -> Self {
        Self(Arc::new(watch::Sender::new(VecDeque::new())))
    }
}

impl Bucket {
    /// The newest revision; `None` before the first.
    pub(crate) fn newest(&self) -> Option<Revision> {
        self.0.borrow().back().cloned()
    }

    /// The newest revisions, the oldest of them first.
    pub(crate) fn history(&self) -> Vec<Revision> {
        self.0.borrow().iter().cloned().collect()
    }

    /// Notices of new revisions.
    pub(crate) fn subscribe(&self) -> watch::Receiver<VecDeque<Revision>> {
        self.0.subscribe()
    }

    /// Writes `bytes` if the newest revision is still `expected` (`None`: if there is none), and returns the new number.
    ///
    /// # Errors
    /// The newest revision, if it is another one.
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

    /// Loses everything, as a bucket that is deleted and created again.
    #[cfg(test)]
    pub(crate) fn recreate(&self) {
        self.0.send_replace(VecDeque::new());
    }
}
