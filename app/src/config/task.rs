//! The tasks of apps.

use kaskade_policy::confidence::Estimator;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Task of the models.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Task {
    /// One class per input, from its scores.
    #[default]
    Classification,
    /// An answer as a span of a context: its first and last token, from two rows of scores.
    QuestionAnswering,
    /// A continuation of the request's text, token by token.
    Generation,
    /// Several labels per input, with a confidence of the model's own.
    MultiLabel,
    /// A label per token of a text, and the entities that they make up, with a confidence of the model's own.
    TokenClassification,
    /// A vector per text. It has no confidence: one variant is served alone.
    Embedding,
    /// The score of a pair of texts. It has no confidence: one variant is served alone.
    Reranking,
    /// The best of some passages for a query, by embedders (similarity) or cross-encoders (their score).
    Ranking,
}

impl Task {
    /// All tasks.
    pub const ALL: [Self; 8] = [
        Self::Classification,
        Self::QuestionAnswering,
        Self::Generation,
        Self::MultiLabel,
        Self::TokenClassification,
        Self::Embedding,
        Self::Reranking,
        Self::Ranking,
    ];

    /// Returns the confidence estimator of this task (HybridServe §IV-A).
    pub const fn estimator(self) -> Estimator {
        match self {
            Self::Classification | Self::Ranking => Estimator::MaxSquared,
            Self::QuestionAnswering => Estimator::Span,
            // The engine computes a confidence at each step and returns the lowest one of the answer.
            Self::Generation
            | Self::MultiLabel
            | Self::TokenClassification
            | Self::Embedding
            | Self::Reranking => Estimator::Given,
        }
    }

    /// Returns the task's name in app.toml.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Classification => "classification",
            Self::QuestionAnswering => "question_answering",
            Self::Generation => "generation",
            Self::MultiLabel => "multi_label",
            Self::TokenClassification => "token_classification",
            Self::Embedding => "embedding",
            Self::Reranking => "reranking",
            Self::Ranking => "ranking",
        }
    }

    /// Returns the task of apps whose models give these answers; `None` if only pipelines use them.
    pub(crate) const fn of_model(answers: kaskade_models::Task) -> Option<Self> {
        use kaskade_models::Task as Answers;
        match answers {
            Answers::Classification => Some(Self::Classification),
            Answers::MultiLabel => Some(Self::MultiLabel),
            Answers::Reranking => Some(Self::Reranking),
            Answers::Embedding => Some(Self::Embedding),
            Answers::Ranking => Some(Self::Ranking),
            Answers::QuestionAnswering => Some(Self::QuestionAnswering),
            Answers::TokenClassification => Some(Self::TokenClassification),
            Answers::Generation => Some(Self::Generation),
            // Detection, the first task of a pipeline.
            _ => None,
        }
    }

    /// Returns the kind of answers of the models in an app with this task.
    pub(crate) const fn answers(self) -> kaskade_models::Task {
        use kaskade_models::Task as Answers;
        match self {
            Self::Classification => Answers::Classification,
            Self::MultiLabel => Answers::MultiLabel,
            Self::Reranking => Answers::Reranking,
            Self::Embedding => Answers::Embedding,
            Self::Ranking => Answers::Ranking,
            Self::QuestionAnswering => Answers::QuestionAnswering,
            Self::TokenClassification => Answers::TokenClassification,
            Self::Generation => Answers::Generation,
        }
    }

    /// Returns whether answers have a confidence, which cascades require.
    pub const fn has_confidence(self) -> bool {
        !matches!(self, Self::Embedding | Self::Reranking)
    }
}
