//! A TCP proxy between processes and their nats-server that injects network faults.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use anyhow::Context as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// The state of the connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wire {
    Whole,
    /// No byte passes and no connection is closed, as when a switch loses its power.
    Silent,
    /// The server's bytes pass, and those of the processes are not read: their connections stay open and fill up.
    Unread,
    /// Every connection is closed, and so are new ones. The number distinguishes successive cuts.
    Closed(u32),
}

/// A TCP proxy on the loopback. It ends with the runtime that it was started on.
pub(super) struct Proxy {
    address: SocketAddr,
    wire: watch::Sender<Wire>,
}

impl Proxy {
    /// Starts a proxy to this port.
    pub(super) async fn before(port: u16) -> anyhow::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let (wire, seen) = watch::channel(Wire::Whole);
        tokio::spawn(accept(listener, port, seen));
        Ok(Self { address, wire })
    }

    /// The URL that processes connect to.
    pub(super) fn url(&self) -> String {
        format!("nats://{}", self.address)
    }

    /// Stops all bytes without closing connections.
    pub(super) fn silence(&self) {
        self.wire.send_replace(Wire::Silent);
    }

    /// Stops reading what the processes send, as a server does that is overloaded.
    pub(super) fn stop_reading(&self) {
        self.wire.send_replace(Wire::Unread);
    }

    /// Closes every connection, and new ones too.
    pub(super) fn close(&self) {
        self.wire.send_modify(|wire| {
            *wire = match *wire {
                Wire::Closed(cut) => Wire::Closed(cut + 1),
                Wire::Whole | Wire::Silent | Wire::Unread => Wire::Closed(0),
            };
        });
    }

    /// Passes bytes again.
    pub(super) fn heal(&self) {
        self.wire.send_replace(Wire::Whole);
    }

    /// Passes bytes again after `pause`, without blocking the caller.
    pub(super) fn heal_after(&self, pause: Duration) {
        let wire = self.wire.clone();
        tokio::spawn(async move {
            tokio::time::sleep(pause).await;
            wire.send_replace(Wire::Whole);
        });
    }
}

async fn accept(listener: TcpListener, port: u16, wire: watch::Receiver<Wire>) {
    while let Ok((near, _)) = listener.accept().await {
        let wire = wire.clone();
        tokio::spawn(async move {
            // Without a server, the near end is closed.
            let _ = connect(near, port, wire).await;
        });
    }
}

async fn connect(near: TcpStream, port: u16, wire: watch::Receiver<Wire>) -> anyhow::Result<()> {
    if matches!(*wire.borrow(), Wire::Closed(_)) {
        return Ok(());
    }
    let far = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await;
    let far = far.context("no server is behind the proxy")?;
    near.set_nodelay(true)?;
    far.set_nodelay(true)?;
    let ((near_in, near_out), (far_in, far_out)) = (near.into_split(), far.into_split());
    tokio::select! {
        ended = pass(near_in, far_out, wire.clone(), &[Wire::Silent, Wire::Unread]) => ended,
        ended = pass(far_in, near_out, wire, &[Wire::Silent]) => ended,
    }
}

/// Passes bytes in one direction, but none while the wire is in one of the `waiting` states.
async fn pass(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    mut wire: watch::Receiver<Wire>,
    waiting: &[Wire],
) -> anyhow::Result<()> {
    let mut buffer = vec![0; 1 << 16];
    loop {
        // Ends when closed.
        if matches!(
            *wire.wait_for(|wire| !waiting.contains(wire)).await?,
            Wire::Closed(_)
        ) {
            return Ok(());
        }
        let read = tokio::select! {
            read = from.read(&mut buffer) => read?,
            changed = wire.changed() => {
                changed?;
                continue;
            }
        };
        let Some(bytes) = buffer.get(..read).filter(|bytes| !bytes.is_empty()) else {
            return Ok(());
        };
        // Bytes that were read just before a fault are held back too.
        if matches!(
            *wire.wait_for(|wire| !waiting.contains(wire)).await?,
            Wire::Closed(_)
        ) {
            return Ok(());
        }
        to.write_all(bytes).await?;
    }
}
