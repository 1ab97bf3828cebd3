//! What a request asks: a text, the messages of a chat, or tokens, in the form that an endpoint takes.

use kaskade_models::language::request::{self, Content, Message};
use kaskade_models::{Inputs, ModelError};
use serde_json::{Value, json};

use super::bad;
use crate::endpoint::{Chat, Style, TEXT};

/// Most tokens of a prompt that is sent as tokens.
pub(crate) const MAX_TOKENS: usize = 1 << 20;

/// Role of a message of the user.
const USER: &str = "user";

/// Roles of instructions; the second is OpenAI's newer name.
const INSTRUCTIONS: [&str; 2] = ["system", "developer"];

/// The prompt of a request.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Prompt {
    /// The input `text`.
    Text(String),
    /// The input `messages`.
    Messages(Vec<Message>),
    /// The input `input_ids`.
    Tokens(Vec<i64>),
}

impl Prompt {
    /// Reads the prompt of a request.
    ///
    /// # Errors
    /// [`ModelError`], naming the input.
    pub(crate) fn read(inputs: &Inputs) -> Result<Self, ModelError> {
        let input = request::prompt(inputs)?;
        Ok(match input.name.as_str() {
            "messages" => Self::Messages(request::messages(input)?),
            "input_ids" => Self::Tokens(input.to_i64()?),
            _ => Self::Text(request::only_text(input)?.to_owned()),
        })
    }

    /// Returns the prompt as a judge reads it: a text, or the only message, or each message after its role.
    ///
    /// # Errors
    /// [`ModelError::BadInput`] for tokens, which a judge cannot read.
    pub(crate) fn to_text(&self) -> Result<String, ModelError> {
        match self {
            Self::Text(text) => Ok(text.clone()),
            Self::Messages(messages) => Ok(match messages.as_slice() {
                [only] => only.content.text().into_owned(),
                several => {
                    let lines = several
                        .iter()
                        .map(|message| format!("{}: {}", message.role, message.content.text()));
                    lines.collect::<Vec<_>>().join("\n")
                }
            }),
            Self::Tokens(_) => Err(bad(
                "input_ids",
                "a judge reads no tokens; send `text` or `messages`",
            )),
        }
    }

    /// Returns the field of the body that holds the prompt, with its name.
    ///
    /// # Errors
    /// [`ModelError::BadInput`] for a prompt that the interface has no form for.
    pub(super) fn field(self, chat: &Chat) -> Result<(&'static str, Value), ModelError> {
        match chat.style {
            Style::Chat => Ok(("messages", self.into_messages(chat)?)),
            Style::Completions => Ok(("prompt", self.into_prompt(chat)?)),
        }
    }

    /// The messages of a chat completion. The variant's instructions come first, in the same message as those of the request,
    /// since many chat templates know only one.
    fn into_messages(self, chat: &Chat) -> Result<Value, ModelError> {
        let mut messages = match self {
            Self::Text(text) => vec![message(USER, text)],
            Self::Messages(messages) => messages,
            Self::Tokens(_) => {
                let reason = "chat completions take no tokens; send `text` or `messages`";
                return Err(bad("input_ids", reason));
            }
        };
        if chat.prompt != TEXT {
            let last = messages.iter_mut().rfind(|message| message.role == USER);
            let last = last.ok_or_else(|| bad("messages", "there is no message of the user"))?;
            last.content = chat.prompt.replace(TEXT, &last.content.text()).into();
        }
        if let Some(system) = &chat.system {
            match messages.first_mut() {
                Some(first) if is_instruction(first) => {
                    first.content = format!("{system}\n\n{}", first.content.text()).into();
                }
                _ => messages.insert(0, message("system", system.clone())),
            }
        }
        let messages = messages.into_iter().map(|message| {
            let mut written = message.further;
            let content = match message.content {
                Content::Parts(parts) => parts
                    .into_iter()
                    .map(|text| json!({"type": "text", "text": text}))
                    .collect(),
                content => Value::from(content.text()),
            };
            written.insert("role".to_owned(), message.role.into());
            written.insert("content".to_owned(), content);
            Value::Object(written)
        });
        Ok(messages.collect())
    }

    /// The prompt of a completion: instructions and the text of the user, separated by empty lines.
    fn into_prompt(self, chat: &Chat) -> Result<Value, ModelError> {
        let (mut instructions, text) = match self {
            Self::Text(text) => (Vec::new(), text),
            Self::Messages(messages) => only_question(messages)?,
            Self::Tokens(tokens) => {
                if chat.system.is_some() || chat.prompt != TEXT {
                    let reason = "the variant's `system` and `prompt` are texts around a text; send `text`";
                    return Err(bad("input_ids", reason));
                }
                return Ok(tokens.into());
            }
        };
        if let Some(system) = &chat.system {
            instructions.insert(0, system.clone());
        }
        instructions.push(chat.prompt.replace(TEXT, &text));
        Ok(instructions.join("\n\n").into())
    }
}

/// Returns the instructions of a chat and its one message of the user.
///
/// # Errors
/// [`ModelError::BadInput`] for a conversation: without a chat template, nothing says how a model tells the speakers apart.
fn only_question(mut messages: Vec<Message>) -> Result<(Vec<String>, String), ModelError> {
    let last = messages.pop().filter(|last| last.role == USER);
    match last {
        Some(last) if messages.iter().all(is_instruction) => {
            let text = |message: Message| message.content.text().into_owned();
            Ok((messages.into_iter().map(text).collect(), text(last)))
        }
        _ => Err(bad(
            "messages",
            "an endpoint with `api = \"completions\"` has no chat template: it takes instructions and one message of the user, \
             no conversation",
        )),
    }
}

fn is_instruction(message: &Message) -> bool {
    INSTRUCTIONS.contains(&message.role.as_str())
}

fn message(role: &str, content: String) -> Message {
    Message {
        role: role.to_owned(),
        content: content.into(),
        ..Message::default()
    }
}

#[cfg(test)]
mod tests {
    use kaskade_models::Tensor;

    use super::*;
    use crate::endpoint::ChatTask;
    use crate::openai::chat::tests::chat;

    fn asked(name: &str, text: &str) -> Prompt {
        Prompt::read(&vec![Tensor::from_texts(name, &[text]).unwrap()]).unwrap()
    }

    fn bare(style: Style) -> Chat {
        Chat {
            prompt: TEXT.to_owned(),
            style,
            ..chat(ChatTask::Generate)
        }
    }

    const CONVERSATION: &str = r#"[{"role": "system", "content": "Be brief."}, {"role": "user", "content": [{"type": "text",
        "text": "Who "}, {"type": "text", "text": "is it?"}]}, {"role": "assistant", "content": "Tom."}, {"role": "user", "content": "Why?"}]"#;

    #[test]
    fn messages_stay_messages_with_the_variants_instructions_first() {
        let (name, found) = asked("messages", CONVERSATION).field(&bare(Style::Chat)).unwrap();
        let expected = json!([
            {"role": "system", "content": "Be brief."}, {"role": "user", "content": [{"type": "text", "text": "Who "}, {"type": "text", "text": "is it?"}]},
            {"role": "assistant", "content": "Tom."}, {"role": "user", "content": "Why?"},
        ]);
        assert_eq!((name, &found), ("messages", &expected));
        let with = Chat {
            system: Some("Be kind.".to_owned()),
            prompt: "Answer: {text}".to_owned(),
            ..bare(Style::Chat)
        };
        let (_, found) = asked("messages", CONVERSATION).field(&with).unwrap();
        assert_eq!(
            found[0],
            json!({"role": "system", "content": "Be kind.\n\nBe brief."})
        );
        assert_eq!(
            found[1]["content"][1]["text"], "is it?",
            "only the last question is put into the prompt"
        );
        assert_eq!(found[3]["content"], "Answer: Why?");
        let (_, found) = asked("messages", r#"[{"role": "user", "content": "Why?"}]"#)
            .field(&with)
            .unwrap();
        assert_eq!(found[0], json!({"role": "system", "content": "Be kind."}));
        let unasked = asked("messages", r#"[{"role": "assistant", "content": "Tom."}]"#);
        assert!(matches!(unasked.field(&with), Err(ModelError::BadInput { name, .. }) if name == "messages"));
    }

    #[test]
    fn a_prompt_without_a_template_has_one_question() {
        let with = Chat {
            system: Some("Be kind.".to_owned()),
            ..bare(Style::Completions)
        };
        let one = r#"[{"role": "developer", "content": "Be brief."}, {"role": "user", "content": "Why?"}]"#;
        let (name, found) = asked("messages", one).field(&with).unwrap();
        assert_eq!((name, found), ("prompt", json!("Be kind.\n\nBe brief.\n\nWhy?")));
        for conversation in [
            CONVERSATION,
            r#"[{"role": "system", "content": "Be brief."}]"#,
            r#"[{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]"#,
        ] {
            let refused = asked("messages", conversation).field(&with).unwrap_err();
            assert!(
                matches!(&refused, ModelError::BadInput { name, reason } if name == "messages" && reason.contains("completions")),
                "{refused}"
            );
        }
    }

    #[test]
    fn tokens_are_for_completions_alone() {
        let tokens = || Prompt::read(&vec![Tensor::from_i64("input_ids", &[2], &[5, 6]).unwrap()]).unwrap();
        assert_eq!(
            tokens().field(&bare(Style::Completions)).unwrap().1,
            json!([5, 6])
        );
        let with = Chat {
            system: Some("Be kind.".to_owned()),
            ..bare(Style::Completions)
        };
        for chat in [with, bare(Style::Chat)] {
            assert!(
                matches!(tokens().field(&chat), Err(ModelError::BadInput { name, .. }) if name == "input_ids")
            );
        }
    }

    #[test]
    fn what_is_no_text_is_refused() {
        for (name, text) in [
            ("messages", "hello"),
            ("messages", "[]"),
            (
                "messages",
                r#"[{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]"#,
            ),
            ("messages", r#"[{"content": "x"}]"#),
        ] {
            let inputs = vec![Tensor::from_texts(name, &[text]).unwrap()];
            let refused = Prompt::read(&inputs).unwrap_err();
            assert!(
                matches!(refused, ModelError::BadInput { .. }),
                "{text}: {refused}"
            );
        }
        assert!(Prompt::read(&Vec::new()).is_err());
        let both = ["text", "messages"].map(|name| Tensor::from_texts(name, &["[]"]).unwrap());
        assert!(Prompt::read(&both.to_vec()).is_err());
        assert_eq!(
            asked("messages", CONVERSATION).to_text().unwrap(),
            "system: Be brief.\nuser: Who \nis it?\nassistant: Tom.\nuser: Why?"
        );
    }
}
