//! Messages in chunks: honest ones of which some are lost, and chunks that claim anything.

use bytes::Bytes;
use kaskade_actors::wire::chunks::{Assembler, Chunk, split};

use crate::script::Script;

const MAX_CHUNK: usize = 400;
const MAX_BYTES: usize = 20_000;

/// What comes out whole is what was cut, whatever was lost, repeated or claimed on the way; and what is held stays in bounds.
pub fn chunks(input: &[u8]) {
    if let Ok(text) = std::str::from_utf8(input) {
        parsed(text);
    }
    let mut script = Script::new(input);
    let mut assembler = Assembler::new(MAX_CHUNK, MAX_BYTES);
    let mut senders = [0_u64, 1, 2].map(|message| Sender::new(message, &mut script));
    let mut now = 0;
    while !script.is_over() {
        now += script.number(1);
        let sender = script.below(senders.len() + 1);
        match senders.get_mut(sender) {
            Some(sender) => sender.step(&mut assembler, &mut script, now),
            None => claim(&mut assembler, &mut script, now),
        }
        assert!(
            assembler.held_bytes() <= MAX_BYTES,
            "{} bytes are held",
            assembler.held_bytes()
        );
    }
}

fn parsed(text: &str) {
    let Some(chunk) = Chunk::parse(text) else {
        return;
    };
    assert!(chunk.index < chunk.count);
    assert_eq!(Chunk::parse(&chunk.to_string()), Some(chunk));
}

/// Sends one message again and again, not always all of it.
struct Sender {
    payload: Bytes,
    chunks: Vec<(Chunk, Bytes)>,
    next: usize,
}

impl Sender {
    fn new(message: u64, script: &mut Script<'_>) -> Self {
        let length = script.below(256) + 1;
        let payload: Bytes = (0..length).map(|at| (at as u64 * 7 + message) as u8).collect();
        let chunks = split(message, &payload, script.below(64)).collect();
        Self {
            payload,
            chunks,
            next: 0,
        }
    }

    fn step(&mut self, assembler: &mut Assembler, script: &mut Script<'_>, now: u64) {
        match script.below(8) {
            0 => self.next += 1,
            1 => self.next = 0,
            2 => self.next = self.next.saturating_sub(1),
            _ => {}
        }
        let at = self.next % self.chunks.len();
        let (chunk, bytes) = self.chunks.get(at).expect("a payload has chunks").clone();
        self.next = at + 1;
        if let Ok(Some(whole)) = assembler.add(chunk, bytes, None, now, now + 1_000) {
            assert_eq!(whole, self.payload);
        }
    }
}

/// A chunk of a message that was never split.
fn claim(assembler: &mut Assembler, script: &mut Script<'_>, now: u64) {
    let chunk = Chunk {
        message: 3 + script.number(1),
        index: script.number(4) as u32,
        count: script.number(4) as u32,
    };
    if chunk.index >= chunk.count {
        return;
    }
    let bytes = Bytes::from(vec![1; script.below(600)]);
    let until = script.number(2);
    if let Ok(Some(whole)) = assembler.add(chunk, bytes, Some("reply".into()), now, until) {
        assert!(whole.len() <= MAX_CHUNK);
    }
}
