//! Kinds of answers.

/// Kind of an app's answers, by its task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum AnswerKind {
    /// Texts of a language model.
    Text,
    /// Embeddings.
    Embedding,
    /// Classes, labels or entities.
    Classes,
    /// Relevance scores of texts for a query.
    Relevance,
    /// Spans of a text that answer a question.
    Span,
}

impl AnswerKind {
    /// Returns a description of apps of this kind, with the path to send their requests to.
    pub(crate) const fn instead(self) -> &'static str {
        match self {
            Self::Text => {
                "is a language model: send chats to `/v1/chat/completions`, prompts to `/v1/completions`"
            }
            Self::Embedding => "gives embeddings: send texts to `/v1/embeddings` or `/embed`",
            Self::Classes => {
                "gives classes: send texts or images to `/predict`, tensors to `/v2/models/{app}/infer`"
            }
            Self::Relevance => "scores texts for a query: send them to `/rerank` or `/v1/rerank`",
            Self::Span => "answers questions about a text: send `question` and `context` as `inputs` to `/`",
        }
    }
}
