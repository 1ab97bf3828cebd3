use super::*;
use crate::checkpoint::Checkpoint;

/// Returns a folder with the tokenizer of the smallest language model and a chat template, without weights.
fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let model =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/shakespeare/weights/shakespeare-pico");
    for file in ["config.json", "tokenizer.json"] {
        std::fs::copy(model.join(file), folder.path().join(file)).unwrap();
    }
    let template = "{% for message in messages %}<{{ message.role }}>{{ message.content }}{% endfor %}\
                    {% if add_generation_prompt %}<assistant>{% endif %}";
    std::fs::write(folder.path().join("chat_template.jinja"), template).unwrap();
    folder
}

fn text(name: &str, text: &str) -> Tensor {
    Tensor::from_texts(name, &[text]).unwrap()
}

#[test]
fn texts_and_chats_are_tokenized_without_weights() {
    let folder = folder();
    assert!(Checkpoint::open(folder.path()).is_err(), "there are no weights");
    let tokenizer = CheckpointTokenizer::open(folder.path()).unwrap().unwrap();
    let ids = tokenizer.prompt(&vec![text("text", "to be")], true).unwrap();
    assert_eq!(tokenizer.decode(&ids, true).unwrap(), "to be");
    assert_eq!(tokenizer.names(&ids).unwrap().len(), ids.len());
    assert!(tokenizer.context().is_some());
    let messages = text("messages", r#"[{"role": "user", "content": "to be"}]"#);
    for (answer, expected) in [(true, "<user>to be<assistant>"), (false, "<user>to be")] {
        let ids = tokenizer.prompt(&vec![messages.clone()], answer).unwrap();
        assert_eq!(tokenizer.decode(&ids, false).unwrap(), expected);
    }
    assert!(
        tokenizer
            .prompt(&vec![text("text", "")], true)
            .unwrap()
            .is_empty()
    );
}

#[test]
fn tokens_have_the_parts_of_the_text_that_they_stand_for() {
    let folder = folder();
    let tokenizer = CheckpointTokenizer::open(folder.path()).unwrap().unwrap();
    let said = "To be, é";
    let tokens = tokenizer.tokens(said, true, None).unwrap();
    let mut end = 0;
    for token in &tokens {
        let [start, stop] = token.span.unwrap();
        assert!(start <= end && stop > start && stop <= said.len(), "{tokens:?}");
        end = stop;
    }
    assert_eq!(end, said.len());
    assert_eq!(tokens[0].text, said[..tokens[0].span.unwrap()[1]]);
}

#[test]
fn what_cannot_be_tokenized_is_refused() {
    let folder = folder();
    let tokenizer = CheckpointTokenizer::open(folder.path()).unwrap().unwrap();
    assert!(tokenizer.decode(&[u32::MAX], true).is_err());
    assert!(tokenizer.names(&[u32::MAX]).is_err());
    assert!(tokenizer.tokens(&"a".repeat((1 << 20) + 1), true, None).is_err());
    let unknown = tokenizer.tokens("a", true, Some("query")).unwrap_err();
    assert!(matches!(&unknown, ModelError::BadInput { name, .. } if name == PROMPT_NAME));
    std::fs::remove_file(folder.path().join("tokenizer.json")).unwrap();
    assert!(CheckpointTokenizer::open(folder.path()).unwrap().is_none());
}

#[test]
fn texts_of_a_static_embedding_are_tokenized() {
    let folder = folder();
    let inner = folder.path().join("0_StaticEmbedding");
    std::fs::create_dir(&inner).unwrap();
    std::fs::rename(folder.path().join("tokenizer.json"), inner.join("tokenizer.json")).unwrap();
    std::fs::remove_file(folder.path().join("config.json")).unwrap();
    let modules =
        r#"[{"path": "0_StaticEmbedding", "type": "sentence_transformers.models.StaticEmbedding"}]"#;
    std::fs::write(folder.path().join("modules.json"), modules).unwrap();
    let tokenizer = CheckpointTokenizer::open(folder.path()).unwrap().unwrap();
    let said = tokenizer.tokens("to be", true, None).unwrap();
    assert_eq!(
        said.iter().map(|token| token.text.as_str()).collect::<String>(),
        "to be"
    );
}

/// Texts are prepared as the embedding model does it, although the weights of its modules are absent.
#[test]
fn texts_of_sentence_transformers_are_prepared() {
    let folder = folder();
    let write = |name: &str, json: &str| std::fs::write(folder.path().join(name), json).unwrap();
    write(
        "modules.json",
        r#"[{"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
            {"idx": 1, "name": "1", "path": "1_Dense", "type": "sentence_transformers.models.Dense"}]"#,
    );
    write(
        "sentence_bert_config.json",
        r#"{"max_seq_length": 7, "do_lower_case": true}"#,
    );
    write(
        "config_sentence_transformers.json",
        r#"{"prompts": {"query": "Q: ", "text": "T: "}, "default_prompt_name": "text"}"#,
    );
    let tokenizer = CheckpointTokenizer::open(folder.path()).unwrap().unwrap();
    assert_eq!(tokenizer.context(), Some(7));
    let ids = tokenizer.prompt(&vec![text("text", "To")], true).unwrap();
    assert_eq!(tokenizer.decode(&ids, true).unwrap(), "t: to");
    let tokens = tokenizer.tokens("To", true, Some("query")).unwrap();
    let said: String = tokens.into_iter().map(|token| token.text).collect();
    assert_eq!(said, "Q: To", "as it is written in the text");
}
