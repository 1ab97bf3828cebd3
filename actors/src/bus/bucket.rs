//! One value in memory with a revision: what a JetStream key-value bucket with one key keeps.

use std::sync::Arc;

use tokio::sync::watch;

/// A value and its revision. Clones share what they hold.
#[derive(Debug, Clone)]
pub(crate) struct Bucket(Arc<watch::Sender<Option<Revision>>>);

/// One revision of the value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Revision {
    /// The value.
    pub(crate) bytes: Arc<[u8]>,
    /// Its number: 1 for the first, one more for every next.
    pub(crate) number: u64,
}

impl Default for Bucket {
    fn default() -> Self {
        Self(Arc::new(watch::Sender::new(None)))
    }
}

impl Bucket {
    /// The newest revision; `None` before the first.
    pub(crate) fn newest(&self) -> Option<Revision> {
        self.0.borrow().clone()
    }

    /// Notices of new revisions.
    pub(crate) fn subscribe(&self) -> watch::Receiver<Option<Revision>> {
        self.0.subscribe()
    }

    /// Writes `bytes` if the newest revision is still `expected` (`None`: if there is none), and returns the new number.
    ///
    /// # Errors
    /// The number of the newest revision, if it is another one.
    pub(crate) fn swap(&self, bytes: Vec<u8>, expected: Option<u64>) -> Result<u64, Option<u64>> {
        let mut outcome = Err(None);
        self.0.send_if_modified(|revision| {
            let newest = revision.as_ref().map(|revision| revision.number);
            if newest != expected {
                outcome = Err(newest);
                return false;
            }
            let number = newest.unwrap_or(0) + 1;
            *revision = Some(Revision {
                bytes: bytes.into(),
                number,
            });
            outcome = Ok(number);
            true
        });
        outcome
    }
}
