//! One connection: the loops that read, write and ping it.

use std::cell::RefCell;
use std::io;
use std::io::IoSlice;
use std::rc::Rc;
use std::time::Duration;

use bytes::BytesMut;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::time::{MissedTickBehavior, interval, timeout};

use super::buffers::{Buffers, READ};
use super::hub::Hub;
use super::outbox::Batch;
use super::parser::{Op, Parser};
use super::session::{Ending, Session};
use super::trie;

/// Smallest free space for which another read is worthwhile.
const MIN_READ: usize = 16 << 10;
/// Largest number of chunks in one write.
const WRITE_CHUNKS: usize = 64;
/// Time limit for flushing a closing connection.
const FAREWELL: Duration = Duration::from_secs(1);
/// Pings that a client may leave unanswered.
const PINGS: u32 = 2;

/// The limits of a connection.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    pub(super) max_payload: usize,
    pub(super) max_pending: usize,
    pub(super) ping_interval: Duration,
    pub(super) write_deadline: Duration,
}

/// Serves a connection until it ends.
pub(super) async fn serve(
    mut stream: TcpStream,
    session: Rc<Session>,
    hub: Rc<RefCell<Hub>>,
    buffers: Rc<RefCell<Buffers>>,
    limits: Limits,
) {
    let (mut read, mut write) = stream.split();
    let guest = Registration {
        session,
        hub,
        buffers,
    };
    let session = &*guest.session;
    let mut writer = Writer {
        session,
        buffers: &guest.buffers,
        batch: Batch::default(),
        deadline: limits.write_deadline,
    };
    // The reader is polled before the writer: what it queues for its own client leaves in the same poll.
    let ending = tokio::select! {
        biased;
        ending = session.until_ended() => ending,
        ending = receive(&guest, &mut read, limits.max_payload) => ending,
        ending = writer.send(&mut write) => ending,
        ending = keep_alive(session, limits.ping_interval) => ending,
    };
    session.end(ending);
    guest.leave();
    tracing::debug!(client = session.id, %ending, "connection ends");
    let farewell = async {
        writer.send_farewell(&mut write, ending).await?;
        drain(&mut read).await
    };
    // Whether the client received the last bytes makes no difference.
    let _ = timeout(FAREWELL, farewell).await;
}

/// A session's registration with the hub, removed when its task ends.
struct Registration {
    session: Rc<Session>,
    hub: Rc<RefCell<Hub>>,
    buffers: Rc<RefCell<Buffers>>,
}

impl Registration {
    fn leave(&self) {
        self.hub.borrow_mut().leave(&self.session);
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.leave();
    }
}

/// Bytes read from a client and not yet processed.
struct ReadBuffer {
    parser: Parser,
    buffer: BytesMut,
    /// Capacity of the buffer including what has been split off its front.
    allocated: usize,
}

async fn receive(guest: &Registration, read: &mut ReadHalf<'_>, max_payload: usize) -> Ending {
    let mut inlet = ReadBuffer {
        parser: Parser::new(max_payload),
        buffer: BytesMut::new(),
        allocated: 0,
    };
    loop {
        inlet.make_room(&mut guest.buffers.borrow_mut());
        match read.read_buf(&mut inlet.buffer).await {
            Ok(0) => return Ending::Closed,
            Ok(_) => guest.session.has_sent.set(true),
            Err(_) => return Ending::Broken,
        }
        let handled = inlet.handle_all(&guest.session, &mut guest.hub.borrow_mut());
        match handled {
            Ok(None) => {}
            Ok(Some(congested)) => congested.pause_for().await,
            Err(ending) => return ending,
        }
    }
}

impl ReadBuffer {
    fn make_room(&mut self, buffers: &mut Buffers) {
        let needed = self.parser.missing(&self.buffer).max(MIN_READ);
        if let Some(size) = buffers.make_room(&mut self.buffer, needed) {
            self.allocated = size;
        }
    }

    /// Processes all complete operations; returns a congested receiver, if there is one.
    fn handle_all(&mut self, session: &Rc<Session>, hub: &mut Hub) -> Result<Option<Rc<Session>>, Ending> {
        let mut congested = None;
        while let Some(op) = self.parser.next(&mut self.buffer)? {
            congested = self.handle(session, hub, op)?.or(congested);
        }
        Ok(congested)
    }

    fn handle(&self, session: &Rc<Session>, hub: &mut Hub, op: Op) -> Result<Option<Rc<Session>>, Ending> {
        match op {
            Op::Ping => session.send_line(b"PONG\r\n"),
            Op::Pong | Op::Ignored => {}
            Op::Connect(options) => {
                if options.no_responders && !options.headers {
                    return Err(Ending::NoRespondersNeedHeaders);
                }
                session.options.set(options);
                confirm(session);
            }
            Op::Subscribe(subscribe) if trie::is_pattern(&subscribe.subject) => {
                hub.subscribe(session, subscribe);
                confirm(session);
            }
            Op::Subscribe(_) => session.send_error("Invalid Subject"),
            Op::Unsubscribe(unsubscribe) => {
                hub.unsubscribe(session, &unsubscribe);
                confirm(session);
            }
            Op::Publish(publish) => {
                if publish.header().is_some() && !session.options.get().headers {
                    return Err(Ending::HeadersNotAgreed);
                }
                if !trie::is_subject(publish.subject()) {
                    session.send_error("Invalid Publish Subject");
                    return Ok(None);
                }
                confirm(session);
                return Ok(hub.publish(session, &publish, self.allocated));
            }
        }
        Ok(None)
    }
}

fn confirm(session: &Session) {
    if session.options.get().verbose {
        session.send_line(b"+OK\r\n");
    }
}

/// Pings an idle client, and ends the connection if it does not answer.
async fn keep_alive(session: &Session, every: Duration) -> Ending {
    let mut ticks = interval(every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks.tick().await;
    let mut unanswered = 0;
    loop {
        ticks.tick().await;
        if session.has_sent.take() {
            unanswered = 0;
        } else if unanswered == PINGS {
            return Ending::Stale;
        } else {
            unanswered += 1;
            session.send_line(b"PING\r\n");
        }
    }
}

struct Writer<'a> {
    session: &'a Session,
    buffers: &'a RefCell<Buffers>,
    /// Outlives the loop, so that an ending connection can finish its current message.
    batch: Batch,
    deadline: Duration,
}

impl Writer<'_> {
    async fn send(&mut self, write: &mut WriteHalf<'_>) -> Ending {
        loop {
            self.session.take(&mut self.batch);
            if self.batch.is_empty() {
                self.session.until_filled().await;
            } else {
                match timeout(self.deadline, self.write_some(write)).await {
                    Ok(Ok(())) => {}
                    Ok(Err(_)) => return Ending::Broken,
                    Err(_) => return Ending::SlowConsumer,
                }
            }
        }
    }

    async fn write_some(&mut self, write: &mut WriteHalf<'_>) -> io::Result<()> {
        let written = {
            let mut slices = [IoSlice::new(&[]); WRITE_CHUNKS];
            let set = self.batch.fill(&mut slices);
            write
                .write_vectored(slices.get(..set).unwrap_or_default())
                .await?
        };
        if written == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        let mut buffers = self.buffers.borrow_mut();
        self.batch.advance(written, |bytes| buffers.give_back(bytes));
        self.session.written(written);
        Ok(())
    }

    /// Sends the last bytes and closes the stream.
    async fn send_farewell(&mut self, write: &mut WriteHalf<'_>, ending: Ending) -> io::Result<()> {
        let last_line = format!("-ERR '{ending}'\r\n");
        match ending {
            Ending::Broken => return Err(io::ErrorKind::BrokenPipe.into()),
            Ending::Closed | Ending::Shutdown => self.session.take(&mut self.batch),
            Ending::Refused(_) | Ending::NoRespondersNeedHeaders | Ending::HeadersNotAgreed => {
                self.session.take(&mut self.batch);
                self.batch.end_with(last_line);
            }
            // The client does not read: messages that have not begun would only keep the connection open.
            Ending::SlowConsumer | Ending::Stale => self.batch.cut_short(last_line),
        }
        while !self.batch.is_empty() {
            self.write_some(write).await?;
        }
        write.shutdown().await
    }
}

/// Discards what the client still sends: closing with unread input would reset the connection, and the client might
/// not receive the error.
async fn drain(read: &mut ReadHalf<'_>) -> io::Result<()> {
    let mut sink = vec![0; READ];
    while read.read(&mut sink).await? > 0 {}
    Ok(())
}
