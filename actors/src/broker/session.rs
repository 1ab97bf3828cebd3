//! One client: its state, and the loops that read, write and watch its connection.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::io;
use std::io::IoSlice;
use std::rc::Rc;
use std::time::Duration;

use bytes::BytesMut;
use thiserror::Error;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::sync::Notify;
use tokio::time::{MissedTickBehavior, interval, timeout};

use super::buffers::{Buffers, READ};
use super::hub::{Hub, Subscription};
use super::outbox::{Batch, Message, Outbox};
use super::parser::{ClientOptions, Op, ParseError, Parser};
use super::trie;

/// With less room than this left, a buffer is not worth another read.
const LEAST_READ: usize = 16 << 10;
/// The most chunks in one write.
const WRITE_CHUNKS: usize = 64;
/// The longest that a publisher waits for a congested receiver, per read.
const LONGEST_PAUSE: Duration = Duration::from_millis(10);
/// The longest that a closing connection may take to receive its last bytes.
const FAREWELL: Duration = Duration::from_secs(1);
/// Pings a client may leave unanswered.
const PINGS: u32 = 2;

/// The limits of a connection.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    pub(super) max_payload: usize,
    pub(super) max_pending: usize,
    pub(super) ping_interval: Duration,
    pub(super) write_deadline: Duration,
}

/// Why a connection ends; the client is told where it can make use of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub(super) enum Ending {
    #[error("the client closed it")]
    Closed,
    #[error("the connection broke")]
    Broken,
    #[error("the broker shuts down")]
    Shutdown,
    #[error(transparent)]
    Refused(#[from] ParseError),
    #[error("no responders requires headers support")]
    NoRespondersNeedHeaders,
    #[error("message headers not supported")]
    HeadersNotAgreed,
    #[error("Slow Consumer")]
    SlowConsumer,
    #[error("Stale Connection")]
    Stale,
}

/// What the broker knows of a client.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) id: u64,
    pub(super) options: Cell<ClientOptions>,
    /// Its subscriptions by its own names for them.
    pub(super) subscriptions: RefCell<HashMap<Box<[u8]>, Rc<Subscription>>>,
    outbox: RefCell<Outbox>,
    /// Something was put into the outbox.
    filled: Notify,
    /// Something was written out of the outbox.
    drained: Notify,
    ending: Cell<Option<Ending>>,
    ended: Notify,
    /// Whether it sent anything since the last look.
    heard: Cell<bool>,
}

impl Session {
    pub(super) fn new(id: u64, max_pending: usize) -> Self {
        Self {
            id,
            options: Cell::new(ClientOptions::default()),
            subscriptions: RefCell::default(),
            outbox: RefCell::new(Outbox::new(max_pending)),
            filled: Notify::new(),
            drained: Notify::new(),
            ending: Cell::new(None),
            ended: Notify::new(),
            heard: Cell::new(false),
        }
    }

    /// Ends the connection; the first reason counts.
    pub(super) fn end(&self, ending: Ending) {
        if self.ending.get().is_none() {
            self.ending.set(Some(ending));
            self.ended.notify_one();
        }
    }

    /// Whether a client is being thrown out for not reading.
    pub(super) fn is_slow(&self) -> bool {
        self.ending.get() == Some(Ending::SlowConsumer)
    }

    /// Whether who sends to it should pause.
    pub(super) fn is_congested(&self) -> bool {
        self.outbox.borrow().is_congested()
    }

    /// Queues a message for it; `false` when it is not taken any more.
    pub(super) fn deliver(&self, message: &Message<'_>, sid: &[u8]) -> bool {
        self.queue(|outbox| outbox.push(message, sid, self.options.get().headers).is_ok())
    }

    /// Queues a line of the protocol.
    pub(super) fn send_line(&self, line: &[u8]) {
        self.queue(|outbox| outbox.push_line(line).is_ok());
    }

    fn send_error(&self, text: &str) {
        self.send_line(format!("-ERR '{text}'\r\n").as_bytes());
    }

    fn queue(&self, push: impl FnOnce(&mut Outbox) -> bool) -> bool {
        if self.ending.get().is_some() {
            return false;
        }
        let (was_empty, taken) = {
            let mut outbox = self.outbox.borrow_mut();
            (outbox.is_empty(), push(&mut outbox))
        };
        if !taken {
            self.end(Ending::SlowConsumer);
        } else if was_empty {
            self.filled.notify_one();
        }
        taken
    }

    async fn until_ended(&self) -> Ending {
        loop {
            if let Some(ending) = self.ending.get() {
                return ending;
            }
            self.ended.notified().await;
        }
    }

    /// Waits until some of what is queued for it has left, but not for long: a publisher is slowed down by a receiver
    /// that falls behind, and never stopped by one that stands still.
    async fn pause_for(&self) {
        let room = async {
            while self.is_congested() && self.ending.get().is_none() {
                self.drained.notified().await;
            }
        };
        let _ = timeout(LONGEST_PAUSE, room).await;
    }
}

/// Serves a connection to its end.
pub(super) async fn serve(
    mut stream: TcpStream,
    session: Rc<Session>,
    hub: Rc<RefCell<Hub>>,
    buffers: Rc<RefCell<Buffers>>,
    limits: Limits,
) {
    let (mut read, mut write) = stream.split();
    let guest = Guest {
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
    // The reader stands before the writer: what it queues for its own client leaves in the same turn.
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
        writer.say_farewell(&mut write, ending).await?;
        drain(&mut read).await
    };
    // Whether the last words arrived changes nothing.
    let _ = timeout(FAREWELL, farewell).await;
}

/// A session's place in the hub, given up in any case when its task ends.
struct Guest {
    session: Rc<Session>,
    hub: Rc<RefCell<Hub>>,
    buffers: Rc<RefCell<Buffers>>,
}

impl Guest {
    fn leave(&self) {
        self.hub.borrow_mut().leave(&self.session);
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        self.leave();
    }
}

async fn receive(guest: &Guest, read: &mut ReadHalf<'_>, max_payload: usize) -> Ending {
    let mut parser = Parser::new(max_payload);
    let mut buffer = BytesMut::new();
    loop {
        let missing = parser.missing(&buffer);
        guest
            .buffers
            .borrow_mut()
            .make_room(&mut buffer, missing.max(LEAST_READ));
        match read.read_buf(&mut buffer).await {
            Ok(0) => return Ending::Closed,
            Ok(_) => guest.session.heard.set(true),
            Err(_) => return Ending::Broken,
        }
        match handle_all(guest, &mut parser, &mut buffer) {
            Ok(None) => {}
            Ok(Some(congested)) => congested.pause_for().await,
            Err(ending) => return ending,
        }
    }
}

/// Does all that the buffer asks for; gives a receiver that cannot keep up, if there is one.
fn handle_all(
    guest: &Guest,
    parser: &mut Parser,
    buffer: &mut BytesMut,
) -> Result<Option<Rc<Session>>, Ending> {
    let mut hub = guest.hub.borrow_mut();
    let mut congested = None;
    while let Some(op) = parser.next(buffer)? {
        congested = handle(&mut hub, &guest.session, op)?.or(congested);
    }
    Ok(congested)
}

fn handle(hub: &mut Hub, session: &Rc<Session>, op: Op) -> Result<Option<Rc<Session>>, Ending> {
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
            return Ok(hub.publish(session, &publish));
        }
    }
    Ok(None)
}

fn confirm(session: &Session) {
    if session.options.get().verbose {
        session.send_line(b"+OK\r\n");
    }
}

/// Pings a client that is silent, and gives it up when it stays so.
async fn keep_alive(session: &Session, every: Duration) -> Ending {
    let mut ticks = interval(every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks.tick().await;
    let mut unanswered = 0;
    loop {
        ticks.tick().await;
        if session.heard.take() {
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
    /// Outlives the loop, so that a connection that ends can finish the message it is in.
    batch: Batch,
    deadline: Duration,
}

impl Writer<'_> {
    async fn send(&mut self, write: &mut WriteHalf<'_>) -> Ending {
        loop {
            self.session.outbox.borrow_mut().take(&mut self.batch);
            if self.batch.is_empty() {
                self.session.filled.notified().await;
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
        self.session.outbox.borrow_mut().written(written);
        self.session.drained.notify_waiters();
        Ok(())
    }

    /// The last words, and the end of the stream.
    async fn say_farewell(&mut self, write: &mut WriteHalf<'_>, ending: Ending) -> io::Result<()> {
        let last_line = format!("-ERR '{ending}'\r\n");
        match ending {
            Ending::Broken => return Err(io::ErrorKind::BrokenPipe.into()),
            Ending::Closed | Ending::Shutdown => self.session.outbox.borrow_mut().take(&mut self.batch),
            Ending::Refused(_) | Ending::NoRespondersNeedHeaders | Ending::HeadersNotAgreed => {
                self.session.outbox.borrow_mut().take(&mut self.batch);
                self.batch.end_with(last_line);
            }
            // It does not read: what it has not begun to receive would only keep the connection open.
            Ending::SlowConsumer | Ending::Stale => self.batch.cut_short(last_line),
        }
        while !self.batch.is_empty() {
            self.write_some(write).await?;
        }
        write.shutdown().await
    }
}

/// Reads away what the client still sends: closing with unread input would reset the connection, and the client might
/// never see why it was closed.
async fn drain(read: &mut ReadHalf<'_>) -> io::Result<()> {
    let mut sink = vec![0; READ];
    while read.read(&mut sink).await? > 0 {}
    Ok(())
}
