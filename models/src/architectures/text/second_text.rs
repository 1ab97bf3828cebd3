//! Location of a question's context in a sequence of both.

use std::ops::Range;

use tokenizers::Encoding;

/// The second text of a pair, with the positions of its tokens.
#[derive(Debug)]
pub(crate) struct SecondText {
    /// The text.
    pub text: String,
    encoding: Encoding,
    /// Index of the text in the sequence: 0 or 1.
    place: usize,
}

impl SecondText {
    /// Creates the second text from an encoding of two texts; `place` is its index, 0 or 1.
    pub(in crate::architectures) fn new(text: String, encoding: Encoding, place: usize) -> Self {
        Self {
            text,
            encoding,
            place,
        }
    }

    /// Returns the positions of the text's tokens in the sequence.
    pub(crate) fn tokens(&self) -> Range<usize> {
        let sequences = self.encoding.get_sequence_ids();
        let first = sequences.iter().position(|place| *place == Some(self.place));
        let last = sequences.iter().rposition(|place| *place == Some(self.place));
        first.zip(last).map_or(0..0, |(first, last)| first..last + 1)
    }

    /// Returns the position of the special token that represents the whole sequence: the first, or the last if this
    /// text comes first or the sequence begins with no special token, as in `XLNet`.
    pub(crate) fn summary(&self) -> Option<usize> {
        let special = self.encoding.get_special_tokens_mask();
        let first = if self.place == 0 { None } else { Some(0) };
        let mut positions = [first, special.len().checked_sub(1)].into_iter().flatten();
        positions.find(|position| special.get(*position) == Some(&1))
    }

    /// Returns the byte range of the text that these tokens cover, extended to whole words.
    pub(crate) fn bytes(&self, first: usize, last: usize) -> Option<Range<usize>> {
        let word = |token: usize| {
            let (_, word) = self.encoding.token_to_word(token)?;
            self.encoding.word_to_chars(word, self.place)
        };
        Some(word(first)?.0..word(last)?.1)
    }
}

#[cfg(test)]
impl SecondText {
    /// Builds a text of words after a special token, `asked` words of a question, and another special token.
    pub(crate) fn of_words(text: &str, asked: usize) -> Self {
        let words: Vec<(usize, usize)> = text
            .split(' ')
            .map(|word| {
                let start = word.as_ptr() as usize - text.as_ptr() as usize;
                (start, start + word.len())
            })
            .collect();
        let (before, count) = (asked + 2, asked + 2 + words.len());
        let mut special = vec![0; count];
        (special[0], special[asked + 1]) = (1, 1);
        let order = (0..asked).chain(0..words.len()).map(|word| Some(word as u32));
        let mut order: Vec<Option<u32>> = order.collect();
        order.insert(0, None);
        order.insert(asked + 1, None);
        let encoding = Encoding::new(
            vec![0; count],
            vec![0; count],
            vec![String::new(); count],
            order,
            [vec![(0, 0); before], words].concat(),
            special,
            vec![1; count],
            Vec::new(),
            [(0, 1..asked + 1), (1, before..count)].into(),
        );
        Self {
            text: text.to_owned(),
            encoding,
            place: 1,
        }
    }
}
