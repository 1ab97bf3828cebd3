//! A TCP proxy that delays what a server sends.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::thread;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

/// A TCP proxy on the loopback that delivers the server's bytes late and the client's bytes at once. Dropping it closes
/// its connections.
#[derive(Debug)]
pub struct DelayProxy {
    address: SocketAddr,
    _stop: oneshot::Sender<()>,
}

impl DelayProxy {
    /// Starts a proxy to this port of the loopback, on a thread of its own.
    ///
    /// # Panics
    /// When no port is free.
    pub fn start(port: u16, delay: Duration) -> Self {
        let (stop, stopped) = oneshot::channel::<()>();
        let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("no free port");
        let address = listener.local_addr().expect("a listener has an address");
        listener.set_nonblocking(true).expect("a listener can be polled");
        thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .expect("a runtime for the proxy");
            runtime.block_on(async {
                tokio::select! {
                    failed = accept(listener, port, delay) => failed.expect("the proxy failed"),
                    _ = stopped => {}
                }
            });
        });
        Self { address, _stop: stop }
    }

    /// Returns the URL that clients connect to.
    pub fn url(&self) -> String {
        format!("nats://{}", self.address)
    }
}

async fn accept(listener: std::net::TcpListener, port: u16, delay: Duration) -> io::Result<()> {
    let listener = TcpListener::from_std(listener)?;
    loop {
        let (near, _) = listener.accept().await?;
        tokio::spawn(async move {
            // Without a server, the near end is closed.
            let _ = connect(near, port, delay).await;
        });
    }
}

async fn connect(near: TcpStream, port: u16, delay: Duration) -> io::Result<()> {
    let far = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await?;
    near.set_nodelay(true)?;
    far.set_nodelay(true)?;
    let ((mut near_in, mut near_out), (mut far_in, mut far_out)) = (near.into_split(), far.into_split());
    let (late, mut due) = mpsc::unbounded_channel();
    let read = async {
        let mut buffer = vec![0; 1 << 16];
        loop {
            let read = far_in.read(&mut buffer).await?;
            let bytes = buffer.get(..read).unwrap_or_default().to_vec();
            let ended = bytes.is_empty();
            if late.send((Instant::now() + delay, bytes)).is_err() || ended {
                return io::Result::Ok(());
            }
        }
    };
    let write = async {
        while let Some((at, bytes)) = due.recv().await.filter(|(_, bytes)| !bytes.is_empty()) {
            tokio::time::sleep_until(at).await;
            near_out.write_all(&bytes).await?;
        }
        io::Result::Ok(())
    };
    let forward = tokio::io::copy(&mut near_in, &mut far_out);
    tokio::select! {
        (read, written) = async { tokio::join!(read, write) } => read.and(written),
        forwarded = forward => forwarded.map(|_| ()),
    }
}
