//! The tokenizer: word pieces (Wu et al. 2016), learnt from the training sentences alone.

use std::collections::BTreeSet;
use std::error::Error;

use tokenizers::models::wordpiece::{WordPiece, WordPieceTrainer};
use tokenizers::models::{ModelWrapper, TrainerWrapper};
use tokenizers::normalizers::BertNormalizer;
use tokenizers::pre_tokenizers::bert::BertPreTokenizer;
use tokenizers::processors::bert::BertProcessing;
use tokenizers::{AddedToken, Tokenizer, TruncationParams};

/// Tokens that stand for no text, in the order of their ids.
const SPECIAL: [&str; 5] = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"];
/// Id of the token that stands for a hidden one.
pub(crate) const MASK: i64 = 4;

/// Learns `vocabulary` word pieces, lower-cased. Texts are cut off after `context` tokens.
pub(crate) fn learn(
    sentences: &[&str],
    vocabulary: usize,
    context: usize,
) -> Result<Tokenizer, Box<dyn Error + Send + Sync>> {
    let mut learner = around(WordPiece::builder().unk_token("[UNK]".to_owned()).build()?);
    let special = SPECIAL.map(str::to_owned).into_iter();
    // The trainer numbers the pieces within words as it meets them, in an order that changes from run to run, and breaks
    // ties by these numbers. Numbered beforehand, as if they were special, they always come out the same.
    let numbered = special.chain(within_words(sentences));
    let mut trainer: TrainerWrapper = WordPieceTrainer::builder()
        .vocab_size(vocabulary)
        .special_tokens(numbered.map(|token| AddedToken::from(token, true)).collect())
        .show_progress(false)
        .build()
        .into();
    learner.train(&mut trainer, sentences.iter())?;

    let mut tokenizer = around(learner.get_model().clone());
    tokenizer.add_special_tokens(&SPECIAL.map(|token| AddedToken::from(token, true)));
    let token = |name: &str| {
        let id = tokenizer.token_to_id(name);
        id.map(|id| (name.to_owned(), id))
            .ok_or_else(|| format!("the tokenizer lost its token {name}"))
    };
    let processing = BertProcessing::new(token("[SEP]")?, token("[CLS]")?);
    tokenizer.with_post_processor(Some(processing));
    tokenizer.with_truncation(Some(TruncationParams {
        max_length: context,
        ..TruncationParams::default()
    }))?;
    Ok(tokenizer)
}

/// A tokenizer that splits texts into words as BERT's does, and words by `model`.
fn around(model: impl Into<ModelWrapper>) -> Tokenizer {
    let mut tokenizer = Tokenizer::new(model);
    tokenizer
        .with_normalizer(Some(BertNormalizer::default()))
        .with_pre_tokenizer(Some(BertPreTokenizer));
    tokenizer
}

/// The pieces of one character that words can be continued with, sorted.
fn within_words(sentences: &[&str]) -> impl Iterator<Item = String> {
    let characters = sentences.iter().flat_map(|sentence| sentence.chars());
    let alphabet: BTreeSet<char> = characters
        .flat_map(char::to_lowercase)
        .filter(|character| character.is_alphanumeric())
        .collect();
    alphabet.into_iter().map(|character| format!("##{character}"))
}
