//! The tokenizer: word pieces (Wu et al. 2016), learnt from the training sentences alone.

use std::error::Error;

use tokenizers::models::TrainerWrapper;
use tokenizers::models::wordpiece::{WordPiece, WordPieceTrainer};
use tokenizers::normalizers::BertNormalizer;
use tokenizers::pre_tokenizers::bert::BertPreTokenizer;
use tokenizers::processors::bert::BertProcessing;
use tokenizers::{AddedToken, DecoderWrapper, Tokenizer, TruncationParams};

/// Tokens that stand for no text, in the order of their ids.
const SPECIAL: [&str; 5] = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"];
/// Id of the token that stands for a hidden one.
pub(crate) const MASK: i64 = 4;

/// Learns `vocabulary` word pieces, lower-cased. Texts are cut off after `context` tokens.
pub(crate) fn learn<'a>(
    sentences: impl Iterator<Item = &'a str> + Send,
    vocabulary: usize,
    context: usize,
) -> Result<Tokenizer, Box<dyn Error + Send + Sync>> {
    let special = |token: &str| AddedToken::from(token, true);
    let model = WordPiece::builder().unk_token("[UNK]".to_owned()).build()?;
    let mut tokenizer = Tokenizer::new(model);
    tokenizer
        .with_normalizer(Some(BertNormalizer::default()))
        .with_pre_tokenizer(Some(BertPreTokenizer));
    let mut trainer: TrainerWrapper = WordPieceTrainer::builder()
        .vocab_size(vocabulary)
        .special_tokens(SPECIAL.map(special).to_vec())
        .show_progress(false)
        .build()
        .into();
    tokenizer.train(&mut trainer, sentences)?;
    let token = |name: &str| {
        let id = tokenizer.token_to_id(name);
        id.map(|id| (name.to_owned(), id))
            .ok_or_else(|| format!("the tokenizer lost its token {name}"))
    };
    let processing = BertProcessing::new(token("[SEP]")?, token("[CLS]")?);
    tokenizer.with_post_processor(Some(processing));
    tokenizer.with_decoder(None::<DecoderWrapper>);
    tokenizer.with_truncation(Some(TruncationParams {
        max_length: context,
        ..TruncationParams::default()
    }))?;
    Ok(tokenizer)
}
