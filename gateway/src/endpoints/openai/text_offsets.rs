//! Computes where tokens begin in a text, in characters. Several tokens may share a character; their names then contain
//! replacement characters, or nothing, in its place.

/// A position in a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Position {
    /// Index of the character, from 0.
    at: usize,
    /// Whether a part of that character was consumed; the next token may contain the rest.
    is_within: bool,
}

/// The text of a sequence of tokens, if known, and the position where the tokens begin.
pub(super) struct Offsets<'a> {
    text: Option<&'a str>,
    from: Position,
}

impl<'a> Offsets<'a> {
    /// Creates offsets for tokens of a known text that begin at a character index.
    pub(super) const fn of(text: &'a str, from: usize) -> Self {
        Self {
            text: Some(text),
            from: Position {
                at: from,
                is_within: false,
            },
        }
    }

    /// Creates offsets for tokens of an unknown text.
    pub(super) const fn from(from: Position) -> Self {
        Self { text: None, from }
    }

    /// Returns where each token begins, and where the last one ends. A token that is a part of a character begins where
    /// the character begins.
    pub(super) fn of_tokens<'t>(&self, tokens: impl Iterator<Item = &'t str>) -> (Vec<usize>, Position) {
        let Position { at, is_within } = self.from;
        let text = self.text.map(|text| text.chars().collect());
        let mut place = Place { text, at, is_within };
        let offsets: Vec<usize> = tokens.map(|token| place.take(token)).collect();
        let Place { at, is_within, .. } = place;
        (offsets, Position { at, is_within })
    }
}

struct Place {
    text: Option<Vec<char>>,
    at: usize,
    /// Whether a part of the current character was consumed.
    is_within: bool,
}

impl Place {
    /// Consumes a token; returns where it begins.
    fn take(&mut self, token: &str) -> usize {
        if token.is_empty() {
            return self.at;
        }
        let mut letters = token.chars().peekable();
        if let Some(first) = letters.peek() {
            self.leave(*first);
        }
        let begin = self.at;
        if !self.is_in_text(token) {
            // A special token, which does not occur in the text.
            return begin;
        }
        for letter in letters {
            self.leave(letter);
            if letter == char::REPLACEMENT_CHARACTER {
                self.is_within = true;
            } else {
                self.at += 1;
            }
        }
        begin
    }

    /// Skips partially consumed characters before a whole one. Characters shared by several tokens are not ASCII.
    fn leave(&mut self, next: char) {
        if next == char::REPLACEMENT_CHARACTER || !std::mem::take(&mut self.is_within) {
            return;
        }
        self.at += 1;
        if let Some(text) = &self.text {
            let rest = text.get(self.at..).unwrap_or_default();
            let shared = rest
                .iter()
                .take_while(|letter| !letter.is_ascii() && **letter != next);
            self.at += shared.count();
        }
    }

    /// Returns whether a token occurs at this position of the text, or may. Tokens that are spelled differently, for
    /// instance in lower case, count as occurring.
    fn is_in_text(&self, token: &str) -> bool {
        let is_special =
            token.starts_with('<') && token.ends_with('>') || token.starts_with('[') && token.ends_with(']');
        let Some(text) = self.text.as_ref().filter(|_| is_special) else {
            return true;
        };
        let rest = text.get(self.at..).unwrap_or_default();
        let count = token.chars().count();
        rest.len() >= count
            && rest
                .iter()
                .copied()
                .zip(token.chars())
                .all(|(one, other)| one == other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the offsets, and the first character that no token contains.
    fn offsets_of(offsets: &Offsets<'_>, tokens: &[&str]) -> (Vec<usize>, usize) {
        let (offsets, end) = offsets.of_tokens(tokens.iter().copied());
        (offsets, end.at + usize::from(end.is_within))
    }

    #[test]
    fn offsets_count_the_characters_of_the_text() {
        let of = |text: &str, tokens: &[&str]| offsets_of(&Offsets::of(text, 0), tokens);
        assert_eq!(of("to be", &["to", " be"]), (vec![0, 2], 5));
        // A character of three tokens, the second of which adds nothing to the first one's replacement character.
        assert_eq!(
            of("a€b", &["a", "\u{fffd}", "", "\u{fffd}", "b"]),
            (vec![0, 1, 1, 1, 2], 3)
        );
        assert_eq!(
            of("日本 x", &["\u{fffd}", "", "\u{fffd}", "\u{fffd}", " x"]).0[4],
            2
        );
        assert_eq!(of("é", &["\u{fffd}", "\u{fffd}"]), (vec![0, 0], 1));
        assert_eq!(of("a<b>", &["<s>", "a", "<b>", "</s>"]), (vec![0, 0, 1, 4], 4));
    }

    #[test]
    fn without_a_text_the_parts_of_a_character_count_once() {
        let from = Position {
            at: 5,
            is_within: false,
        };
        let tokens = ["\u{fffd}", "", "\u{fffd}", "b", "\u{fffd}"];
        assert_eq!(
            offsets_of(&Offsets::from(from), &tokens),
            (vec![5, 5, 5, 6, 7], 8)
        );
    }

    /// Regression: each part of a streamed answer began after the character that the previous part had started.
    #[test]
    fn tokens_of_several_parts_share_a_character() {
        let mut from = Position::default();
        let mut offsets = Vec::new();
        for token in ["a", "\u{fffd}", "", "\u{fffd}", "b", "c"] {
            let (further, end) = Offsets::from(from).of_tokens([token].into_iter());
            offsets.extend(further);
            from = end;
        }
        assert_eq!(offsets, [0, 1, 1, 1, 2, 3]);
    }
}
