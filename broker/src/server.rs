//! The broker's thread: accepts clients, and closes them at shutdown.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::spawn_local;
use tokio::time::{Instant, sleep};

use super::buffers::Buffers;
use super::connection::{Limits, serve};
use super::hub::Hub;
use super::session::Session;
use super::stats::Counters;

/// `server_name` in the greeting; identifies the embedded broker.
pub const SERVER_NAME: &str = "kaskade-embedded";
/// `version` in the greeting: the nats-server version whose core protocol it implements.
pub const VERSION: &str = "2.10.0";

/// Pause after a failed accept: the process may be out of file descriptors, and an immediate retry would only use a
/// core.
const RECOVER: Duration = Duration::from_millis(50);
/// Time limit for flushing clients at shutdown.
const GRACE: Duration = Duration::from_secs(2);
const LOOK_AGAIN: Duration = Duration::from_millis(1);

/// State that the thread starts with.
pub(super) struct Server {
    pub(super) listener: TcpListener,
    pub(super) address: SocketAddr,
    pub(super) identity: String,
    pub(super) limits: Limits,
    pub(super) counters: Arc<Counters>,
}

impl Server {
    /// Serves until `stop` is sent or its sender is dropped. Run it on a [`tokio::task::LocalSet`].
    pub(super) async fn run(self, stop: oneshot::Receiver<()>) {
        let hub = Rc::new(RefCell::new(Hub::new(Arc::clone(&self.counters))));
        tokio::select! {
            biased;
            _ = stop => {}
            () = self.accept(&hub) => {}
        }
        // Close the listener before the clients are flushed.
        drop(self);
        hub.borrow().close();
        let deadline = Instant::now() + GRACE;
        // Each session leaves the hub before its last bytes, so wait for the tasks.
        while Rc::strong_count(&hub) > 1 && Instant::now() < deadline {
            sleep(LOOK_AGAIN).await;
        }
    }

    async fn accept(&self, hub: &Rc<RefCell<Hub>>) {
        let buffers = Rc::default();
        let mut id = 0;
        loop {
            match self.listener.accept().await {
                Ok((stream, _)) => {
                    id += 1;
                    self.welcome(stream, id, hub, &buffers);
                }
                Err(error) => {
                    tracing::warn!(%error, "accepting a connection failed");
                    sleep(RECOVER).await;
                }
            }
        }
    }

    fn welcome(&self, stream: TcpStream, id: u64, hub: &Rc<RefCell<Hub>>, buffers: &Rc<RefCell<Buffers>>) {
        // Messages are already combined into large writes; Nagle's algorithm would only delay them.
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(client = id, %error, "a connection closed before it was set up");
            return;
        }
        let session = Rc::new(Session::new(id, self.limits.max_pending));
        hub.borrow_mut().enter(&session);
        session.send_line(self.info(id).as_bytes());
        spawn_local(serve(
            stream,
            session,
            Rc::clone(hub),
            Rc::clone(buffers),
            self.limits,
        ));
    }

    /// The greeting, which tells a client the broker's capabilities.
    fn info(&self, id: u64) -> String {
        let info = json!({
            "server_id": self.identity,
            "server_name": SERVER_NAME,
            "version": VERSION,
            "proto": 1,
            "host": self.address.ip(),
            "port": self.address.port(),
            "headers": true,
            "jetstream": false,
            "max_payload": self.limits.max_payload,
            "client_id": id,
            "client_ip": self.address.ip(),
        });
        format!("INFO {info}\r\n")
    }
}
