//! Connections with TLS. Handshakes run beside each other, so that a client that sends nothing keeps no other waiting.

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use axum::serve::Listener;
use thiserror::Error;
use tokio::net::TcpStream;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::pki_types::pem::{self, PemObject as _};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{Error as RustlsError, ServerConfig};
use tokio_rustls::server::TlsStream;

use crate::accept::TcpAcceptor;

/// Longest time of a handshake.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// Handshakes at once; further connections wait in the system's queue.
const HANDSHAKES: usize = 1_024;

/// Files with what the gateway shows to clients.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsFiles {
    /// The certificate, followed by its chain, PEM.
    pub certificate: PathBuf,
    /// Its key, PEM.
    pub key: PathBuf,
}

impl TlsFiles {
    /// Checks that the files can be used.
    ///
    /// # Errors
    /// [`TlsError`].
    pub fn check(&self) -> Result<(), TlsError> {
        acceptor(self).map(drop)
    }
}

/// Why TLS cannot be used.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TlsError {
    /// A file cannot be read.
    #[error("TLS: the {what} in {} cannot be read: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What it should hold.
        what: &'static str,
        /// What the system says.
        source: io::Error,
    },
    /// A file holds nothing of that kind.
    #[error("TLS: {} holds no {what} in PEM: {reason}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What it should hold.
        what: &'static str,
        /// What is wrong.
        reason: String,
    },
    /// Certificate and key do not belong together.
    #[error("TLS: the certificate in {} cannot be used with its key: {source}", path.display())]
    Pair {
        /// The file of the certificate.
        path: PathBuf,
        /// What is wrong.
        source: RustlsError,
    },
}

/// Reads the files.
///
/// # Errors
/// [`TlsError`].
pub(crate) fn acceptor(files: &TlsFiles) -> Result<TlsAcceptor, TlsError> {
    let holds_none = |path: &Path, what: &'static str, reason: String| TlsError::File {
        path: path.to_owned(),
        what,
        reason,
    };
    let bad = |path: &Path, what: &'static str, error: pem::Error| match error {
        pem::Error::Io(source) => TlsError::Read {
            path: path.to_owned(),
            what,
            source,
        },
        other => holds_none(path, what, other.to_string()),
    };
    let path = &files.certificate;
    let chain = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let chain = chain.map_err(|error| bad(path, "certificate", error))?;
    if chain.is_empty() {
        return Err(holds_none(path, "certificate", "there is none".to_owned()));
    }
    let key =
        PrivateKeyDer::from_pem_file(&files.key).map_err(|error| bad(&files.key, "private key", error))?;
    let pair = |source: RustlsError| TlsError::Pair {
        path: path.clone(),
        source,
    };
    let mut config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(pair)?
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .map_err(pair)?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

/// A listener whose connections have completed their handshake.
pub(crate) struct TlsListener {
    address: SocketAddr,
    ready: Receiver<(Box<TlsStream<TcpStream>>, SocketAddr)>,
    accepting: JoinHandle<()>,
}

impl TlsListener {
    /// Begins to accept connections.
    ///
    /// # Errors
    /// When the listener has no address.
    pub(crate) fn new(listener: TcpAcceptor, acceptor: TlsAcceptor) -> std::io::Result<Self> {
        let (done, ready) = channel(HANDSHAKES);
        Ok(Self {
            address: listener.local_addr()?,
            ready,
            accepting: tokio::spawn(accept(listener, acceptor, done)),
        })
    }
}

impl Drop for TlsListener {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn accept(
    mut listener: TcpAcceptor,
    acceptor: TlsAcceptor,
    done: Sender<(Box<TlsStream<TcpStream>>, SocketAddr)>,
) {
    let places = Arc::new(Semaphore::new(HANDSHAKES));
    loop {
        let Ok(place) = Arc::clone(&places).acquire_owned().await else {
            return;
        };
        let (connection, from) = listener.accept().await;
        tokio::spawn(shake(connection, from, acceptor.clone(), done.clone(), place));
    }
}

async fn shake(
    connection: TcpStream,
    from: SocketAddr,
    acceptor: TlsAcceptor,
    done: Sender<(Box<TlsStream<TcpStream>>, SocketAddr)>,
    _place: OwnedSemaphorePermit,
) {
    match tokio::time::timeout(HANDSHAKE, acceptor.accept(connection)).await {
        // The receiver is gone if the gateway drains.
        Ok(Ok(stream)) => drop(done.send((Box::new(stream), from)).await),
        Ok(Err(error)) => tracing::debug!(%error, "a TLS handshake failed"),
        Err(_) => tracing::debug!("a TLS handshake took too long"),
    }
}

impl Listener for TlsListener {
    type Io = Box<TlsStream<TcpStream>>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        match self.ready.recv().await {
            Some(connection) => connection,
            // The task that accepts ends with this listener only.
            None => std::future::pending().await,
        }
    }

    fn local_addr(&self) -> std::io::Result<SocketAddr> {
        Ok(self.address)
    }
}
