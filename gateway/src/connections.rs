//! Connections: accepts them, serves HTTP/1.1 and HTTP/2 on them, and closes those that send no request or take no answer.

mod drain_body;
mod head_timer;
mod protocol;
mod write_timer;

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::task::Poll;
use std::time::Duration;

use axum::body::Body;
use axum::http::Request;
use axum::serve::Listener;
use hyper::body::Incoming;
use hyper::rt::{Read, Write};
use hyper::server::conn::{http1, http2};
use hyper::service::{HttpService, service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::sync::watch;
use tokio::time::{Sleep, sleep};

use crate::middleware::Guarded;

use drain_body::Discarded;
use head_timer::HeadTimer;
pub(crate) use protocol::Negotiated;
use protocol::{Protocol, Recognised};
use write_timer::WriteTimer;

/// Time for which an idle connection of HTTP/1.1 stays open after the stop: its client may have sent a request that has not arrived. Every
/// answer then says that the connection closes. HTTP/2 tells clients which requests it still takes.
const LAST_REQUEST: Duration = Duration::from_millis(500);

/// How connections are served.
struct Settings {
    http1: http1::Builder,
    http2: http2::Builder<TokioExecutor>,
    guarded: Arc<Guarded>,
    head_pause: Duration,
}

/// Serves every connection of a listener until `stopping` turns true; then waits until the requests in progress have ended.
///
/// A connection is closed if `head_pause` passes without the complete head of a request: before the first one, and on HTTP/1.1
/// also between two. It is closed, too, if the client takes nothing of an answer for `body_pause`, or on HTTP/2 answers no ping.
pub(crate) async fn serve<L: Listener<Io: Negotiated>>(
    mut listener: L,
    guarded: Arc<Guarded>,
    head_pause: Duration,
    mut stopping: watch::Receiver<bool>,
) {
    let (mut http1, mut http2) = (http1::Builder::new(), http2::Builder::new(TokioExecutor::new()));
    http1.header_read_timeout(head_pause);
    // Also between requests, or connections of clients that vanished would stay open.
    let body_pause = guarded.shared.limits.body_pause;
    http2
        .timer(TokioTimer::new())
        .keep_alive_interval(body_pause)
        .keep_alive_timeout(body_pause);
    let settings = Arc::new(Settings {
        http1,
        http2,
        guarded,
        head_pause,
    });
    // Every connection holds a receiver until it has ended.
    let (all_ended, open) = watch::channel(());
    loop {
        let (io, _) = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = stopping.wait_for(|stopping| *stopping) => break,
        };
        let (settings, stopping, open) = (Arc::clone(&settings), stopping.clone(), open.clone());
        tokio::spawn(async move {
            connection(io, settings, stopping).await;
            drop(open);
        });
    }
    drop((listener, open));
    all_ended.closed().await;
}

async fn connection<Io>(io: Io, settings: Arc<Settings>, mut stopping: watch::Receiver<bool>)
where
    Io: Negotiated + tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
{
    let mut first = Box::pin(sleep(settings.head_pause));
    let mut io = Recognised::new(io);
    let protocol = tokio::select! {
        protocol = io.protocol() => protocol,
        // The timers of both protocols begin only once it is known which one the client speaks.
        () = first.as_mut() => return tracing::debug!("a connection sent no request"),
        _ = stopping.wait_for(|stopping| *stopping) => return,
    };
    let asked = Arc::new(AtomicBool::new(false));
    let noted = Arc::clone(&asked);
    let guarded = Arc::clone(&settings.guarded);
    let service = service_fn(move |request: Request<Incoming>| {
        noted.store(true, Relaxed);
        // In a box, because a connection reserves room for it between requests too.
        Box::pin(Arc::clone(&guarded).answer(Discarded::of(request).map(Body::new)))
    });
    let body_pause = settings.guarded.shared.limits.body_pause;
    let io = TokioIo::new(WriteTimer::new(io, body_pause));
    let grace = settings.guarded.shared.limits.grace;
    // In a box, because a future holds what it awaits twice if it was moved into it.
    let (served, pause): (Pin<Box<dyn Connection + Send>>, _) = match protocol {
        Ok(Protocol::Http1) => {
            let mut http1 = settings.http1.clone();
            let served = http1.timer(HeadTimer::default()).serve_connection(io, service);
            (Box::pin(served), LAST_REQUEST.min(grace / 2))
        }
        Ok(Protocol::Http2) => (
            Box::pin(settings.http2.serve_connection(io, service)),
            Duration::ZERO,
        ),
        Err(error) => return tracing::debug!(%error, "a connection failed"),
    };
    until_closed(served, &asked, first, stopping, pause).await;
}

/// Serves a connection. Closes it when `first` ends unless a request was `asked`; lets it end `pause` after `stopping` turns true.
async fn until_closed(
    mut served: Pin<Box<dyn Connection + Send>>,
    asked: &AtomicBool,
    first: Pin<Box<Sleep>>,
    mut stopping: watch::Receiver<bool>,
    pause: Duration,
) {
    let mut first = Some(first);
    let mut stopped = pin!(async move {
        let _ = stopping.wait_for(|stopping| *stopping).await;
        if !pause.is_zero() {
            sleep(pause).await;
        }
    });
    let mut is_stopping = false;
    let ended = poll_fn(|cx| {
        loop {
            if let Poll::Ready(result) = served.as_mut().poll(cx) {
                return Poll::Ready(Some(result));
            }
            if asked.load(Relaxed) {
                first = None;
            } else if let Some(first) = &mut first
                && first.as_mut().poll(cx).is_ready()
            {
                return Poll::Ready(None);
            }
            if is_stopping || stopped.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
            is_stopping = true;
            served.as_mut().finish();
        }
    });
    match ended.await {
        Some(Ok(())) => {}
        Some(Err(error)) => tracing::debug!(%error, "a connection failed"),
        None => tracing::debug!("a connection sent no request"),
    }
}

/// A connection that is served.
trait Connection: Future<Output = hyper::Result<()>> {
    /// Takes no further requests, and ends after those in progress.
    fn finish(self: Pin<&mut Self>);
}

impl<Io, S> Connection for http1::Connection<Io, S>
where
    Io: Read + Write + Unpin + 'static,
    S: HttpService<Incoming, ResBody = Body, Error: Into<Box<dyn std::error::Error + Send + Sync>>>,
{
    fn finish(self: Pin<&mut Self>) {
        self.graceful_shutdown();
    }
}

impl<Io, S> Connection for http2::Connection<Io, S, TokioExecutor>
where
    Io: Read + Write + Unpin + 'static,
    S: HttpService<
            Incoming,
            ResBody = Body,
            Future: Send + 'static,
            Error: Into<Box<dyn std::error::Error + Send + Sync>>,
        >,
{
    fn finish(self: Pin<&mut Self>) {
        self.graceful_shutdown();
    }
}
