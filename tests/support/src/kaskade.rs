//! The command line as a process: started, asked, listened to, and killed when a test is over.
#![allow(
    dead_code,
    unreachable_pub,
    clippy::missing_panics_doc,
    clippy::must_use_candidate,
    reason = "every test file uses its own part"
)]
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "the helpers of a test may fail it"
)]

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

/// The machine may be busy compiling.
pub const PATIENCE: Duration = Duration::from_secs(90);

pub const APP: &str = "examples/digits/app.toml";

/// `kaskade ARGS`, with nothing from outside but what the arguments say.
pub fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kaskade"));
    command.args(args).current_dir(env!("CARGO_MANIFEST_DIR"));
    for name in ["NATS_URL", "NATS_NKEY", "NATS_CA", "KASKADE_HTTP", "KASKADE_LOG"] {
        command.env_remove(name);
    }
    command
}

pub fn kaskade(args: &[&str]) -> Output {
    command(args).output().unwrap()
}

/// Exit code, and everything it said.
pub fn said(args: &[&str]) -> (Option<i32>, String) {
    let Output {
        status,
        stdout,
        stderr,
    } = kaskade(args);
    (
        status.code(),
        String::from_utf8([stdout, stderr].concat()).unwrap(),
    )
}

/// The digits app with its smallest model alone, a planner of the committed profile, and `more`.
pub fn quick_app(folder: &Path, more: &str) -> String {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let digits = here.join("examples/digits");
    let app = std::fs::read_to_string(here.join(APP)).unwrap();
    let absolute = |name: &str| format!("\"{}/", digits.join(name).display());
    let app = app
        .replace("\"weights/", &absolute("weights"))
        .replace("\"data/", &absolute("data"))
        .replace("slo = ", "plan = { single = \"digits-tiny\" }\nslo = ");
    let planner = format!(
        "[planner]\nprofile = \"{}\"\n",
        digits.join("profile.json").display()
    );
    let path = folder.join("app.toml");
    std::fs::write(&path, format!("{app}\n{planner}\n{more}\n")).unwrap();
    path.display().to_string()
}

/// A `kaskade serve`, killed when the test is over.
pub struct Served {
    child: Child,
    stderr: BufReader<std::process::ChildStderr>,
    lines: String,
}

impl Served {
    pub fn start(args: &[&str]) -> Self {
        let mut child = command(&[&["serve"], args].concat())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        Self {
            stderr: BufReader::new(child.stderr.take().unwrap()),
            child,
            lines: String::new(),
        }
    }

    /// What follows `begin` on the next line that has it, on standard error.
    pub fn line(&mut self, begin: &str) -> String {
        loop {
            let mut line = String::new();
            assert!(
                self.stderr.read_line(&mut line).unwrap() > 0,
                "it ended: {}",
                self.lines
            );
            self.lines.push_str(&line);
            if let Some((_, rest)) = line.trim().split_once(begin) {
                return rest.to_owned();
            }
        }
    }

    /// Where its probes are; it must have been started with `--http`.
    pub fn probes(&mut self) -> String {
        self.line("probes and metrics at http://")
    }

    /// SIGTERM, and all that it said.
    pub fn end(mut self) -> String {
        let pid = self.child.id().to_string();
        assert!(
            Command::new("kill")
                .args(["-TERM", &pid])
                .status()
                .unwrap()
                .success()
        );
        self.stderr.read_to_string(&mut self.lines).unwrap();
        assert!(self.child.wait().unwrap().success(), "{}", self.lines);
        std::mem::take(&mut self.lines)
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Head and body; nothing while nobody listens.
pub fn get(address: &str, path: &str) -> Option<(String, String)> {
    let mut stream = TcpStream::connect(address).ok()?;
    write!(
        stream,
        "GET {path} HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n"
    )
    .ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    Some((head.to_owned(), body.to_owned()))
}

/// Whether a process says that it is ready.
pub fn is_ready(address: &str) -> bool {
    get(address, "/ready").is_some_and(|(head, _)| head.starts_with("HTTP/1.1 200"))
}
