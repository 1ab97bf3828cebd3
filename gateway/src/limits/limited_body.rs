//! Limits the total size of request bodies as they arrive, so that large or slow bodies do not exhaust the gateway's
//! memory, and the time of gRPC messages.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::BoxError;
use axum::body::{Body, Bytes, HttpBody};
use hyper::body::{Frame, SizeHint};
use tokio::sync::Semaphore;
use tokio::time::{Sleep, sleep};

use crate::config::MIN_BYTES_PER_PAUSE;
use crate::http::failure::Failure;
use crate::http::grpc_status;
use crate::limits::permits::Permits;

/// A request body whose bytes count towards the gateway's limit until the request ends.
pub(crate) struct LimitedBody {
    body: Body,
    /// One permit per byte that the gateway may hold.
    room: Arc<Semaphore>,
    permits: Permits,
    /// Longest pause within a gRPC message; `None` for other bodies, whose readers limit the time.
    pause: Option<Duration>,
    /// Sleep while a gRPC message is awaited.
    waiting: Option<Pin<Box<Sleep>>>,
    /// Number of bytes that must arrive before the pause restarts.
    missing: usize,
}

impl LimitedBody {
    pub(crate) const fn new(
        body: Body,
        room: Arc<Semaphore>,
        permits: Permits,
        pause: Option<Duration>,
    ) -> Self {
        Self {
            body,
            room,
            permits,
            pause,
            waiting: None,
            missing: MIN_BYTES_PER_PAUSE,
        }
    }

    /// Counts received bytes.
    fn take(&mut self, bytes: &Bytes) -> Result<(), Failure> {
        self.missing = self.missing.saturating_sub(bytes.len());
        if self.missing == 0 {
            (self.waiting, self.missing) = (None, MIN_BYTES_PER_PAUSE);
        }
        take_room(&self.room, &self.permits, bytes.len())
    }

    /// Converts a failure to the error type of the body's reader.
    fn error(&self, failure: Failure) -> BoxError {
        if self.pause.is_some() {
            return Box::new(grpc_status::of(&failure));
        }
        Box::new(failure)
    }
}

/// Reserves memory for bytes of a request until it ends.
///
/// # Errors
/// `KSK0006` if the gateway has not enough memory left for them.
pub(crate) fn take_room(room: &Arc<Semaphore>, permits: &Permits, bytes: usize) -> Result<(), Failure> {
    let count = u32::try_from(bytes).unwrap_or(u32::MAX);
    let Ok(taken) = Arc::clone(room).try_acquire_many_owned(count) else {
        return Err(Failure::full(
            "the bodies of the requests in progress take all the memory that this gateway has for them",
        ));
    };
    permits.hold(taken);
    Ok(())
}

impl HttpBody for LimitedBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(cx) else {
            let Some(pause) = self.pause else {
                return Poll::Pending;
            };
            let waiting = self.waiting.get_or_insert_with(|| Box::pin(sleep(pause)));
            if waiting.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
            return Poll::Ready(Some(Err(self.error(Failure::stalled(pause)))));
        };
        let data = frame.as_ref().and_then(|frame| frame.as_ref().ok()?.data_ref());
        let taken = data.map_or(Ok(()), |data| self.take(data));
        Poll::Ready(match taken {
            Ok(()) => frame.map(|frame| frame.map_err(Into::into)),
            Err(failure) => Some(Err(self.error(failure))),
        })
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
