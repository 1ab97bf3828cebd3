//! The command line under test: its program, what a run printed, and `kaskade serve` as a child process.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Output, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use serde_json::Value;

use crate::process::Process;
use crate::wait::wait_until;

/// How long a process may take to start, load its models or stop; the machine may be busy compiling.
pub const TIMEOUT: Duration = Duration::from_secs(90);

/// The root folder of the workspace.
pub const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// The app file of `examples/digits`, relative to [`ROOT`].
pub const DIGITS: &str = "examples/digits/app.toml";

/// Variables of the environment that `kaskade` and the apps of the examples read.
const VARIABLES: [&str; 6] = [
    "NATS_URL",
    "NATS_NKEY",
    "NATS_CA",
    "KASKADE_HTTP",
    "KASKADE_LOG",
    "SST2",
];

/// A program that cargo built beside the running one, such as `kaskade` or `examples/custom_actor`. Cargo builds the
/// binaries and examples of a package before its integration tests; the tests of other packages get the last one built.
///
/// # Panics
/// When there is no such file.
pub fn built(name: &str) -> PathBuf {
    let here = std::env::current_exe().expect("the path of this program");
    let profile = here
        .ancestors()
        .skip(1)
        .find(|folder| !folder.ends_with("deps"))
        .expect("a folder for the profile");
    let path = profile.join(name);
    assert!(
        path.is_file(),
        "there is no {}; run `cargo build --release --bins --examples`",
        path.display()
    );
    path
}

/// `kaskade ARGS` in `folder`, without the variables of the environment that `kaskade` reads.
pub fn command(folder: impl AsRef<Path>, args: &[&str]) -> Command {
    let mut command = Command::new(built("kaskade"));
    command.args(args).current_dir(folder);
    for variable in VARIABLES {
        command.env_remove(variable);
    }
    command
}

/// Runs `kaskade ARGS` in `folder` to its end.
///
/// # Panics
/// When it cannot be started.
pub fn kaskade(folder: impl AsRef<Path>, args: &[&str]) -> Output {
    let output = command(folder, args).output();
    output.expect("kaskade cannot be started")
}

/// Runs `kaskade ARGS` in the root folder: its exit code, and standard output followed by standard error.
pub fn said(args: &[&str]) -> (Option<i32>, String) {
    let output = kaskade(ROOT, args);
    (
        output.status.code(),
        text(&[output.stdout, output.stderr].concat()),
    )
}

/// Printed bytes as text.
///
/// # Panics
/// When they are not UTF-8.
pub fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("printed text is UTF-8")
}

/// The JSON that a successful run printed.
///
/// # Panics
/// When the run failed or printed something else.
pub fn json(output: &Output) -> Value {
    assert!(output.status.success(), "{}", text(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("standard output is JSON")
}

/// The message of a run that ended with exit code 1.
///
/// # Panics
/// When the run ended otherwise.
pub fn refusal(output: &Output) -> String {
    let message = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{message}");
    message
}

/// Returns the message of a run that was refused as wrong usage.
///
/// # Panics
/// When the run ended otherwise.
pub fn misuse(output: &Output) -> String {
    let message = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{message}");
    message
}

/// Writes the app of `examples/digits` into `folder/app.toml`, with `tables` added at its end. Only its smallest model
/// serves, which answers in microseconds.
///
/// # Panics
/// When a file cannot be read or written.
pub fn digits_app(folder: &Path, tables: &str) -> String {
    let digits = Path::new(ROOT).join("examples/digits");
    let app = std::fs::read_to_string(digits.join("app.toml")).expect("the app of examples/digits");
    let family = digits.join("family.toml");
    let app = app
        .replace("\"family.toml\"", &format!("\"{}\"", family.display()))
        .replace("slo = ", "plan = { single = \"digits-tiny\" }\nslo = ");
    let path = folder.join("app.toml");
    std::fs::write(&path, format!("{app}\n{tables}\n")).expect("app.toml cannot be written");
    path.display().to_string()
}

/// The profile of `examples/digits`.
pub fn digits_profile() -> String {
    format!("{ROOT}/examples/digits/profile.json")
}

/// A `kaskade serve` process, killed when dropped.
#[derive(Debug)]
pub struct ServeProcess {
    process: Process,
    lines: Receiver<String>,
    said: String,
}

impl ServeProcess {
    /// Starts `kaskade serve ARGS` in the root folder. Without `--nats`, its embedded broker listens on a free port, so that
    /// tests that run at the same time do not collide.
    pub fn start(args: &[&str]) -> Self {
        let named = args.iter().any(|arg| ["--nats", "--listen"].contains(arg));
        let listen: &[&str] = if named { &[] } else { &["--listen", "127.0.0.1:0"] };
        Self::run(&mut command(ROOT, &[&["serve"], args, listen].concat()))
    }

    /// Starts a command whose standard error is read line by line.
    ///
    /// # Panics
    /// When it cannot be started.
    pub fn run(command: &mut Command) -> Self {
        let mut process = Process::start(command.stderr(Stdio::piped()));
        let stderr = process.child().stderr.take().expect("a pipe");
        let (sender, lines) = channel();
        // Reads to the end, so that the process never waits for a full pipe.
        std::thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                let _ = sender.send(line);
            }
        });
        Self {
            process,
            lines,
            said: String::new(),
        }
    }

    /// Waits for the next line on standard error that contains `begin`, and returns what follows `begin`.
    ///
    /// # Panics
    /// When the process ends first, or no such line comes within [`TIMEOUT`]; the message holds what it printed.
    pub fn line(&mut self, begin: &str) -> String {
        loop {
            match self.lines.recv_timeout(TIMEOUT) {
                Ok(line) => {
                    self.note(&line);
                    if let Some((_, rest)) = line.trim().split_once(begin) {
                        return rest.to_owned();
                    }
                }
                Err(RecvTimeoutError::Disconnected) => {
                    panic!("it ended without printing {begin:?}: {}", self.said)
                }
                Err(RecvTimeoutError::Timeout) => {
                    panic!("it printed no {begin:?} in {TIMEOUT:?}: {}", self.said)
                }
            }
        }
    }

    /// Waits until it serves, and returns the URL of its broker.
    ///
    /// # Panics
    /// When it does not come to serve.
    pub fn url(&mut self) -> String {
        let rest = self.line("serving `");
        let url = rest.split([' ', ',']).find(|word| word.starts_with("nats://"));
        url.unwrap_or_else(|| panic!("no URL in {rest:?}")).to_owned()
    }

    /// The address of its probes; it must have been started with `--http`.
    ///
    /// # Panics
    /// When it prints no address.
    pub fn probes(&mut self) -> String {
        self.line("probes and metrics at http://")
    }

    /// Kills it (SIGKILL).
    pub fn kill(&mut self) {
        self.process.kill();
    }

    /// Asks it to stop (SIGTERM), waits for its end, and returns all that it printed on standard error.
    ///
    /// # Panics
    /// When it does not stop within [`TIMEOUT`], or ends with a failure.
    pub fn end(self) -> String {
        self.process.terminate();
        self.ended()
    }

    /// Interrupts it (SIGINT), waits for its end, and returns all that it printed on standard error.
    ///
    /// # Panics
    /// As [`ServeProcess::end`].
    pub fn interrupt(self) -> String {
        self.process.interrupt();
        self.ended()
    }

    fn ended(mut self) -> String {
        let mut status: Option<ExitStatus> = None;
        wait_until("the process ends", TIMEOUT, || {
            status = self.process.exited();
            status.is_some()
        });
        while let Ok(line) = self.lines.recv() {
            self.note(&line);
        }
        assert!(status.is_some_and(|status| status.success()), "{}", self.said);
        self.said
    }

    fn note(&mut self, line: &str) {
        self.said.push_str(line);
        self.said.push('\n');
    }
}

/// Head and body of an HTTP response; `None` while the address refuses connections.
pub fn http_get(address: &str, path: &str) -> Option<(String, String)> {
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

/// Posts a JSON body, and returns head and body of the response.
///
/// # Panics
/// When the connection fails.
pub fn http_post(address: &str, path: &str, body: &str) -> (String, String) {
    http_post_within(TIMEOUT, address, path, body)
}

/// As [`http_post`], with that time budget.
///
/// # Panics
/// When the connection fails.
pub fn http_post_within(budget: Duration, address: &str, path: &str, body: &str) -> (String, String) {
    let mut stream = TcpStream::connect(address).expect("a connection");
    stream.set_read_timeout(Some(TIMEOUT)).expect("a timeout");
    let length = body.len();
    let budget = budget.as_millis();
    write!(
        stream,
        "POST {path} HTTP/1.1\r\nHost: here\r\nConnection: close\r\nx-kaskade-budget-ms: {budget}\r\nContent-Length: {length}\r\n\r\n{body}"
    )
    .expect("the request is sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("a response");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a response with a head");
    (head.to_owned(), body.to_owned())
}

/// Whether the readiness probe at this address succeeds.
pub fn is_ready(address: &str) -> bool {
    http_get(address, "/ready").is_some_and(|(head, _)| head.starts_with("HTTP/1.1 200"))
}
