//! Limits the time in which a client reads nothing of what is sent to it.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

/// A connection whose writes fail once the client has read nothing for a while. Otherwise a client that stops reading
/// would keep its request in progress until it disconnects.
pub(super) struct WriteTimer<Io> {
    io: Io,
    pause: Duration,
    /// Sleep while a write waits. Boxed, because few connections need it.
    waiting: Option<Pin<Box<Sleep>>>,
}

impl<Io> WriteTimer<Io> {
    pub(super) const fn new(io: Io, pause: Duration) -> Self {
        Self {
            io,
            pause,
            waiting: None,
        }
    }
}

impl<Io: AsyncWrite + Unpin> WriteTimer<Io> {
    /// Writes, or fails if writing has been blocked for too long.
    fn limited<T>(
        &mut self,
        cx: &mut Context<'_>,
        write: impl FnOnce(Pin<&mut Io>, &mut Context<'_>) -> Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        let written = write(Pin::new(&mut self.io), cx);
        if written.is_ready() {
            self.waiting = None;
            return written;
        }
        let pause = self.pause;
        let waiting = self.waiting.get_or_insert_with(|| Box::pin(sleep(pause)));
        ready!(waiting.as_mut().poll(cx));
        Poll::Ready(Err(io::Error::new(
            io::ErrorKind::TimedOut,
            "the client reads nothing",
        )))
    }
}

impl<Io: AsyncRead + Unpin> AsyncRead for WriteTimer<Io> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_read(cx, buffer)
    }
}

impl<Io: AsyncWrite + Unpin> AsyncWrite for WriteTimer<Io> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.limited(cx, |io, cx| io.poll_write(cx, bytes))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.limited(cx, AsyncWrite::poll_flush)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.limited(cx, AsyncWrite::poll_shutdown)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.limited(cx, |io, cx| io.poll_write_vectored(cx, pieces))
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};

    use super::*;

    const PAUSE: Duration = Duration::from_secs(30);

    #[tokio::test(start_paused = true)]
    async fn writes_fail_only_if_nothing_is_taken_for_the_whole_pause() {
        let (mut client, server) = duplex(4);
        let mut server = WriteTimer::new(server, PAUSE);
        let slow = async {
            let mut piece = [0; 4];
            for _ in 0..4 {
                sleep(PAUSE * 9 / 10).await;
                client.read_exact(&mut piece).await.unwrap();
            }
        };
        let (written, ()) = tokio::join!(server.write_all(b"sixteen and four bytes"), slow);
        assert_eq!(written.unwrap_err().kind(), io::ErrorKind::TimedOut);
        let mut rest = [0; 4];
        client.read_exact(&mut rest).await.unwrap();
        assert_eq!(&rest, b" byt", "a client that is slow gets its bytes");
    }
}
