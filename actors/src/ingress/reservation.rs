//! The permit and the bytes reserved for a request in flight.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::bus::publisher::Permits;

/// Permits that a request in flight holds until its reply has been written.
#[derive(Default)]
pub(crate) struct RequestReservation {
    permits: Permits,
    /// Permits for the bytes of all requests of the ingress; `charged` of them belong to this request.
    bytes: Option<Arc<Semaphore>>,
    charged: usize,
}

impl RequestReservation {
    /// Holds a permit; bytes are charged from `bytes` later.
    pub(crate) fn new(permit: OwnedSemaphorePermit, bytes: &Arc<Semaphore>) -> Self {
        Self {
            permits: vec![permit],
            bytes: Some(Arc::clone(bytes)),
            charged: 0,
        }
    }

    /// Holds a permit and `size` of the bytes in `reserved`, and releases the rest. If fewer are reserved, it holds
    /// those.
    pub(crate) fn reserved(
        permit: OwnedSemaphorePermit,
        bytes: &Arc<Semaphore>,
        mut reserved: OwnedSemaphorePermit,
        size: usize,
    ) -> Self {
        let charged = size.min(reserved.num_permits());
        let kept = reserved.split(charged);
        Self {
            permits: std::iter::once(permit).chain(kept).collect(),
            bytes: Some(Arc::clone(bytes)),
            charged,
        }
    }

    /// Raises the charged bytes to `size`. Returns false if too few are free.
    pub(crate) fn charge(&mut self, size: usize) -> bool {
        let Some(bytes) = &self.bytes else { return true };
        let more = size.saturating_sub(self.charged);
        let permit = u32::try_from(more)
            .ok()
            .and_then(|more| Arc::clone(bytes).try_acquire_many_owned(more).ok());
        let Some(permit) = permit else { return false };
        self.permits.push(permit);
        self.charged += more;
        true
    }

    pub(crate) fn into_permits(self) -> Permits {
        self.permits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reservation_shrinks_to_the_size_and_a_larger_size_is_charged_later() {
        let (permits, bytes) = (Arc::new(Semaphore::new(1)), Arc::new(Semaphore::new(100)));
        let permit = || Arc::clone(&permits).try_acquire_owned().unwrap();
        let reserve = || Arc::clone(&bytes).try_acquire_many_owned(60).unwrap();
        let mut held = RequestReservation::reserved(permit(), &bytes, reserve(), 20);
        assert_eq!(bytes.available_permits(), 80);
        assert!(held.charge(90) && !held.charge(101));
        assert_eq!(bytes.available_permits(), 10);
        drop(held);
        assert_eq!((permits.available_permits(), bytes.available_permits()), (1, 100));
        let held = RequestReservation::reserved(permit(), &bytes, reserve(), 70);
        assert_eq!(bytes.available_permits(), 40);
        drop(held);
        assert_eq!(bytes.available_permits(), 100);
    }
}
