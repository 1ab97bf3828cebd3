//! Tests of sequence settings in the tokenizer's configuration.

use std::path::Path;

use crate::architectures::text::{TextReader, Texts, TokenLimits};
use crate::checkpoint::TokenizerFile;
use crate::runtime::tensor::Tensor;

const TEXT: &str = "the old keeper kept the light of the sea";

/// Returns the token ids of texts with this `tokenizer_config.json`.
fn ids(settings: &str, texts: Texts, inputs: &[(&str, &str)]) -> Vec<i64> {
    let dir = tempfile::tempdir().unwrap();
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/bert-question-answering");
    std::fs::copy(fixtures.join("tokenizer.json"), dir.path().join("tokenizer.json")).unwrap();
    std::fs::write(dir.path().join("tokenizer_config.json"), settings).unwrap();
    let file = TokenizerFile::beside(dir.path()).unwrap();
    let limits = TokenLimits {
        vocabulary: 1000,
        types: 2,
        context: 24,
    };
    let reader = TextReader::new(file.as_ref(), limits, texts).unwrap();
    let inputs = inputs
        .iter()
        .map(|(name, text)| Tensor::from_texts(*name, &[text]).unwrap());
    reader.read(&inputs.collect()).unwrap().remove(0).ids
}

fn of_text(settings: &str) -> Vec<i64> {
    ids(settings, Texts::OneOrTwo, &[("text", TEXT)])
}

#[test]
fn the_maximum_length_of_the_tokenizer_limits_texts_of_every_task() {
    let whole = of_text("{}");
    assert_eq!(of_text(r#"{"model_max_length": 512}"#), whole);
    let short = of_text(r#"{"model_max_length": 6}"#);
    assert_eq!(short[..5], whole[..5]);
    assert_eq!((short.len(), short.last()), (6, whole.last()));
}

#[test]
fn the_beginning_of_a_text_is_cut_off_where_the_tokenizer_says_so() {
    let whole = of_text("{}");
    let short = of_text(r#"{"model_max_length": 6, "truncation_side": "left"}"#);
    assert_eq!(short[0], whole[0]);
    assert_eq!(short[1..], whole[whole.len() - 5..]);
}

#[test]
fn the_context_comes_before_the_question_where_the_tokenizer_pads_on_the_left() {
    let inputs = [("text", "the sea"), ("text_pair", "the old keeper")];
    let sequence = |settings| ids(settings, Texts::QuestionAndContext, &inputs);
    let [question, context] = inputs.map(|(_, text)| {
        let ids = ids("{}", Texts::OneOrTwo, &[("text", text)]);
        ids[1..ids.len() - 1].to_vec()
    });
    for (settings, first) in [
        ("{}", &question),
        (r#"{"padding_side": "left"}"#, &context),
        (r#"{"tokenizer_class": "XLNetTokenizerFast"}"#, &context),
    ] {
        assert_eq!(sequence(settings)[1..=first.len()], **first, "{settings}");
    }
}
