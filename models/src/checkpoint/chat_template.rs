//! Chat templates: Jinja templates that turn messages into a prompt, as transformers' `apply_chat_template` does.
//!
//! The template is `chat_template.jinja`, or `chat_template` in `chat_template.json`, `processor_config.json` or
//! `tokenizer_config.json`: a text, or a list of named templates, of which `default` is used, and `tool_use` for requests with tools. The
//! files `default.jinja` and `tool_use.jinja` of `additional_chat_templates` are such templates, too. A template that reads a list of
//! parts, as those of models that also read images do, gets the text of a message as its only part; another one gets several parts
//! as a text, one a line. `strftime_now` gives the date in UTC. A template that takes a date of its own, such as `date_string` of
//! Llama 3, gives the same prompt every day if the request states it in `chat_template_kwargs`.

mod json;

use std::borrow::Cow;
use std::path::{Path, PathBuf};

use minijinja::{Environment, Error, ErrorKind, Value, context};
use serde::Serialize;
use thiserror::Error;
use time::OffsetDateTime;

use super::dates::format_date;
use super::{Config, LoadError, MAX_CONFIG, read_capped, tekken};

/// Name of the template in its environment.
const NAME: &str = "chat_template";
/// Maximum instructions of a rendering.
const FUEL: u64 = 2_000_000;
/// Key of a message that holds calls of tools.
const CALLS: &str = "tool_calls";
/// Folder of templates with other names than the default one.
const ADDITIONAL: &str = "additional_chat_templates";
/// A text that no template has.
const PROBE: &str = "kaskade probe";

/// A message of a chat.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Message {
    /// Who speaks: `system`, `user`, `assistant`, `tool`, or what the template knows.
    pub role: String,
    /// The text, or its parts.
    pub content: Content,
    /// What else the template may read, such as `tool_calls`, `tool_call_id` and `name`.
    pub further: serde_json::Map<String, serde_json::Value>,
}

/// Content of a message.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Content {
    /// There is none: the message has calls of tools only.
    #[default]
    None,
    /// A text.
    Text(String),
    /// Texts that a client sent as parts.
    Parts(Vec<String>),
}

impl Content {
    /// Returns the text, with a line break between two parts, as vLLM has it; empty if there is none.
    pub fn text(&self) -> Cow<'_, str> {
        match self {
            Self::None => Cow::Borrowed(""),
            Self::Text(text) => Cow::Borrowed(text),
            Self::Parts(parts) => Cow::Owned(parts.join("\n")),
        }
    }

    /// Returns what a template reads.
    fn value(&self, by_parts: bool, knows_none: bool) -> Value {
        let part = |text: &str| context! { type => "text", text };
        match self {
            Self::None if knows_none => Value::from(()),
            Self::Parts(parts) if by_parts => parts.iter().map(|text| part(text)).collect(),
            content if by_parts => Value::from(vec![part(&content.text())]),
            content => Value::from(content.text().as_ref()),
        }
    }
}

impl<T: Into<String>> From<T> for Content {
    fn from(text: T) -> Self {
        Self::Text(text.into())
    }
}

/// Why messages gave no prompt.
#[derive(Debug, Error)]
pub enum TemplateError {
    /// The checkpoint has no template.
    #[error(
        "this checkpoint has no chat template (chat_template.jinja, or `chat_template` in tokenizer_config.json); \
         send a prompt as `text`, over HTTP to `/v1/completions`"
    )]
    Missing,
    /// The template does not write the tools.
    #[error("this checkpoint's chat template does not support tools; leave `tools` out")]
    NoTools,
    /// The template is malformed, or rejects the messages.
    #[error("the chat template failed: {0}")]
    Failed(String),
}

/// The special tokens of a tokenizer, as texts.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
#[expect(clippy::struct_field_names, reason = "names of the template's variables")]
pub struct SpecialTokens {
    /// Begins a text.
    pub bos_token: Option<String>,
    /// Ends a text.
    pub eos_token: Option<String>,
    /// Stands for unknown text.
    pub unk_token: Option<String>,
    /// Pads a text.
    pub pad_token: Option<String>,
}

/// The chat template of a checkpoint, if it has one, and its special tokens.
#[derive(Debug, Clone, Default)]
pub struct ChatTemplate {
    source: Option<String>,
    /// The template for requests with tools, if it is another one.
    with_tools: Option<String>,
    /// Whether the content of a message is a list of parts.
    by_parts: bool,
    /// The special tokens.
    pub special: SpecialTokens,
}

impl ChatTemplate {
    /// Reads the chat template and the special tokens of a directory.
    ///
    /// # Errors
    /// [`LoadError`] for a file that is unreadable, too large or malformed.
    pub(super) fn open(dir: &Path) -> Result<Self, LoadError> {
        let parsed = |name: &str| -> Result<Option<Config>, LoadError> {
            let file = dir.join(name);
            if !file.exists() {
                return Ok(None);
            }
            let json = read_capped(&file, MAX_CONFIG)?;
            Config::parse(file.display().to_string(), &json).map(Some)
        };
        let tokenizer = parsed("tokenizer_config.json")?;
        let special = match &tokenizer {
            Some(tokenizer) => Some(special_tokens(tokenizer)?),
            None => tekken::special_tokens(dir),
        };
        let written = |file: PathBuf| -> Result<Option<String>, LoadError> {
            if !file.is_file() {
                return Ok(None);
            }
            Ok(Some(
                String::from_utf8_lossy(&read_capped(&file, MAX_CONFIG)?).into_owned(),
            ))
        };
        let whole = written(dir.join("chat_template.jinja"))?;
        let default = written(dir.join(ADDITIONAL).join("default.jinja"))?;
        let tool_use = written(dir.join(ADDITIONAL).join("tool_use.jinja"))?;
        let [source, with_tools] = if whole.is_some() || default.is_some() {
            // Files come before what a configuration states, all of it.
            [default.or(whole), tool_use]
        } else {
            let files = [
                parsed("chat_template.json")?,
                parsed("processor_config.json")?,
                tokenizer,
            ];
            let mut sources = files.iter().flatten().map(templates);
            let first = sources.find(|source| !matches!(source, Ok([None, None])));
            let [source, with_tools] = first.transpose()?.unwrap_or_default();
            [source, tool_use.or(with_tools)]
        };
        let mut template = Self::new(source, special.unwrap_or_default());
        template.with_tools = with_tools.map(|source| without_marks(&source));
        Ok(template)
    }

    /// Creates a template from its source, if there is one.
    pub(super) fn new(source: Option<String>, special: SpecialTokens) -> Self {
        let mut template = Self {
            source: source.map(|source| without_marks(&source)),
            with_tools: None,
            by_parts: false,
            special,
        };
        template.by_parts = !template.shows_probe() && {
            template.by_parts = true;
            template.shows_probe()
        };
        template
    }

    /// Whether the text of a message is in its prompt.
    fn shows_probe(&self) -> bool {
        let message = Message {
            role: "user".to_owned(),
            content: PROBE.into(),
            ..Message::default()
        };
        self.render(&[message], &[], &serde_json::Map::new())
            .is_ok_and(|rendered| rendered.contains(PROBE))
    }

    /// The template for requests with tools.
    pub fn source_with_tools(&self) -> Option<&str> {
        self.with_tools.as_deref().or(self.source.as_deref())
    }

    /// Renders the prompt for the answer to messages, with tools as the API of `OpenAI` has them and further variables of the template.
    /// Arguments of earlier calls are objects, or texts for a template that fails with objects.
    ///
    /// # Errors
    /// `TemplateError` without a template, if it fails, or if it does not write the name of the last tool.
    pub fn render(
        &self,
        messages: &[Message],
        tools: &[serde_json::Value],
        variables: &serde_json::Map<String, serde_json::Value>,
    ) -> Result<String, TemplateError> {
        self.render_until(messages, tools, variables, true)
    }

    /// Renders messages as [`render`](Self::render) does; `answer` says whether the text ends with the beginning of an answer
    /// (`add_generation_prompt`).
    ///
    /// # Errors
    /// As [`render`](Self::render).
    pub(crate) fn render_until(
        &self,
        messages: &[Message],
        tools: &[serde_json::Value],
        variables: &serde_json::Map<String, serde_json::Value>,
        answer: bool,
    ) -> Result<String, TemplateError> {
        let rendered = |objects: bool| self.rendered(messages, tools, variables, (answer, objects));
        let has_calls = || messages.iter().any(|message| message.further.contains_key(CALLS));
        match rendered(true) {
            Err(TemplateError::Failed(reason)) if has_calls() => {
                rendered(false).map_err(|_| TemplateError::Failed(reason))
            }
            rendered => rendered,
        }
    }

    /// Renders the prompt. `answer` says whether it ends with the beginning of an answer, `objects` whether arguments of calls are
    /// objects, or texts.
    fn rendered(
        &self,
        messages: &[Message],
        tools: &[serde_json::Value],
        variables: &serde_json::Map<String, serde_json::Value>,
        (answer, objects): (bool, bool),
    ) -> Result<String, TemplateError> {
        let source = match tools {
            [] => self.source.as_deref(),
            _ => self.source_with_tools(),
        };
        let source = source.ok_or(TemplateError::Missing)?;
        let mut environment = Environment::new();
        environment.set_trim_blocks(true);
        environment.set_lstrip_blocks(true);
        environment.set_fuel(Some(FUEL));
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.add_function("raise_exception", |reason: String| -> Result<Value, Error> {
            Err(Error::new(ErrorKind::InvalidOperation, reason))
        });
        environment.add_filter("tojson", json::to_json);
        environment.add_function("strftime_now", |format: String| -> Result<String, Error> {
            let now = format_date(&format, OffsetDateTime::now_utc());
            now.map_err(|reason| Error::new(ErrorKind::InvalidOperation, reason))
        });
        let SpecialTokens {
            bos_token,
            eos_token,
            unk_token,
            pad_token,
        } = &self.special;
        let known = |token: &Option<String>| token.as_ref().map_or(Value::UNDEFINED, Value::from);
        let knows_none = asks_for_none(source);
        let messages = messages.iter().map(|message| {
            let further = message.further.iter();
            let further = further.map(|(key, value)| (key.clone(), further_value(key, value, objects)));
            let own = [
                ("role".to_owned(), Value::from(message.role.as_str())),
                (
                    "content".to_owned(),
                    message.content.value(self.by_parts, knows_none),
                ),
            ];
            own.into_iter().chain(further).collect::<Value>()
        });
        let messages: Vec<Value> = messages.collect();
        let context = context! {
            messages,
            add_generation_prompt => answer,
            tools => if tools.is_empty() { Value::from(()) } else { Value::from_serialize(tools) },
            documents => (),
            bos_token => known(bos_token),
            eos_token => known(eos_token),
            unk_token => known(unk_token),
            pad_token => known(pad_token),
            // The first of two of one name counts.
            ..Value::from_serialize(variables)
        };
        let rendered = environment
            .add_template(NAME, source)
            .and_then(|()| environment.get_template(NAME)?.render(context));
        let rendered = rendered.map_err(|error| TemplateError::Failed(error.to_string()))?;
        let name = tools
            .last()
            .and_then(|tool| tool.pointer("/function/name")?.as_str());
        if name.is_some_and(|name| !rendered.contains(name)) {
            return Err(TemplateError::NoTools);
        }
        Ok(rendered)
    }
}

/// Whether a template asks if the content of a message is none; another one may write the word.
fn asks_for_none(source: &str) -> bool {
    let tests = source.match_indices(" is ").filter(|(at, test)| {
        let after = source.get(at + test.len()..).unwrap_or_default();
        after.starts_with("none") || after.starts_with("not none")
    });
    let mut before = tests.filter_map(|(at, _)| source.get(..at));
    before.any(|before| {
        ["content", "content']", "content\"]"]
            .iter()
            .any(|name| before.ends_with(name))
    })
}

/// Returns what a template reads of a message. Arguments of calls are texts of JSON in the API of `OpenAI`, and `objects` for most
/// templates, as for those of transformers.
fn further_value(key: &str, value: &serde_json::Value, objects: bool) -> Value {
    if key != CALLS || !objects {
        return Value::from_serialize(value);
    }
    let mut calls = value.clone();
    for call in calls.as_array_mut().into_iter().flatten() {
        if let Some(arguments) = call.pointer_mut("/function/arguments")
            && let Some(parsed) = arguments
                .as_str()
                .and_then(|text| serde_json::from_str(text).ok())
        {
            *arguments = parsed;
        }
    }
    Value::from_serialize(&calls)
}

/// Replaces the tags that mark answers for training, which transformers adds to Jinja and which render nothing.
fn without_marks(source: &str) -> String {
    let (mut out, mut rest) = (String::new(), source);
    while let Some((before, tag, after)) = next_tag(rest) {
        let name = tag.trim_matches(|letter: char| letter.is_whitespace() || "+-".contains(letter));
        let tag = match name {
            "generation" => tag.replace(name, "if true"),
            "endgeneration" => tag.replace(name, "endif"),
            _ => tag.to_owned(),
        };
        out.extend([before, "{%", &tag, "%}"]);
        rest = after;
    }
    out + rest
}

/// Returns the text before the next tag of a template, its content, and the text after it.
fn next_tag(source: &str) -> Option<(&str, &str, &str)> {
    let (before, tag) = source.split_once("{%")?;
    let (tag, after) = tag.split_once("%}")?;
    Some((before, tag, after))
}

/// Reads `chat_template`: a text, or those named `default` and `tool_use` in a list.
fn templates(config: &Config) -> Result<[Option<String>; 2], LoadError> {
    #[derive(serde::Deserialize)]
    struct Named {
        name: String,
        template: String,
    }
    #[derive(serde::Deserialize)]
    #[serde(untagged)]
    enum Templates {
        One(String),
        Several(Vec<Named>),
    }
    Ok(match config.optional("chat_template")? {
        None => [None, None],
        Some(Templates::One(template)) => [Some(template), None],
        Some(Templates::Several(named)) => ["default", "tool_use"].map(|name| {
            let mut named = named.iter();
            let found = named.find(|named| named.name == name);
            found.map(|named| named.template.clone())
        }),
    })
}

fn special_tokens(config: &Config) -> Result<SpecialTokens, LoadError> {
    #[derive(serde::Deserialize)]
    #[serde(untagged)]
    enum Token {
        Text(String),
        Added { content: String },
    }
    let token = |key: &str| -> Result<Option<String>, LoadError> {
        Ok(config.optional(key)?.map(|token| match token {
            Token::Text(text) | Token::Added { content: text } => text,
        }))
    };
    Ok(SpecialTokens {
        bos_token: token("bos_token")?,
        eos_token: token("eos_token")?,
        unk_token: token("unk_token")?,
        pad_token: token("pad_token")?,
    })
}

#[cfg(test)]
mod tests;
