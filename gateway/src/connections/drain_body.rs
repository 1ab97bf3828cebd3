//! Bodies of requests that are refused before they are read.
//!
//! A server that closes a connection with unread bytes makes the system reset it, and the client, which still sends, sees no answer
//! but a broken connection; on HTTP/2 the same happens to a stream. The rest of such a body is therefore read and dropped for a
//! while (RFC 9112, section 9.6).

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

/// Longest time for the rest of a body.
const MAX_DRAIN: Duration = Duration::from_secs(30);

/// The body of a request; what its handler leaves unread is dropped when it arrives.
pub(super) struct Discarded {
    body: Option<Incoming>,
    /// Whether the client sends it without being asked to.
    is_sent: bool,
    /// Whether nothing had arrived when it was read last.
    has_stopped: bool,
}

impl Discarded {
    /// Returns the request with such a body.
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
        // A client that has stopped sending, or is gone, is not waited for again.
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
