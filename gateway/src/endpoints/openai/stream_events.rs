//! Turns the pieces of a streamed answer into events.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderValue, Response, header};
use bytes::Bytes;
use futures::Stream;
use kaskade_actors::{Code, Fault};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::{Instant, Sleep, timeout};

use crate::http::failure::Failure;
use crate::requests::call::Piece;

/// A comment event, which clients ignore.
const KEEP_ALIVE: Bytes = Bytes::from_static(b": keep-alive\n\n");

/// Longest time without an event.
const MAX_SILENCE: Duration = Duration::from_secs(15);

/// Event that ends a stream.
const DONE: Bytes = Bytes::from_static(b"data: [DONE]\n\n");

/// Queues of received pieces and of events to send.
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

    /// Waits for a piece; returns it with the index of its choice.
    ///
    /// # Errors
    /// An internal fault if the answer ends without a result.
    async fn next(&mut self) -> Result<(usize, Piece), Failure> {
        let piece = self.pieces.recv().await;
        piece.map(|piece| *piece).ok_or_else(no_result)
    }

    /// Waits for the piece that starts the response: the first piece, or the last one for a buffered answer. `None`
    /// after [`MAX_SILENCE`], because proxies and clients close silent connections.
    ///
    /// # Errors
    /// The failure of the request; an internal fault if the answer ends without a result.
    pub(super) async fn first(&mut self, is_buffered: bool) -> Result<Option<(usize, Piece)>, Failure> {
        let first = async {
            loop {
                match self.next().await? {
                    (_, Piece::Part(_)) if is_buffered => {}
                    (_, Piece::End(Err(failure))) => return Err(failure),
                    piece => return Ok(Some(piece)),
                }
            }
        };
        if let Ok(first) = timeout(MAX_SILENCE, first).await {
            return first;
        }
        self.event(KEEP_ALIVE);
        Ok(None)
    }

    /// Sends an event.
    pub(super) fn event(&mut self, event: impl Into<Bytes>) {
        self.ready.push_back(event.into());
    }

    /// Ends the stream and cancels unfinished choices.
    pub(super) fn done(&mut self) {
        self.ready.push_back(DONE);
        self.ended = true;
        self.pieces.close();
    }
}

fn no_result() -> Failure {
    Fault::new(Code::Internal, "the answer ended without a result").into()
}

/// A streamed answer that turns pieces into events.
pub(super) trait SseAnswer: Unpin + Send + 'static {
    fn feed(&mut self) -> &mut Feed;

    /// Processes a piece of a choice.
    fn take(&mut self, choice: usize, piece: Piece);

    /// Sends the error as an event and ends the stream.
    fn fail(&mut self, failure: &Failure);
}

/// The events of an answer, with a comment after each silent period, because proxies and clients close silent
/// connections.
struct Events<A> {
    answer: A,
    silence: Pin<Box<Sleep>>,
}

impl<A: SseAnswer> Stream for Events<A> {
    type Item = Result<Bytes, Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            let own = &mut *self;
            let feed = own.answer.feed();
            if let Some(event) = feed.ready.pop_front() {
                own.silence.as_mut().reset(Instant::now() + MAX_SILENCE);
                return Poll::Ready(Some(Ok(event)));
            }
            if feed.ended {
                return Poll::Ready(None);
            }
            match feed.pieces.poll_recv(cx) {
                Poll::Ready(Some(piece)) => {
                    let (choice, piece) = *piece;
                    own.answer.take(choice, piece);
                }
                Poll::Ready(None) => own.answer.fail(&no_result()),
                Poll::Pending => {
                    ready!(own.silence.as_mut().poll(cx));
                    feed.event(KEEP_ALIVE);
                }
            }
        }
    }
}

/// Returns a response with the events of an answer, with headers that disable proxy buffering.
pub(super) fn response(answer: impl SseAnswer) -> Response<Body> {
    let silence = Box::pin(tokio::time::sleep(MAX_SILENCE));
    let mut response = Response::new(Body::from_stream(Events { answer, silence }));
    let headers = response.headers_mut();
    headers.insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("text/event-stream; charset=utf-8"),
    );
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

#[cfg(test)]
mod tests {
    use futures::StreamExt as _;
    use kaskade_actors::wire::InferReply;
    use tokio::sync::mpsc::unbounded_channel;

    use super::*;

    struct Silent(Feed);

    impl SseAnswer for Silent {
        fn feed(&mut self) -> &mut Feed {
            &mut self.0
        }

        fn take(&mut self, _: usize, _: Piece) {
            self.0.event("data: x\n\n");
        }

        fn fail(&mut self, _: &Failure) {
            self.0.done();
        }
    }

    /// Regression: the response started with the first piece, so nothing was sent until then.
    #[tokio::test(start_paused = true)]
    async fn an_answer_that_is_late_begins_with_comments() {
        let (sender, pieces) = unbounded_channel();
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_secs(40)).await;
            let _ = sender.send(Box::new((0, Piece::End(Err(no_result())))));
            sender.closed().await;
        });
        let mut feed = Feed::new(pieces);
        assert!(feed.first(false).await.unwrap().is_none());
        let mut events = Events {
            answer: Silent(feed),
            silence: Box::pin(tokio::time::sleep(MAX_SILENCE)),
        };
        for _ in 0..2 {
            assert_eq!(events.next().await, Some(Ok(KEEP_ALIVE)));
        }
        assert_eq!(events.next().await, Some(Ok(Bytes::from_static(b"data: x\n\n"))));
    }

    #[tokio::test(start_paused = true)]
    async fn a_buffered_answer_begins_with_its_end_and_a_failure_with_none() {
        let (sender, pieces) = unbounded_channel();
        let part = || Box::new((0, Piece::Part(InferReply::default())));
        let end = |end| Box::new((0, Piece::End(end)));
        for piece in [
            part(),
            end(Ok(InferReply::default())),
            part(),
            end(Err(no_result())),
        ] {
            let _ = sender.send(piece);
        }
        let mut feed = Feed::new(pieces);
        assert!(matches!(feed.first(true).await, Ok(Some((0, Piece::End(Ok(_)))))));
        assert!(matches!(feed.first(false).await, Ok(Some((0, Piece::Part(_))))));
        assert_eq!(feed.first(false).await.err(), Some(no_result()));
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_stream_has_comments() {
        let (sender, pieces) = unbounded_channel();
        let began = Instant::now();
        let mut events = Events {
            answer: Silent(Feed::new(pieces)),
            silence: Box::pin(tokio::time::sleep(MAX_SILENCE)),
        };
        for count in 1..3 {
            assert_eq!(events.next().await, Some(Ok(KEEP_ALIVE)));
            assert!(began.elapsed() >= count * MAX_SILENCE);
        }
        let _ = sender.send(Box::new((0, Piece::End(Err(no_result())))));
        assert_eq!(events.next().await, Some(Ok(Bytes::from_static(b"data: x\n\n"))));
        drop(sender);
        assert_eq!(events.next().await, Some(Ok(DONE)));
        assert_eq!(events.next().await, None);
    }
}
