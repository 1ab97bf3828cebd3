//! Protocol transcripts: where the protocol leaves freedom, the embedded broker answers as nats-server does.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use kaskade_broker::BrokerConfig;

use crate::{Engines, embedded};

const HELLO: &str = r#"CONNECT {"verbose":false,"pedantic":false,"headers":true,"no_responders":true}"#;

/// Returns everything that a server sends in response to `script` after its greeting, up to the answer to a last ping
/// or the end.
fn transcript(url: &str, script: &str) -> String {
    let mut stream = TcpStream::connect(url.trim_start_matches("nats://")).unwrap();
    stream.set_read_timeout(Some(Duration::from_mins(1))).unwrap();
    // A server that refuses a script may close before it has read all of it.
    let _ = stream.write_all(format!("{script}PING\r\n").as_bytes());
    let (mut said, mut chunk) = (Vec::new(), [0; 4096]);
    while !said.ends_with(b"PONG\r\n") {
        match stream.read(&mut chunk) {
            Ok(read @ 1..) => said.extend_from_slice(&chunk[..read]),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                panic!("no end after {:?}", String::from_utf8_lossy(&said))
            }
            // A reset also ends the transcript.
            Ok(_) | Err(_) => {
                said.extend_from_slice(b"<closed>");
                break;
            }
        }
    }
    let said = String::from_utf8(said).unwrap();
    let (greeting, answers) = said.split_once("\r\n").unwrap();
    assert!(greeting.starts_with("INFO {"), "{greeting}");
    answers.to_owned()
}

/// Lines of a script, each with its end.
fn lines(lines: &[&str]) -> String {
    lines.join("\r\n") + if lines.is_empty() { "" } else { "\r\n" }
}

#[test]
fn both_engines_answer_alike() {
    let engines = Engines::start();
    let long = format!("SUB {} 1", "a".repeat(5000));
    let quiet = r#"CONNECT {"verbose":false}"#;
    // Groups use distinct subjects: a server may still count the previous script's client as a member.
    let scripts = [
        lines(&[]),
        lines(&["CONNECT {}"]),
        lines(&[
            r#"CONNECT {"verbose":true}"#,
            "SUB a 1",
            "PUB a 1",
            "x",
            "UNSUB 1",
            "PONG",
        ]),
        // Wildcards, and tokens that only look like one.
        lines(&[HELLO, "SUB > 3", "PUB a.b 0", "", "PUB a.*.c 1", "x"]),
        lines(&[
            HELLO,
            "SUB a.*x 1",
            "SUB a.*.b 2",
            "PUB a.*x 0",
            "",
            "PUB a.y.b 0",
            "",
        ]),
        lines(&[HELLO, "SUB a.> 1", "PUB a 0", "", "PUB a.b.c 0", ""]),
        // Invalid subjects.
        lines(&[
            HELLO,
            "SUB a..b 1",
            "SUB a. 2",
            "SUB .a 3",
            "SUB a.>.b 4",
            "PUB a.b 0",
            "",
        ]),
        // Case, blanks, bare line ends.
        format!("{HELLO}\r\nping\nsub  b\tg  7 \r\npub b\t \tr 2 \nhi\r\n"),
        // Headers, and a client without header support.
        lines(&[HELLO, "SUB a 1", "HPUB a r 12 14", "NATS/1.0", "", "hi"]),
        lines(&[quiet, "SUB a 1", "PUB a 0", ""]),
        lines(&[r#"CONNECT {"verbose":false,"no_responders":true}"#]),
        // No responders: sent through the requester's own subscription, not counted as a delivery.
        lines(&[
            HELLO,
            "SUB r.* 7",
            "UNSUB 7 1",
            "PUB no r.1 0",
            "",
            "PUB no r.2 0",
            "",
            "PUB r.9 3",
            "abc",
        ]),
        lines(&[HELLO, "PUB no r.1 0", ""]),
        lines(&[quiet, "SUB r 7", "PUB no r 0", ""]),
        // Without echo the only subscriber does not count, nor in a queue group.
        lines(&[
            r#"CONNECT {"verbose":false,"echo":false,"headers":true,"no_responders":true}"#,
            "SUB c 1",
            "SUB c g 2",
            "SUB r 3",
            "PUB c r 0",
            "",
        ]),
        lines(&[HELLO, "SUB d g 1", "UNSUB 1 1", "PUB d 0", "", "PUB d 0", ""]),
        // Limits on a subscription, and ids used twice or never.
        lines(&[
            quiet,
            "SUB a 1",
            "UNSUB 1 2",
            "PUB a 0",
            "",
            "PUB a 0",
            "",
            "PUB a 0",
            "",
        ]),
        lines(&[
            quiet,
            "SUB a 1",
            "PUB a 0",
            "",
            "PUB a 0",
            "",
            "UNSUB 1 1",
            "PUB a 0",
            "",
        ]),
        lines(&[
            quiet, "SUB a 1", "SUB b 1", "UNSUB 9", "PUB a 0", "", "PUB b 0", "",
        ]),
        // Operations that end the connection.
        lines(&[HELLO, "FOO"]),
        lines(&[HELLO, ""]),
        lines(&[HELLO, "PUB a 2", "longer"]),
        lines(&[HELLO, "PUB a 2000000", "x"]),
        lines(&[HELLO, &long]),
        lines(&[HELLO, "+OK", "INFO {}"]),
    ];
    for script in scripts {
        let [embedded, real] = engines.each().map(|(_, url)| transcript(&url, &script));
        assert_eq!(embedded, real, "{script}");
    }
}

/// nats-server closes these connections without an error line.
#[test]
fn the_embedded_broker_reports_why_it_closes() {
    let broker = embedded(BrokerConfig::default());
    for line in ["PUB a", "PUB a 1x", "HPUB a 20 10", "SUB a b c d", "CONNECT {bad"] {
        let said = transcript(&broker.url(), &lines(&[HELLO, line]));
        assert_eq!(said, "-ERR 'Parser Error'\r\n<closed>", "{line}");
    }
    let said = transcript(
        &broker.url(),
        &lines(&[r#"CONNECT {"verbose":false}"#, "HPUB a 12 12", "NATS/1.0", "", ""]),
    );
    assert_eq!(said, "-ERR 'message headers not supported'\r\n<closed>");
}

/// nats-server drops these messages without an error line.
#[test]
fn the_embedded_broker_reports_an_invalid_subject() {
    let broker = embedded(BrokerConfig::default());
    let said = transcript(
        &broker.url(),
        &lines(&[
            HELLO,
            "SUB > 1",
            "PUB a..b 0",
            "",
            "PUB .a r 0",
            "",
            "PUB ok 0",
            "",
        ]),
    );
    let error = "-ERR 'Invalid Publish Subject'\r\n";
    assert_eq!(said, format!("{error}{error}MSG ok 1 0\r\n\r\nPONG\r\n"));
}

#[test]
fn headers_are_left_out_for_a_client_that_knows_none() {
    let engines = Engines::start();
    for (name, url) in engines.each() {
        let mut plain = TcpStream::connect(url.trim_start_matches("nats://")).unwrap();
        plain.set_read_timeout(Some(Duration::from_mins(1))).unwrap();
        plain
            .write_all(b"CONNECT {\"verbose\":false}\r\nSUB a 1\r\nPING\r\n")
            .unwrap();
        read_to(&mut plain, "PONG\r\n");
        transcript(&url, &lines(&[HELLO, "HPUB a 12 14", "NATS/1.0", "", "hi"]));
        assert_eq!(read_to(&mut plain, "hi\r\n"), "MSG a 1 2\r\nhi\r\n", "{name}");
    }
}

fn read_to(stream: &mut TcpStream, end: &str) -> String {
    let (mut said, mut byte) = (Vec::new(), [0]);
    while !said.ends_with(end.as_bytes()) {
        stream.read_exact(&mut byte).unwrap();
        said.extend_from_slice(&byte);
    }
    String::from_utf8(said).unwrap()
}
