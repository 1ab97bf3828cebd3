//! The protocol of a connection, however its first bytes arrive.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::thread::sleep;
use std::time::{Duration, Instant};

use kaskade_gateway::{Gateway, Limits};
use kaskade_testkit::TIMEOUT;

use crate::support::{exchange, request};

/// What a client of HTTP/2 sends first, and its empty settings.
const HTTP2: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

fn gateway(head_pause: Duration) -> Gateway {
    let limits = Limits {
        head_pause,
        ..Limits::default()
    };
    Gateway::listen("127.0.0.1:0".parse().unwrap(), limits).unwrap()
}

fn connect(gateway: &Gateway) -> TcpStream {
    let stream = TcpStream::connect(gateway.address()).unwrap();
    stream.set_nodelay(true).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    stream
}

/// Sends bytes one by one. Returns the first bytes of the answer.
fn one_by_one(gateway: &Gateway, bytes: &[u8]) -> [u8; 12] {
    let mut stream = connect(gateway);
    for byte in bytes.chunks(1) {
        stream.write_all(byte).unwrap();
        sleep(Duration::from_millis(1));
    }
    let mut answer = [0; 12];
    stream.read_exact(&mut answer).unwrap();
    answer
}

#[test]
fn both_protocols_are_served_whole_and_byte_by_byte() {
    let gateway = gateway(TIMEOUT);
    let asked = request("GET", "/v2", &[], b"");
    assert_eq!(exchange(gateway.address(), &asked).status, 200);
    assert_eq!(&one_by_one(&gateway, &asked), b"HTTP/1.1 200");
    let mut whole = connect(&gateway);
    whole.write_all(HTTP2).unwrap();
    let mut answer = [0; 12];
    whole.read_exact(&mut answer).unwrap();
    // The first frame of HTTP/2 is its settings, type 4.
    assert_eq!((answer[3], one_by_one(&gateway, HTTP2)[3]), (4, 4));
    gateway.stop();
}

#[test]
fn a_part_of_a_preface_is_closed_after_the_pause_and_other_bytes_are_refused() {
    let pause = Duration::from_millis(300);
    let gateway = gateway(pause);
    let begun = Instant::now();
    let mut silent = connect(&gateway);
    silent.write_all(&HTTP2[..10]).unwrap();
    let mut answer = Vec::new();
    silent.read_to_end(&mut answer).unwrap();
    assert!(begun.elapsed() >= pause && answer.is_empty(), "{answer:?}");
    for garbage in [
        b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03".as_slice(),
        b"PRI / HTTP\r\n\r\n",
    ] {
        assert_eq!(exchange(gateway.address(), garbage).status, 400);
    }
    gateway.stop();
}

#[test]
fn a_connection_over_http2_ends_when_its_client_answers_no_ping() {
    let limits = Limits {
        body_pause: Duration::from_millis(200),
        ..Limits::default()
    };
    let gateway = Gateway::listen("127.0.0.1:0".parse().unwrap(), limits).unwrap();
    // GET /live; then the client is as silent as one behind a router that has forgotten it.
    let headers = b"\x82\x86\x04\x05/live\x01\x04here";
    let frame = [&[0, 0, headers.len() as u8, 1, 5, 0, 0, 0, 1], headers.as_slice()].concat();
    let mut stream = connect(&gateway);
    stream.write_all(&[HTTP2, &frame].concat()).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    assert!(!answer.is_empty());
    gateway.stop();
}

#[test]
fn heads_of_hundreds_of_kilobytes_are_read() {
    let gateway = gateway(TIMEOUT);
    let long = "a".repeat(4_000);
    let headers = vec![("x-long", long.as_str()); 80];
    let asked = request("GET", "/v2", &headers, b"");
    assert!(asked.len() > 320_000);
    assert_eq!(exchange(gateway.address(), &asked).status, 200);
    gateway.stop();
}

#[test]
fn a_gateway_that_stops_waits_for_no_connection_whose_protocol_is_unknown() {
    let gateway = gateway(TIMEOUT);
    let mut begun = connect(&gateway);
    begun.write_all(&HTTP2[..10]).unwrap();
    // A later connection is served, so that the earlier one is accepted.
    let asked = request("GET", "/v2", &[], b"");
    assert_eq!(exchange(gateway.address(), &asked).status, 200);
    let stopped = Instant::now();
    gateway.stop();
    assert!(stopped.elapsed() < Limits::default().grace);
    let mut answer = Vec::new();
    // The system may reset a connection with bytes that were not read.
    let _ = begun.read_to_end(&mut answer);
    assert!(answer.is_empty());
}

/// Whether new connections are answered after a shutdown began, while the probe says that the gateway is not ready.
fn serves_during_the_delay() -> bool {
    let limits = Limits {
        shutdown_delay: Duration::from_secs(2),
        ..Limits::default()
    };
    let gateway = Gateway::listen("127.0.0.1:0".parse().unwrap(), limits).unwrap();
    let address = gateway.address();
    let stopping = std::thread::spawn(move || gateway.stop());
    let mut served = false;
    while let Ok(mut stream) = TcpStream::connect(address) {
        // A request from before the shutdown leaves its connection open.
        stream.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
        let asked = stream.write_all(b"GET /ready HTTP/1.1\r\nhost: x\r\n\r\n");
        let mut answer = String::new();
        // The connection is closed after the answer, although the client did not ask for it.
        if asked.is_ok() && stream.read_to_string(&mut answer).is_ok() {
            served |= answer.starts_with("HTTP/1.1 503") && answer.contains("the gateway is shutting down");
        }
    }
    stopping.join().unwrap();
    served
}

#[test]
fn a_gateway_serves_for_the_delay_after_a_shutdown_began() {
    // A machine that stalls for two seconds may miss it.
    assert!((0..3).any(|_| serves_during_the_delay()));
}

/// Whether a request that is sent after the gateway has begun to stop is answered on a connection that was idle.
fn is_answered_after_the_stop() -> bool {
    let gateway = gateway(TIMEOUT);
    let address = gateway.address();
    let mut idle = connect(&gateway);
    let asked = "GET /live HTTP/1.1\r\nhost: x\r\n\r\n";
    let mut answer = [0; 4_096];
    idle.write_all(asked.as_bytes()).unwrap();
    let read = idle.read(&mut answer).unwrap();
    assert!(answer[..read].starts_with(b"HTTP/1.1 200"));
    let stopping = std::thread::spawn(move || gateway.stop());
    while TcpStream::connect(address).is_ok() {
        std::thread::yield_now();
    }
    let mut rest = Vec::new();
    let _ = idle.write_all(asked.as_bytes());
    let _ = idle.read_to_end(&mut rest);
    stopping.join().unwrap();
    let text = String::from_utf8_lossy(&rest);
    text.starts_with("HTTP/1.1 ") && text.contains("connection: close")
}

#[test]
fn a_request_that_crosses_the_stop_is_answered_and_the_connection_closed() {
    // A machine that stalls for half a second may miss the time in which it is taken.
    assert!((0..3).any(|_| is_answered_after_the_stop()));
}
