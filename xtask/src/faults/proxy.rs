//! A wire between processes and their nats-server that can be cut.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use anyhow::Context as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// How the wire is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wire {
    Whole,
    /// Nothing passes, and nobody is told: a switch that lost its power.
    Silent,
    /// Every connection is closed and new ones are, too. The number tells one cut from the next.
    Closed(u32),
}

/// A TCP proxy on the loopback. It ends with the runtime it was started on.
pub(super) struct Proxy {
    address: SocketAddr,
    wire: watch::Sender<Wire>,
}

impl Proxy {
    /// A proxy in front of that port.
    pub(super) async fn before(port: u16) -> anyhow::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let (wire, seen) = watch::channel(Wire::Whole);
        tokio::spawn(accept(listener, port, seen));
        Ok(Self { address, wire })
    }

    /// What processes connect to.
    pub(super) fn url(&self) -> String {
        format!("nats://{}", self.address)
    }

    /// Lets nothing pass, without closing anything.
    pub(super) fn silence(&self) {
        self.wire.send_replace(Wire::Silent);
    }

    /// Closes every connection, and keeps closed.
    pub(super) fn close(&self) {
        self.wire.send_modify(|wire| {
            *wire = match *wire {
                Wire::Closed(cut) => Wire::Closed(cut + 1),
                Wire::Whole | Wire::Silent => Wire::Closed(0),
            };
        });
    }

    /// Makes it whole.
    pub(super) fn heal(&self) {
        self.wire.send_replace(Wire::Whole);
    }

    /// Makes it whole again after a while, whatever else goes on.
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
            // Whoever is behind may be away; the near end learns so from the closing.
            let _ = connect(near, port, wire).await;
        });
    }
}

async fn connect(near: TcpStream, port: u16, wire: watch::Receiver<Wire>) -> anyhow::Result<()> {
    if matches!(*wire.borrow(), Wire::Closed(_)) {
        return Ok(());
    }
    let far = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await;
    let far = far.context("nobody is behind the proxy")?;
    near.set_nodelay(true)?;
    far.set_nodelay(true)?;
    let ((near_in, near_out), (far_in, far_out)) = (near.into_split(), far.into_split());
    tokio::select! {
        ended = pass(near_in, far_out, wire.clone()) => ended,
        ended = pass(far_in, near_out, wire) => ended,
    }
}

async fn pass(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    mut wire: watch::Receiver<Wire>,
) -> anyhow::Result<()> {
    let mut buffer = vec![0; 1 << 16];
    loop {
        // Waits while it is silent, and ends when it is closed.
        if matches!(
            *wire.wait_for(|wire| *wire != Wire::Silent).await?,
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
        // What was read just before a cut is held back by it, too.
        if matches!(
            *wire.wait_for(|wire| *wire != Wire::Silent).await?,
            Wire::Closed(_)
        ) {
            return Ok(());
        }
        to.write_all(bytes).await?;
    }
}
