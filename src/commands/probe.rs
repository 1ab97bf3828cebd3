//! `kaskade probe`: liveness and readiness of a serving process.

use std::fmt;
use std::io::{Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, ToSocketAddrs as _};
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};
use serde_json::json;

use crate::output;

/// Time limit of a probe: longer than the process may wait for its own actors.
const PROBE_TIMEOUT: Duration = Duration::from_secs(3);

/// Longest answer of a probe, bytes.
const MAX_BODY: u64 = 1 << 16;

/// Checks a `kaskade serve --http` process: alive, or ready.
///
/// Exit code 0 if it is, 1 with the reason if not. Use it as the health check of containers without an HTTP client.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Property to check.
    #[arg(value_enum)]
    what: What,
    /// Address of the process's probes: host and port, or `http://HOST:PORT`.
    #[arg(
        long,
        value_name = "ADDRESS",
        env = "KASKADE_HTTP",
        default_value = "127.0.0.1:8080"
    )]
    http: ProbeAddress,
    /// Print the answer as JSON.
    #[arg(long)]
    json: bool,
}

/// Where a process is probed.
#[derive(Debug, Clone, PartialEq, Eq)]
struct ProbeAddress {
    /// A name or an IP address, the latter of version 6 without brackets.
    host: String,
    port: u16,
}

impl FromStr for ProbeAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = |what: &str| format!("`{text}` {what}: write host and port, such as `localhost:8080`");
        let (address, port) = match text.split_once("://") {
            Some((scheme, address)) if scheme.eq_ignore_ascii_case("http") => (address, Some(80)),
            Some(_) => return Err(wrong("has a scheme other than `http`")),
            None => (text, None),
        };
        let address = address.strip_suffix('/').unwrap_or(address);
        if address.contains(['/', '@', '?', '#']) {
            return Err(wrong("has more than an address"));
        }
        // The colons of a version 6 address are inside brackets.
        let (host, port) = match address.rsplit_once(':') {
            Some((host, port)) if !port.ends_with(']') => (host, port.parse().ok()),
            _ => (address, port),
        };
        let host = host
            .strip_prefix('[')
            .and_then(|host| host.strip_suffix(']'))
            .unwrap_or(host);
        match port {
            Some(port) if !host.is_empty() => Ok(Self {
                host: host.to_owned(),
                port,
            }),
            _ => Err(wrong("is not an address")),
        }
    }
}

impl fmt::Display for ProbeAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            return write!(f, "[{}]:{}", self.host, self.port);
        }
        write!(f, "{}:{}", self.host, self.port)
    }
}

/// Property to check.
#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum What {
    /// Its actors respond.
    Live,
    /// It can serve requests.
    Ready,
}

impl What {
    fn word(self) -> &'static str {
        match self {
            Self::Live => "live",
            Self::Ready => "ready",
        }
    }

    fn path(self) -> &'static str {
        match self {
            Self::Live => "/live",
            Self::Ready => "/ready",
        }
    }
}

/// Checks, and fails with the reason if the answer is not 200.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let address = &args.http;
    let (status, body) = get(address, args.what.path()).with_context(|| {
        format!("no process answers at http://{address}; start `kaskade serve --http`, or name its address with `--http`")
    })?;
    if status != 200 {
        bail!("{}", body.trim());
    }
    if args.json {
        return output::print_json(&json!({ args.what.word(): true, "message": body.trim() }));
    }
    output::print(&body)
}

/// Returns the loopback for an address that listens on all interfaces.
fn reachable(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, address.port())
}

/// Connects to the first address of the host that answers.
fn connect(address: &ProbeAddress) -> anyhow::Result<TcpStream> {
    let found = (address.host.as_str(), address.port).to_socket_addrs()?;
    let mut failure = None;
    for socket in found.map(reachable) {
        match TcpStream::connect_timeout(&socket, PROBE_TIMEOUT) {
            Ok(stream) => return Ok(stream),
            Err(error) => failure = failure.or(Some(error)),
        }
    }
    Err(failure.map_or_else(|| anyhow!("the host has no address"), anyhow::Error::from))
}

/// Sends one HTTP/1.0 request and reads one short answer.
fn get(address: &ProbeAddress, path: &str) -> anyhow::Result<(u16, String)> {
    let mut stream = connect(address)?;
    stream.set_read_timeout(Some(PROBE_TIMEOUT))?;
    stream.set_write_timeout(Some(PROBE_TIMEOUT))?;
    write!(stream, "GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n")?;
    let mut answer = String::new();
    stream.take(MAX_BODY).read_to_string(&mut answer)?;
    parse(&answer).context("the process there is not an HTTP server")
}

/// Parses status and body.
fn parse(answer: &str) -> Option<(u16, String)> {
    let (head, body) = answer.split_once("\r\n\r\n")?;
    let mut words = head.lines().next()?.split(' ');
    words.next().filter(|version| version.starts_with("HTTP/"))?;
    Some((words.next()?.parse().ok()?, body.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_a_status_and_a_body() {
        let answer = "HTTP/1.0 503 Service Unavailable\r\ncontent-length: 4\r\n\r\nfull";
        assert_eq!(parse(answer), Some((503, "full".to_owned())));
        assert_eq!(parse("INFO {}\r\n"), None);
        assert_eq!(parse("SSH-2.0 503\r\n\r\n"), None);
    }

    #[test]
    fn an_unspecified_address_is_asked_on_the_loopback() {
        let asked = |text: &str| reachable(text.parse().unwrap()).to_string();
        assert_eq!(asked("0.0.0.0:80"), "127.0.0.1:80");
        assert_eq!(asked("[::]:80"), "[::1]:80");
        assert_eq!(asked("192.0.2.1:80"), "192.0.2.1:80");
    }

    /// Both were "not an address to listen on".
    #[test]
    fn a_name_and_an_url_are_addresses() {
        let read = |text: &str| text.parse::<ProbeAddress>().map(|address| address.to_string());
        for (text, address) in [
            ("localhost:24010", "localhost:24010"),
            ("http://localhost:24010", "localhost:24010"),
            ("HTTP://127.0.0.1:8080/", "127.0.0.1:8080"),
            ("http://kaskade", "kaskade:80"),
            ("[::1]:8080", "[::1]:8080"),
            ("http://[::1]", "[::1]:80"),
        ] {
            assert_eq!(read(text).as_deref(), Ok(address), "{text}");
        }
        for (text, problem) in [
            ("localhost", "is not an address"),
            (":8080", "is not an address"),
            ("localhost:http", "is not an address"),
            ("https://localhost:8080", "a scheme other than"),
            ("http://localhost:8080/ready", "more than an address"),
        ] {
            let error = read(text).unwrap_err();
            assert!(
                error.contains(problem) && error.contains("`localhost:8080`"),
                "{error}"
            );
        }
    }

    #[test]
    fn every_address_of_a_name_is_tried() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        // It may be resolved to the address of version 6 first.
        connect(&format!("http://localhost:{port}").parse().unwrap()).unwrap();
    }
}
