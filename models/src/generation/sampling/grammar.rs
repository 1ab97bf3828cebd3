//! Constrained decoding: an answer that must match a grammar is sampled from the tokens that continue a match. Grammars are
//! compiled and followed by llguidance; compiled ones are kept, so that requests of one grammar share them.

mod bounds;
mod schema_options;
mod token_bytes;

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;

use llguidance::api::TopLevelGrammar;
use llguidance::toktrie::{ApproximateTokEnv, SimpleVob, TokEnv, TokRxInfo, TokTrie};
use llguidance::{Matcher, ParserFactory};
use serde_json::Value;
use tokenizers::Tokenizer;

use schema_options::OPTIONS;
pub(crate) use schema_options::{strict, take_strict, with_options};
use token_bytes::token_bytes;

/// Number of compiled grammars that are kept, and of grammars that cannot be compiled.
const MAX_COMPILED: usize = 32;

/// Stack of a thread that compiles a grammar, bytes: llguidance follows references and rules by recursion, and an overflow would end
/// the process.
const STACK: usize = 64 << 20;

/// The token that ends nothing, for a model without an end-of-sequence token.
const NO_END: u32 = u32::MAX;

/// White space between two elements of a JSON document: one space, or a line break with an indentation. A bound, because a
/// model that is unsure may otherwise write white space until its maximum of tokens.
const WHITE_SPACE: &str = r"[ \t]|\r?\n[ \t]{0,20}";

/// White space between two elements of the arguments of a call: programs read them, so they need no line breaks.
pub(crate) const NARROW_SPACE: &str = " ";

/// The word before a JSON Schema within a grammar of Lark.
const JSON: &str = "%json";

/// Format that an answer must match, as a whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Grammar {
    /// A JSON document that is valid under this JSON Schema. Its keys are in the order of the schema.
    JsonSchema(Value),
    /// A regular expression, without look-around and references.
    Regex(String),
    /// One of these texts.
    Choice(Vec<String>),
    /// A grammar in the variant of Lark that llguidance reads.
    Lark(String),
}

/// Compiles the grammars of a model's requests.
pub(crate) struct Grammars {
    /// Size of the model's vocabulary.
    vocabulary: usize,
    /// The end-of-sequence tokens.
    ends: Vec<u32>,
    factory: OnceLock<Result<ParserFactory, String>>,
    compiled: Recent<Matcher>,
    /// Why grammars cannot be compiled.
    failed: Recent<String>,
}

/// What is known of the last used grammars, by their keys, the last used one first.
struct Recent<T>(Mutex<VecDeque<(String, T)>>);

impl<T: Clone> Recent<T> {
    const fn new() -> Self {
        Self(Mutex::new(VecDeque::new()))
    }

    fn get(&self, key: &str) -> Option<T> {
        let mut known = self.lock();
        let at = known.iter().position(|(known, _)| known == key)?;
        let found = known.remove(at)?;
        let value = found.1.clone();
        known.push_front(found);
        Some(value)
    }

    fn put(&self, key: String, value: T) {
        let mut known = self.lock();
        known.push_front((key, value));
        known.truncate(MAX_COMPILED);
    }

    fn forget(&self, key: &str) {
        self.lock().retain(|(known, _)| known != key);
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<(String, T)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The grammar of a request, and how far its answer has got.
pub(crate) struct Constraint(Matcher);

/// The tokens that may come next.
pub(crate) struct AllowedTokens(SimpleVob);

impl Grammars {
    pub(crate) const fn new(vocabulary: usize, ends: Vec<u32>) -> Self {
        Self {
            vocabulary,
            ends,
            factory: OnceLock::new(),
            compiled: Recent::new(),
            failed: Recent::new(),
        }
    }

    /// Compiles a grammar, or takes what is known of it. The first one of a model also indexes its vocabulary, which takes up to a
    /// second.
    ///
    /// # Errors
    /// The reason, for a tokenizer whose tokens have no bytes, a malformed grammar, one that no text matches, a keyword of JSON
    /// Schema that cannot be followed, or a grammar that is too large.
    pub(crate) fn compile(&self, tokenizer: &Tokenizer, grammar: &Grammar) -> Result<(), String> {
        self.constraint(tokenizer, grammar).map(|_| ())
    }

    /// Begins an answer that must match a grammar.
    ///
    /// # Errors
    /// As [`compile`](Self::compile).
    pub(crate) fn constraint(&self, tokenizer: &Tokenizer, grammar: &Grammar) -> Result<Constraint, String> {
        let key = key(grammar);
        if let Some(matcher) = self.compiled.get(&key) {
            return Ok(Constraint(matcher));
        }
        if let Some(reason) = self.failed.get(&key) {
            return Err(reason);
        }
        bounds::check(grammar)?;
        let factory = self.factory.get_or_init(|| self.factory(tokenizer)).as_ref();
        let factory = factory.map_err(Clone::clone)?;
        let matcher = thread::scope(|scope| {
            let compiling = thread::Builder::new()
                .name("grammar".to_owned())
                .stack_size(STACK);
            let compiling = compiling.spawn_scoped(scope, || matcher(factory, grammar));
            let compiling = compiling
                .map_err(|error| format!("cannot start a thread to compile the grammar: {error}"))?;
            compiling
                .join()
                .unwrap_or_else(|_| Err("it cannot be compiled".to_owned()))
                // A thread that could not start says nothing about the grammar.
                .inspect_err(|reason| self.failed.put(key.clone(), reason.clone()))
        })?;
        self.compiled.put(key, matcher.clone());
        Ok(Constraint(matcher))
    }

    /// Drops a compiled grammar that could not be followed, so that the next answer compiles it again. Its copies share a lexer, which
    /// stays in its error.
    pub(crate) fn forget(&self, grammar: &Grammar) {
        self.compiled.forget(&key(grammar));
    }

    fn factory(&self, tokenizer: &Tokenizer) -> Result<ParserFactory, String> {
        let tokens = token_bytes(tokenizer, self.vocabulary)?;
        let size = u32::try_from(tokens.len()).map_err(|_| "the vocabulary is too large".to_owned())?;
        let ends: Vec<u32> = self.ends.iter().copied().filter(|end| *end < size).collect();
        let first_end = ends.first().copied().unwrap_or(NO_END);
        let mut trie = TokTrie::from(&TokRxInfo::new(size, first_end), &tokens);
        if !ends.is_empty() {
            trie = trie.with_eos_tokens(&ends);
        }
        let environment: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
        let mut factory = ParserFactory::new_simple(&environment).map_err(|error| error.to_string())?;
        factory.quiet();
        factory.limits_mut().verbose_errors = false;
        Ok(factory)
    }
}

/// Compiles a grammar.
fn matcher(factory: &ParserFactory, grammar: &Grammar) -> Result<Matcher, String> {
    let mut matcher = Matcher::new(factory.create_parser(top_level(grammar)?));
    // A grammar that is malformed, or that no text matches, has no first token.
    if let Err(error) = matcher.compute_mask() {
        return Err(reason(&error.to_string()));
    }
    Ok(matcher)
}

/// Returns a message of llguidance as a reason. A matcher that failed no longer states why it stopped, so that the message alone says
/// that no token may come next.
fn reason(message: &str) -> String {
    let message = message.trim_end().trim_end_matches("<non-verbose/>").trim_end();
    if message == "NoExtensionBias" {
        return "no text of this model's vocabulary matches it".to_owned();
    }
    message.to_owned()
}

/// Returns the text by which a compiled grammar is found. Two schemas are equal whatever the order of their keys, and answers have
/// their keys in that order, so that schemas cannot be compared.
fn key(grammar: &Grammar) -> String {
    format!("{grammar:?}")
}

/// Returns a grammar as llguidance reads it.
fn top_level(grammar: &Grammar) -> Result<TopLevelGrammar, String> {
    Ok(match grammar {
        Grammar::JsonSchema(schema) => {
            if !schema.is_object() {
                return Err("a JSON Schema must be an object".to_owned());
            }
            TopLevelGrammar::from_json_schema(with_options(schema.clone(), WHITE_SPACE))
        }
        Grammar::Regex(regex) => TopLevelGrammar::from_regex(regex),
        Grammar::Choice(texts) => {
            if texts.is_empty() {
                return Err("it has no texts to choose from".to_owned());
            }
            let texts = texts.iter().map(|text| Value::from(text.as_str()).to_string());
            let texts: Vec<String> = texts.collect();
            // One token of the grammar: a rule of more than 2,000 alternatives could not be followed.
            TopLevelGrammar::from_lark(format!("start: CHOICE\nCHOICE: {}", texts.join(" | ")))
        }
        Grammar::Lark(grammar) => TopLevelGrammar::from_lark(with_bounded_schemas(grammar)),
    })
}

/// Returns a grammar of Lark whose JSON Schemas bound their white space, as [`with_options`] sets it; one that states options keeps them.
fn with_bounded_schemas(grammar: &str) -> String {
    let (mut out, mut rest) = (String::new(), grammar);
    while let Some(at) = rest.find(JSON) {
        let (before, behind) = rest.split_at(at + JSON.len());
        out += before;
        let mut documents = serde_json::Deserializer::from_str(behind).into_iter::<Value>();
        let schema = documents.next().and_then(Result::ok);
        let schema = schema.filter(|schema| schema.is_object() && schema.get(OPTIONS).is_none());
        let line = out.rsplit('\n').next().unwrap_or_default();
        // Behind an odd number of quotes, the word is within a text.
        let is_text = line.replace("\\\\", "").replace("\\\"", "").matches('"').count() % 2 == 1;
        rest = match schema {
            Some(schema) if !is_text => {
                out.push(' ');
                out += &with_options(schema, WHITE_SPACE).to_string();
                behind.get(documents.byte_offset()..).unwrap_or_default()
            }
            _ => behind,
        };
    }
    out + rest
}

impl Constraint {
    /// Returns the tokens that may come next; end-of-sequence tokens are among them where the answer is complete.
    ///
    /// # Errors
    /// The reason, if the grammar takes too much time or memory here.
    pub(crate) fn allowed(&mut self) -> Result<AllowedTokens, String> {
        let mask = self.0.compute_mask_or_eos();
        mask.map(AllowedTokens)
            .map_err(|error| reason(&error.to_string()))
    }

    /// Takes the next token. Returns whether the answer is complete and nothing can follow.
    ///
    /// # Errors
    /// The reason, if the token is not allowed.
    pub(crate) fn push(&mut self, token: u32) -> Result<bool, String> {
        let result = self.0.consume_token(token);
        result.map_err(|error| reason(&error.to_string()))?;
        Ok(self.0.is_stopped())
    }
}

impl AllowedTokens {
    pub(crate) fn contains(&self, token: usize) -> bool {
        token < self.0.len() && self.0.get(token)
    }
}

#[cfg(test)]
mod tests;
