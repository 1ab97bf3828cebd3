//! Lines for standard error, written by a thread of its own: a caller that logs never waits for what reads them.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime as _, SystemTime};

/// Maximum bytes that wait to be written; further lines are dropped.
const MAX_BYTES: usize = 1 << 20;

/// Lines that wait to be written.
pub(super) struct Queue(Arc<Shared>);

struct Shared {
    waiting: Mutex<Waiting>,
    changed: Condvar,
}

#[derive(Default)]
struct Waiting {
    lines: VecDeque<Vec<u8>>,
    bytes: usize,
    /// Lines that found no room since the thread last took some.
    dropped: u64,
    /// Whether the thread writes lines that it took.
    is_writing: bool,
}

impl Queue {
    /// Starts the thread that writes to `out`. `json` says that the statement of dropped lines is JSON.
    ///
    /// # Errors
    /// When the system gives no thread.
    pub(super) fn start(out: impl Write + Send + 'static, json: bool) -> io::Result<Self> {
        let queue = Self(Arc::new(Shared {
            waiting: Mutex::default(),
            changed: Condvar::new(),
        }));
        let shared = Arc::clone(&queue.0);
        thread::Builder::new()
            .name("log".to_owned())
            .spawn(move || shared.write(out, json))?;
        Ok(queue)
    }

    /// Adds a line; drops and counts it if too many wait.
    pub(super) fn push(&self, line: &[u8]) {
        let mut waiting = self.0.lock();
        // After the first one that is dropped, all are, until their number is stated in their place.
        if waiting.dropped > 0 || waiting.bytes + line.len() > MAX_BYTES {
            waiting.dropped += 1;
            return;
        }
        waiting.bytes += line.len();
        waiting.lines.push_back(line.to_vec());
        drop(waiting);
        self.0.changed.notify_all();
    }

    /// Waits until all lines are written, at most for `timeout`.
    pub(super) fn flush(&self, timeout: Duration) {
        let waiting = self.0.lock();
        let is_busy = |waiting: &mut Waiting| waiting.is_writing || waiting.has_some();
        // Whether the time has passed makes no difference: the process ends.
        drop(self.0.changed.wait_timeout_while(waiting, timeout, is_busy));
    }
}

impl Waiting {
    fn has_some(&self) -> bool {
        !self.lines.is_empty() || self.dropped > 0
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes lines as they come, for as long as the process runs.
    fn write(&self, mut out: impl Write, json: bool) {
        loop {
            let (lines, dropped) = self.take();
            // A closed standard error leaves no place for a message.
            for line in lines {
                let _ = out.write_all(&line);
            }
            if dropped > 0 {
                let _ = out.write_all(statement(dropped, json).as_bytes());
            }
            let _ = out.flush();
        }
    }

    /// Waits for lines. Returns them, and the number of those that were dropped after them.
    fn take(&self) -> (VecDeque<Vec<u8>>, u64) {
        let mut waiting = self.lock();
        waiting.is_writing = false;
        self.changed.notify_all();
        let mut waiting = self
            .changed
            .wait_while(waiting, |waiting| !waiting.has_some())
            .unwrap_or_else(PoisonError::into_inner);
        let Waiting { lines, dropped, .. } = std::mem::take(&mut *waiting);
        waiting.is_writing = true;
        (lines, dropped)
    }
}

/// Returns the line that states how many were dropped, in the form of the log.
fn statement(dropped: u64, json: bool) -> String {
    let mut time = String::new();
    // Without a time, the line still says what happened.
    let _ = SystemTime.format_time(&mut Writer::new(&mut time));
    let message = "lines of the log were dropped, because standard error was not read";
    if json {
        format!(
            "{{\"timestamp\":\"{time}\",\"level\":\"WARN\",\"fields\":{{\"message\":\"{message}\",\"lines\":{dropped}}},\"target\":\"kaskade::log\"}}\n"
        )
    } else {
        format!("{time}  WARN kaskade::log: {message} lines={dropped}\n")
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

    use super::*;

    /// Time within which the test must end.
    const TIMEOUT: Duration = Duration::from_mins(1);

    /// An output that takes a line whenever a test receives one.
    struct Read(SyncSender<String>);

    impl Write for Read {
        fn write(&mut self, line: &[u8]) -> io::Result<usize> {
            self.0
                .send(String::from_utf8_lossy(line).into_owned())
                .map_err(io::Error::other)?;
            Ok(line.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn queue(json: bool) -> (Queue, Receiver<String>) {
        let (out, read) = sync_channel(0);
        (Queue::start(Read(out), json).unwrap(), read)
    }

    /// Whatever logged a line waited for ever.
    #[test]
    fn lines_that_are_not_read_are_dropped_and_counted() {
        for json in [false, true] {
            let (queue, read) = queue(json);
            queue.push(b"first\n");
            let big = vec![b'x'; MAX_BYTES / 4];
            let pushed = 12;
            for _ in 0..pushed {
                queue.push(&big);
            }
            queue.flush(Duration::ZERO);
            assert_eq!(read.recv_timeout(TIMEOUT).unwrap(), "first\n");
            let mut written = 0;
            let mut stated = 0;
            while written + stated < pushed {
                let line = read.recv_timeout(TIMEOUT).unwrap();
                if line.len() == big.len() {
                    written += 1;
                    continue;
                }
                assert!(line.contains("were dropped"), "{line}");
                let number = line.rsplit(if json { "\"lines\":" } else { "lines=" }).next();
                let digits = number.unwrap().chars().take_while(char::is_ascii_digit);
                stated += digits.collect::<String>().parse::<u64>().unwrap();
                assert!(!json || line.starts_with('{') && line.ends_with("}\n"), "{line}");
            }
            assert!(stated > 0 && written > 0, "{stated} dropped, {written} written");
            queue.push(b"last\n");
            assert_eq!(read.recv_timeout(TIMEOUT).unwrap(), "last\n");
        }
    }

    #[test]
    fn a_flush_waits_for_the_lines() {
        let (queue, read) = queue(false);
        let reader = thread::spawn(move || read.recv_timeout(TIMEOUT).unwrap());
        queue.push(b"a\n");
        queue.flush(TIMEOUT);
        assert!(!queue.0.lock().has_some());
        assert_eq!(reader.join().unwrap(), "a\n");
    }
}
