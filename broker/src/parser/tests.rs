use proptest::prelude::*;

use super::*;

const MAX_PAYLOAD: usize = 64;

/// Parses `chunks` that arrive one by one.
fn parse<'a>(chunks: impl IntoIterator<Item = &'a [u8]>) -> (Vec<Op>, Option<ParseError>) {
    let (mut parser, mut buffer, mut ops) = (Parser::new(MAX_PAYLOAD), BytesMut::new(), Vec::new());
    for chunk in chunks {
        buffer.extend_from_slice(chunk);
        loop {
            match parser.next(&mut buffer) {
                Ok(Some(op)) => ops.push(op),
                Ok(None) => break,
                Err(error) => return (ops, Some(error)),
            }
        }
        let begun = MAX_CONTROL_LINE + MAX_PAYLOAD + 2 * CRLF;
        assert!(buffer.len() <= begun, "{} bytes wait for more", buffer.len());
        assert!(parser.missing(&buffer) <= MAX_PAYLOAD + CRLF);
    }
    (ops, None)
}

fn parse_one(bytes: &[u8]) -> Result<Op, ParseError> {
    let (mut ops, error) = parse([bytes]);
    error.map_or_else(|| Ok(ops.pop().unwrap()), Err)
}

fn publish(bytes: &[u8]) -> Publish {
    match parse_one(bytes) {
        Ok(Op::Publish(publish)) => publish,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_publish_is_cut_into_its_parts() {
    let plain = publish(b"PUB a.b 2\r\nhi\r\n");
    assert_eq!(
        (plain.subject(), plain.reply(), plain.header()),
        (&b"a.b"[..], None, None)
    );
    assert_eq!((&plain.body()[..], plain.size()), (&b"hi\r\n"[..], 2));

    // Five bytes of header block, two of payload.
    let full = publish(b"hpub\ta.b  r.1 \t5 7 \nh\r\n\r\nhi\r\n");
    assert_eq!(
        (full.subject(), full.reply(), full.header()),
        (&b"a.b"[..], Some(&b"r.1"[..]), Some(5))
    );
    assert_eq!((&full.body()[..], full.size()), (&b"h\r\n\r\nhi\r\n"[..], 7));
}

#[test]
fn what_connect_leaves_out_has_the_protocols_defaults() {
    let connect = parse_one(b"CONNECT {\"headers\":true,\"lang\":\"rust\"}\r\n").unwrap();
    let expected = ClientOptions {
        headers: true,
        ..ClientOptions::default()
    };
    assert_eq!(connect, Op::Connect(expected));
    assert!(expected.verbose && expected.echo && !expected.no_responders);
}

#[test]
fn refusals_match_those_of_nats_server() {
    let long = format!("SUB {} 1\r\n", "a".repeat(5000));
    let endless = "a".repeat(5000);
    let cases: [(&[u8], ParseError); 14] = [
        (b"FOO\r\n", ParseError::UnknownOperation),
        (b"\r\n", ParseError::UnknownOperation),
        (b"PUB a 2\r\nlonger\r\n", ParseError::UnknownOperation),
        (b"PUB a\r\n", ParseError::Arguments),
        (b"PUB a 1x\r\n", ParseError::Arguments),
        (b"PUB a -1\r\n", ParseError::Arguments),
        (b"PUB a b 1 2 3\r\n", ParseError::Arguments),
        (b"HPUB a 20 10\r\n", ParseError::Arguments),
        (b"SUB a b c d\r\n", ParseError::Arguments),
        (b"CONNECT {bad\r\n", ParseError::Arguments),
        (b"PUB \xff 0\r\n\r\n", ParseError::Arguments),
        (b"PUB a 65\r\n", ParseError::Payload),
        (long.as_bytes(), ParseError::ControlLine),
        (endless.as_bytes(), ParseError::ControlLine),
    ];
    for (bytes, expected) in cases {
        assert_eq!(
            parse_one(bytes),
            Err(expected),
            "{}",
            String::from_utf8_lossy(bytes)
        );
    }
}

/// An operation and its bytes.
fn operation() -> impl Strategy<Value = (Vec<u8>, Op)> {
    let word = "[a-z.*>]{1,12}";
    let payload = prop::collection::vec(any::<u8>(), 0..MAX_PAYLOAD / 2);
    let subscribe = (word, prop::option::of(word), 0..1000_u32).prop_map(|(subject, queue, sid)| {
        let group = queue.iter().fold(String::new(), |_, queue| format!("{queue} "));
        let bytes = format!("SUB {subject} {group}{sid}\r\n").into_bytes();
        let op = Subscribe {
            subject: subject.into_bytes().into(),
            queue: queue.map(|queue| queue.into_bytes().into()),
            sid: sid.to_string().into_bytes().into(),
        };
        (bytes, Op::Subscribe(op))
    });
    let unsubscribe = (0..1000_u32, prop::option::of(1..1_000_000_000_000_u64)).prop_map(|(sid, after)| {
        let max = after.iter().fold(String::new(), |_, max| format!(" {max}"));
        let bytes = format!("UNSUB {sid}{max}\r\n").into_bytes();
        let sid = sid.to_string().into_bytes().into();
        (bytes, Op::Unsubscribe(Unsubscribe { sid, after }))
    });
    let message = (
        word,
        prop::option::of(word),
        prop::option::of(payload.clone()),
        payload,
    );
    let publish = message.prop_map(|(subject, reply, header, payload)| {
        let reply_word = reply.iter().fold(String::new(), |_, reply| format!("{reply} "));
        let body = [header.clone().unwrap_or_default(), payload].concat();
        let line = match &header {
            Some(header) => format!("HPUB {subject} {reply_word}{} {}\r\n", header.len(), body.len()),
            None => format!("PUB {subject} {reply_word}{}\r\n", body.len()),
        };
        let name = line.find(' ').unwrap() + 1;
        let reply_at = name + subject.len() + 1;
        let head = PublishHead {
            line: line.len(),
            subject: name..name + subject.len(),
            reply: reply.map(|reply| reply_at..reply_at + reply.len()),
            header: header.map(|header| header.len()),
            size: body.len(),
        };
        let frame = [line.as_bytes(), &body, b"\r\n"].concat();
        let op = Publish {
            frame: frame.clone().into(),
            head,
        };
        (frame, Op::Publish(op))
    });
    let short = prop_oneof![
        Just((b"PING\r\n".to_vec(), Op::Ping)),
        Just((b"pong\n".to_vec(), Op::Pong)),
        Just((b"+OK\r\n".to_vec(), Op::Ignored)),
    ];
    prop_oneof![4 => publish, 2 => subscribe, 1 => unsubscribe, 1 => short]
}

/// Splits `bytes` at the given places, in any order.
fn cut(bytes: &[u8], places: &[prop::sample::Index]) -> Vec<Vec<u8>> {
    let mut places: Vec<usize> = places.iter().map(|place| place.index(bytes.len() + 1)).collect();
    places.extend([0, bytes.len()]);
    places.sort_unstable();
    places
        .windows(2)
        .map(|ends| bytes[ends[0]..ends[1]].to_vec())
        .collect()
}

/// Bytes that resemble the protocol enough to pass its first words.
fn almost_protocol() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        "(CONNECT|PUB|HPUB|SUB|UNSUB|PING|PONG|INFO|[+]OK)".prop_map(String::into_bytes),
        "( |\t|\r\n|\n|\r|[{]|[}]|[{]\"echo\":false[}])".prop_map(String::into_bytes),
        "[0-9]{1,20}".prop_map(String::into_bytes),
        "[a-z.*>]{0,8}".prop_map(String::into_bytes),
        prop::collection::vec(any::<u8>(), 0..8),
    ];
    prop::collection::vec(piece, 0..64).prop_map(|pieces| pieces.concat())
}

proptest! {
    #[test]
    fn operations_are_the_same_however_their_bytes_arrive(
        operations in prop::collection::vec(operation(), 0..20),
        places in prop::collection::vec(any::<prop::sample::Index>(), 0..40),
    ) {
        let (bytes, expected): (Vec<_>, Vec<_>) = operations.into_iter().unzip();
        let chunks = cut(&bytes.concat(), &places);
        let (actual, error) = parse(chunks.iter().map(Vec::as_slice));
        prop_assert_eq!(error, None);
        prop_assert_eq!(actual, expected);
    }

    #[test]
    fn no_bytes_make_it_panic_and_chunks_do_not_change_the_verdict(
        bytes in prop_oneof![prop::collection::vec(any::<u8>(), 0..600), almost_protocol()],
        places in prop::collection::vec(any::<prop::sample::Index>(), 0..20),
    ) {
        let whole = parse([&bytes[..]]);
        let chunks = cut(&bytes, &places);
        prop_assert_eq!(parse(chunks.iter().map(Vec::as_slice)), whole);
    }
}
