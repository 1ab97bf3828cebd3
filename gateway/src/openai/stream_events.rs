//! The events of a streamed answer, made from its pieces as they come.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use axum::body::Body;
use axum::http::{HeaderValue, Response, header};
use bytes::Bytes;
use futures::Stream;
use kaskade_actors::{Code, Fault};
use tokio::sync::mpsc::UnboundedReceiver;

use crate::call::Piece;
use crate::failure::Failure;

/// The end of a stream.
const DONE: Bytes = Bytes::from_static(b"data: [DONE]\n\n");

/// Pieces that come, and events that go.
pub(super) struct Feed {
    pieces: UnboundedReceiver<Box<(usize, Piece)>>,
    ready: VecDeque<Bytes>,
    ended: bool,
}

impl Feed {
    pub(super) fn new(pieces: UnboundedReceiver<Box<(usize, Piece)>>) -> Self {
        Self {
            pieces,
            ready: VecDeque::new(),
            ended: false,
        }
    }

    /// Waits for a piece, and returns it with the number of its choice.
    ///
    /// # Errors
    /// An internal fault if the answer has ended without a result.
    pub(super) async fn next(&mut self) -> Result<(usize, Piece), Failure> {
        let piece = self.pieces.recv().await;
        piece.map(|piece| *piece).ok_or_else(no_result)
    }

    /// Sends an event.
    pub(super) fn event(&mut self, event: impl Into<Bytes>) {
        self.ready.push_back(event.into());
    }

    /// Ends the stream; choices that have not ended are cancelled.
    pub(super) fn done(&mut self) {
        self.ready.push_back(DONE);
        self.ended = true;
        self.pieces.close();
    }
}

fn no_result() -> Failure {
    Fault::new(Code::Internal, "the answer ended without a result").into()
}

/// An answer that makes events of pieces.
pub(super) trait SseAnswer: Unpin + Send + 'static {
    fn feed(&mut self) -> &mut Feed;

    /// Takes a piece of a choice.
    fn take(&mut self, choice: usize, piece: Piece);

    /// Sends the error as an event and ends the stream.
    fn fail(&mut self, failure: &Failure);
}

/// The events of an answer.
struct Events<A>(A);

impl<A: SseAnswer> Stream for Events<A> {
    type Item = Result<Bytes, Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            let feed = self.0.feed();
            if let Some(event) = feed.ready.pop_front() {
                return Poll::Ready(Some(Ok(event)));
            }
            if feed.ended {
                return Poll::Ready(None);
            }
            match ready!(feed.pieces.poll_recv(cx)) {
                Some(piece) => {
                    let (choice, piece) = *piece;
                    self.0.take(choice, piece);
                }
                None => self.0.fail(&no_result()),
            }
        }
    }
}

/// Returns a response of the events of an answer, which no proxy should keep back.
pub(super) fn response(answer: impl SseAnswer) -> Response<Body> {
    let mut response = Response::new(Body::from_stream(Events(answer)));
    let headers = response.headers_mut();
    headers.insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("text/event-stream; charset=utf-8"),
    );
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}
