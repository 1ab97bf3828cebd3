//! Tenants: keys, and limits per key.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::config::TenantKey;
use crate::http::failure::Failure;

/// A tenant with its key and limits.
pub(crate) struct Tenant {
    name: String,
    key: String,
    operator: bool,
    permits: Option<Arc<Semaphore>>,
    rate: Option<Mutex<Bucket>>,
}

/// Token bucket: tokens refill at `rate` per second, up to one second's worth.
struct Bucket {
    rate: f64,
    /// Number of tokens; negative after a request with more parts than tokens.
    tokens: f64,
    at: Instant,
}

impl Bucket {
    /// Takes a token.
    ///
    /// # Errors
    /// The time until a token is available.
    fn take(&mut self, now: Instant) -> Result<(), Duration> {
        let passed = now.saturating_duration_since(self.at).as_secs_f64();
        self.at = now;
        self.tokens = (self.tokens + passed * self.rate).min(self.rate.max(1.0));
        if self.tokens < 1.0 {
            let missing = (1.0 - self.tokens) / self.rate;
            return Err(Duration::try_from_secs_f64(missing).unwrap_or(Duration::MAX));
        }
        self.tokens -= 1.0;
        Ok(())
    }

    #[expect(
        clippy::cast_precision_loss,
        reason = "requests have at most thousands of parts"
    )]
    fn owe(&mut self, tokens: usize) {
        self.tokens -= tokens as f64;
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
            operator: key.operator,
            permits: key
                .max_in_flight
                .map(|most| Arc::new(Semaphore::new(most.min(Semaphore::MAX_PERMITS)))),
            rate: key.rate.map(bucket),
        }
    }

    /// Returns the name of the tenant.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Returns whether the tenant may see data of all tenants.
    pub(crate) fn is_operator(&self) -> bool {
        self.operator
    }

    /// Returns whether `key` is the tenant's key. The time depends only on the lengths.
    pub(crate) fn has_key(&self, key: &str) -> bool {
        same(&self.key, key)
    }

    /// Acquires a permit and a token of the tenant's rate.
    ///
    /// # Errors
    /// `KSK0006` if the tenant has the maximum number of requests in progress, or exceeds its rate.
    pub(crate) fn admit(&self) -> Result<Option<OwnedSemaphorePermit>, Failure> {
        let permit = self.permit()?;
        if let Some(mut bucket) = self.bucket() {
            bucket.take(Instant::now()).map_err(Failure::too_fast)?;
        }
        Ok(permit)
    }

    /// Acquires a permit; `None` if the number of requests in progress is unlimited.
    ///
    /// # Errors
    /// `KSK0006` if the tenant has the maximum number of requests in progress.
    pub(crate) fn permit(&self) -> Result<Option<OwnedSemaphorePermit>, Failure> {
        let Some(permits) = &self.permits else {
            return Ok(None);
        };
        Arc::clone(permits).try_acquire_owned().map(Some).map_err(|_| {
            Failure::full("the tenant has its maximum of requests in progress; try again after one ends")
        })
    }

    /// Counts the further parts of an admitted request; later requests wait until the rate has caught up.
    pub(crate) fn count(&self, further: usize) {
        if let Some(mut bucket) = self.bucket() {
            bucket.owe(further);
        }
    }

    fn bucket(&self) -> Option<MutexGuard<'_, Bucket>> {
        let rate = self.rate.as_ref()?;
        Some(rate.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Compares two texts in a time that depends only on their lengths.
fn same(one: &str, other: &str) -> bool {
    let differing = one
        .bytes()
        .zip(other.bytes())
        .fold(0, |all, (a, b)| all | (a ^ b));
    one.len() == other.len() && std::hint::black_box(differing) == 0
}

#[cfg(test)]
mod tests {
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
        assert!(bucket.take(begun).is_ok() && bucket.take(begun).is_ok());
        assert_eq!(bucket.take(begun), Err(Duration::from_millis(500)));
        let later = begun + Duration::from_millis(600);
        assert!(bucket.take(later).is_ok() && bucket.take(later).is_err());
        // A request of five parts delays later requests.
        let full = begun + Duration::from_secs(10);
        assert!(bucket.take(full).is_ok());
        bucket.owe(4);
        let wait = bucket.take(full + Duration::from_millis(1_900)).unwrap_err();
        assert!(
            (Duration::from_millis(90)..=Duration::from_millis(110)).contains(&wait),
            "{wait:?}"
        );
        assert!(bucket.take(full + Duration::from_millis(2_100)).is_ok());
    }
}
