//! Ranks passages for a query with a model of single texts or text pairs: a sentence embedder or a cross-encoder.

use kaskade_actors::dispatch::cost::COST;
use kaskade_models::{
    Availability, Datatype, EMBEDDING_OUTPUTS, Extent, InputSpec, Inputs, Loaded, Model, ModelError,
    ModelInfo, Outputs, PROMPT_NAME, Signature, Similarity, Task, Tensor, total_usage,
};

/// Name of the input with the query: BYTES `[1]`.
pub const QUERY: &str = "query";

/// Name of the input with the passages: BYTES `[passages]`.
pub const PASSAGES: &str = "passages";

/// Largest number of passages in one request.
const MAX_PASSAGES: usize = 1_000;

/// Largest number of texts or pairs that the model runs at once.
const AT_ONCE: usize = 256;

/// Factor from a cosine similarity to a logit, as in sentence-transformers' losses. Other similarities are used as
/// logits unchanged. The fitted temperature corrects both.
const SCALE: f32 = 20.0;

/// Names of the query prompt, of which the first that the model has is used, as in sentence-transformers'
/// `encode_query`.
const QUERY_PROMPTS: [&str; 1] = ["query"];

/// Names of the passage prompt, of which the first that the model has is used, as in sentence-transformers'
/// `encode_document`.
const PASSAGE_PROMPTS: [&str; 3] = ["document", "passage", "corpus"];

/// Method of scoring a passage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Scorer {
    /// Similarity of the passage's embedding to the query's.
    Vectors(Similarity),
    /// The model's score of the pair.
    Pair,
}

/// Ranks passages for a query. Outputs: `logits` and `scores` FP32 `[passages]`, and `ranking` INT64 `[passages]`, the
/// indices of the passages from best to worst. The answer is the passage with the largest logit, as for a classifier,
/// so confidence and calibration are those of classes.
pub(crate) struct Ranker {
    model: Box<dyn Model>,
    scorer: Scorer,
    query_prompt: Option<&'static str>,
    passage_prompt: Option<&'static str>,
}

impl Ranker {
    /// Wraps a loaded model; `None` if it outputs neither text embeddings nor pair scores.
    pub(crate) fn over(loaded: Loaded) -> Option<Loaded> {
        let scorer = match loaded.info.task {
            Task::Embedding => Scorer::Vectors(loaded.info.similarity),
            Task::Reranking => Scorer::Pair,
            _ => return None,
        };
        let known = |prompt: &&str| loaded.info.prompts.iter().any(|known| known == prompt);
        Some(Loaded {
            model: Box::new(Self {
                query_prompt: QUERY_PROMPTS.into_iter().find(known),
                passage_prompt: PASSAGE_PROMPTS.into_iter().find(known),
                model: loaded.model,
                scorer,
            }),
            info: ModelInfo {
                task: Task::Ranking,
                labels: Vec::new(),
                ..loaded.info
            },
        })
    }

    /// Returns the model requests for a query.
    fn asked(&self, query: &str, passages: &[&str]) -> Result<Vec<Inputs>, ModelError> {
        let text = |name: &str, text: &str| Tensor::from_texts(name, &[text]);
        let with_prompt = |prompted: &str, prompt: Option<&str>| -> Result<Inputs, ModelError> {
            let prompt = prompt.map(|prompt| text(PROMPT_NAME, prompt)).transpose()?;
            Ok([text("text", prompted)?].into_iter().chain(prompt).collect())
        };
        let one = |passage: &&str| match self.scorer {
            Scorer::Vectors(_) => with_prompt(passage, self.passage_prompt),
            Scorer::Pair => Ok(vec![text("text", query)?, text("text_pair", passage)?]),
        };
        let mut asked = Vec::with_capacity(passages.len() + 1);
        if self.scorer != Scorer::Pair {
            asked.push(with_prompt(query, self.query_prompt)?);
        }
        for passage in passages {
            asked.push(one(passage)?);
        }
        Ok(asked)
    }

    /// Returns logits and scores of the passages, from the answers to the requests of one query.
    fn scored(&self, answers: &[Outputs]) -> Result<(Vec<f32>, Vec<f32>), ModelError> {
        let named = |outputs: &Outputs, names: &[&str]| {
            let mut found = names.iter().filter_map(|name| {
                let mut outputs = outputs.iter();
                outputs.find(|output| output.name == *name)
            });
            let output = found.next().ok_or_else(|| ModelError::BadOutput {
                reason: format!("it has no output `{}` to rank by", names.join("`, `")),
            })?;
            Ok::<_, ModelError>(output.to_f32()?)
        };
        match self.scorer {
            Scorer::Vectors(by) => {
                let (query, passages) = answers.split_first().ok_or_else(unanswered)?;
                let query = named(query, &EMBEDDING_OUTPUTS)?;
                let score = |outputs| similarity(by, &query, &named(outputs, &EMBEDDING_OUTPUTS)?);
                let scores = passages.iter().map(score).collect::<Result<Vec<_>, _>>()?;
                let scale = if by == Similarity::Cosine { SCALE } else { 1.0 };
                Ok((scores.iter().map(|score| scale * score).collect(), scores))
            }
            Scorer::Pair => {
                let first = |outputs, name| {
                    let value = named(outputs, &[name])?.first().copied();
                    value.ok_or_else(unanswered)
                };
                let of = |name| {
                    let values = answers.iter().map(|outputs| first(outputs, name));
                    values.collect::<Result<Vec<_>, ModelError>>()
                };
                Ok((of("logits")?, of("score")?))
            }
        }
    }

    /// Returns the requests of a ranking for the inner model.
    fn read(&self, inputs: &Inputs) -> Result<Vec<Inputs>, ModelError> {
        signature().check(inputs)?;
        let texts = |name: &str| {
            let input = inputs.iter().find(|input| input.name == name);
            input.map_or(Ok(Vec::new()), Tensor::to_texts)
        };
        let passages = texts(PASSAGES)?;
        if passages.len() < 2 {
            return Err(ModelError::BadInput {
                name: PASSAGES.to_owned(),
                reason: "a ranking needs at least 2".to_owned(),
            });
        }
        let query = texts(QUERY)?;
        self.asked(query.first().copied().unwrap_or_default(), &passages)
    }

    fn outputs(&self, answers: &[Outputs]) -> Result<Outputs, ModelError> {
        let (logits, scores) = self.scored(answers)?;
        let mut ranking: Vec<(i64, f32)> = (0..).zip(logits.iter().copied()).collect();
        // A stable sort, so that the first of equal passages is the answer, as for classes.
        ranking.sort_by(|(_, one), (_, other)| other.total_cmp(one));
        let ranking: Vec<i64> = ranking.into_iter().map(|(place, _)| place).collect();
        let shape = [logits.len()];
        let mut outputs = vec![
            Tensor::from_f32("logits", &shape, &logits)?,
            Tensor::from_f32("scores", &shape, &scores)?,
            Tensor::from_i64("ranking", &shape, &ranking)?,
        ];
        outputs.extend(total_usage(answers));
        outputs.extend(total_cost(answers));
        Ok(outputs)
    }
}

/// Returns the total cost of the answers, if every answer states it.
fn total_cost(answers: &[Outputs]) -> Option<Tensor> {
    let costs = answers.iter().map(|outputs| {
        let cost = outputs.iter().find(|output| output.name == COST)?;
        Some(f64::from_le_bytes(cost.data.as_ref().try_into().ok()?))
    });
    let costs = costs.collect::<Option<Vec<f64>>>()?;
    (!costs.is_empty()).then(|| Tensor {
        name: COST.to_owned(),
        shape: vec![1],
        datatype: Datatype::F64,
        data: costs.iter().sum::<f64>().to_le_bytes().to_vec().into(),
    })
}

/// Returns the similarity of two embeddings; the cosine is 0 if one of them is zero.
fn similarity(by: Similarity, one: &[f32], other: &[f32]) -> Result<f32, ModelError> {
    if one.len() != other.len() {
        return Err(ModelError::BadOutput {
            reason: format!("its vectors have {} and {} dimensions", one.len(), other.len()),
        });
    }
    let product = |one: &[f32], other: &[f32]| -> f64 {
        let products = one.iter().zip(other).map(|(a, b)| f64::from(*a) * f64::from(*b));
        products.sum()
    };
    let differences = || one.iter().zip(other).map(|(a, b)| f64::from(*a) - f64::from(*b));
    let similarity = match by {
        Similarity::Cosine => {
            let lengths = (product(one, one) * product(other, other)).sqrt();
            product(one, other) / if lengths < 1e-24 { 1.0 } else { lengths }
        }
        Similarity::Dot => product(one, other),
        Similarity::Euclidean => -differences().map(|one| one * one).sum::<f64>().sqrt(),
        Similarity::Manhattan => -differences().map(f64::abs).sum::<f64>(),
    };
    Ok(similarity as f32)
}

fn unanswered() -> ModelError {
    ModelError::BadOutput {
        reason: "it answered fewer texts than it was given".to_owned(),
    }
}

/// Returns the inputs of a ranking.
pub fn signature() -> Signature {
    Signature {
        inputs: vec![
            InputSpec::required(QUERY, Datatype::Bytes, vec![Extent::Exactly(1)]),
            InputSpec::required(PASSAGES, Datatype::Bytes, vec![Extent::UpTo(MAX_PASSAGES)]),
        ],
    }
}

impl Model for Ranker {
    fn signature(&self) -> Signature {
        signature()
    }

    fn check_request(&self, inputs: &Inputs) -> Result<(), ModelError> {
        let mut asked = self.read(inputs)?.into_iter();
        asked.try_for_each(|inputs| self.model.check_request(&inputs))
    }

    fn run(&mut self, batch: &[Inputs]) -> Vec<Result<Outputs, ModelError>> {
        let asked = batch.iter().map(|inputs| self.read(inputs));
        let asked: Vec<Result<Vec<Inputs>, ModelError>> = asked.collect();
        let texts: Vec<Inputs> = asked.iter().flatten().flatten().cloned().collect();
        let mut answers = Vec::with_capacity(texts.len());
        for texts in texts.chunks(AT_ONCE) {
            answers.extend(self.model.run(texts));
        }
        let mut answers = answers.into_iter();
        let results = asked.into_iter().map(|asked| {
            let asked = asked?;
            let own: Vec<_> = answers.by_ref().take(asked.len()).collect();
            if own.len() < asked.len() {
                return Err(unanswered());
            }
            // Consume all of them from the iterator, even if one has failed.
            let own = own.into_iter().collect::<Result<Vec<Outputs>, ModelError>>()?;
            self.outputs(&own)
        });
        results.collect()
    }

    fn availability(&self) -> Option<Availability> {
        self.model.availability()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Test model: embeds a text as the numbers in it, and scores a pair by the numbers of its second text. A prompt is
    /// a preceding number. Fails on `bad`.
    struct Numbers;

    fn numbers(text: &str) -> Vec<f32> {
        text.split(' ').filter_map(|number| number.parse().ok()).collect()
    }

    impl Model for Numbers {
        fn run(&mut self, batch: &[Inputs]) -> Vec<Result<Outputs, ModelError>> {
            assert!(batch.len() <= AT_ONCE);
            let answer = |inputs: &Inputs| {
                let (prompt, texts): (Vec<_>, Vec<_>) =
                    inputs.iter().partition(|input| input.name == PROMPT_NAME);
                let last = texts.last().unwrap();
                let text = last.to_texts()?[0];
                if text == "bad" {
                    return Err(ModelError::Failed {
                        reason: "bad".to_owned(),
                    });
                }
                let mut values = numbers(text);
                if let Some(prompt) = prompt.first() {
                    values.insert(0, if prompt.to_texts()? == ["query"] { 2.0 } else { 1.0 });
                }
                let cost = Tensor {
                    name: COST.to_owned(),
                    shape: vec![1],
                    datatype: Datatype::F64,
                    data: 0.5_f64.to_le_bytes().to_vec().into(),
                };
                Ok(if last.name == "text_pair" {
                    let score = 1.0 / (1.0 + (-values[0]).exp());
                    vec![
                        Tensor::from_f32("logits", &[1], &values)?,
                        Tensor::from_f32("score", &[1], &[score])?,
                    ]
                } else {
                    let tokens = i64::try_from(values.len()).unwrap_or(i64::MAX);
                    let usage = Tensor::from_i64("usage", &[2], &[tokens, 0])?;
                    vec![
                        Tensor::from_f32("embedding", &[values.len()], &values)?,
                        usage,
                        cost,
                    ]
                })
            };
            batch.iter().map(answer).collect()
        }
    }

    fn ranker(task: Task) -> Option<Loaded> {
        ranker_with(task, &[])
    }

    fn ranker_with(task: Task, prompts: &[&str]) -> Option<Loaded> {
        ranker_by(task, prompts, Similarity::Cosine)
    }

    fn ranker_by(task: Task, prompts: &[&str], similarity: Similarity) -> Option<Loaded> {
        Ranker::over(Loaded {
            model: Box::new(Numbers),
            info: ModelInfo {
                name: "numbers".to_owned(),
                architecture: "numbers".to_owned(),
                parameters: 0,
                weight_bytes: 0,
                task,
                labels: Vec::new(),
                prompts: prompts.iter().map(ToString::to_string).collect(),
                similarity,
            },
        })
    }

    fn query(query: &str, passages: &[&str]) -> Inputs {
        vec![
            Tensor::from_texts(QUERY, &[query]).unwrap(),
            Tensor::from_texts(PASSAGES, passages).unwrap(),
        ]
    }

    fn values(outputs: &Outputs, name: &str) -> Vec<f32> {
        outputs
            .iter()
            .find(|output| output.name == name)
            .unwrap()
            .to_f32()
            .unwrap()
    }

    #[test]
    fn an_embedder_ranks_by_cosine_and_a_bad_query_fails_alone() {
        let mut loaded = ranker(Task::Embedding).unwrap();
        assert_eq!(loaded.info.task, Task::Ranking);
        let results = loaded.model.run(&[
            query("1 0", &["0 2", "3 0", "0 0", "1 1"]),
            query("1 0", &["1 0"]),
            query("1 0", &["bad", "1 0"]),
            query("0 1", &["1 0 5", "1 0"]),
            query("0 1", &["1 0", "0 1"]),
        ]);
        let first = results[0].as_ref().unwrap();
        let scores = values(first, "scores");
        let half = std::f32::consts::FRAC_1_SQRT_2;
        for (score, expected) in scores.iter().zip([0.0, 1.0, 0.0, half]) {
            assert!((score - expected).abs() < 1e-6, "{scores:?}");
        }
        assert!((values(first, "logits")[1] - SCALE).abs() < 1e-5);
        let ranking = first.iter().find(|output| output.name == "ranking").unwrap();
        assert_eq!(ranking.to_i64().unwrap(), [1, 3, 0, 2]);
        let cost = first.iter().find(|output| output.name == COST).unwrap();
        assert_eq!(cost.data.as_ref(), 2.5_f64.to_le_bytes());
        let usage = first.iter().find(|output| output.name == "usage").unwrap();
        assert_eq!(usage.to_i64().unwrap(), [10, 0], "the query and four passages");
        for (place, message) in [(1, "at least 2"), (2, "bad"), (3, "dimensions")] {
            let error = results[place].as_ref().unwrap_err().to_string();
            assert!(error.contains(message), "{error}");
        }
        assert_eq!(values(results[4].as_ref().unwrap(), "scores"), [0.0, 1.0]);
    }

    #[test]
    fn an_embedder_ranks_by_the_similarity_that_it_was_trained_for() {
        for (similarity, scores, best) in [
            (Similarity::Cosine, [1.0, 0.8], 0),
            (Similarity::Dot, [1.0, 4.0], 1),
            (Similarity::Euclidean, [0.0, -(18.0_f32.sqrt())], 0),
            (Similarity::Manhattan, [0.0, -6.0], 0),
        ] {
            let mut loaded = ranker_by(Task::Embedding, &[], similarity).unwrap();
            let outputs = loaded
                .model
                .run(&[query("1 0", &["1 0", "4 3"])])
                .remove(0)
                .unwrap();
            let found = values(&outputs, "scores");
            for (found, expected) in found.iter().zip(scores) {
                assert!((found - expected).abs() < 1e-6, "{similarity:?}: {found}");
            }
            let scale = if similarity == Similarity::Cosine {
                SCALE
            } else {
                1.0
            };
            assert!((values(&outputs, "logits")[1] - scale * scores[1]).abs() < 1e-5);
            let ranking = outputs.iter().find(|output| output.name == "ranking").unwrap();
            assert_eq!(ranking.to_i64().unwrap()[0], best, "{similarity:?}");
        }
    }

    #[test]
    fn a_cross_encoder_ranks_by_its_scores() {
        let mut loaded = ranker(Task::Reranking).unwrap();
        let passages: Vec<String> = (0..300).map(|number| (number % 7).to_string()).collect();
        let passages: Vec<&str> = passages.iter().map(String::as_str).collect();
        let outputs = loaded.model.run(&[query("q", &passages)]).remove(0).unwrap();
        assert!((values(&outputs, "logits")[6] - 6.0).abs() < 1e-6);
        assert!((values(&outputs, "scores")[0] - 0.5).abs() < 1e-6);
        let ranking = outputs.iter().find(|output| output.name == "ranking").unwrap();
        assert_eq!(ranking.to_i64().unwrap()[..2], [6, 13]);
    }

    #[test]
    fn queries_and_passages_have_the_prompts_of_the_model() {
        let score = |prompts: &[&str]| {
            let mut loaded = ranker_with(Task::Embedding, prompts).unwrap();
            let outputs = loaded.model.run(&[query("1", &["1", "0"])]).remove(0).unwrap();
            values(&outputs, "scores")[0]
        };
        let cosine =
            |a: [f32; 2], b: [f32; 2]| (a[0] * b[0] + a[1] * b[1]) / (a[0].hypot(a[1]) * b[0].hypot(b[1]));
        assert!((score(&["document", "query", "other"]) - cosine([2.0, 1.0], [1.0, 1.0])).abs() < 1e-6);
        assert!((score(&["corpus", "query"]) - cosine([2.0, 1.0], [1.0, 1.0])).abs() < 1e-6);
        assert!((score(&["other"]) - 1.0).abs() < 1e-6);
    }

    #[test]
    fn other_models_cannot_rank() {
        assert!(ranker(Task::Classification).is_none());
        assert!(ranker(Task::Generation).is_none());
    }
}
