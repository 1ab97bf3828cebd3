//! The guard of a child process.

use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

const PAUSE: Duration = Duration::from_millis(5);

/// A child process. It is killed (SIGKILL) and reaped when dropped, paused or not.
#[derive(Debug)]
pub struct Process(Child);

impl Process {
    /// Starts a command.
    ///
    /// # Panics
    /// When the command cannot be started.
    pub fn start(command: &mut Command) -> Self {
        match command.spawn() {
            Ok(child) => Self(child),
            Err(error) => panic!("cannot start {command:?}: {error}"),
        }
    }

    /// The child itself, for its pipes.
    pub fn child(&mut self) -> &mut Child {
        &mut self.0
    }

    /// The process id.
    pub fn id(&self) -> u32 {
        self.0.id()
    }

    /// Kills the process (SIGKILL), as a crash does, and reaps it.
    pub fn kill(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }

    /// Suspends the process (SIGSTOP): its connections stay open, and it does not run.
    pub fn pause(&self) {
        self.signal(Signal::STOP);
    }

    /// Continues a suspended process (SIGCONT).
    pub fn resume(&self) {
        self.signal(Signal::CONT);
    }

    /// Asks the process to stop (SIGTERM) and returns at once.
    pub fn terminate(&self) {
        self.signal(Signal::TERM);
    }

    /// Interrupts the process (SIGINT), as Ctrl-C does, and returns at once.
    pub fn interrupt(&self) {
        self.signal(Signal::INT);
    }

    /// The exit status, once the process has ended.
    pub fn exited(&mut self) -> Option<ExitStatus> {
        self.0.try_wait().ok().flatten()
    }

    /// Waits for the end of the process; `None` if it still runs after `timeout`.
    pub async fn wait(&mut self, timeout: Duration) -> Option<ExitStatus> {
        let start = Instant::now();
        while start.elapsed() < timeout {
            if let Some(status) = self.exited() {
                return Some(status);
            }
            tokio::time::sleep(PAUSE).await;
        }
        self.exited()
    }

    fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.id()).ok().and_then(Pid::from_raw);
        let pid = pid.expect("a process id");
        // A process that has ended is not reaped yet, so that its id still names it.
        kill_process(pid, signal).expect("cannot signal the process");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}
