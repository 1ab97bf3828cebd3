use proptest::prelude::*;

use super::*;

const LATER: u64 = 1_000;

fn of(message: u64, index: u32, count: u32) -> Chunk {
    Chunk {
        message,
        index,
        count,
    }
}

fn bytes(size: usize) -> Bytes {
    vec![7; size].into()
}

fn take(
    assembler: &mut Assembler,
    chunk: Chunk,
    bytes: Bytes,
    now: u64,
    until: u64,
) -> Result<Option<Bytes>, ChunkError> {
    assembler
        .add(chunk, bytes, None, now, until)
        .map_err(|failed| failed.error)
}

#[test]
fn only_valid_chunk_headers_are_parsed() {
    let chunk = of(0xabc, 2, 5);
    assert_eq!(chunk.to_string(), "0000000000000abc/2/5");
    assert_eq!(Chunk::parse(&chunk.to_string()), Some(chunk));
    for garbage in [
        "",
        "/",
        "abc/0/1",
        "0000000000000abc/5/5",
        "0000000000000abc/0/0",
        "0000000000000abc/0/1/2",
        "0000000000000abc/-1/2",
        "00000000000000zz/0/1",
    ] {
        assert_eq!(Chunk::parse(garbage), None, "{garbage}");
    }
}

#[test]
fn a_missing_chunk_fails_only_its_message() {
    let mut assembler = Assembler::new(100, 1_000);
    assert_eq!(take(&mut assembler, of(1, 0, 3), bytes(4), 0, LATER), Ok(None));
    assert_eq!(take(&mut assembler, of(2, 0, 2), bytes(4), 0, LATER), Ok(None));
    let gap = take(&mut assembler, of(1, 2, 3), bytes(4), 0, LATER);
    assert_eq!(
        gap,
        Err(ChunkError::Gap {
            index: 2,
            expected: 1
        })
    );
    assert_eq!(
        take(&mut assembler, of(2, 1, 2), bytes(1), 0, LATER),
        Ok(Some(bytes(5)))
    );
    assert_eq!(assembler.held_bytes(), 0);
    let orphan = take(&mut assembler, of(3, 1, 2), bytes(4), 0, LATER);
    assert!(matches!(orphan, Err(ChunkError::Gap { expected: 0, .. })));
}

#[test]
fn the_reply_subject_of_a_failed_message_comes_from_its_first_chunk_and_is_used_once() {
    let mut assembler = Assembler::new(100, 1_000);
    let reply = || Some(Subject::from("done.here.7"));
    assert_eq!(assembler.add(of(1, 0, 4), bytes(4), reply(), 0, LATER), Ok(None));
    let failed = assembler.add(of(1, 2, 4), bytes(4), None, 0, LATER).unwrap_err();
    assert_eq!(failed.reply, reply());
    let fault = Fault::from(failed.error);
    assert!(fault.code.retryable(), "{fault}");
    let rest = assembler.add(of(1, 3, 4), bytes(4), None, 0, LATER).unwrap_err();
    assert_eq!(
        rest.reply, None,
        "a second word would end the next attempt as well"
    );
}

#[test]
fn what_would_be_too_large_is_refused_at_its_first_chunk() {
    let mut assembler = Assembler::new(100, 1_000);
    let refused = take(&mut assembler, of(1, 0, 12), bytes(10), 0, LATER);
    assert_eq!(
        refused,
        Err(ChunkError::TooLarge {
            count: 12,
            limit: 100
        })
    );
    assert!(Fault::from(refused.unwrap_err()).message.contains("100 bytes"));
    // A wrong size claimed by the first chunk is detected later.
    assert_eq!(take(&mut assembler, of(2, 0, 3), bytes(1), 0, LATER), Ok(None));
    assert!(take(&mut assembler, of(2, 1, 3), bytes(100), 0, LATER).is_err());
    assert_eq!(assembler.held_bytes(), 0);
}

#[test]
fn expired_messages_make_room() {
    let mut assembler = Assembler::new(100, 400);
    assert_eq!(take(&mut assembler, of(1, 0, 2), bytes(60), 0, 10), Ok(None));
    let full = take(&mut assembler, of(2, 0, 2), bytes(60), 5, LATER);
    assert_eq!(
        full,
        Err(ChunkError::Full {
            held: 60 + 2 * OVERHEAD,
            limit: 400
        })
    );
    assert_eq!(take(&mut assembler, of(3, 0, 2), bytes(60), 10, LATER), Ok(None));
    assert_eq!(assembler.held_bytes(), 60 + 2 * OVERHEAD);
    assert!(take(&mut assembler, of(1, 1, 2), bytes(1), 11, LATER).is_err());
}

#[test]
fn chunks_that_hold_next_to_nothing_are_not_free() {
    let mut assembler = Assembler::new(1 << 20, 10_000);
    let empty = take(&mut assembler, of(1, 0, 9), Bytes::new(), 0, LATER);
    assert_eq!(empty, Err(ChunkError::Empty { index: 0 }));
    let taken =
        (0..1_000).take_while(|message| take(&mut assembler, of(*message, 0, 9), bytes(1), 0, LATER).is_ok());
    assert!(taken.count() < 40, "a byte each, and what is kept beside it");
    assert_eq!(Chunk::parse("+00000000000000f/+0/+1"), None);
}

proptest! {
    #[test]
    fn what_is_cut_is_put_together_whatever_comes_between(
        sizes in prop::collection::vec(1_usize..400, 1..6),
        limit in 1_usize..64,
        order in prop::collection::vec(any::<prop::sample::Index>(), 0..200),
    ) {
        let sent: Vec<Bytes> = (0_u8..)
            .zip(&sizes)
            .map(|(message, size)| (0..*size).map(|at| (at as u8).wrapping_add(message)).collect())
            .collect();
        let mut queues: Vec<std::collections::VecDeque<_>> = (0..)
            .zip(&sent)
            .map(|(message, payload)| split(message, payload, limit).collect())
            .collect();
        let mut assembler = Assembler::new(400, 1 << 20);
        let mut whole = BTreeMap::new();
        let mut picks = order.into_iter();
        while queues.iter().any(|queue| !queue.is_empty()) {
            let open: Vec<usize> = (0..queues.len()).filter(|at| !queues[*at].is_empty()).collect();
            let at = picks.next().map_or(open[0], |pick| *pick.get(&open));
            let (chunk, part) = queues[at].pop_front().unwrap();
            prop_assert!(part.len() <= limit);
            if let Some(message) = take(&mut assembler, chunk, part, 0, LATER).unwrap() {
                whole.insert(chunk.message, message);
            }
        }
        prop_assert_eq!(assembler.held_bytes(), 0);
        prop_assert_eq!(whole.into_values().collect::<Vec<_>>(), sent);
    }

    #[test]
    fn whatever_comes_never_holds_more_than_it_may(
        chunks in prop::collection::vec((0_u64..4, 0_u32..4, 1_u32..5, 0_usize..40, 0_u64..20), 0..60),
    ) {
        let mut assembler = Assembler::new(60, 1_000);
        for (now, (message, index, count, size, until)) in (0..).zip(chunks) {
            if index < count {
                let _ = take(&mut assembler, of(message, index, count), bytes(size), now, until);
            }
            let held: usize = assembler.partial.values().map(Partial::held).sum();
            prop_assert_eq!(assembler.held_bytes(), held);
            prop_assert!(held <= 1_000);
        }
    }
}
