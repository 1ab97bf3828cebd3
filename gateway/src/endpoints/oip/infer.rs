//! Inference: a JSON request with optional binary tensors, and its answer.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderValue, Response, StatusCode, header};
use bytes::{Bytes, BytesMut};
use kaskade_actors::wire::{InferReply, InferRequest, MAX_RANK, MAX_TENSORS, TensorData, TensorElements};
use kaskade_actors::{Code, Fault};
use kaskade_models::language::request::{beam_inputs, sampling_inputs};
use kaskade_models::{Datatype, InputSpec, Tensor};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::binary;
use super::json_response;
use super::metadata::of_version;
use crate::answer_kind::AnswerKind;
use crate::http::api::Api;
use crate::http::body;
use crate::http::failure::Failure;
use crate::http::header_names::HEADER_LENGTH;
use crate::http::json_body::{self, or_default};
use crate::http::path_params::Path;
use crate::requests::call::Call;
use crate::requests::reply_metadata::Parameters;
use crate::state::{GatewayState, ServedApp};

/// Bytes that are reserved for the JSON of an answer.
const JSON_BYTES: usize = 512;

/// The JSON body of an inference request.
#[derive(Deserialize)]
struct InferBody {
    #[serde(default)]
    id: Option<String>,
    #[serde(default, deserialize_with = "or_default")]
    parameters: Map<String, Value>,
    inputs: Vec<Input>,
    #[serde(default, deserialize_with = "or_default")]
    outputs: Vec<Requested>,
}

#[derive(Deserialize)]
struct Input {
    name: String,
    shape: Vec<u64>,
    datatype: String,
    #[serde(default, deserialize_with = "or_default")]
    parameters: Map<String, Value>,
    #[serde(default)]
    data: Option<TensorData>,
}

#[derive(Deserialize)]
struct Requested {
    name: String,
    #[serde(default, deserialize_with = "or_default")]
    parameters: Map<String, Value>,
}

#[derive(Serialize)]
struct Answer<'a> {
    model_name: &'a str,
    model_version: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<&'a str>,
    parameters: Parameters<'a>,
    outputs: Vec<Output<'a>>,
}

#[derive(Serialize)]
struct Output<'a> {
    name: &'a str,
    datatype: &'static str,
    shape: &'a [usize],
    #[serde(skip_serializing_if = "Option::is_none")]
    parameters: Option<BinarySize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    data: Option<TensorElements<'a>>,
}

#[derive(Serialize)]
struct BinarySize {
    binary_data_size: usize,
}

/// Which outputs a client wants, and in which form.
struct OutputSelection {
    id: Option<String>,
    /// All outputs if it is empty.
    outputs: Vec<(String, Option<bool>)>,
    binary: bool,
}

pub(super) async fn model(
    State(shared): State<Arc<GatewayState>>,
    Path(model): Path<String>,
    request: Request,
) -> Response<Body> {
    let answered = match shared.app(&model) {
        Ok(app) => infer(&shared, app, request).await,
        Err(failure) => Err(failure),
    };
    answered.unwrap_or_else(|failure| failure.response(Api::Oip))
}

pub(super) async fn version(
    State(shared): State<Arc<GatewayState>>,
    Path((model, version)): Path<(String, String)>,
    request: Request,
) -> Response<Body> {
    let answered = match of_version(&shared, &model, &version).and_then(|app| alone(app, &version)) {
        Ok(app) => infer(&shared, app, request).await,
        Err(failure) => Err(failure),
    };
    answered.unwrap_or_else(|failure| failure.response(Api::Oip))
}

/// Parameter that Triton's clients for vLLM send; this interface gives whole answers, and the app would send parts.
pub(crate) const STREAM: &str = "stream";

/// Parameter of Triton's backend for vLLM that holds the sampling parameters.
const SAMPLING_PARAMETERS: &str = "sampling_parameters";

/// Parameter of a tensor in shared memory (Triton).
pub(crate) const SHARED_MEMORY: &str = "shared_memory_region";

/// The refusal of a tensor in shared memory, an input or an output.
pub(crate) fn no_shared_memory(kind: &str, name: &str) -> Failure {
    Failure::malformed(format!(
        "{kind} `{name}` names a `{SHARED_MEMORY}`; shared memory is not served; send the data, and take outputs from the reply"
    ))
}

/// Returns the app, if that version answers every request in every gear.
pub(crate) fn alone(app: Arc<ServedApp>, version: &str) -> Result<Arc<ServedApp>, Failure> {
    let plan = app.state.plan();
    let only = plan.is_some_and(|(_, plan)| {
        let mut stages = plan.gears.iter().flat_map(|gear| &gear.wiring.stages);
        stages.all(|stage| stage.variant == version)
    });
    if only {
        return Ok(app);
    }
    Err(Failure::malformed(
        "the plan of the app chooses the version of every request; leave `versions` out of the path. The answer names the \
         version in `model_version`",
    ))
}

async fn infer(
    shared: &GatewayState,
    app: Arc<ServedApp>,
    request: Request,
) -> Result<Response<Body>, Failure> {
    let (parts, body) = request.into_parts();
    let body = shared.read_body(&parts, body).await?;
    let header = parts.headers.get(&HEADER_LENGTH).cloned();
    let read = move |body: &Bytes| read(body, header.as_ref().map(HeaderValue::as_bytes));
    let (asked, mut selection) = body::process(body, read).await?;
    refuse_sampling(&app, &asked.parameters)?;
    let timeout = timeout(&asked.parameters)?.unwrap_or(app.options.default_budget);
    let call = Call::new(app, &parts.headers, &parts.extensions, timeout)?;
    selection.id.clone_from(&asked.id);
    let request = InferRequest {
        inputs: asked.inputs,
        // The client's id stays here: on the wire, ids are shared by all clients of an app.
        id: None,
        parameters: asked.parameters,
    };
    let reply = call.ask(request).await?;
    write(&call, &reply, &selection)
}

/// A request as the app gets it.
struct AppRequest {
    id: Option<String>,
    inputs: Vec<Tensor>,
    parameters: BTreeMap<String, String>,
}

fn read(body: &Bytes, header: Option<&[u8]>) -> Result<(AppRequest, OutputSelection), Failure> {
    let (json, mut rest) = binary::split(body, header)?;
    let asked: InferBody = json_body::read(&json)?;
    if asked.inputs.len() > MAX_TENSORS {
        return Err(Failure::malformed(format!(
            "a request has at most {MAX_TENSORS} inputs"
        )));
    }
    let inputs = asked.inputs.into_iter().map(|input| tensor(input, &mut rest));
    let inputs = inputs.collect::<Result<Vec<_>, _>>()?;
    if !rest.is_empty() {
        let left = rest.len();
        return Err(Failure::malformed(format!(
            "{left} bytes of the body belong to no input"
        )));
    }
    at_most_outputs(asked.outputs.len())?;
    let outputs = asked.outputs.into_iter().map(|output| {
        if output.parameters.contains_key(SHARED_MEMORY) {
            return Err(no_shared_memory("output", &output.name));
        }
        if output
            .parameters
            .get("classification")
            .is_some_and(|count| *count != 0 && !count.is_null())
        {
            let message = format!(
                "output `{}` asks for `classification`, which is not supported",
                output.name
            );
            return Err(Failure::malformed(message));
        }
        let binary = output.parameters.get("binary_data").and_then(Value::as_bool);
        Ok((output.name, binary))
    });
    let selection = OutputSelection {
        id: None,
        outputs: outputs.collect::<Result<_, _>>()?,
        binary: asked
            .parameters
            .get("binary_data_output")
            .and_then(Value::as_bool)
            .unwrap_or(false),
    };
    let parameters = asked
        .parameters
        .into_iter()
        .filter(|(name, _)| name != "binary_data_output" && name != STREAM);
    let request = AppRequest {
        id: asked.id,
        inputs,
        parameters: parameters
            .filter_map(|(name, value)| Some((name, scalar(value)?)))
            .collect(),
    };
    Ok((request, selection))
}

/// Refuses a request for more outputs than an answer has: each is written as often as it is named.
///
/// # Errors
/// `KSK0001`.
pub(crate) fn at_most_outputs(count: usize) -> Result<(), Failure> {
    if count <= MAX_TENSORS {
        return Ok(());
    }
    Err(Failure::malformed(format!(
        "a request names at most {MAX_TENSORS} outputs"
    )))
}

fn scalar(value: Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text),
        Value::Bool(_) | Value::Number(_) => Some(value.to_string()),
        _ => None,
    }
}

/// Refuses parameters that set how a language model samples: they are inputs of the model.
///
/// # Errors
/// `KSK0001` with the name of the parameter.
pub(crate) fn refuse_sampling(app: &ServedApp, parameters: &BTreeMap<String, String>) -> Result<(), Failure> {
    if app.options.answers != Some(AnswerKind::Text) {
        return Ok(());
    }
    let inputs: Vec<InputSpec> = sampling_inputs(true).into_iter().chain(beam_inputs()).collect();
    let is_input = |name: &str| name == SAMPLING_PARAMETERS || inputs.iter().any(|input| input.name == name);
    match parameters.keys().find(|name| is_input(name)) {
        Some(name) => Err(Failure::param(
            name.clone(),
            format!(
                "the parameter `{name}` sets how the model samples, which its inputs do here, such as the tensor `max_tokens`"
            ),
        )),
        None => Ok(()),
    }
}

/// Returns the request's parameter `timeout`, microseconds; 0 is none.
///
/// # Errors
/// `KSK0001` if it is no number.
pub(crate) fn timeout(parameters: &BTreeMap<String, String>) -> Result<Option<Duration>, Failure> {
    let Some(timeout) = parameters.get("timeout") else {
        return Ok(None);
    };
    let micros: u64 = timeout
        .parse()
        .map_err(|_| Failure::malformed("the parameter `timeout` must be a number of microseconds"))?;
    Ok((micros > 0).then(|| Duration::from_micros(micros)))
}

fn tensor(input: Input, rest: &mut Bytes) -> Result<Tensor, Failure> {
    let Input {
        name,
        shape,
        datatype,
        parameters,
        data,
    } = input;
    if shape.len() > MAX_RANK {
        return Err(Failure::malformed(format!(
            "input `{name}` has more than {MAX_RANK} dimensions"
        )));
    }
    if parameters.contains_key(SHARED_MEMORY) {
        return Err(no_shared_memory("input", &name));
    }
    let datatype = Datatype::from_name(&datatype)?;
    let size = parameters.get("binary_data_size");
    let data = match (size, data) {
        (Some(size), None) => {
            let size = size.as_u64().and_then(|size| usize::try_from(size).ok());
            let size = size.ok_or_else(|| {
                Failure::malformed(format!(
                    "`binary_data_size` of input `{name}` must be a number of bytes"
                ))
            })?;
            binary::take(rest, &name, size)?
        }
        (None, Some(data)) => data.into_bytes(datatype).map_err(|reason| {
            Failure::from(Fault::new(
                Code::InvalidInput,
                format!("input `{name}`: {reason}"),
            ))
        })?,
        (Some(_), Some(_)) => {
            let message = format!("input `{name}` has both `data` and `binary_data_size`");
            return Err(Failure::malformed(message));
        }
        (None, None) => return Err(Failure::malformed(format!("input `{name}` has no `data`"))),
    };
    let extents = shape
        .iter()
        .map(|extent| usize::try_from(*extent))
        .collect::<Result<Vec<_>, _>>();
    let shape =
        extents.map_err(|_| Failure::malformed(format!("the shape of input `{name}` is too large")))?;
    let tensor = Tensor {
        name,
        shape,
        datatype,
        data,
    };
    Ok(tensor.checked()?)
}

fn write(call: &Call, reply: &InferReply, selection: &OutputSelection) -> Result<Response<Body>, Failure> {
    let mut chosen = Vec::new();
    if selection.outputs.is_empty() {
        chosen.extend(reply.outputs.iter().map(|output| (output, selection.binary)));
    }
    for (name, binary) in &selection.outputs {
        let output = reply
            .outputs
            .iter()
            .find(|output| output.name == *name)
            .ok_or_else(|| {
                let names: Vec<&str> = reply.outputs.iter().map(|output| output.name.as_str()).collect();
                Failure::malformed(format!(
                    "the app has no output `{name}`; its outputs are {names:?}"
                ))
            })?;
        chosen.push((output, binary.unwrap_or(selection.binary)));
    }
    let mut raw = BytesMut::new();
    let any_binary = chosen.iter().any(|(_, binary)| *binary);
    let outputs = chosen.into_iter().map(|(tensor, binary)| {
        if binary {
            raw.extend_from_slice(&tensor.data);
        }
        Output {
            name: &tensor.name,
            datatype: tensor.datatype.name(),
            shape: &tensor.shape,
            parameters: binary.then_some(BinarySize {
                binary_data_size: tensor.data.len(),
            }),
            data: (!binary).then_some(TensorElements(tensor)),
        }
    });
    let outputs = outputs.collect();
    let described = call.described(reply);
    let answer = Answer {
        model_name: &call.app.options.name,
        model_version: &reply.variant,
        id: selection.id.as_deref(),
        parameters: described.parameters(),
        outputs,
    };
    let mut body = Vec::with_capacity(JSON_BYTES + raw.len());
    serde_json::to_writer(&mut body, &answer).map_err(|error| {
        Failure::malformed(format!(
            "{error}; ask for it as binary data (`binary_data_output`)"
        ))
    })?;
    let length = body.len();
    body.extend_from_slice(&raw);
    let mut response = json_response(StatusCode::OK, body);
    if any_binary {
        let headers = response.headers_mut();
        headers.insert(&HEADER_LENGTH, HeaderValue::from(length));
        headers.insert(
            header::CONTENT_TYPE,
            HeaderValue::from_static("application/octet-stream"),
        );
    }
    described.headers(response.headers_mut());
    Ok(response)
}
