//! Cancels requests that were sent over the broker and are no longer wanted.

use super::Client;

/// Cancels the requests with an id on drop.
pub(super) struct CancelOnDrop<'a> {
    client: Option<&'a Client>,
    id: &'a str,
}

impl<'a> CancelOnDrop<'a> {
    pub(super) fn new(client: &'a Client, id: &'a str) -> Self {
        Self {
            client: Some(client),
            id,
        }
    }

    /// Disables the cancellation: the request has ended.
    pub(super) fn disarm(&mut self) {
        self.client = None;
    }
}

impl Drop for CancelOnDrop<'_> {
    fn drop(&mut self) {
        if let Some(client) = self.client.take() {
            cancel(client, self.id);
        }
    }
}

/// Cancels the requests with an id, without waiting.
pub(super) fn cancel(client: &Client, id: &str) {
    let (client, id) = (client.clone(), id.to_owned());
    // Without a runtime the process is ending, and its requests with it.
    if let Ok(runtime) = tokio::runtime::Handle::try_current() {
        runtime.spawn(async move {
            if let Err(fault) = client.cancel(&id).await {
                tracing::warn!(%fault, "cancelling a request failed");
            }
        });
    }
}
