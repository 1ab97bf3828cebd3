//! Constrained decoding: samples an answer under a grammar from the tokens that continue a match. llguidance compiles
//! and follows grammars; compiled grammars are cached, so that requests with the same grammar share them.

mod bounds;
mod schema_options;
mod token_bytes;

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;

use llguidance::api::{GrammarWithLexer, TopLevelGrammar};
use llguidance::toktrie::{ApproximateTokEnv, SimpleVob, TokEnv, TokRxInfo, TokTrie};
use llguidance::{Matcher, ParserFactory};
use serde_json::Value;
use tokenizers::Tokenizer;

use schema_options::OPTIONS;
pub(crate) use schema_options::{strict, take_strict, with_options};
use token_bytes::token_bytes;

/// Number of compiled grammars to cache, and of grammars that failed to compile.
const MAX_COMPILED: usize = 32;

/// Stack size of a thread that compiles a grammar, bytes: llguidance follows references and rules recursively, and a
/// stack overflow would abort the process.
const STACK: usize = 64 << 20;

/// Placeholder for the EOS token of a model without one.
const NO_END: u32 = u32::MAX;

/// Allowed white space between two elements of a JSON document: a space, or a line break with indentation. Bounded,
/// because an uncertain model may otherwise generate white space until `max_tokens`.
const WHITE_SPACE: &str = r"[ \t]|\r?\n[ \t]{0,20}";

/// Allowed white space between two elements of call arguments: programs read them, so line breaks are not needed.
pub(crate) const NARROW_SPACE: &str = " ";

/// Name of the format beside calls.
const FORMAT: &str = "format";

/// Keyword before a JSON Schema in a Lark grammar.
const JSON: &str = "%json";

/// Format that the whole answer must match.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Grammar {
    /// A JSON document that is valid under this JSON Schema, with keys in the order of the schema.
    JsonSchema(Value),
    /// A regular expression, without look-around and backreferences.
    Regex(String),
    /// One of these texts.
    Choice(Vec<String>),
    /// A grammar in llguidance's variant of Lark.
    Lark(String),
    /// A format, or calls of tools.
    FormatOrCalls {
        /// The format.
        format: Box<Grammar>,
        /// Rules of Lark of which the rule `calls` describes the calls.
        calls: String,
    },
}

/// Compiles and caches the grammars of a model's requests.
pub(crate) struct Grammars {
    /// Size of the model's vocabulary.
    vocabulary: usize,
    /// EOS tokens.
    ends: Vec<u32>,
    factory: OnceLock<Result<ParserFactory, String>>,
    compiled: Recent<Matcher>,
    /// Reasons why grammars failed to compile.
    failed: Recent<String>,
}

/// Cache of recently used grammars by key, most recent first.
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

/// State of an answer in its grammar.
pub(crate) struct Constraint(Matcher);

/// The tokens that are allowed next.
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

    /// Compiles a grammar, unless its result is cached. The first grammar of a model also indexes the vocabulary,
    /// which takes up to a second.
    ///
    /// # Errors
    /// The reason, for a tokenizer without byte representation, a malformed grammar, a grammar that no text matches,
    /// an unsupported JSON Schema keyword, or a grammar that is too large.
    pub(crate) fn compile(&self, tokenizer: &Tokenizer, grammar: &Grammar) -> Result<(), String> {
        self.constraint(tokenizer, grammar).map(|_| ())
    }

    /// Starts an answer that must match a grammar.
    ///
    /// # Errors
    /// Same as [`compile`](Self::compile).
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
                // A failure to start the thread is not a property of the grammar.
                .inspect_err(|reason| self.failed.put(key.clone(), reason.clone()))
        })?;
        self.compiled.put(key, matcher.clone());
        Ok(Constraint(matcher))
    }

    /// Drops a compiled grammar that failed, so that the next answer compiles it again. Its copies share a lexer,
    /// which stays in the error state.
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
    // A malformed grammar, or one that no text matches, has no first token.
    if let Err(error) = matcher.compute_mask() {
        return Err(reason(&error.to_string()));
    }
    Ok(matcher)
}

/// Converts a message of llguidance to a reason. After a failure, a matcher reports no cause, so the message says only
/// that no token is allowed.
fn reason(message: &str) -> String {
    let message = message.trim_end().trim_end_matches("<non-verbose/>").trim_end();
    if message == "NoExtensionBias" {
        return "no text of this model's vocabulary matches it".to_owned();
    }
    message.to_owned()
}

/// Returns the cache key of a grammar. Schemas are compared as text, because `Value` ignores the order of keys, which
/// determines the order in answers.
fn key(grammar: &Grammar) -> String {
    format!("{grammar:?}")
}

/// Converts a grammar to llguidance's representation.
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
            // A single lexer token, because a rule with more than 2,000 alternatives cannot be followed.
            TopLevelGrammar::from_lark(format!("start: CHOICE\nCHOICE: {}", texts.join(" | ")))
        }
        Grammar::Lark(grammar) => TopLevelGrammar::from_lark(with_bounded_schemas(grammar)),
        Grammar::FormatOrCalls { format, calls } => {
            let mut either = TopLevelGrammar::from_lark(format!("start: @{FORMAT} | calls\n{calls}"));
            let format = top_level(format)?.grammars.into_iter();
            either.grammars.extend(format.map(|format| GrammarWithLexer {
                name: Some(FORMAT.to_owned()),
                ..format
            }));
            either
        }
    })
}

/// Bounds the white space in the JSON Schemas of a Lark grammar, as set by [`with_options`]; schemas with options keep
/// them.
fn with_bounded_schemas(grammar: &str) -> String {
    let (mut out, mut rest) = (String::new(), grammar);
    while let Some(at) = rest.find(JSON) {
        let (before, behind) = rest.split_at(at + JSON.len());
        out += before;
        let mut documents = serde_json::Deserializer::from_str(behind).into_iter::<Value>();
        let schema = documents.next().and_then(Result::ok);
        let schema = schema.filter(|schema| schema.is_object() && schema.get(OPTIONS).is_none());
        let line = out.rsplit('\n').next().unwrap_or_default();
        // After an odd number of quotes, the keyword is inside a string.
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
    /// Returns the tokens that are allowed next; they include EOS tokens if the answer may end here.
    ///
    /// # Errors
    /// The reason, if the grammar takes too much time or memory.
    pub(crate) fn allowed(&mut self) -> Result<AllowedTokens, String> {
        let mask = self.0.compute_mask_or_eos();
        mask.map(AllowedTokens)
            .map_err(|error| reason(&error.to_string()))
    }

    /// Consumes the next token. Returns whether the answer is complete and cannot continue.
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
