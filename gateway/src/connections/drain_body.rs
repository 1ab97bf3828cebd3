//! Reads and drops the unread bodies of refused requests.
//!
//! If a server closes a connection with unread bytes, the system resets it, and a client that is still sending sees a
//! broken connection instead of the answer; on HTTP/2 the same happens to a stream. The rest of such a body is
//! therefore read and dropped for a limited time (RFC 9112, section 9.6).

use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use hyper::Request;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::header::EXPECT;
use tokio::runtime::Handle;
use tokio::time::timeout;

/// Longest time for reading the rest of a body.
const MAX_DRAIN: Duration = Duration::from_secs(30);

/// Body of a request whose unread rest is read and dropped.
pub(super) struct Discarded {
    body: Option<Incoming>,
    /// Whether the client sends the body without waiting for `100 Continue`.
    is_sent: bool,
    /// Whether the last poll was pending.
    has_stopped: bool,
}

impl Discarded {
    /// Wraps the body of a request.
    pub(super) fn of(request: Request<Incoming>) -> Request<Self> {
        let is_sent = !request.headers().contains_key(EXPECT);
        request.map(|body| Self {
            body: Some(body),
            is_sent,
            has_stopped: false,
        })
    }
}

impl Body for Discarded {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let Some(body) = &mut self.body else {
            return Poll::Ready(None);
        };
        let polled = Pin::new(body).poll_frame(cx);
        self.has_stopped = polled.is_pending();
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body.as_ref().map_or_else(SizeHint::default, Body::size_hint)
    }
}

impl Drop for Discarded {
    fn drop(&mut self) {
        // Do not wait for a client that has stopped sending or is gone.
        let is_awaited = self.is_sent && !self.has_stopped;
        let rest = self
            .body
            .take()
            .filter(|body| is_awaited && !body.is_end_stream());
        if let (Some(rest), Ok(runtime)) = (rest, Handle::try_current()) {
            runtime.spawn(timeout(MAX_DRAIN, discard(rest)));
        }
    }
}

async fn discard(mut body: Incoming) {
    while let Some(Ok(_)) = poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await {}
}
