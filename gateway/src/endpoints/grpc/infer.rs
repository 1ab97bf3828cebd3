//! Inference: one request, or the requests of a stream.

use std::collections::BTreeMap;
use std::collections::HashMap;
use std::pin::Pin;
use std::sync::Arc;

use axum::http::{Extensions, HeaderMap};
use futures::{Stream, StreamExt as _, stream};
use kaskade_actors::wire::headers::Trace;
use kaskade_actors::wire::{InferReply, InferRequest, MAX_RANK, MAX_TENSORS};
use kaskade_actors::{Code, Fault};
use kaskade_models::Tensor;
use kaskade_oip::proto::infer_parameter::ParameterChoice;
use kaskade_oip::proto::model_infer_request::InferRequestedOutputTensor;
use kaskade_oip::proto::model_infer_response::InferOutputTensor;
use kaskade_oip::proto::{InferParameter, ModelInferRequest, ModelInferResponse, ModelStreamInferResponse};
use kaskade_oip::{codec, tensors};
use serde_json::Value;
use tonic::metadata::MetadataMap;
use tonic::{Request, Response, Status, Streaming};

use super::named;
use crate::endpoints::oip::infer::{
    SHARED_MEMORY, STREAM, alone, at_most_outputs, no_shared_memory, refuse_sampling, timeout,
};
use crate::endpoints::oip::metadata::of_version;
use crate::http::failure::Failure;
use crate::http::grpc_status;
use crate::limits::limited_body::take_room;
use crate::limits::permits::Permits;
use crate::requests::call::Call;
use crate::state::GatewayState;

/// Parameter of the last response to a request of a stream (Triton).
const FINAL: &str = "triton_final_response";

/// Requests of one stream that are under way at once.
const IN_STREAM: usize = 32;

/// Answers one request; its response has the headers of the REST interface as metadata.
pub(super) async fn one(
    shared: &GatewayState,
    request: Request<ModelInferRequest>,
) -> Result<Response<ModelInferResponse>, Status> {
    let (metadata, extensions, asked) = request.into_parts();
    let headers = metadata.into_headers();
    let answered = async {
        if headers.contains_key("grpc-encoding")
            && let Some(permits) = extensions.get::<Permits>()
        {
            // The bytes that arrived were counted; a few may stand for many.
            take_room(&shared.bodies, permits, codec::size(&asked))?;
        }
        infer(shared, &headers, &extensions, asked).await
    };
    let answered = answered.await;
    let (call, reply, answer) = answered.map_err(|failure| grpc_status::of(&failure))?;
    let mut response = Response::new(answer);
    let mut described = HeaderMap::new();
    call.describe(&reply, &mut described);
    *response.metadata_mut() = MetadataMap::from_headers(described);
    Ok(response)
}

/// Answers the requests of a stream, in their order. A failure is the answer of its request and leaves the stream open. The
/// stream ends when the gateway drains.
pub(super) fn many(
    shared: Arc<GatewayState>,
    request: Request<Streaming<ModelInferRequest>>,
) -> Pin<Box<dyn Stream<Item = Result<ModelStreamInferResponse, Status>> + Send>> {
    let (metadata, extensions, requests) = request.into_parts();
    let headers = Arc::new(metadata.into_headers());
    let permits = extensions.get::<Permits>().cloned();
    let trace = extensions.get::<Trace>().copied();
    let mut stopping = shared.stopping.subscribe();
    let stopped = async move {
        let _ = stopping.wait_for(|stopping| *stopping).await;
    };
    let answers = requests.take_until(Box::pin(stopped)).map(move |asked| {
        let (shared, headers, permits) = (Arc::clone(&shared), Arc::clone(&headers), permits.clone());
        async move {
            let asked = asked?;
            let (id, name) = (asked.id.clone(), asked.model_name.clone());
            let answered = in_stream(&shared, &headers, permits.as_ref(), trace, asked).await;
            let mut answer = answered.unwrap_or_else(|failure| ModelStreamInferResponse {
                error_message: failure.to_string(),
                infer_response: Some(ModelInferResponse {
                    id,
                    model_name: name,
                    ..ModelInferResponse::default()
                }),
            });
            // Clients of Triton wait for it: a request has one response here.
            if let Some(answer) = &mut answer.infer_response {
                let is_final = InferParameter {
                    parameter_choice: Some(ParameterChoice::BoolParam(true)),
                };
                answer.parameters.insert(FINAL.to_owned(), is_final);
            }
            Ok(answer)
        }
    });
    // After a broken message nothing more can be read.
    let answers = answers
        .buffered(IN_STREAM)
        .scan(false, |broken, answer: Result<_, Status>| {
            let answer = (!*broken).then_some(answer);
            *broken |= matches!(answer, Some(Err(_)));
            std::future::ready(answer)
        });
    // The stream's own permit is held until it ends.
    Box::pin(answers.chain(stream::poll_fn(move |_| {
        let _ = &extensions;
        std::task::Poll::Ready(None)
    })))
}

async fn in_stream(
    shared: &GatewayState,
    headers: &HeaderMap,
    permits: Option<&Permits>,
    trace: Option<Trace>,
    asked: ModelInferRequest,
) -> Result<ModelStreamInferResponse, Failure> {
    let mut extensions = Extensions::new();
    if let Some(trace) = trace {
        extensions.insert(trace);
    }
    if let Some(permits) = permits {
        let permits = permits.another()?;
        take_room(&shared.bodies, &permits, codec::size(&asked))?;
        extensions.insert(permits);
    }
    let (_, _, answer) = infer(shared, headers, &extensions, asked).await?;
    Ok(ModelStreamInferResponse {
        error_message: String::new(),
        infer_response: Some(answer),
    })
}

async fn infer(
    shared: &GatewayState,
    headers: &HeaderMap,
    extensions: &Extensions,
    asked: ModelInferRequest,
) -> Result<(Call, InferReply, ModelInferResponse), Failure> {
    let app = match named(&asked.model_version) {
        Some(version) => {
            of_version(shared, &asked.model_name, version).and_then(|app| alone(app, version))?
        }
        None => shared.app(&asked.model_name)?,
    };
    let parameters = scalars(asked.parameters);
    refuse_sampling(&app, &parameters)?;
    let budget = timeout(&parameters)?.unwrap_or(app.options.default_budget);
    let call = Call::new(app, headers, extensions, budget)?;
    let request = InferRequest {
        inputs: inputs(asked.inputs, asked.raw_input_contents)?,
        // The client's id stays here: on the wire, ids are shared by all clients of an app.
        id: None,
        parameters,
    };
    let wanted = wanted(asked.outputs)?;
    let reply = call.ask(request).await?;
    let answer = answer(&call, &reply, &wanted, asked.id)?;
    Ok((call, reply, answer))
}

fn inputs(
    tensors: Vec<kaskade_oip::proto::model_infer_request::InferInputTensor>,
    raw: Vec<bytes::Bytes>,
) -> Result<Vec<Tensor>, Failure> {
    if tensors.len() > MAX_TENSORS {
        return Err(Failure::malformed(format!(
            "a request has at most {MAX_TENSORS} inputs"
        )));
    }
    if let Some(input) = tensors
        .iter()
        .find(|input| input.parameters.contains_key(SHARED_MEMORY))
    {
        return Err(no_shared_memory("input", &input.name));
    }
    if let Some(input) = tensors.iter().find(|input| input.shape.len() > MAX_RANK) {
        let message = format!("input `{}` has more than {MAX_RANK} dimensions", input.name);
        return Err(Failure::malformed(message));
    }
    kaskade_oip::tensors::inputs(tensors, raw)
        .map_err(|error| Fault::new(Code::InvalidInput, error.to_string()).into())
}

/// Returns the names of the outputs that the client wants; all if there are none.
fn wanted(outputs: Vec<InferRequestedOutputTensor>) -> Result<Vec<String>, Failure> {
    at_most_outputs(outputs.len())?;
    let names = outputs.into_iter().map(|output| {
        if output.parameters.contains_key(SHARED_MEMORY) {
            return Err(no_shared_memory("output", &output.name));
        }
        let classes = output.parameters.get("classification");
        if classes.is_some_and(|count| scalar(count.clone()).is_some_and(|count| count != "0")) {
            let message = format!(
                "output `{}` asks for `classification`, which is not supported",
                output.name
            );
            return Err(Failure::malformed(message));
        }
        Ok(output.name)
    });
    names.collect()
}

fn answer(
    call: &Call,
    reply: &InferReply,
    wanted: &[String],
    id: String,
) -> Result<ModelInferResponse, Failure> {
    let mut chosen: Vec<&Tensor> = Vec::new();
    if wanted.is_empty() {
        chosen.extend(&reply.outputs);
    }
    for name in wanted {
        let output = reply.outputs.iter().find(|output| output.name == *name);
        chosen.push(output.ok_or_else(|| {
            let names: Vec<&str> = reply.outputs.iter().map(|output| output.name.as_str()).collect();
            Failure::malformed(format!(
                "the app has no output `{name}`; its outputs are {names:?}"
            ))
        })?);
    }
    let outputs = chosen.iter().map(|tensor| InferOutputTensor {
        name: tensor.name.clone(),
        datatype: tensor.datatype.name().to_owned(),
        shape: tensors::shape(tensor),
        ..InferOutputTensor::default()
    });
    Ok(ModelInferResponse {
        model_name: call.app.options.name.clone(),
        model_version: reply.variant.clone(),
        id,
        parameters: described(serde_json::to_value(call.described(reply).parameters()).unwrap_or_default()),
        outputs: outputs.collect(),
        raw_output_contents: chosen.iter().map(|tensor| tensor.data.clone()).collect(),
    })
}

/// Returns the parameters of a response as messages have them.
fn described(parameters: Value) -> HashMap<String, InferParameter> {
    let Value::Object(parameters) = parameters else {
        return HashMap::new();
    };
    let parameters = parameters.into_iter().filter_map(|(name, value)| {
        let choice = match value {
            Value::String(text) => ParameterChoice::StringParam(text),
            Value::Bool(value) => ParameterChoice::BoolParam(value),
            Value::Number(number) => ParameterChoice::DoubleParam(number.as_f64()?),
            _ => return None,
        };
        Some((
            name,
            InferParameter {
                parameter_choice: Some(choice),
            },
        ))
    });
    parameters.collect()
}

/// Returns the parameters of a request as the app gets them.
fn scalars(parameters: HashMap<String, InferParameter>) -> BTreeMap<String, String> {
    let parameters = parameters.into_iter();
    parameters
        .filter(|(name, _)| name != STREAM)
        .filter_map(|(name, value)| Some((name, scalar(value)?)))
        .collect()
}

fn scalar(parameter: InferParameter) -> Option<String> {
    Some(match parameter.parameter_choice? {
        ParameterChoice::BoolParam(value) => value.to_string(),
        ParameterChoice::Int64Param(value) => value.to_string(),
        ParameterChoice::StringParam(text) => text,
        ParameterChoice::DoubleParam(value) => value.to_string(),
        ParameterChoice::Uint64Param(value) => value.to_string(),
    })
}
