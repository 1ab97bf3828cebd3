//! Reads texts and their expected continuations.

use std::path::Path;

use super::DataError;
use super::records::GZIP;
use crate::config::data::Words;

/// A text and its expected continuation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Completion {
    pub(super) text: String,
    pub(super) answer: String,
}

/// Shortest word to predict, characters.
const MIN_CHARS: usize = 2;

/// Reads a file of text.
///
/// # Errors
/// [`DataError::File`] with [`DataError::Utf16`] or [`DataError::NotUtf8`] for another encoding, or with the system's
/// error.
pub(super) fn read(path: &Path) -> Result<String, DataError> {
    let bytes = std::fs::read(path).map_err(DataError::in_file(path))?;
    if bytes.starts_with(GZIP) {
        return Err(DataError::in_file(path)(DataError::UnreadGzip));
    }
    if bytes.starts_with(b"\xff\xfe") || bytes.starts_with(b"\xfe\xff") {
        return Err(DataError::in_file(path)(DataError::Utf16));
    }
    String::from_utf8(bytes).map_err(|_| DataError::in_file(path)(DataError::NotUtf8))
}

/// Returns a text without the byte order mark that some editors begin a file with.
fn without_byte_order_mark(text: &str) -> &str {
    text.strip_prefix('\u{feff}').unwrap_or(text)
}

/// Returns the non-blank lines of a text with their numbers, from 1.
pub(super) fn numbered(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let lines = (1..).zip(without_byte_order_mark(text).lines());
    lines.filter(|(_, line)| !line.trim().is_empty())
}

/// Returns words of a running text, evenly spaced over the configured section, each with the preceding text from the
/// beginning of a line.
///
/// # Errors
/// [`DataError`] if the section has too few words.
pub(super) fn words(text: &str, spec: &Words) -> Result<Vec<Completion>, DataError> {
    let [begin, end] = [spec.from.get(), spec.to.get()].map(|share| line_after(text, share));
    let part = text.get(begin..end).unwrap_or_default();
    let shown = |word: &str| word.char_indices().nth(spec.shown).map(|(at, _)| at);
    // A word that the prompt contains completely cannot be predicted.
    let words = words_of(part).filter_map(|(at, word)| Some((at, word, shown(word)?)));
    let words: Vec<(usize, &str, usize)> = words.collect();
    let take = spec.take.get();
    if words.len() < take {
        return Err(DataError::Words {
            found: words.len(),
            from: spec.from.get(),
            to: spec.to.get(),
            wanted: take,
        });
    }
    let chosen = (0..take).filter_map(|index| words.get(index * words.len() / take));
    let completions = chosen.map(|(at, word, shown)| {
        let (beginning, rest) = word.split_at_checked(*shown).unwrap_or(("", word));
        Completion {
            text: before(part, *at, spec.context.get()).to_owned() + beginning,
            answer: rest.to_owned(),
        }
    });
    Ok(completions.collect())
}

/// Returns the start of the first line after a share of the text.
fn line_after(text: &str, share: f64) -> usize {
    let at = (text.len() as f64 * share) as usize;
    if at == 0 {
        return 0;
    }
    let bytes = text.as_bytes().get(at..).unwrap_or_default();
    let line = bytes.iter().position(|byte| *byte == b'\n');
    line.map_or(text.len(), |line| at + line + 1)
}

/// Returns the words that follow a space, with their positions, at which the preceding text ends.
fn words_of(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let spaces = text.match_indices(' ').map(|(at, _)| at + 1);
    spaces.filter_map(|at| {
        let rest = text.get(at..)?;
        let end = rest
            .find(|character: char| !character.is_alphabetic())
            .unwrap_or(rest.len());
        let word = rest.get(..end)?;
        (word.chars().count() >= MIN_CHARS).then_some((at, word))
    })
}

/// Returns at most the last `most` characters before a position, from the beginning of a line if one begins among them.
fn before(text: &str, at: usize, most: usize) -> &str {
    let before = text.get(..at).unwrap_or_default();
    let start = before
        .char_indices()
        .rev()
        .take(most)
        .last()
        .map_or(at, |(start, _)| start);
    let window = before.get(start..).unwrap_or_default();
    if start == 0 {
        return window;
    }
    match window.find('\n') {
        Some(line) => window.get(line + 1..).unwrap_or_default(),
        None => window,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "One line here.\nWho is it that\ncan tell me who I am?\nNothing will come of nothing:\nspeak again.\n";

    fn spec(extra: &str) -> Words {
        toml::from_str(&format!("file = \"f\"\n{extra}")).unwrap()
    }

    #[test]
    fn words_are_spread_over_the_part_and_shown_what_stands_before_them() {
        let all = words(TEXT, &spec("take = 14")).unwrap();
        assert_eq!(all[0].text, "One ");
        assert_eq!(all[0].answer, "line");
        let few = words(TEXT, &spec("take = 2\nfrom = 0.2\ncontext = 29")).unwrap();
        let shown: Vec<_> = few
            .iter()
            .map(|one| (one.text.as_str(), one.answer.as_str()))
            .collect();
        assert_eq!(shown, [("can ", "tell"), ("Nothing ", "will")]);
        for one in &all {
            assert!(TEXT.contains(&format!("{}{}", one.text, one.answer)), "{one:?}");
            assert!(one.text.ends_with(' ') && one.text.chars().count() <= 400);
        }
        let begun = words(TEXT, &spec("take = 3\nshown = 3\ncontext = 10")).unwrap();
        let begun: Vec<_> = begun
            .iter()
            .map(|one| (one.text.as_str(), one.answer.as_str()))
            .collect();
        assert_eq!(
            begun,
            [("One lin", "e"), ("Who is it tha", "t"), ("hing will com", "e")]
        );
        let error = words(TEXT, &spec("take = 15")).unwrap_err().to_string();
        assert!(error.contains("14 words"), "{error}");
    }

    #[test]
    fn a_window_without_a_line_is_cut_where_it_must_be() {
        assert_eq!(before("äöü words", 10, 4), " wor");
        assert_eq!(before("a\nbc def", 8, 100), "a\nbc def");
        assert_eq!(before("a\nbc def", 8, 7), "bc def");
    }

    #[test]
    fn another_encoding_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("dev.tsv");
        for (content, message) in [
            (&b"caf\xe9\t1\n"[..], "it is not UTF-8"),
            (b"\xff\xfea\0", "it is UTF-16"),
        ] {
            std::fs::write(&path, content).unwrap();
            let error = crate::report::in_one_line(&read(&path).unwrap_err());
            assert!(error.contains("dev.tsv") && error.contains(message), "{error}");
            assert!(error.contains("iconv"), "{error}");
        }
        std::fs::write(&path, "é").unwrap();
        assert_eq!(read(&path).unwrap(), "é");
    }
}
