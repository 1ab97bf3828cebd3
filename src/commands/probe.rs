//! `kaskade probe`: liveness and readiness of a serving process.

use std::io::{Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context as _, bail};
use kaskade_app::config::scalar::Address;

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
    /// Address of the process's probes.
    #[arg(
        long,
        value_name = "ADDRESS",
        env = "KASKADE_HTTP",
        default_value = "127.0.0.1:8080"
    )]
    http: Address,
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
    fn path(self) -> &'static str {
        match self {
            Self::Live => "/live",
            Self::Ready => "/ready",
        }
    }
}

/// Checks, and fails with the reason if the answer is not 200.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let address = reachable(args.http.socket());
    let (status, body) = get(address, args.what.path()).with_context(|| {
        format!("no process answers at http://{address}; start `kaskade serve --http {address}`, or name its address with `--http`")
    })?;
    if status != 200 {
        bail!("{}", body.trim());
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

/// Sends one HTTP/1.0 request and reads one short answer.
fn get(address: SocketAddr, path: &str) -> anyhow::Result<(u16, String)> {
    let mut stream = TcpStream::connect_timeout(&address, PROBE_TIMEOUT)?;
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
        let asked = |text: &str| reachable(text.parse::<Address>().unwrap().socket()).to_string();
        assert_eq!(asked("0.0.0.0:80"), "127.0.0.1:80");
        assert_eq!(asked("[::]:80"), "[::1]:80");
        assert_eq!(asked("192.0.2.1:80"), "192.0.2.1:80");
    }
}
