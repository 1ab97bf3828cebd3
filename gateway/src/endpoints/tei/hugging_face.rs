//! `/`, as the Inference API of Hugging Face answers it. `InferenceClient` sends the requests of all tasks to the address that it is
//! given: the inputs and the answer of the app tell which task it is.

use std::borrow::Cow;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::request::Parts;
use axum::http::{Response, header};
use bytes::Bytes;
use kaskade_actors::wire::InferReply;
use kaskade_models::Tensor;
use kaskade_models::images::image_file;
use serde::Deserialize;
use serde_json::{Value, json};

use super::embed::{Comparison, Texts, VectorForm, compared, vectors};
use super::predict::{Parameters, predictions, with_strategy};
use super::{Answered, ask_all, call, characters, respond};
use crate::answer_kind::AnswerKind;
use crate::endpoints::openai::embedding;
use crate::http::body;
use crate::http::failure::Failure;
use crate::http::json_body::{self, or_default};
use crate::requests::call::Call;
use crate::state::GatewayState;

/// The beginning of an image in JSON.
const IMAGE_URL: &str = "data:image/";

/// The beginnings of base64 of PNG, JPEG, WebP and GIF files.
const BASE64_OF_IMAGES: [&str; 4] = ["iVBORw0KGgo", "/9j/", "UklGR", "R0lGOD"];

#[derive(Deserialize)]
struct RequestBody {
    inputs: Inputs,
    #[serde(default, deserialize_with = "or_default")]
    raw_scores: bool,
    #[serde(default, deserialize_with = "or_default")]
    parameters: Parameters,
    #[serde(flatten)]
    form: VectorForm,
}

#[derive(Deserialize)]
#[serde(
    untagged,
    expecting = "`inputs` must be a text, a list of texts, a `question` with its `context`, or a `source_sentence` with `sentences`"
)]
enum Inputs {
    Texts(Texts),
    Question(Question),
    Comparison(Comparison),
}

/// A question about a text.
#[derive(Deserialize)]
struct Question {
    question: String,
    context: String,
}

/// Answers a request of any task.
pub(super) async fn root(State(shared): State<Arc<GatewayState>>, request: Request) -> Response<Body> {
    let answered = async {
        let (parts, body) = request.into_parts();
        let body = shared.read_body(&parts, body).await?;
        let call = call(&shared, &parts, None)?;
        call.app.check_answer_kind(&[AnswerKind::Text])?;
        if is_image(&parts, &body) {
            return of_image(&call, image_file(&body)?, false, &Parameters::default()).await;
        }
        let asked: RequestBody = body::process(body, |body| json_body::read(body)).await?;
        asked.parameters.check()?;
        match &asked.inputs {
            Inputs::Texts(texts) => match image_url(texts) {
                Some(url) => {
                    let image = image_file(url.as_bytes())?;
                    of_image(&call, image, asked.raw_scores, &asked.parameters).await
                }
                None => of_texts(&call, texts, &asked).await,
            },
            Inputs::Question(question) => {
                asked.parameters.check_question()?;
                of_question(&call, question).await
            }
            Inputs::Comparison(comparison) => compared(&call, comparison, &asked.form).await,
        }
    };
    respond(answered.await)
}

/// Returns whether a body is an image itself: JSON begins with a brace, after spaces.
fn is_image(parts: &Parts, body: &Bytes) -> bool {
    let kind = parts.headers.get(header::CONTENT_TYPE);
    let says_so = kind.is_some_and(|kind| kind.as_bytes().starts_with(b"image/"));
    says_so
        || body
            .trim_ascii_start()
            .first()
            .is_some_and(|first| *first != b'{')
}

/// Returns the data URL of an image that came in place of a text: one, or bare base64, as `InferenceClient` sends it beside parameters.
fn image_url(texts: &Texts) -> Option<Cow<'_, str>> {
    let Texts::One(text) = texts else {
        return None;
    };
    if text.starts_with(IMAGE_URL) {
        return Some(text.into());
    }
    let is_image = BASE64_OF_IMAGES
        .iter()
        .any(|beginning| text.starts_with(beginning));
    (is_image && !text.contains(' ')).then(|| format!("{IMAGE_URL}*;base64,{text}").into())
}

async fn of_image(
    call: &Call,
    image: Tensor,
    raw_scores: bool,
    parameters: &Parameters,
) -> Result<Answered, Failure> {
    let replies = ask_all(call, vec![vec![image]]).await?;
    let value = predictions(call, &replies, true, raw_scores, parameters)?;
    Ok(Answered::new(call, value, 0, &replies))
}

/// Answers with vectors if the app gives embeddings and no `logits`, and else with classes or entities.
async fn of_texts(call: &Call, texts: &Texts, asked: &RequestBody) -> Result<Answered, Failure> {
    let single = matches!(texts, Texts::One(_));
    let texts = texts.list();
    let strategy = asked.parameters.aggregation_strategy.as_deref();
    let inputs = texts
        .iter()
        .map(|text| with_strategy(asked.form.inputs(text)?, strategy));
    let replies = ask_all(call, inputs.collect::<Result<_, Failure>>()?).await?;
    let embeds = replies.iter().all(|reply| {
        let has_logits = reply.outputs.iter().any(|output| output.name == "logits");
        !has_logits && embedding(reply).is_ok()
    });
    let value = if embeds {
        vectors(&replies, &asked.form)?
    } else {
        predictions(call, &replies, single, asked.raw_scores, &asked.parameters)?
    };
    Ok(Answered::new(call, value, characters(texts), &replies))
}

async fn of_question(call: &Call, asked: &Question) -> Result<Answered, Failure> {
    let inputs = vec![
        Tensor::from_texts("text", &[&asked.question])?,
        Tensor::from_texts("text_pair", &[&asked.context])?,
    ];
    let replies = ask_all(call, vec![inputs]).await?;
    let answers = replies.iter().map(|reply| answer(reply, &asked.context));
    let value = answers.collect::<Result<Value, Failure>>()?;
    let value = value.get(0).cloned().unwrap_or_default();
    Ok(Answered::new(
        call,
        value,
        characters([&asked.question, &asked.context]),
        &replies,
    ))
}

/// Returns the answer to a question, with its first character in the context and the one after its last.
fn answer(reply: &InferReply, context: &str) -> Result<Value, Failure> {
    let output = |name: &str| reply.outputs.iter().find(|output| output.name == name);
    let (Some(answer), Some(span)) = (output("answer"), output("answer_span")) else {
        return Err(Failure::wrong_kind(
            "the app gives no `answer`; does it answer questions?",
        ));
    };
    let places = span.to_i64()?.into_iter().map(|place| {
        let place = usize::try_from(place).unwrap_or_default().min(context.len());
        context.char_indices().take_while(|(at, _)| *at < place).count()
    });
    let places: Vec<usize> = places.collect();
    Ok(json!({
        "answer": answer.to_texts()?.first(),
        "score": reply.confidence,
        "start": places.first(),
        "end": places.get(1),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_come_as_data_urls_or_bare_base64() {
        let of = |text: &str| image_url(&Texts::One(text.to_owned())).map(Cow::into_owned);
        assert_eq!(
            of("data:image/png;base64,AA").as_deref(),
            Some("data:image/png;base64,AA")
        );
        assert_eq!(
            of("iVBORw0KGgoAA==").as_deref(),
            Some("data:image/*;base64,iVBORw0KGgoAA==")
        );
        assert_eq!(of("/9j/ is no photograph"), None);
        assert_eq!(of("a text"), None);
    }

    #[test]
    fn spans_of_answers_count_characters() {
        let reply = InferReply {
            outputs: vec![
                Tensor::from_texts("answer", &["naïve"]).unwrap(),
                Tensor::from_i64("answer_span", &[2], &[5, 11]).unwrap(),
            ],
            confidence: Some(0.75),
            ..InferReply::default()
        };
        assert_eq!(
            answer(&reply, "éé naïve.").unwrap(),
            json!({"answer": "naïve", "score": 0.75, "start": 3, "end": 8})
        );
        assert!(answer(&InferReply::default(), "").is_err());
    }
}
