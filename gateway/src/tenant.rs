//! Tenants: keys, and the limits of who sends them.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::config::TenantKey;
use crate::failure::Failure;

/// A tenant with a key.
pub(crate) struct Tenant {
    name: String,
    key: String,
    permits: Option<Arc<Semaphore>>,
    rate: Option<Mutex<Bucket>>,
}

/// Tokens that refill at a rate, at most one second's worth.
struct Bucket {
    rate: f64,
    tokens: f64,
    at: Instant,
}

impl Bucket {
    fn take(&mut self, now: Instant) -> bool {
        let passed = now.saturating_duration_since(self.at).as_secs_f64();
        self.at = now;
        self.tokens = (self.tokens + passed * self.rate).min(self.rate.max(1.0));
        let taken = self.tokens >= 1.0;
        if taken {
            self.tokens -= 1.0;
        }
        taken
    }
}

impl Tenant {
    pub(crate) fn new(key: &TenantKey) -> Self {
        let bucket = |rate: f64| {
            Mutex::new(Bucket {
                rate,
                tokens: rate.max(1.0),
                at: Instant::now(),
            })
        };
        Self {
            name: key.tenant.clone(),
            key: key.key.clone(),
            permits: key
                .max_in_flight
                .map(|most| Arc::new(Semaphore::new(most.min(Semaphore::MAX_PERMITS)))),
            rate: key.rate.map(bucket),
        }
    }

    /// Its name.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Whether that is its key; takes a time that depends on the lengths only.
    pub(crate) fn has_key(&self, key: &str) -> bool {
        same(&self.key, key)
    }

    /// Takes a permit and a token of its rate.
    ///
    /// # Errors
    /// `KSK0006` if it has its maximum of requests in progress, or sends them too fast.
    pub(crate) fn admit(&self) -> Result<Option<OwnedSemaphorePermit>, Failure> {
        let permit = match &self.permits {
            None => None,
            Some(permits) => Some(Arc::clone(permits).try_acquire_owned().map_err(|_| {
                Failure::full("the tenant has its maximum of requests in progress; try again after one ends")
            })?),
        };
        if let Some(rate) = &self.rate
            && !rate
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .take(Instant::now())
        {
            return Err(Failure::full("the tenant's rate of requests is exceeded"));
        }
        Ok(permit)
    }
}

/// Compares two texts in a time that depends on their lengths only.
fn same(one: &str, other: &str) -> bool {
    let differing = one
        .bytes()
        .zip(other.bytes())
        .fold(0, |all, (a, b)| all | (a ^ b));
    one.len() == other.len() && std::hint::black_box(differing) == 0
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn keys_are_compared_whole() {
        assert!(same("secret", "secret"));
        assert!(!same("secret", "secreT") && !same("secret", "secre") && !same("secret", ""));
    }

    #[test]
    fn a_bucket_refills_at_its_rate() {
        let begun = Instant::now();
        let mut bucket = Bucket {
            rate: 2.0,
            tokens: 2.0,
            at: begun,
        };
        assert!(bucket.take(begun) && bucket.take(begun) && !bucket.take(begun));
        let later = begun + Duration::from_millis(600);
        assert!(bucket.take(later) && !bucket.take(later));
    }
}
