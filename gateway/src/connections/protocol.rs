//! Determines the protocol of a connection: negotiated in the TLS handshake, or recognised by the first bytes.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;

/// Connection preface of an HTTP/2 client (RFC 9113, section 3.4).
const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// A supported protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Protocol {
    Http1,
    Http2,
}

/// A connection whose protocol may be known before its first byte.
pub(crate) trait Negotiated {
    /// Returns the protocol that the client chose by ALPN (RFC 7301), if it chose any.
    fn alpn(&self) -> Option<&[u8]> {
        None
    }
}

impl Negotiated for TcpStream {}

impl Negotiated for Box<TlsStream<TcpStream>> {
    fn alpn(&self) -> Option<&[u8]> {
        self.get_ref().1.alpn_protocol()
    }
}

/// A connection whose first bytes were read to recognise its protocol, and are replayed to its reader.
pub(super) struct Recognised<Io> {
    io: Io,
    /// First bytes; those from `again` to `filled` are read before any of `io`.
    first: [u8; PREFACE.len()],
    filled: usize,
    again: usize,
}

impl<Io: Negotiated + AsyncRead + Unpin> Recognised<Io> {
    pub(super) fn new(io: Io) -> Self {
        Self {
            io,
            first: [0; PREFACE.len()],
            filled: 0,
            again: 0,
        }
    }

    /// Returns the protocol once the received bytes determine it. Any connection that does not begin with the HTTP/2
    /// preface is HTTP/1, whose parser refuses invalid input.
    ///
    /// # Errors
    /// Errors of the connection.
    pub(super) async fn protocol(&mut self) -> io::Result<Protocol> {
        match self.io.alpn() {
            Some(b"h2") => return Ok(Protocol::Http2),
            Some(b"http/1.1") => return Ok(Protocol::Http1),
            _ => {}
        }
        loop {
            let (_, free) = self.first.split_at_mut(self.filled);
            let read = self.io.read(free).await?;
            self.filled += read;
            if read == 0 || !PREFACE.starts_with(self.replayed()) {
                return Ok(Protocol::Http1);
            }
            if self.filled == PREFACE.len() {
                return Ok(Protocol::Http2);
            }
        }
    }
}

impl<Io> Recognised<Io> {
    /// Returns the bytes still to be replayed.
    fn replayed(&self) -> &[u8] {
        self.first.get(self.again..self.filled).unwrap_or_default()
    }
}

impl<Io: AsyncRead + Unpin> AsyncRead for Recognised<Io> {
    /// Reads the replayed bytes together with those received since, because HTTP/1 doubles its buffer if a head arrives
    /// in two reads.
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.again == self.filled {
            return Pin::new(&mut self.io).poll_read(cx, buffer);
        }
        let count = self.replayed().len().min(buffer.remaining());
        buffer.put_slice(self.replayed().get(..count).unwrap_or_default());
        self.again += count;
        if buffer.remaining() > 0 {
            // An error occurs again at the next read.
            let _ = Pin::new(&mut self.io).poll_read(cx, buffer);
        }
        Poll::Ready(Ok(()))
    }
}

impl<Io: AsyncWrite + Unpin> AsyncWrite for Recognised<Io> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write_vectored(cx, pieces)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncWriteExt as _, DuplexStream, duplex};

    use super::*;

    impl Negotiated for DuplexStream {}

    /// A connection whose handshake negotiated a protocol.
    struct Chosen(DuplexStream, &'static [u8]);

    impl Negotiated for Chosen {
        fn alpn(&self) -> Option<&[u8]> {
            Some(self.1)
        }
    }

    impl AsyncRead for Chosen {
        fn poll_read(
            mut self: Pin<&mut Self>,
            cx: &mut Context<'_>,
            buffer: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            Pin::new(&mut self.0).poll_read(cx, buffer)
        }
    }

    /// Sends bytes in pieces of a given size, then closes. Returns the protocol and the bytes that are read afterwards.
    async fn recognise(sent: &[u8], piece: usize) -> (Protocol, Vec<u8>) {
        let (mut client, server) = duplex(1 << 16);
        let mut io = Recognised::new(server);
        let client = async move {
            for piece in sent.chunks(piece) {
                client.write_all(piece).await.unwrap();
                tokio::task::yield_now().await;
            }
        };
        let read = async {
            let protocol = io.protocol().await.unwrap();
            let mut all = Vec::new();
            io.read_to_end(&mut all).await.unwrap();
            (protocol, all)
        };
        tokio::join!(client, read).1
    }

    #[tokio::test]
    async fn protocols_are_recognised_however_their_bytes_arrive_and_none_is_lost() {
        let preface = [PREFACE.as_slice(), b"\0\0\0\x04\0\0\0\0\0"].concat();
        let cases: [(&[u8], Protocol); 7] = [
            (b"GET / HTTP/1.1\r\nhost: a\r\n\r\n", Protocol::Http1),
            (
                b"POST /a-path-longer-than-the-preface HTTP/1.1\r\n\r\nbody",
                Protocol::Http1,
            ),
            (&preface, Protocol::Http2),
            // A part of the preface, and a preface with a wrong end.
            (b"PRI * HTTP/2.0\r\n", Protocol::Http1),
            (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\t", Protocol::Http1),
            (b"\x16\x03\x01", Protocol::Http1),
            (b"", Protocol::Http1),
        ];
        for (sent, protocol) in cases {
            for piece in [1, 5, 1 << 10] {
                assert_eq!(recognise(sent, piece).await, (protocol, sent.to_vec()), "{piece}");
            }
        }
    }

    #[tokio::test]
    async fn the_first_bytes_are_read_together_with_those_behind_them() {
        let (mut client, server) = duplex(1 << 10);
        let mut io = Recognised::new(server);
        client.write_all(&[b'a'; 100]).await.unwrap();
        assert_eq!(io.protocol().await.unwrap(), Protocol::Http1);
        let mut small = [0; 10];
        assert_eq!(io.read(&mut small).await.unwrap(), 10);
        let mut rest = [0; 200];
        assert_eq!(io.read(&mut rest).await.unwrap(), 90);
    }

    #[tokio::test]
    async fn a_negotiated_protocol_needs_no_bytes() {
        for (name, protocol) in [
            (b"h2".as_slice(), Protocol::Http2),
            (b"http/1.1", Protocol::Http1),
        ] {
            let (_client, server) = duplex(1);
            let mut io = Recognised::new(Chosen(server, name));
            assert_eq!(io.protocol().await.unwrap(), protocol);
        }
    }
}
