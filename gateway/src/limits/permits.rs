//! Permits of requests in progress: of the gateway, and of the tenant.

use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::http::failure::Failure;
use crate::limits::tenant::Tenant;

/// Divisor: a single request holds at most this part of the gateway's permits, to leave room for others.
const SHARE: usize = 8;

/// Permits of a gateway: one per request in progress.
pub(crate) struct InProgress {
    permits: Arc<Semaphore>,
    capacity: usize,
}

impl InProgress {
    pub(crate) fn new(capacity: usize) -> Self {
        let capacity = capacity.min(Semaphore::MAX_PERMITS);
        Self {
            permits: Arc::new(Semaphore::new(capacity)),
            capacity,
        }
    }
}

/// Permits of a request, held until its answer or stream ends.
#[derive(Clone)]
pub(crate) struct Permits {
    held: Arc<Held>,
    gateway: Arc<InProgress>,
    /// Tenant of the request, if keys are needed.
    tenant: Option<Arc<Tenant>>,
}

struct Held {
    _request: OwnedSemaphorePermit,
    _of_tenant: Option<OwnedSemaphorePermit>,
    /// Permits for the bytes of the body.
    bytes: Mutex<Option<OwnedSemaphorePermit>>,
}

impl Permits {
    /// Acquires the permits of a request, and counts it towards the tenant's rate.
    ///
    /// # Errors
    /// `KSK0006` if a limit of the gateway or of the tenant is reached.
    pub(crate) fn take(gateway: &Arc<InProgress>, tenant: Option<&Arc<Tenant>>) -> Result<Self, Failure> {
        let of_tenant = tenant.map(|tenant| tenant.admit()).transpose()?;
        Self::with(gateway, tenant, of_tenant.flatten())
    }

    fn with(
        gateway: &Arc<InProgress>,
        tenant: Option<&Arc<Tenant>>,
        of_tenant: Option<OwnedSemaphorePermit>,
    ) -> Result<Self, Failure> {
        let permit = Arc::clone(&gateway.permits).try_acquire_owned().map_err(|_| {
            let capacity = gateway.capacity;
            Failure::full(format!(
                "the gateway has its maximum of {capacity} requests in progress"
            ))
        })?;
        Ok(Self {
            held: Arc::new(Held {
                _request: permit,
                _of_tenant: of_tenant,
                bytes: Mutex::new(None),
            }),
            gateway: Arc::clone(gateway),
            tenant: tenant.cloned(),
        })
    }

    /// Acquires the permits of another request on the same stream.
    ///
    /// # Errors
    /// As [`Permits::take`].
    pub(crate) fn another(&self) -> Result<Self, Failure> {
        Self::take(&self.gateway, self.tenant.as_ref())
    }

    /// Acquires permits for a further part of the same request, which [`Permits::count`] has counted.
    ///
    /// # Errors
    /// `KSK0006` if the gateway or the tenant has the maximum number of requests in progress.
    pub(crate) fn further(&self) -> Result<Self, Failure> {
        let of_tenant = self.tenant.as_ref().map(|tenant| tenant.permit()).transpose()?;
        Self::with(&self.gateway, self.tenant.as_ref(), of_tenant.flatten())
    }

    /// Returns the name of the tenant, if keys are needed.
    pub(crate) fn tenant(&self) -> Option<&str> {
        self.tenant.as_deref().map(Tenant::name)
    }

    /// Counts further parts of a request towards the tenant's rate.
    pub(crate) fn count(&self, further: usize) {
        if let Some(tenant) = &self.tenant {
            tenant.count(further);
        }
    }

    /// Returns the largest number of permits that the parts of one request may hold together.
    pub(crate) fn share(&self) -> usize {
        (self.gateway.capacity / SHARE).max(1)
    }

    /// Holds permits for further bytes of the body.
    pub(crate) fn hold(&self, further: OwnedSemaphorePermit) {
        let mut bytes = self.held.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        match &mut *bytes {
            Some(bytes) => bytes.merge(further),
            None => *bytes = Some(further),
        }
    }
}
