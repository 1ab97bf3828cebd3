//! Chat templates: Jinja templates that convert messages to a prompt, as transformers' `apply_chat_template` does.
//!
//! The template is `chat_template.jinja`, or `chat_template` in `chat_template.json`, `processor_config.json` or
//! `tokenizer_config.json`: a string, or a list of named templates. `default` is used for requests without tools,
//! `tool_use` for requests with tools. The files `default.jinja` and `tool_use.jinja` in `additional_chat_templates`
//! are such templates, too.
//!
//! A template that expects content as a list of parts, as multimodal models do, receives a text as a single part;
//! other templates receive several parts as one text, one part per line. `strftime_now` returns the date in UTC. A
//! template with a variable for the date, such as `date_string` of Llama 3, renders the same prompt every day if the
//! request states the date in `chat_template_kwargs`.

mod json;
mod python;

use std::borrow::Cow;
use std::path::{Path, PathBuf};

use minijinja::{Environment, Error, ErrorKind, Value, context};
use serde::Serialize;
use thiserror::Error;
use time::OffsetDateTime;

use super::dates::format_date;
use super::{Config, LoadError, MAX_CONFIG, read_capped, tekken};

/// Name of the template in the Jinja environment.
const NAME: &str = "chat_template";
/// Maximum instructions per rendering.
const FUEL: u64 = 2_000_000;
/// Key of a message that holds tool calls.
const CALLS: &str = "tool_calls";
/// Folder with named templates.
const ADDITIONAL: &str = "additional_chat_templates";
/// A text that occurs in no template.
const PROBE: &str = "kaskade probe";

/// A message of a chat.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Message {
    /// Role of the author: `system`, `user`, `assistant`, `tool`, or any other role that the template supports.
    pub role: String,
    /// Content of the message.
    pub content: Content,
    /// Further keys that the template may use, such as `tool_calls`, `tool_call_id` and `name`.
    pub further: serde_json::Map<String, serde_json::Value>,
}

/// Content of a message.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Content {
    /// No content; the message has only tool calls.
    #[default]
    None,
    /// A text.
    Text(String),
    /// Text parts.
    Parts(Vec<String>),
}

impl Content {
    /// Returns the text, with a line break between parts as in vLLM; empty without content.
    pub fn text(&self) -> Cow<'_, str> {
        match self {
            Self::None => Cow::Borrowed(""),
            Self::Text(text) => Cow::Borrowed(text),
            Self::Parts(parts) => Cow::Owned(parts.join("\n")),
        }
    }

    /// Returns the content in the form that a template expects.
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

/// Why messages could not be rendered.
#[derive(Debug, Error)]
pub enum TemplateError {
    /// The checkpoint has no template.
    #[error(
        "this checkpoint has no chat template (chat_template.jinja, or `chat_template` in tokenizer_config.json); \
         send a prompt as `text`, over HTTP to `/v1/completions`"
    )]
    Missing,
    /// The template does not render the tools.
    #[error("this checkpoint's chat template does not support tools; leave `tools` out")]
    NoTools,
    /// The template is malformed, or raises an exception for the messages.
    #[error("the chat template failed: {0}")]
    Failed(String),
}

/// Special tokens of a tokenizer, as text.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
#[expect(clippy::struct_field_names, reason = "names of the template's variables")]
pub struct SpecialTokens {
    /// Beginning-of-sequence token.
    pub bos_token: Option<String>,
    /// End-of-sequence token.
    pub eos_token: Option<String>,
    /// Unknown token.
    pub unk_token: Option<String>,
    /// Padding token.
    pub pad_token: Option<String>,
}

/// Chat template of a checkpoint, if it has one, with the special tokens.
#[derive(Debug, Clone, Default)]
pub struct ChatTemplate {
    source: Option<String>,
    /// Template for requests with tools, if it is a different one.
    with_tools: Option<String>,
    /// Whether the template expects content as a list of parts.
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
            // Template files take precedence over all templates in configurations.
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

    /// Returns whether the template renders the text of a message.
    fn shows_probe(&self) -> bool {
        let message = Message {
            role: "user".to_owned(),
            content: PROBE.into(),
            ..Message::default()
        };
        self.render(&[message], &[], &serde_json::Map::new())
            .is_ok_and(|rendered| rendered.contains(PROBE))
    }

    /// Checks that the templates can be parsed.
    ///
    /// # Errors
    /// [`TemplateError::Failed`] for the first one that cannot.
    pub(super) fn check_syntax(&self) -> Result<(), TemplateError> {
        for source in [&self.source, &self.with_tools].into_iter().flatten() {
            let mut environment = Environment::new();
            environment
                .add_template(NAME, source)
                .map_err(|error| TemplateError::Failed(error.to_string()))?;
        }
        Ok(())
    }

    /// Returns the source of the template for requests with tools.
    pub fn source_with_tools(&self) -> Option<&str> {
        self.with_tools.as_deref().or(self.source.as_deref())
    }

    /// Renders messages with the generation prompt, tools in the format of the `OpenAI` API, and further template
    /// variables. Passes the arguments of earlier calls as objects, or as JSON strings if the template fails with
    /// objects.
    ///
    /// # Errors
    /// `TemplateError` without a template, if rendering fails, or if the result lacks the name of the last tool.
    pub fn render(
        &self,
        messages: &[Message],
        tools: &[serde_json::Value],
        variables: &serde_json::Map<String, serde_json::Value>,
    ) -> Result<String, TemplateError> {
        self.render_until(messages, tools, variables, true)
    }

    /// Renders messages as [`render`](Self::render) does; `answer` states whether to append the generation prompt
    /// (`add_generation_prompt`).
    ///
    /// # Errors
    /// Same as [`render`](Self::render).
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

    /// Renders the prompt. `answer` states whether to append the generation prompt, `objects` whether call arguments
    /// are objects or JSON strings.
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
        python::imitate(&mut environment);
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
            // The variables above take precedence over a request's variables of the same name.
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

/// Returns whether a template tests the content of a message for none; other templates could print `none`.
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

/// Converts a further key of a message for the template. In the `OpenAI` API, call arguments are JSON strings; with
/// `objects`, they are parsed, as most templates and transformers expect.
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

/// Removes the `generation` tags, which transformers adds to Jinja to mark answers for training and which render
/// nothing.
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

/// Splits a template at its next tag: the text before, the content of the tag, the text after.
fn next_tag(source: &str) -> Option<(&str, &str, &str)> {
    let (before, tag) = source.split_once("{%")?;
    let (tag, after) = tag.split_once("%}")?;
    Some((before, tag, after))
}

/// Reads `chat_template`: a string, or the templates `default` and `tool_use` of a list.
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
