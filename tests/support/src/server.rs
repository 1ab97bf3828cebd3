//! A real nats-server for one test.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{Ipv4Addr, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use tempfile::TempDir;

use crate::{free_port, nats_server_binary, wait_until};

/// Time within which a server must answer; the machine may be busy compiling.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Attempts with another port if the chosen one was taken in between.
const ATTEMPTS: u32 = 5;

/// Options of a [`NatsServer`]; the default is core NATS with the server's own defaults.
#[derive(Debug, Clone, Default)]
pub struct NatsOptions {
    /// Enable `JetStream`; its files are in a temporary folder that survives [`NatsServer::restart`].
    pub jetstream: bool,
    /// `max_payload` in bytes; the server's default is 1 MiB.
    pub max_payload: Option<usize>,
    /// Further lines of the server's configuration file (`sync_interval` belongs in
    /// [`NatsOptions::jetstream_config`]).
    pub config: String,
    /// Further lines inside the `jetstream` block, such as `sync_interval: always`.
    pub jetstream_config: String,
}

impl NatsOptions {
    /// Core NATS with `JetStream`.
    pub fn jetstream() -> Self {
        Self {
            jetstream: true,
            ..Self::default()
        }
    }
}

/// A running nats-server on the loopback, killed when dropped, and when the test process dies.
#[derive(Debug)]
pub struct NatsServer {
    port: u16,
    name: String,
    options: NatsOptions,
    dir: TempDir,
    running: Option<Running>,
}

#[derive(Debug)]
struct Running {
    server: Child,
    /// Kills the server when this process ends without dropping it (a signal, a `static`).
    watchdog: Child,
}

impl NatsServer {
    /// Starts a server on a free port and waits until it answers.
    ///
    /// # Panics
    /// When no binary is found (see [`nats_server_binary`]) or the server does not start; the message holds its log.
    pub fn start(options: NatsOptions) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let mut server = Self {
            port: 0,
            name: format!("kaskade-test-{}-{count}", std::process::id()),
            options,
            dir: tempfile::tempdir().expect("cannot create a temporary folder"),
            running: None,
        };
        for _ in 0..ATTEMPTS {
            server.port = free_port();
            if server.launch() {
                return server;
            }
        }
        panic!(
            "nats-server did not start in {ATTEMPTS} attempts; its log:\n{}",
            server.log()
        );
    }

    /// The URL for clients, `nats://127.0.0.1:<port>`; [`NatsServer::restart`] keeps it.
    pub fn url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.port)
    }

    /// The port that it listens on.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The process id.
    ///
    /// # Panics
    /// When it is stopped.
    pub fn pid(&self) -> u32 {
        self.running
            .as_ref()
            .expect("the nats-server is stopped")
            .server
            .id()
    }

    /// The server's log so far.
    pub fn log(&self) -> String {
        fs::read_to_string(self.log_path()).unwrap_or_default()
    }

    /// Stops it (SIGTERM) and waits for its end.
    pub fn stop(&mut self) {
        self.end(Signal::TERM);
    }

    /// Kills it (SIGKILL), as a crash does.
    pub fn kill(&mut self) {
        self.end(Signal::KILL);
    }

    /// Restarts it on the same port and store.
    ///
    /// # Panics
    /// When it does not start again.
    pub fn restart(&mut self) {
        self.stop();
        assert!(
            self.launch(),
            "nats-server did not start again; its log:\n{}",
            self.log()
        );
    }

    /// Restarts it with other options, on the same port and store.
    ///
    /// # Panics
    /// As [`NatsServer::restart`].
    pub fn restart_with(&mut self, options: NatsOptions) {
        self.options = options;
        self.restart();
    }

    /// Suspends it (SIGSTOP): connections stay open, and it does not answer. Returns when all its threads are stopped.
    ///
    /// # Panics
    /// If the server has ended.
    pub fn pause(&self) {
        self.signal(Signal::STOP);
        // The server may answer until the signal has arrived.
        waitpid(Some(self.process()), WaitOptions::UNTRACED).expect("cannot wait for the nats-server");
    }

    /// Resumes it (SIGCONT).
    pub fn resume(&self) {
        self.signal(Signal::CONT);
    }

    fn process(&self) -> Pid {
        let pid = i32::try_from(self.pid()).ok();
        pid.and_then(Pid::from_raw).expect("a process id")
    }

    fn signal(&self, signal: Signal) {
        kill_process(self.process(), signal).expect("cannot signal the nats-server");
    }

    fn end(&mut self, signal: Signal) {
        if self.running.is_none() {
            return;
        }
        self.signal(signal);
        // A suspended process handles SIGTERM only when it resumes.
        self.signal(Signal::CONT);
        let Some(mut running) = self.running.take() else {
            return;
        };
        let deadline = Instant::now() + TIMEOUT;
        while running.server.try_wait().is_ok_and(|status| status.is_none()) {
            if Instant::now() > deadline {
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        running.reap();
    }

    /// Starts the process; returns `false` if it ended by itself, as it does when the port is taken.
    fn launch(&mut self) -> bool {
        let config = self.dir.path().join("nats.conf");
        fs::write(&config, self.config_text()).expect("cannot write the nats-server's configuration");
        let log = File::options().create(true).append(true).open(self.log_path());
        let log = log.expect("cannot open the nats-server's log");
        let mut server = Command::new(nats_server_binary())
            .arg("--config")
            .arg(&config)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("cannot start nats-server");
        let watchdog = watchdog(server.id());
        let mut ended = false;
        wait_until("nats-server answers or ends", TIMEOUT, || {
            ended = server.try_wait().is_ok_and(|status| status.is_some());
            ended || self.answers()
        });
        let running = Running { server, watchdog };
        if ended {
            running.reap();
            return false;
        }
        self.running = Some(running);
        true
    }

    fn config_text(&self) -> String {
        let mut lines = vec![
            format!("listen: \"127.0.0.1:{}\"", self.port),
            format!("server_name: \"{}\"", self.name),
        ];
        if let Some(bytes) = self.options.max_payload {
            lines.push(format!("max_payload: {bytes}"));
            // The server refuses a payload limit above the limit of pending bytes.
            lines.push(format!("max_pending: {}", bytes.max(64 << 20)));
        }
        if self.options.jetstream {
            let store = self.dir.path().join("jetstream");
            let extra = &self.options.jetstream_config;
            lines.push(format!(
                "jetstream {{\nstore_dir: \"{}\"\n{extra}\n}}",
                store.display()
            ));
        }
        lines.push(self.options.config.clone());
        lines.join("\n") + "\n"
    }

    fn log_path(&self) -> PathBuf {
        self.dir.path().join("nats.log")
    }

    /// Whether this server, and not another one that took the port, answers a ping.
    fn answers(&self) -> bool {
        self.ping().unwrap_or(false)
    }

    fn ping(&self) -> std::io::Result<bool> {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port))?;
        stream.set_read_timeout(Some(Duration::from_secs(1)))?;
        stream.write_all(b"CONNECT {\"verbose\":false}\r\nPING\r\n")?;
        let mut lines = BufReader::new(stream).lines();
        let info = lines.next().transpose()?.unwrap_or_default();
        let info: serde_json::Value =
            serde_json::from_str(info.trim_start_matches("INFO ")).unwrap_or_default();
        let ours = info
            .get("server_name")
            .is_some_and(|name| name == self.name.as_str());
        // A server that demands TLS or credentials is up too.
        let wants_tls = info.get("tls_required").is_some_and(|wanted| wanted == true);
        Ok(ours
            && (wants_tls
                || lines.next().transpose()?.is_some_and(|line| {
                    line.starts_with("PONG") || line.contains("Authorization Violation")
                })))
    }
}

impl Drop for NatsServer {
    fn drop(&mut self) {
        if let Some(running) = self.running.take() {
            running.reap();
        }
    }
}

impl Running {
    /// Kills the watchdog first: the server's process id may be reused once the server is reaped.
    fn reap(mut self) {
        let _ = self.watchdog.kill();
        let _ = self.watchdog.wait();
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

/// A shell that kills the server at the end of its standard input, which comes when this process ends in any way.
fn watchdog(server: u32) -> Child {
    Command::new("sh")
        .arg("-c")
        .arg(format!("read _; kill -9 {server}"))
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("cannot start sh")
}
