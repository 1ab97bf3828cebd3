//! The trace of a run: every line hashed, the last few kept.

use std::collections::VecDeque;
use std::fmt::{self, Write as _};
use std::hash::Hasher as _;

/// Lines shown of a failing run.
const KEPT: usize = 40;

/// Log of the run, line by line.
pub(crate) struct Log {
    hash: std::hash::DefaultHasher,
    last: VecDeque<String>,
    lines: u64,
    /// Whether every line is printed as it comes, as a replay does.
    echo: bool,
}

impl Log {
    pub(crate) fn new(echo: bool) -> Self {
        Self {
            hash: std::hash::DefaultHasher::new(),
            last: VecDeque::with_capacity(KEPT + 1),
            lines: 0,
            echo,
        }
    }

    pub(crate) fn note(&mut self, now: u64, what: fmt::Arguments<'_>) {
        let mut line = if self.last.len() < KEPT {
            String::with_capacity(96)
        } else {
            self.last.pop_front().unwrap_or_default()
        };
        line.clear();
        write!(line, "{:>5}.{:03} ms  {what}", now / 1_000, now % 1_000).expect("a string takes everything");
        if self.echo {
            println!("{line}");
        }
        self.hash.write(line.as_bytes());
        self.lines += 1;
        self.last.push_back(line);
    }

    /// Equal for equal traces.
    pub(crate) fn hash(&self) -> u64 {
        self.hash.finish()
    }

    pub(crate) fn lines(&self) -> u64 {
        self.lines
    }

    /// The end of the trace.
    pub(crate) fn tail(&self) -> String {
        self.last
            .iter()
            .fold(String::new(), |all, line| all + line + "\n")
    }
}
