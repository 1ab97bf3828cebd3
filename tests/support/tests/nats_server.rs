//! The test kit with a real nats-server.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpStream;
use std::process::Command;
use std::time::Duration;

use kaskade_testkit::{NatsOptions, NatsServer, python, wait_until};

/// The server's greeting; `None` if it does not listen or sends nothing within 300 ms.
fn greeting(server: &NatsServer) -> Option<serde_json::Value> {
    let stream = TcpStream::connect(("127.0.0.1", server.port())).ok()?;
    stream.set_read_timeout(Some(Duration::from_millis(300))).ok()?;
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line).ok()?;
    serde_json::from_str(line.strip_prefix("INFO ")?).ok()
}

#[test]
fn a_server_restarts_on_its_port() {
    let mut server = NatsServer::start(NatsOptions::default());
    let url = server.url();
    let first = greeting(&server).unwrap();
    assert_eq!(first["jetstream"], serde_json::Value::Null);
    server.stop();
    assert!(greeting(&server).is_none());
    server.restart();
    assert_eq!(server.url(), url);
    let second = greeting(&server).unwrap();
    assert_ne!(first["server_id"], second["server_id"]);
    server.kill();
    assert!(greeting(&server).is_none());
    server.restart();
    assert!(greeting(&server).is_some());
}

#[test]
fn options_reach_the_server() {
    let server = NatsServer::start(NatsOptions {
        max_payload: Some(8 << 20),
        jetstream_config: "sync_interval: always".into(),
        ..NatsOptions::jetstream()
    });
    let info = greeting(&server).unwrap();
    assert_eq!(info["jetstream"], true);
    assert_eq!(info["max_payload"], 8 << 20);
}

#[test]
fn a_paused_server_is_silent_until_it_resumes() {
    let server = NatsServer::start(NatsOptions::default());
    server.pause();
    assert!(greeting(&server).is_none());
    server.resume();
    wait_until("the resumed server greets", Duration::from_secs(10), || {
        greeting(&server).is_some()
    });
}

#[test]
fn dropping_it_ends_the_process() {
    let server = NatsServer::start(NatsOptions::default());
    let port = server.port();
    drop(server);
    assert!(TcpStream::connect(("127.0.0.1", port)).is_err());
}

#[test]
fn two_servers_are_independent() {
    let (one, two) = (
        NatsServer::start(NatsOptions::default()),
        NatsServer::start(NatsOptions::default()),
    );
    assert_ne!(
        greeting(&one).unwrap()["server_name"],
        greeting(&two).unwrap()["server_name"]
    );
}

#[test]
fn python_speaks_nats_and_messagepack() {
    let server = NatsServer::start(NatsOptions::default());
    let program = "
import asyncio, sys, msgpack, nats
async def main():
    connection = await nats.connect(sys.argv[1])
    async def echo(message):
        await message.respond(message.data)
    await connection.subscribe('echo', cb=echo)
    reply = await connection.request('echo', msgpack.packb({'a': 1}), timeout=5)
    print(msgpack.unpackb(reply.data))
    await connection.close()
asyncio.run(main())
";
    let output = Command::new(python())
        .args(["-c", program, &server.url()])
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(
        String::from_utf8_lossy(&output.stdout).trim(),
        "{'a': 1}",
        "{stderr}"
    );
}

/// The next test runs this one in a separate process, which exits without dropping the server.
#[test]
#[ignore = "the other half of `a_server_ends_with_the_process_that_started_it`"]
fn leave_a_server_behind() {
    let server = NatsServer::start(NatsOptions::default());
    let mut out = std::io::stdout();
    writeln!(out, "\nport={}", server.port()).unwrap();
    out.flush().unwrap();
    std::process::exit(0);
}

#[test]
fn a_server_ends_with_the_process_that_started_it() {
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["leave_a_server_behind", "--exact", "--ignored", "--nocapture"])
        .output()
        .unwrap();
    let stdout = String::from_utf8_lossy(&child.stdout);
    let port = stdout
        .lines()
        .find_map(|line| line.strip_prefix("port="))
        .unwrap_or_else(|| panic!("{child:?}"));
    let port: u16 = port.parse().unwrap();
    wait_until("the orphaned server is gone", Duration::from_secs(10), || {
        TcpStream::connect(("127.0.0.1", port)).is_err()
    });
}
