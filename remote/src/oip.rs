//! The Open Inference Protocol v2: over gRPC, or over HTTP with binary tensors where the server has them.
//!
//! The binary extension puts the tensors behind the JSON of request and answer, little-endian and in order;
//! `inference-header-content-length` is the length of the JSON (Triton, `extension_binary_data.md`).

pub(crate) mod grpc;

use bytes::Bytes;
use hyper::Method;
use hyper::header::HeaderName;
use kaskade_models::{
    Datatype, Extent, InputSpec, Inputs, ModelError, Outputs, Signature, Tensor, USAGE, tokens_of,
};
use kaskade_policy::remote::price::Usage;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::error::CallError;
use crate::http::Http;
use crate::prepared::{Answer, Prepared};

/// Length of the JSON before binary tensors.
const JSON_LENGTH: HeaderName = HeaderName::from_static("inference-header-content-length");

/// Largest size of a dimension that the model leaves open.
const MAX_EXTENT: usize = 1 << 20;

/// Metadata of a model, as its server states it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Metadata {
    inputs: Vec<Port>,
    wire: Wire,
}

/// How a server is spoken to.
#[derive(Debug, Clone, PartialEq)]
enum Wire {
    /// Over HTTP.
    Rest {
        /// Whether the server takes and gives binary tensors.
        binary: bool,
        /// Path of the model after the base address.
        path: String,
    },
    /// Over gRPC.
    Grpc {
        model: String,
        /// Empty: the server's choice.
        version: String,
    },
}

/// An input of a model.
#[derive(Debug, Clone, PartialEq, Deserialize)]
struct Port {
    name: String,
    datatype: String,
    /// -1 for any size.
    shape: Vec<i64>,
}

/// Both lists are optional, and null is one way to leave them out.
#[derive(Deserialize)]
struct ModelMetadata {
    #[serde(default)]
    inputs: Option<Vec<Port>>,
}

#[derive(Deserialize)]
struct ServerMetadata {
    #[serde(default)]
    extensions: Option<Vec<String>>,
}

impl Metadata {
    /// Asks a server about a model.
    ///
    /// # Errors
    /// [`CallError`]; [`CallError::Malformed`] for a type of tensors that is not served here.
    pub(crate) async fn fetch(http: &Http, model: &str, version: Option<&str>) -> Result<Self, CallError> {
        if http.is_grpc() {
            return grpc::fetch(http, model, version).await;
        }
        let get = async |path: &str| {
            let answer = http
                .send(Method::GET, path, "application/json", &[], Bytes::new())
                .await?;
            http.read(answer).await
        };
        let path = path_of(model, version);
        let server: ServerMetadata = serde_json::from_slice(&get("v2").await?).map_err(malformed)?;
        let model: ModelMetadata = serde_json::from_slice(&get(&path).await?).map_err(malformed)?;
        let inputs = model.inputs.unwrap_or_default();
        for port in &inputs {
            Datatype::from_name(&port.datatype).map_err(malformed)?;
        }
        Ok(Self {
            inputs,
            wire: Wire::Rest {
                binary: server
                    .extensions
                    .iter()
                    .flatten()
                    .any(|name| name.starts_with("binary_tensor_data")),
                path,
            },
        })
    }

    /// Returns whether an input has a batch dimension: its first may have any size, and others follow. A single dimension of any size
    /// is the length of a vector.
    fn is_batched(port: &Port) -> bool {
        matches!(port.shape.as_slice(), [first, _, ..] if *first < 0)
    }

    /// The model's inputs, without their batch dimension.
    pub(crate) fn signature(&self) -> Signature {
        let spec = |port: &Port| {
            let dimensions = port.shape.iter().skip(usize::from(Self::is_batched(port)));
            let extents = dimensions.map(|extent| match usize::try_from(*extent) {
                Ok(extent) => Extent::Exactly(extent),
                Err(_) => Extent::UpTo(MAX_EXTENT),
            });
            let datatype = Datatype::from_name(&port.datatype).ok()?;
            Some(InputSpec::required(
                port.name.as_str(),
                datatype,
                extents.collect(),
            ))
        };
        Signature {
            inputs: self.inputs.iter().filter_map(spec).collect(),
        }
    }

    /// Returns the model's inputs that a request has, with the shapes that the model expects.
    fn chosen<'a>(&self, inputs: &'a Inputs) -> Vec<(&'a Tensor, Vec<usize>)> {
        // An endpoint that describes no inputs, such as a gateway before its first request, gets those of the request.
        if self.inputs.is_empty() {
            return inputs.iter().map(|input| (input, input.shape.clone())).collect();
        }
        let ports = self.inputs.iter().filter_map(|port| {
            let input = inputs.iter().find(|input| input.name == port.name)?;
            let batch = Self::is_batched(port).then_some(1);
            let shape = batch.into_iter().chain(input.shape.iter().copied());
            Some((input, shape.collect()))
        });
        ports.collect()
    }

    /// Writes a request.
    ///
    /// # Errors
    /// [`ModelError`], naming the input.
    pub(crate) fn prepare(&self, inputs: &Inputs) -> Result<Prepared, ModelError> {
        self.signature().check(inputs)?;
        let (binary, path) = match &self.wire {
            Wire::Rest { binary, path } => (*binary, path),
            Wire::Grpc { model, version } => return Ok(grpc::prepare(self, model, version, inputs)),
        };
        let (mut listed, mut raw) = (Vec::new(), Vec::new());
        for (input, shape) in self.chosen(inputs) {
            let mut tensor = json!({"name": input.name, "shape": shape, "datatype": input.datatype.name()});
            let (key, value) = if binary {
                raw.extend_from_slice(&input.data);
                ("parameters", json!({"binary_data_size": input.data.len()}))
            } else {
                ("data", numbers(input)?)
            };
            if let Some(fields) = tensor.as_object_mut() {
                fields.insert(key.to_owned(), value);
            }
            listed.push(tensor);
        }
        let mut request = json!({"inputs": listed});
        if binary && let Some(fields) = request.as_object_mut() {
            fields.insert("parameters".to_owned(), json!({"binary_data_output": true}));
        }
        let mut body = request.to_string().into_bytes();
        let mut headers = Vec::new();
        if binary {
            headers.push((JSON_LENGTH, body.len().to_string()));
            body.extend(raw);
        }
        Ok(Prepared {
            path: format!("{path}/infer"),
            content_type: if binary {
                "application/octet-stream"
            } else {
                "application/json"
            },
            headers,
            body: body.into(),
            head: Some(JSON_LENGTH),
            streamed: false,
            max_tokens: 0,
            top_logprobs: None,
            free_temperature: false,
        })
    }
}

/// Asks a server whether a model is ready; one that does not answer this, whether it is ready itself.
///
/// # Errors
/// [`CallError`] if it is not, or the server does not answer.
pub(crate) async fn ask_whether_ready(
    http: &Http,
    model: &str,
    version: Option<&str>,
) -> Result<(), CallError> {
    if http.is_grpc() {
        return match grpc::ask_whether_ready(http, model, version).await {
            Err(error) if error.is_not_found() => Ok(()),
            other => other,
        };
    }
    let asked = get_ready(http, &format!("{}/ready", path_of(model, version))).await;
    match asked {
        Err(error) if error.is_not_found() => get_ready(http, "v2/health/ready").await,
        other => other,
    }
}

/// Reads whether what is at a path is ready: by the status, and by `ready` in the body if it has one.
async fn get_ready(http: &Http, path: &str) -> Result<(), CallError> {
    #[derive(Deserialize)]
    struct Ready {
        ready: bool,
    }

    let answer = http
        .send(Method::GET, path, "application/json", &[], Bytes::new())
        .await?;
    let body = http.read(answer).await?;
    match serde_json::from_slice(&body) {
        Ok(Ready { ready: false }) => Err(not_ready()),
        _ => Ok(()),
    }
}

/// The failure of a model that its server does not serve yet.
fn not_ready() -> CallError {
    CallError::Status {
        status: 503,
        code: None,
        message: "the model is not ready".to_owned(),
        retry_after: None,
    }
}

/// Bytes of a name that a part of a path cannot hold (RFC 3986, section 3.3), and those that mean something in one.
const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~');

/// Returns the path of a model after the base address.
fn path_of(model: &str, version: Option<&str>) -> String {
    let model = utf8_percent_encode(model, ESCAPED);
    match version {
        Some(version) => format!(
            "v2/models/{model}/versions/{}",
            utf8_percent_encode(version, ESCAPED)
        ),
        None => format!("v2/models/{model}"),
    }
}

/// The elements of a tensor as JSON.
fn numbers(tensor: &Tensor) -> Result<Value, ModelError> {
    macro_rules! read {
        ($type:ty) => {
            tensor
                .data
                .chunks_exact(size_of::<$type>())
                .filter_map(|bytes| Some(<$type>::from_le_bytes(bytes.try_into().ok()?)))
                .map(Value::from)
                .collect()
        };
    }
    Ok(match tensor.datatype {
        Datatype::Bool => tensor.data.iter().map(|byte| Value::from(*byte != 0)).collect(),
        Datatype::U8 => read!(u8),
        Datatype::U16 => read!(u16),
        Datatype::U32 => read!(u32),
        Datatype::U64 => read!(u64),
        Datatype::I8 => read!(i8),
        Datatype::I16 => read!(i16),
        Datatype::I32 => read!(i32),
        Datatype::I64 => read!(i64),
        Datatype::F32 => read!(f32),
        Datatype::F64 => read!(f64),
        Datatype::Bytes => tensor.to_texts()?.into_iter().map(Value::from).collect(),
        Datatype::F16 | Datatype::Bf16 => {
            return Err(ModelError::BadInput {
                name: tensor.name.clone(),
                reason: format!(
                    "the endpoint takes {} as binary tensors only, which it does not have",
                    tensor.datatype.name()
                ),
            });
        }
    })
}

#[derive(Deserialize)]
struct InferAnswer {
    outputs: Vec<OutputField>,
}

#[derive(Deserialize)]
struct OutputField {
    name: String,
    shape: Vec<usize>,
    datatype: String,
    #[serde(default)]
    data: Option<Value>,
    #[serde(default)]
    parameters: Option<Parameters>,
}

#[derive(Deserialize)]
struct Parameters {
    #[serde(default)]
    binary_data_size: Option<usize>,
}

/// Reads an answer; `head` is its type over gRPC, otherwise its `inference-header-content-length`, or empty. A batch
/// dimension of 1 is taken off.
///
/// # Errors
/// [`CallError::Malformed`].
pub(crate) fn decode(head: &str, body: &Bytes) -> Result<Answer, CallError> {
    if head.starts_with(grpc::TYPE) {
        return grpc::decode(body);
    }
    let length = match head {
        "" => body.len(),
        head => head.parse().map_err(malformed)?,
    };
    if length > body.len() {
        return Err(malformed("its JSON is longer than the answer"));
    }
    let (json, mut binary) = (body.slice(..length), body.slice(length..));
    let read: InferAnswer = serde_json::from_slice(&json).map_err(malformed)?;
    let mut outputs = Vec::with_capacity(read.outputs.len());
    for output in read.outputs {
        let datatype = Datatype::from_name(&output.datatype).map_err(malformed)?;
        let size = output
            .parameters
            .and_then(|parameters| parameters.binary_data_size);
        let data = match (size, output.data) {
            (Some(size), _) if size <= binary.len() => binary.split_to(size),
            (None, Some(data)) => bytes_of(datatype, &data).ok_or_else(|| {
                malformed(format!(
                    "output `{}` holds a value that is not of type {}",
                    output.name, output.datatype
                ))
            })?,
            _ => return Err(malformed(format!("output `{}` has no data", output.name))),
        };
        let tensor = Tensor {
            name: output.name,
            shape: without_batch(output.shape),
            datatype,
            data,
        };
        outputs.push(tensor.checked().map_err(malformed)?);
    }
    Ok(answer(outputs))
}

/// Returns an answer with these outputs. The protocol counts no tokens; a model may, in an output `usage`.
fn answer(mut outputs: Outputs) -> Answer {
    let counted = tokens_of(&outputs);
    if counted.is_some() {
        // Every answer with counted tokens gets the output again.
        outputs.retain(|output| output.name != USAGE);
    }
    Answer {
        outputs,
        usage: counted.map(|[input_tokens, output_tokens]| Usage {
            input_tokens,
            output_tokens,
        }),
        calls: 1,
    }
}

fn without_batch(mut shape: Vec<usize>) -> Vec<usize> {
    if shape.len() > 1 && shape.first() == Some(&1) {
        shape.remove(0);
    }
    shape
}

/// The bytes of elements in JSON, nested or flat.
fn bytes_of(datatype: Datatype, data: &Value) -> Option<Bytes> {
    let mut bytes = Vec::new();
    append(datatype, data, &mut bytes)?;
    Some(bytes.into())
}

fn append(datatype: Datatype, value: &Value, bytes: &mut Vec<u8>) -> Option<()> {
    if let Some(elements) = value.as_array() {
        return elements
            .iter()
            .try_for_each(|element| append(datatype, element, bytes));
    }
    match datatype {
        Datatype::Bool => bytes.push(value.as_bool()?.into()),
        Datatype::U8 => bytes.push(u8::try_from(value.as_u64()?).ok()?),
        Datatype::U16 => bytes.extend(u16::try_from(value.as_u64()?).ok()?.to_le_bytes()),
        Datatype::U32 => bytes.extend(u32::try_from(value.as_u64()?).ok()?.to_le_bytes()),
        Datatype::U64 => bytes.extend(value.as_u64()?.to_le_bytes()),
        Datatype::I8 => bytes.extend(i8::try_from(value.as_i64()?).ok()?.to_le_bytes()),
        Datatype::I16 => bytes.extend(i16::try_from(value.as_i64()?).ok()?.to_le_bytes()),
        Datatype::I32 => bytes.extend(i32::try_from(value.as_i64()?).ok()?.to_le_bytes()),
        Datatype::I64 => bytes.extend(value.as_i64()?.to_le_bytes()),
        Datatype::F32 => bytes.extend((value.as_f64()? as f32).to_le_bytes()),
        Datatype::F64 => bytes.extend(value.as_f64()?.to_le_bytes()),
        Datatype::Bytes => {
            let text = value.as_str()?;
            bytes.extend(u32::try_from(text.len()).ok()?.to_le_bytes());
            bytes.extend(text.as_bytes());
        }
        Datatype::F16 | Datatype::Bf16 => return None,
    }
    Some(())
}

#[allow(clippy::needless_pass_by_value, reason = "it is the argument of `map_err`")]
fn malformed(reason: impl std::fmt::Display) -> CallError {
    CallError::Malformed {
        reason: reason.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metadata(binary: bool) -> Metadata {
        let port = |name: &str, datatype: &str, shape: &[i64]| Port {
            name: name.to_owned(),
            datatype: datatype.to_owned(),
            shape: shape.to_vec(),
        };
        Metadata {
            inputs: vec![port("x", "FP32", &[-1, 2]), port("t", "BYTES", &[1])],
            wire: Wire::Rest {
                binary,
                path: "v2/models/m".to_owned(),
            },
        }
    }

    fn inputs() -> Inputs {
        vec![
            Tensor::from_texts("t", &["hi"]).unwrap(),
            Tensor::from_f32("x", &[2], &[1.0, -2.5]).unwrap(),
        ]
    }

    #[test]
    fn names_are_parts_of_paths_and_missing_lists_are_empty() {
        assert_eq!(path_of("digits-v1.0", None), "v2/models/digits-v1.0");
        assert_eq!(
            path_of("org/a model", Some("1?")),
            "v2/models/org%2Fa%20model/versions/1%3F"
        );
        for body in ["{}", r#"{"name": "m", "inputs": null, "extensions": null}"#] {
            let model: ModelMetadata = serde_json::from_str(body).unwrap();
            let server: ServerMetadata = serde_json::from_str(body).unwrap();
            assert!(model.inputs.is_none() && server.extensions.is_none());
        }
    }

    #[test]
    fn tensors_are_written_both_ways() {
        let prepared = metadata(false).prepare(&inputs()).unwrap();
        let body: Value = serde_json::from_slice(&prepared.body).unwrap();
        assert_eq!(
            body["inputs"],
            json!([{"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [1.0, -2.5]},
                   {"name": "t", "shape": [1], "datatype": "BYTES", "data": ["hi"]}])
        );
        let prepared = metadata(true).prepare(&inputs()).unwrap();
        let length: usize = prepared.headers[0].1.parse().unwrap();
        let (json, binary) = prepared.body.split_at(length);
        let body: Value = serde_json::from_slice(json).unwrap();
        assert_eq!(body["inputs"][0]["parameters"]["binary_data_size"], 8);
        assert_eq!(binary.len(), 8 + 6);
        assert!(metadata(true).prepare(&inputs()[..1].to_vec()).is_err());
        let undescribed = Metadata {
            inputs: Vec::new(),
            ..metadata(false)
        };
        let prepared = undescribed.prepare(&inputs()).unwrap();
        let body: Value = serde_json::from_slice(&prepared.body).unwrap();
        let shapes: Vec<&Value> = body["inputs"]
            .as_array()
            .unwrap()
            .iter()
            .map(|input| &input["shape"])
            .collect();
        let asked: Vec<Value> = inputs().iter().map(|input| json!(input.shape)).collect();
        assert_eq!(
            shapes,
            asked.iter().collect::<Vec<_>>(),
            "as the request has them"
        );
    }

    #[test]
    fn a_vector_of_any_length_is_no_batch() {
        let port = |name: &str, datatype: &str| Port {
            name: name.to_owned(),
            datatype: datatype.to_owned(),
            shape: vec![-1],
        };
        let vectors = Metadata {
            inputs: vec![port("text", "BYTES"), port("wave", "FP32")],
            ..metadata(false)
        };
        let inputs = vec![
            Tensor::from_texts("text", &["hi"]).unwrap(),
            Tensor::from_f32("wave", &[3], &[0.0, 0.5, 1.0]).unwrap(),
        ];
        let prepared = vectors.prepare(&inputs).unwrap();
        let body: Value = serde_json::from_slice(&prepared.body).unwrap();
        assert_eq!(
            (&body["inputs"][0]["shape"], &body["inputs"][1]["shape"]),
            (&json!([1]), &json!([3]))
        );
    }

    #[test]
    fn answers_are_read_both_ways_and_garbage_is_refused() {
        let read = |head: &str, body: &[u8]| decode(head, &Bytes::copy_from_slice(body));
        let text =
            br#"{"outputs": [{"name": "y", "shape": [1, 2], "datatype": "FP32", "data": [[1, 2.5]]}]}"#;
        let answer = read("", text).unwrap();
        assert_eq!(
            answer.outputs,
            [Tensor::from_f32("y", &[2], &[1.0, 2.5]).unwrap()]
        );
        let json = br#"{"outputs": [{"name": "y", "shape": [1, 1], "datatype": "FP32", "parameters": {"binary_data_size": 4}}]}"#;
        let whole = [&json[..], &2.0_f32.to_le_bytes()].concat();
        let answer = read(&json.len().to_string(), &whole).unwrap();
        assert_eq!(answer.outputs[0].to_f32().unwrap(), [2.0]);
        assert_eq!(answer.usage, None);
        let counted =
            br#"{"outputs": [{"name": "usage", "shape": [1, 2], "datatype": "INT64", "data": [7, 3]}]}"#;
        let answer = read("", counted).unwrap();
        let usage = answer.usage.unwrap();
        assert_eq!((usage.input_tokens, usage.output_tokens), (7, 3));
        assert!(answer.outputs.is_empty());
        for (head, body) in [
            ("", &json[..]),
            ("9999", &whole[..]),
            ("x", &whole[..]),
            ("", b"{}"),
            (
                "",
                br#"{"outputs": [{"name": "y", "shape": [3], "datatype": "FP32", "data": [1]}]}"#,
            ),
            (
                "",
                br#"{"outputs": [{"name": "y", "shape": [1], "datatype": "FP32", "data": ["NaN"]}]}"#,
            ),
            (
                "",
                br#"{"outputs": [{"name": "y", "shape": [1], "datatype": "FP8", "data": [1]}]}"#,
            ),
        ] {
            assert!(
                matches!(read(head, body), Err(CallError::Malformed { .. })),
                "{head}"
            );
        }
    }
}
