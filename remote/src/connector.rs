//! Connections to an endpoint, or to the proxy that the environment names for it (`HTTPS_PROXY`, `HTTP_PROXY`, `ALL_PROXY`,
//! `NO_PROXY`).

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use hyper::Uri;
use hyper::header::HeaderValue;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::client::legacy::connect::proxy::Tunnel;
use hyper_util::client::legacy::connect::{Connected, Connection, HttpConnector};
use hyper_util::client::proxy::matcher::Matcher;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tower_service::Service;

type Failure = Box<dyn std::error::Error + Send + Sync>;
type Opening = Pin<Box<dyn Future<Output = Result<Stream, Failure>> + Send>>;

/// Opens connections on the way that leads to an endpoint.
#[derive(Clone)]
pub(crate) enum Connector {
    /// To the endpoint itself.
    Direct(HttpConnector),
    /// To a proxy that passes requests on.
    Forward { tcp: HttpConnector, proxy: Uri },
    /// Through a proxy that passes bytes on, with `CONNECT`.
    Tunnel(Tunnel<HttpConnector>),
}

impl Connector {
    /// Returns the way to an address, and the header that requests on it need. A proxy reads requests that may be forwarded, and passes
    /// on the bytes of others.
    ///
    /// # Errors
    /// The scheme of a proxy's address, if it is not `http`.
    pub(crate) fn to(
        address: &Uri,
        proxies: &Matcher,
        is_forwarded: bool,
        tcp: HttpConnector,
    ) -> Result<(Self, Option<HeaderValue>), String> {
        let proxy = proxies.intercept(address).filter(|_| !is_loopback(address));
        let Some(proxy) = proxy else {
            return Ok((Self::Direct(tcp), None));
        };
        let credentials = proxy.basic_auth().cloned();
        let proxy = proxy.uri().clone();
        let scheme = proxy.scheme_str().unwrap_or_default();
        if scheme != "http" {
            return Err(scheme.to_owned());
        }
        if is_forwarded {
            return Ok((Self::Forward { tcp, proxy }, credentials));
        }
        let tunnel = Tunnel::new(proxy, tcp);
        let tunnel = match credentials {
            Some(credentials) => tunnel.with_auth(credentials),
            None => tunnel,
        };
        Ok((Self::Tunnel(tunnel), None))
    }
}

/// Returns whether an address is of this machine: a proxy elsewhere could not reach it.
pub(crate) fn is_loopback(address: &Uri) -> bool {
    let host = address.host().unwrap_or_default();
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let is_address = |host: &str| host.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback());
    host.eq_ignore_ascii_case("localhost") || is_address(host)
}

impl Service<Uri> for Connector {
    type Response = Stream;
    type Error = Failure;
    type Future = Opening;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        match self {
            Self::Direct(tcp) | Self::Forward { tcp, .. } => tcp.poll_ready(context).map_err(Failure::from),
            Self::Tunnel(tunnel) => tunnel.poll_ready(context).map_err(Failure::from),
        }
    }

    fn call(&mut self, address: Uri) -> Opening {
        match self {
            Self::Direct(tcp) => {
                let opening = tcp.call(address);
                Box::pin(async move { Ok(Stream::new(opening.await?, false)) })
            }
            Self::Forward { tcp, proxy } => {
                let opening = tcp.call(proxy.clone());
                Box::pin(async move { Ok(Stream::new(opening.await?, true)) })
            }
            Self::Tunnel(tunnel) => {
                let opening = tunnel.call(address);
                Box::pin(async move { Ok(Stream::new(opening.await?, false)) })
            }
        }
    }
}

/// A connection.
pub(crate) struct Stream {
    tcp: TokioIo<TcpStream>,
    /// Whether requests on it name the whole address, because a proxy reads them.
    is_forwarded: bool,
}

impl Stream {
    const fn new(tcp: TokioIo<TcpStream>, is_forwarded: bool) -> Self {
        Self { tcp, is_forwarded }
    }
}

impl Connection for Stream {
    fn connected(&self) -> Connected {
        self.tcp.connected().proxy(self.is_forwarded)
    }
}

impl Read for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tcp).poll_read(context, buffer)
    }
}

impl Write for Stream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.tcp).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tcp).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tcp).poll_shutdown(context)
    }

    fn is_write_vectored(&self) -> bool {
        self.tcp.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffers: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.tcp).poll_write_vectored(context, buffers)
    }
}
