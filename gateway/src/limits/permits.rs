//! Permits of requests in progress: of the gateway, and of the tenant that sends them.

use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::http::failure::Failure;
use crate::limits::tenant::Tenant;

/// One request of a client never holds more than this part of a gateway's permits, so that others find room beside it.
const SHARE: usize = 8;

/// The permits of a gateway: one per request in progress.
pub(crate) struct InProgress {
    permits: Arc<Semaphore>,
    most: usize,
}

impl InProgress {
    pub(crate) fn new(most: usize) -> Self {
        let most = most.min(Semaphore::MAX_PERMITS);
        Self {
            permits: Arc::new(Semaphore::new(most)),
            most,
        }
    }
}

/// The permits of a request; held until its answer, or its stream, has ended.
#[derive(Clone)]
pub(crate) struct Permits {
    held: Arc<Held>,
    gateway: Arc<InProgress>,
    /// The tenant of the request, if requests need a key.
    tenant: Option<Arc<Tenant>>,
}

struct Held {
    _request: OwnedSemaphorePermit,
    _of_tenant: Option<OwnedSemaphorePermit>,
    /// Of the bytes of its body.
    bytes: Mutex<Option<OwnedSemaphorePermit>>,
}

impl Permits {
    /// Takes the permits of a request, and counts it for the rate of its tenant.
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
            let most = gateway.most;
            Failure::full(format!(
                "the gateway has its maximum of {most} requests in progress"
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

    /// Takes the permits of another request of the same client, which comes over the same stream.
    ///
    /// # Errors
    /// As [`Permits::take`].
    pub(crate) fn another(&self) -> Result<Self, Failure> {
        Self::take(&self.gateway, self.tenant.as_ref())
    }

    /// Takes permits for a further part of the same request, which [`Permits::count`] has counted.
    ///
    /// # Errors
    /// `KSK0006` if the gateway or the tenant has its maximum of requests in progress.
    pub(crate) fn further(&self) -> Result<Self, Failure> {
        let of_tenant = self.tenant.as_ref().map(|tenant| tenant.permit()).transpose()?;
        Self::with(&self.gateway, self.tenant.as_ref(), of_tenant.flatten())
    }

    /// Returns the name of the tenant, if requests need a key.
    pub(crate) fn tenant(&self) -> Option<&str> {
        self.tenant.as_deref().map(Tenant::name)
    }

    /// Counts the further parts of a request for the rate of its tenant.
    pub(crate) fn count(&self, further: usize) {
        if let Some(tenant) = &self.tenant {
            tenant.count(further);
        }
    }

    /// The most permits that the parts of one request hold together.
    pub(crate) fn share(&self) -> usize {
        (self.gateway.most / SHARE).max(1)
    }

    /// Holds the permits of further bytes of the body.
    pub(crate) fn hold(&self, further: OwnedSemaphorePermit) {
        let mut bytes = self.held.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        match &mut *bytes {
            Some(bytes) => bytes.merge(further),
            None => *bytes = Some(further),
        }
    }
}
