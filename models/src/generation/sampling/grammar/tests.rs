use super::*;
use crate::checkpoint::TokenRules;
use crate::generation::detokenizer::{self, Detokenizer};
use crate::generation::fixtures;
use crate::generation::sampling::token_rules::TextSoFar;
use crate::generation::sampling::{Sampler, Sampling};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::json;

/// The first token is EOS.
const END: u32 = 0;

/// Builds a byte-level tokenizer with all bytes.
fn byte_level() -> Tokenizer {
    detokenizer::tokenizer(
        &fixtures::checkpoint("roberta-token-classification")
            .tokenizer
            .unwrap(),
    )
    .unwrap()
}

/// Builds a tokenizer like that of Llama 2.
fn sentence_piece() -> Tokenizer {
    let bytes = (0..=u8::MAX).map(|byte| format!("<0x{byte:02X}>"));
    let pieces = ["▁", "a", "▁good", "b", "{\"", "\":", "▁\"", "Zü", "99"].map(ToOwned::to_owned);
    tokenizer_of(bytes.chain(pieces))
}

/// Builds a tokenizer with an EOS token and these pieces.
fn tokenizer_of(pieces: impl Iterator<Item = String>) -> Tokenizer {
    let tokens = std::iter::once("</s>".to_owned()).chain(pieces);
    let vocabulary: serde_json::Map<String, Value> = tokens
        .zip(0..)
        .map(|(token, id)| (token, Value::from(id)))
        .collect();
    let space = json!({"type": "Replace", "pattern": {"String": "▁"}, "content": " "});
    let json = json!({
        "version": "1.0",
        "added_tokens": [{"id": 0, "content": "</s>", "special": true, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false}],
        "decoder": {"type": "Sequence", "decoders": [space, {"type": "ByteFallback"}, {"type": "Fuse"}]},
        "model": {"type": "BPE", "vocab": vocabulary, "merges": [], "byte_fallback": true},
    });
    Tokenizer::from_bytes(json.to_string()).unwrap()
}

fn grammars(tokenizer: &Tokenizer) -> Grammars {
    Grammars::new(tokenizer.get_vocab_size(true) + 5, vec![END])
}

/// Returns the answer of a model with random logits; `None` if it does not end within 600 tokens.
fn answer(tokenizer: &Tokenizer, grammars: &Grammars, grammar: &Grammar, seed: u64) -> Option<String> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut constraint = grammars.constraint(tokenizer, grammar).unwrap();
    let (mut sampler, mut written, mut text) = (Sampler::new(seed), Detokenizer::default(), String::new());
    let sampling = Sampling {
        temperature: (seed % 2) as f32,
        ..Sampling::default()
    };
    for _ in 0..600 {
        let logits: Vec<f32> = (0..grammars.vocabulary)
            .map(|_| rng.random_range(-4.0..4.0))
            .collect();
        let allowed = constraint.allowed().unwrap();
        let (rules, so_far) = (TokenRules::default(), TextSoFar::default());
        let drawn = sampler
            .sample(&logits, &sampling, &rules, &so_far, Some(&allowed))
            .unwrap();
        assert!(allowed.contains(drawn.token as usize) && drawn.confidence <= 1.0);
        let complete = drawn.token == END || constraint.push(drawn.token).unwrap();
        if drawn.token != END {
            text += &written.push(drawn.token, tokenizer, &[]).0;
        }
        if complete {
            return Some(text + &written.finish(tokenizer));
        }
    }
    None
}

#[test]
fn calls_may_begin_with_a_special_token() {
    let tokenizer = sentence_piece();
    // The end-of-sequence token is the only special one.
    let grammars = Grammars::new(tokenizer.get_vocab_size(true) + 5, vec![NO_END]);
    let grammar = Grammar::FormatOrCalls {
        format: Box::new(Grammar::Choice(vec!["a".to_owned()])),
        calls: format!("calls: <[{END}]> part*\npart: TEXT | <[{END}]>\nTEXT: /(.|\\n)+/\n"),
    };
    let id = |token: &str| tokenizer.token_to_id(token).unwrap();
    let (a, b) = (id("a"), id("b"));
    let mut constraint = grammars.constraint(&tokenizer, &grammar).unwrap();
    let first = constraint.allowed().unwrap();
    let allowed = [END, a, b].map(|token| first.contains(token as usize));
    assert_eq!(allowed, [true, true, false]);
    for token in [END, b, END, b] {
        assert!(!constraint.push(token).unwrap());
        let next = constraint.allowed().unwrap();
        assert!([END, a, b].into_iter().all(|token| next.contains(token as usize)));
    }
}

#[test]
fn a_grammar_that_the_vocabulary_cannot_write_is_refused() {
    let tokenizer = tokenizer_of(["▁", "a"].map(ToOwned::to_owned).into_iter());
    let grammars = Grammars::new(3, vec![END]);
    let compiled = |regex: &str| grammars.compile(&tokenizer, &Grammar::Regex(regex.to_owned()));
    assert_eq!(compiled("a+"), Ok(()));
    let refused = compiled("[0-9]+").unwrap_err();
    assert_eq!(refused, "no text of this model's vocabulary matches it");
    assert_eq!(reason("too many states\n<non-verbose/>"), "too many states");
}

/// Regression: the model's thread compiled it again after the preprocessing thread.
#[test]
fn a_grammar_that_cannot_be_compiled_is_compiled_once() {
    let tokenizer = tokenizer_of(["▁", "a"].map(ToOwned::to_owned).into_iter());
    let grammars = Grammars::new(3, vec![END]);
    let compiled = |regex: &str| grammars.compile(&tokenizer, &Grammar::Regex(regex.to_owned()));
    compiled("[0-9]+").unwrap_err();
    grammars.failed.lock()[0].1 = "as before".to_owned();
    assert_eq!(compiled("[0-9]+"), Err("as before".to_owned()));
    assert_eq!(compiled("a+"), Ok(()));
    for digits in 1..=MAX_COMPILED {
        compiled(&format!("[0-9]{{{digits}}}")).unwrap_err();
    }
    assert_eq!(grammars.failed.lock().len(), MAX_COMPILED);
    assert_ne!(compiled("[0-9]+"), Err("as before".to_owned()), "it made room");
}

#[test]
fn answers_of_random_models_match() {
    let schema = json!({
        "type": "object",
        "properties": {
            "where": {"enum": ["Paris", "Oslo", "Zürich"]},
            "days": {"type": "integer", "minimum": 0, "maximum": 99},
            "at": {"$ref": "#/$defs/at"},
            "kind": {"oneOf": [{"const": "sun"}, {"type": "boolean"}]},
        },
        "required": ["where", "days", "at", "kind"],
        "additionalProperties": false,
        "$defs": {"at": {"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 3}},
    });
    let keys = ["where", "days", "at", "kind"];
    for (name, tokenizer) in [("bytes", byte_level()), ("pieces", sentence_piece())] {
        let grammars = grammars(&tokenizer);
        let ask = |grammar: &Grammar, seed| answer(&tokenizer, &grammars, grammar, seed).unwrap();
        for seed in 0..20 {
            let text = ask(&Grammar::JsonSchema(schema.clone()), seed);
            let value: Value =
                serde_json::from_str(&text).unwrap_or_else(|error| panic!("{name} {seed}: {text}: {error}"));
            let object = value.as_object().unwrap();
            assert!(
                object.keys().eq(keys),
                "{name} {text}: keys in the order of the schema"
            );
            assert!(
                ["Paris", "Oslo", "Zürich"].contains(&value["where"].as_str().unwrap()),
                "{text}"
            );
            assert!(
                value["days"].as_u64().unwrap() <= 99
                    && (1..=3).contains(&value["at"].as_array().unwrap().len()),
                "{text}"
            );
            let choice = ask(&Grammar::Choice(vec!["good".into(), "not \"good\"".into()]), seed);
            assert!(["good", "not \"good\""].contains(&choice.as_str()), "{choice}");
            let code = ask(&Grammar::Regex("[A-Z]{2}-[0-9]{3}".into()), seed);
            assert!(code.len() == 6 && code.as_bytes()[2] == b'-', "{code}");
            let lark = ask(&Grammar::Lark("start: \"a\" /b{1,4}/ \"c\"".into()), seed);
            assert!(lark.starts_with("ab") && lark.ends_with("bc"), "{lark}");
        }
    }
}

#[test]
fn white_space_is_bounded() {
    let tokenizer = byte_level();
    let grammars = grammars(&tokenizer);
    let space = tokenizer.token_to_id("\u{120}").unwrap();
    let schema = json!({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]});
    let within = format!("# the \"word\"\nstart: %json {schema}\n");
    for grammar in [
        Grammar::JsonSchema(json!({"type": "object"})),
        Grammar::JsonSchema(schema),
        Grammar::Lark(within),
    ] {
        let mut constraint = grammars.constraint(&tokenizer, &grammar).unwrap();
        assert!(!constraint.push(tokenizer.token_to_id("{").unwrap()).unwrap());
        assert!(constraint.allowed().unwrap().contains(space as usize));
        constraint.push(space).unwrap();
        assert!(
            !constraint.allowed().unwrap().contains(space as usize),
            "{grammar:?}"
        );
    }
}

#[test]
fn grammars_without_a_schema_to_bound_stay_as_they_are() {
    for grammar in [
        "start: \"a\"",
        r#"start: "%json {}""#,
        r#"start: "\"" "%json {}""#,
        r#"start: %json {"type": "object", "x-guidance": {"whitespace_flexible": false}}"#,
        "start: %json 7",
    ] {
        assert_eq!(with_bounded_schemas(grammar), grammar);
    }
    let bounded = with_bounded_schemas(r#"start: %json {"type": "null"} | "\"" b"#);
    assert!(
        bounded.contains("whitespace_pattern") && bounded.ends_with(r#" | "\"" b"#),
        "{bounded}"
    );
}

/// Pydantic and generators of `OpenAPI` documents write such schemas.
#[test]
fn keywords_that_cannot_be_followed_are_refused_of_strict_schemas_alone() {
    let tokenizer = byte_level();
    let grammars = grammars(&tokenizer);
    let compiled = |schema: &Value| grammars.compile(&tokenizer, &Grammar::JsonSchema(schema.clone()));
    for schema in [
        json!({"type": "array", "items": {"type": "integer"}, "uniqueItems": true}),
        json!({"type": "object", "propertyNames": {"pattern": "^a"}}),
        json!({"type": "integer", "not": {"const": 3}}),
        json!({"type": "object", "if": {"required": ["a"]}, "then": {"required": ["b"]}}),
        json!({"type": "array", "contains": {"const": 1}}),
        json!({"type": "object", "dependentRequired": {"a": ["b"]}}),
    ] {
        assert_eq!(compiled(&schema), Ok(()), "{schema}");
        let refused = compiled(&strict(schema.clone())).unwrap_err();
        assert!(refused.contains("Unimplemented keys"), "{schema}: {refused}");
        let mut own = schema.clone();
        own[OPTIONS] = json!({"lenient": false, "item_separator": ", "});
        assert!(compiled(&own).is_err(), "the options of a schema remain");
    }
    for format in ["password", "path", "binary", "uuid4", "int32", "float", "decimal"] {
        let schema =
            json!({"type": "object", "properties": {"format": {"type": "string", "format": format}}});
        assert_eq!(compiled(&schema), Ok(()), "{format}");
        assert_eq!(compiled(&strict(schema)), Ok(()), "{format}, strict");
    }
    let constant = with_options(
        strict(json!({"const": {"format": "x"}, "format": "x"})),
        WHITE_SPACE,
    );
    assert_eq!(constant["const"], json!({"format": "x"}));
    assert_eq!(constant.get("format"), None);
}

#[test]
fn what_cannot_be_followed_is_refused_with_a_reason() {
    let tokenizer = byte_level();
    let grammars = grammars(&tokenizer);
    for grammar in [
        Grammar::JsonSchema(json!(7)),
        Grammar::JsonSchema(json!({"type": "nothing"})),
        Grammar::JsonSchema(json!({"type": "string", "pattern": "("})),
        Grammar::JsonSchema(json!({"$ref": "#/$defs/missing"})),
        Grammar::JsonSchema(json!({"$ref": "https://example.com/schema.json"})),
        Grammar::JsonSchema(json!({"type": "integer", "minimum": 5, "maximum": 4})),
        Grammar::Regex("(".into()),
        Grammar::Regex("(?=a)b".into()),
        Grammar::Choice(Vec::new()),
        Grammar::Lark("start: missing".into()),
        Grammar::Lark(String::new()),
    ] {
        let refused = grammars.compile(&tokenizer, &grammar).unwrap_err();
        assert!(
            !refused.is_empty() && refused.len() < 1_000,
            "{grammar:?}: {refused}"
        );
    }
}

#[test]
fn compiled_grammars_are_kept_and_do_not_share_their_answers() {
    let tokenizer = byte_level();
    let grammars = grammars(&tokenizer);
    for number in 0..(2 * MAX_COMPILED) {
        grammars
            .compile(&tokenizer, &Grammar::Choice(vec![number.to_string()]))
            .unwrap();
    }
    assert_eq!(grammars.compiled.lock().len(), MAX_COMPILED);
    let grammar = Grammar::Choice(vec!["ab".into()]);
    let token = |text: &str| tokenizer.token_to_id(text).unwrap();
    let mut one = grammars.constraint(&tokenizer, &grammar).unwrap();
    one.push(token("a")).unwrap();
    let mut other = grammars.constraint(&tokenizer, &grammar).unwrap();
    assert!(other.allowed().unwrap().contains(token("a") as usize));
    assert!(one.push(token("b")).unwrap(), "nothing can follow");
    assert!(other.push(token("b")).is_err());
}

#[test]
fn a_choice_may_have_many_texts_and_texts_that_begin_others() {
    let tokenizer = byte_level();
    let grammars = grammars(&tokenizer);
    let texts: Vec<String> = (0..5_000).map(|number| format!("w{number}")).collect();
    for seed in 0..4 {
        let said = answer(&tokenizer, &grammars, &Grammar::Choice(texts.clone()), seed).unwrap();
        assert!(texts.contains(&said), "{said}");
    }
    let mut said: Vec<String> = (0..40)
        .map(|seed| {
            answer(
                &tokenizer,
                &grammars,
                &Grammar::Choice(vec!["a".into(), "ab".into()]),
                seed,
            )
            .unwrap()
        })
        .collect();
    said.sort_unstable();
    said.dedup();
    assert_eq!(said, ["a", "ab"]);
}

/// Without a larger stack, each of these would overflow it and abort the process.
#[test]
fn long_chains_of_references_are_compiled() {
    let tokenizer = byte_level();
    let grammars = grammars(&tokenizer);
    let chain = |count: usize, link: &dyn Fn(Value) -> Value| {
        let links = (0..count).map(|at| {
            (
                format!("d{at}"),
                link(json!({"$ref": format!("#/$defs/d{}", at + 1)})),
            )
        });
        let last = [(format!("d{count}"), json!({"type": "boolean"}))];
        let definitions: serde_json::Map<String, Value> = links.chain(last).collect();
        Grammar::JsonSchema(json!({"$defs": definitions, "$ref": "#/$defs/d0"}))
    };
    let rules = |name: &str| {
        let lines = (0..4_000).map(|at| format!("{name}{at}: {name}{}\n", at + 1));
        Grammar::Lark(format!(
            "start: {name}0\n{}{name}4000: \"x\"\n",
            lines.collect::<String>()
        ))
    };
    for grammar in [
        chain(1_900, &|next| next),
        chain(900, &|next| json!({"type": "array", "items": next})),
        chain(
            390,
            &|next| json!({"type": "object", "properties": {"a": next}, "required": ["a"]}),
        ),
        rules("r"),
        rules("T"),
    ] {
        grammars.compile(&tokenizer, &grammar).unwrap();
        let mut constraint = grammars.constraint(&tokenizer, &grammar).unwrap();
        let allowed = constraint.allowed().unwrap();
        let first = (1..256).find(|token| allowed.contains(*token)).unwrap();
        constraint.push(first as u32).unwrap();
    }
}

/// Returns a schema with only one possible order of keys.
fn of_two_keys(keys: [&str; 2]) -> Grammar {
    let [first, second] = keys;
    Grammar::JsonSchema(json!({
        "type": "object", "properties": {first: {"const": 1}, second: {"const": 1}}, "required": keys, "additionalProperties": false,
    }))
}

#[test]
fn schemas_that_differ_in_the_order_of_their_keys_are_compiled_apart() {
    let tokenizer = byte_level();
    let grammars = grammars(&tokenizer);
    for keys in [["why", "verdict"], ["verdict", "why"]] {
        let text = answer(&tokenizer, &grammars, &of_two_keys(keys), 1).unwrap();
        let value: serde_json::Map<String, Value> = serde_json::from_str(&text).unwrap();
        assert!(value.keys().eq(keys), "{keys:?}: {text}");
    }
}

#[test]
fn a_grammar_that_could_not_be_followed_is_compiled_again_for_the_next_answer() {
    let tokenizer = byte_level();
    let grammars = grammars(&tokenizer);
    let token = |text: &str| tokenizer.token_to_id(text).unwrap();
    // After `x` and several `a`, a step exceeds the maximum number of states.
    let grammar = Grammar::Regex("y|x((((a{0,100}){0,100}){0,100}){0,100}){0,100}".into());
    let mut failing = grammars.constraint(&tokenizer, &grammar).unwrap();
    failing.push(token("x")).unwrap();
    let failed = (0..100).any(|_| failing.allowed().is_err() || failing.push(token("a")).is_err());
    assert!(failed, "the grammar was followed");
    grammars.forget(&grammar);
    let mut next = grammars.constraint(&tokenizer, &grammar).unwrap();
    assert!(next.allowed().unwrap().contains(token("y") as usize));
}

#[test]
fn the_only_allowed_token_is_certain() {
    let tokenizer = byte_level();
    let grammars = grammars(&tokenizer);
    let mut constraint = grammars
        .constraint(&tokenizer, &Grammar::Choice(vec!["a".into()]))
        .unwrap();
    let allowed = constraint.allowed().unwrap();
    let logits = vec![0.0; grammars.vocabulary];
    let (rules, so_far) = (TokenRules::default(), TextSoFar::default());
    let sampled = Sampler::new(0)
        .sample(&logits, &Sampling::default(), &rules, &so_far, Some(&allowed))
        .unwrap();
    assert!(
        (sampled.confidence - 1.0).abs() < 1e-6 && sampled.probability < 0.1,
        "{sampled:?}"
    );
}
