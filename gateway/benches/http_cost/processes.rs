//! Child processes of the benchmark: what is measured in one process is not disturbed by the others.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, ChildStdout, Command, Stdio};

use crate::Failure;

/// Another process of this program, which ends with this value.
pub(crate) struct Running(Child, BufReader<ChildStdout>);

impl Running {
    /// Starts this program with these words.
    pub(crate) fn start(words: &[&str]) -> Result<Self, Failure> {
        let mut child = Command::new(std::env::current_exe()?)
            .args(words)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let lines = BufReader::new(child.stdout.take().ok_or("no output")?);
        Ok(Self(child, lines))
    }

    /// Returns the next line that it prints.
    pub(crate) fn line(&mut self) -> Result<String, Failure> {
        let mut line = String::new();
        self.1.read_line(&mut line)?;
        Ok(line.trim().to_owned())
    }

    /// Reads the line of a gateway that is ready. Returns its address and process.
    pub(crate) fn ready(&mut self) -> Result<(String, u32), Failure> {
        let ready = self.line()?;
        let words: Vec<&str> = ready.split(' ').collect();
        let ["ready", address, "pid", pid] = words.as_slice() else {
            return Err(format!("the gateway said {ready:?}").into());
        };
        Ok((address.trim_start_matches("http://").to_owned(), pid.parse()?))
    }

    /// Kills the process: the system closes its connections.
    pub(crate) fn kill(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Processor time of a process so far, seconds.
pub(crate) fn processor_s(pid: u32) -> Result<f64, Failure> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let (_, fields) = stat.rsplit_once(')').ok_or("no such process")?;
    let ticks: f64 = fields
        .split_whitespace()
        .skip(11)
        .take(2)
        .filter_map(|ticks| ticks.parse::<f64>().ok())
        .sum();
    // Linux reports hundredths of a second to programs, whatever the kernel's own tick.
    Ok(ticks / 100.0)
}
