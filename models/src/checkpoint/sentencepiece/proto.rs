//! The `SentencePiece` file format: the parts of its `ModelProto` that a tokenizer needs, and validation of the
//! normalisation table.

use std::collections::BTreeSet;

use prost::Message;

/// `ModelProto` of `sentencepiece_model.proto`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Model {
    /// The vocabulary, by id.
    #[prost(message, repeated, tag = "1")]
    pub(super) pieces: Vec<Piece>,
    #[prost(message, optional, tag = "2")]
    pub(super) trainer: Option<Trainer>,
    #[prost(message, optional, tag = "3")]
    pub(super) normalizer: Option<Normalizer>,
}

/// A piece of the vocabulary.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Piece {
    #[prost(string, optional, tag = "1")]
    text: Option<String>,
    #[prost(float, optional, tag = "2")]
    score: Option<f32>,
    #[prost(int32, optional, tag = "3", default = "1")]
    kind: Option<i32>,
}

/// `TrainerSpec`: training settings.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Trainer {
    #[prost(int32, optional, tag = "3", default = "1")]
    model_type: Option<i32>,
    #[prost(int32, optional, tag = "40", default = "0")]
    unknown_id: Option<i32>,
    #[prost(string, optional, tag = "45", default = "<unk>")]
    unknown_piece: Option<String>,
}

/// `NormalizerSpec`: normalisation settings.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Normalizer {
    /// Compiled table of replacements.
    #[prost(bytes = "vec", optional, tag = "2")]
    table: Option<Vec<u8>>,
    #[prost(bool, optional, tag = "3", default = "true")]
    begins_with_space: Option<bool>,
    #[prost(bool, optional, tag = "4", default = "true")]
    removes_spaces: Option<bool>,
}

/// Algorithm that splits words into pieces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Algorithm {
    Unigram,
    Bpe,
}

/// Type of the unknown piece.
const UNKNOWN: i32 = 2;
/// Type of a control symbol.
const CONTROL: i32 = 3;
/// Type of a user-defined symbol.
const USER_DEFINED: i32 = 4;
/// Maximum length of a piece, bytes; the trainer's maximum is 16 characters.
const MAX_PIECE: usize = 512;
/// Maximum size of a normalisation table, bytes; that of `nmt_nfkc` has 240,000.
const MAX_TABLE: usize = 4 << 20;

impl Piece {
    /// Returns the score: a log probability, or minus the rank of a merge.
    pub(super) fn value(&self) -> f64 {
        f64::from(self.score())
    }

    /// Returns whether texts may contain the piece.
    pub(super) fn is_text(&self) -> bool {
        !matches!(self.kind(), UNKNOWN | CONTROL)
    }

    /// Returns whether an added piece is special; `None` if texts are not split at it first.
    pub(super) fn added(&self) -> Option<bool> {
        match self.kind() {
            CONTROL => Some(true),
            USER_DEFINED => Some(false),
            _ => None,
        }
    }
}

impl Model {
    /// Parses a file and validates what a tokenizer relies on. The error is the reason.
    pub(super) fn parse(bytes: &[u8]) -> Result<Self, String> {
        let model =
            Self::decode(bytes).map_err(|error| format!("it is not a SentencePiece model: {error}"))?;
        if model.pieces.is_empty() {
            return Err("it is not a SentencePiece model, or has no pieces".into());
        }
        for (id, piece) in model.pieces.iter().enumerate() {
            if piece.text().len() > MAX_PIECE {
                return Err(format!("piece {id} has more than {MAX_PIECE} bytes"));
            }
            if !piece.value().is_finite() {
                return Err(format!("the score of piece {id} is not finite"));
            }
        }
        if let Some(table) = model.table() {
            check_table(table).ok_or("its normalisation table (precompiled_charsmap) is damaged")?;
        }
        Ok(model)
    }

    /// Returns the algorithm. The error is the reason.
    pub(super) fn algorithm(&self) -> Result<Algorithm, String> {
        match self.trainer().model_type() {
            1 => Ok(Algorithm::Unigram),
            2 => Ok(Algorithm::Bpe),
            3 => Err("its model type is word; unigram and BPE are supported".into()),
            4 => Err("its model type is char; unigram and BPE are supported".into()),
            other => Err(format!(
                "its model type is {other}; 1 (unigram) and 2 (BPE) are supported"
            )),
        }
    }

    /// Returns the id of the unknown piece.
    pub(super) fn unknown_id(&self) -> i32 {
        self.trainer().unknown_id()
    }

    /// Returns the unknown piece.
    pub(super) fn unknown_piece(&self) -> String {
        self.trainer().unknown_piece().to_owned()
    }

    /// Returns the normalisation table; `None` without normalisation.
    pub(super) fn table(&self) -> Option<&[u8]> {
        let table = self.normalizer.as_ref()?.table.as_deref()?;
        Some(table).filter(|table| !table.is_empty())
    }

    /// Returns whether a space is prepended to every text (`add_dummy_prefix`).
    pub(super) fn begins_with_space(&self) -> bool {
        self.normalizer.clone().unwrap_or_default().begins_with_space()
    }

    /// Returns whether surrounding and repeated spaces are removed (`remove_extra_whitespaces`).
    pub(super) fn removes_spaces(&self) -> bool {
        self.normalizer.clone().unwrap_or_default().removes_spaces()
    }

    fn trainer(&self) -> Trainer {
        self.trainer.clone().unwrap_or_default()
    }
}

/// Validates a normalisation table: the size of a trie in bytes, the trie as a double array (darts-clone), and the
/// replacements, each terminated by a zero. The normaliser of the crate `tokenizers` does not validate it, so every
/// unit that a text can reach must be in the array, and every value must be the start of a replacement. `None` if the
/// table is damaged.
pub(in crate::checkpoint) fn check_table(table: &[u8]) -> Option<()> {
    if table.len() > MAX_TABLE {
        return None;
    }
    let (size, rest) = table.split_first_chunk::<4>()?;
    let size = usize::try_from(u32::from_le_bytes(*size)).ok()?;
    let (trie, replacements) = rest.split_at_checked(size)?;
    let replacements = str::from_utf8(replacements).ok()?;
    let (units, []) = trie.as_chunks::<4>() else {
        return None;
    };
    let unit = |position: usize| Some(u32::from_le_bytes(*units.get(position)?));
    let offset = |unit: u32| ((unit >> 10) << ((unit & (1 << 9)) >> 6)) as usize;
    let root = offset(unit(0)?);
    let mut found = BTreeSet::from([root]);
    let mut open = vec![root];
    while let Some(base) = open.pop() {
        for label in 1..=0xff_u32 {
            let position = base ^ label as usize;
            let next = unit(position)?;
            if next & (1 << 31 | 0xff) != label {
                continue;
            }
            let base = position ^ offset(next);
            if next & (1 << 8) != 0 {
                let value = (unit(base)? & !(1 << 31)) as usize;
                if !replacements.is_char_boundary(value) {
                    return None;
                }
            }
            if found.insert(base) {
                open.push(base);
            }
        }
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fixture() -> Vec<u8> {
        let path = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/fixtures/sentencepiece/t5/spiece.model"
        );
        std::fs::read(path).unwrap()
    }

    fn reason(model: &Model) -> String {
        Model::parse(&model.encode_to_vec()).unwrap_err()
    }

    #[test]
    fn damaged_models_are_refused() {
        let model = Model::parse(&fixture()).unwrap();
        assert!(Model::parse(&[]).unwrap_err().contains("no pieces"));
        assert!(
            Model::parse(&fixture()[..900])
                .unwrap_err()
                .contains("not a SentencePiece model")
        );
        let mut long = model.clone();
        long.pieces[3].text = Some("a".repeat(MAX_PIECE + 1));
        assert!(reason(&long).contains("piece 3"), "{}", reason(&long));
        let mut scored = model.clone();
        scored.pieces[5].score = Some(f32::NAN);
        assert!(reason(&scored).contains("not finite"));
        let mut words = model;
        words.trainer.as_mut().unwrap().model_type = Some(3);
        assert!(words.algorithm().unwrap_err().contains("word"));
    }

    /// Checks that no table that passes validation makes the normaliser panic.
    #[test]
    fn damaged_tables_are_refused() {
        use rand::{Rng, SeedableRng};
        use tokenizers::{NormalizedString, Normalizer as _, normalizers::Precompiled};
        let table = Model::parse(&fixture()).unwrap().table().unwrap().to_vec();
        check_table(&table).unwrap();
        assert!(check_table(&table[..table.len() / 2]).is_none());
        assert!(check_table(&[0; 4]).is_none(), "an empty trie");
        assert!(check_table(&[0xff; 64]).is_none(), "a size beyond the table");
        let rng = &mut rand_chacha::ChaCha8Rng::seed_from_u64(3);
        let mut refused = 0;
        for _ in 0..2000 {
            let mut damaged = table.clone();
            for _ in 0..8 {
                let position = rng.random_range(4..damaged.len());
                damaged[position] = rng.random();
            }
            if check_table(&damaged).is_none() {
                refused += 1;
                continue;
            }
            let normalizer = Precompiled::from(&damaged).unwrap();
            for text in [
                "\u{fb01}ne \u{ff21} e\u{301}",
                "a\tb\u{3000}c\u{2026}",
                "\u{10ffff}\u{7f}",
            ] {
                let mut text = NormalizedString::from(text);
                normalizer.normalize(&mut text).unwrap();
            }
        }
        assert!(refused > 100, "{refused} of 2000");
    }
}
