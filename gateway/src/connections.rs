//! Connections: accepts them, serves HTTP/1.1 and HTTP/2 on them, and closes those that send no request.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::Request;
use axum::serve::Listener;
use hyper::body::Incoming;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::service::TowerToHyperService;
use tokio::sync::watch;
use tokio::time::sleep;

/// Serves every connection of a listener until `stopping` turns true; then waits until the requests in progress have ended.
///
/// A connection is closed if `head_pause` passes without the complete head of a request: before the first one, and on HTTP/1.1
/// also between two.
pub(crate) async fn serve<L: Listener>(
    mut listener: L,
    router: Router,
    head_pause: Duration,
    mut stopping: watch::Receiver<bool>,
) {
    let mut builder = Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(head_pause);
    builder.http2().timer(TokioTimer::new());
    let builder = Arc::new(builder);
    // Every connection holds a receiver until it has ended.
    let (all_ended, open) = watch::channel(());
    loop {
        let (io, _) = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = stopping.wait_for(|stopping| *stopping) => break,
        };
        let (builder, router) = (Arc::clone(&builder), router.clone());
        let (stopping, open) = (stopping.clone(), open.clone());
        tokio::spawn(async move {
            connection(io, &builder, router, head_pause, stopping).await;
            drop(open);
        });
    }
    drop((listener, open));
    all_ended.closed().await;
}

async fn connection<Io>(
    io: Io,
    builder: &Builder<TokioExecutor>,
    router: Router,
    head_pause: Duration,
    mut stopping: watch::Receiver<bool>,
) where
    Io: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
{
    let asked = Arc::new(AtomicBool::new(false));
    let noted = Arc::clone(&asked);
    let router = TowerToHyperService::new(router);
    let service = service_fn(move |request: Request<Incoming>| {
        noted.store(true, Relaxed);
        router.call(request.map(Body::new))
    });
    let mut served = pin!(builder.serve_connection(TokioIo::new(io), service));
    let mut stopped = pin!(stopping.wait_for(|stopping| *stopping));
    let mut first = pin!(sleep(head_pause));
    let (mut is_stopping, mut is_new) = (false, true);
    loop {
        tokio::select! {
            biased;
            result = served.as_mut() => {
                if let Err(error) = result {
                    tracing::debug!(%error, "a connection failed");
                }
                return;
            }
            // The timers of both protocols begin only once it is known which one the client speaks.
            () = first.as_mut(), if is_new => {
                if !asked.load(Relaxed) {
                    return tracing::debug!("a connection sent no request");
                }
                is_new = false;
            }
            _ = stopped.as_mut(), if !is_stopping => {
                is_stopping = true;
                served.as_mut().graceful_shutdown();
            }
        }
    }
}
