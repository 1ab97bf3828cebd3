use proptest::prelude::*;

use super::*;

fn message(body: &[u8], header: Option<usize>) -> Message<'static> {
    Message {
        subject: b"s.t",
        reply: Some(b"r"),
        header,
        body: [body, b"\r\n"].concat().into(),
        buffer: body.len() + 2,
    }
}

/// All queued data in one piece.
fn drain(outbox: &mut Outbox) -> Vec<u8> {
    let mut batch = Batch::default();
    outbox.take(&mut batch);
    outbox.written(outbox.pending());
    batch
        .chunks
        .iter()
        .flat_map(|chunk| chunk.bytes.to_vec())
        .collect()
}

#[test]
fn messages_look_as_the_protocol_wants() {
    let mut outbox = Outbox::new(1 << 20);
    outbox.push(&message(b"hello", None), b"7", true).unwrap();
    outbox
        .push(&message(b"NATS/1.0\r\n\r\nhi", Some(12)), b"8", true)
        .unwrap();
    outbox
        .push(&message(b"NATS/1.0\r\n\r\nhi", Some(12)), b"9", false)
        .unwrap();
    outbox.push_line(b"PONG\r\n").unwrap();
    let expected = "MSG s.t 7 r 5\r\nhello\r\nHMSG s.t 8 r 12 14\r\nNATS/1.0\r\n\r\nhi\r\nMSG s.t 9 r 2\r\nhi\r\nPONG\r\n";
    assert_eq!(outbox.pending(), expected.len());
    assert_eq!(String::from_utf8(drain(&mut outbox)).unwrap(), expected);
}

#[test]
fn a_large_body_is_not_copied_unless_it_holds_much_more_memory() {
    let large = message(&vec![1; SHARE_FROM], None);
    let (mut one, mut two) = (Outbox::new(1 << 20), Outbox::new(1 << 20));
    for outbox in [&mut one, &mut two] {
        outbox.push(&large, b"1", true).unwrap();
        let body = outbox.closed.back().unwrap();
        assert_eq!(body.bytes.as_ptr(), large.body.as_ptr());
    }
    let part = Message {
        buffer: large.body.len() * 10,
        ..large
    };
    one.push(&part, b"1", true).unwrap();
    assert_eq!(
        one.closed
            .iter()
            .filter(|chunk| chunk.bytes.as_ptr() == part.body.as_ptr())
            .count(),
        1
    );
}

#[test]
fn what_does_not_fit_is_refused_and_leaves_no_trace() {
    let mut outbox = Outbox::new(200);
    outbox.push(&message(&[b'x'; 50], None), b"1", true).unwrap();
    let before = outbox.pending();
    assert_eq!(
        outbox.push(&message(&[b'x'; 100], None), b"1", true),
        Err(Overflow)
    );
    assert_eq!(outbox.push_line(&[b'x'; 200]), Err(Overflow));
    assert_eq!(outbox.pending(), before);
    assert_eq!(drain(&mut outbox).len(), before);
}

#[test]
fn counts_are_written_in_decimal() {
    for count in [0, 9, 10, 1_048_576, usize::MAX] {
        let mut run = BytesMut::new();
        put_count(&mut run, count);
        assert_eq!(run, count.to_string().as_bytes());
    }
}

proptest! {
    /// Wherever writing was cut off, the client receives whole messages and then the last line.
    #[test]
    fn a_stream_that_is_cut_short_ends_between_messages(
        sizes in prop::collection::vec(prop_oneof![0..300_usize, SHARE_FROM..SHARE_FROM + 2000], 1..30),
        place in any::<prop::sample::Index>(),
        step in 1..70_000_usize,
    ) {
        let mut outbox = Outbox::new(16 << 20);
        let mut ends = vec![0];
        for size in sizes {
            outbox.push(&message(&vec![b'x'; size], None), b"1", true).unwrap();
            ends.push(outbox.pending());
        }
        let all = drain_copy(&mut outbox);
        let mut batch = all.1;
        let stop = place.index(all.0.len());
        let mut sent = Vec::new();
        while sent.len() < stop {
            let step = step.min(stop - sent.len());
            sent.extend_from_slice(&all.0[sent.len()..sent.len() + step]);
            batch.advance(step, drop);
        }
        batch.cut_short("-ERR\r\n".to_owned());
        let rest: Vec<u8> = batch.chunks.iter().flat_map(|chunk| chunk.bytes.to_vec()).collect();
        sent.extend_from_slice(&rest);
        let messages = sent.strip_suffix(b"-ERR\r\n").unwrap();
        prop_assert!(all.0.starts_with(messages));
        prop_assert!(ends.contains(&messages.len()), "{} is inside a message", messages.len());
        prop_assert!(messages.len() < stop + RUN + SHARE_FROM + 4000);
    }
}

fn drain_copy(outbox: &mut Outbox) -> (Vec<u8>, Batch) {
    let mut batch = Batch::default();
    outbox.take(&mut batch);
    let bytes = batch
        .chunks
        .iter()
        .flat_map(|chunk| chunk.bytes.to_vec())
        .collect();
    (bytes, batch)
}
