//! ONNX Runtime sessions: inputs and outputs of a graph, and conversion of tensors.

use std::path::Path;

use half::{bf16, f16};
use ort::ep::ExecutionProviderDispatch;
use ort::session::{Session, SessionInputValue};
use ort::value::{DynValue, Outlet, TensorElementType, ValueType};

use super::library;
use crate::checkpoint::LoadError;
use crate::device::DeviceChoice;
use crate::runtime::model::ModelError;
use crate::runtime::tensor::{Datatype, Tensor};

/// Metadata keys that may contain class names, as a JSON list or a map from numbers.
const METADATA: [&str; 4] = ["id2label", "labels", "classes", "class_names"];

/// A loaded graph.
pub(super) struct Graph {
    session: Session,
    /// Required inputs, in the graph's order.
    pub inputs: Vec<Port>,
    /// Outputs, in the graph's order.
    pub outputs: Vec<Port>,
    /// Values of the file's metadata that may contain class names.
    pub names: Vec<String>,
}

/// An input or output of a graph.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Port {
    /// Name of the port.
    pub name: String,
    /// Element type.
    pub datatype: Datatype,
    /// Dimensions, including the batch dimension.
    pub shape: Vec<Dimension>,
}

/// A dimension of a [`Port`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Dimension {
    /// A fixed size.
    Exactly(usize),
    /// A variable size; dimensions with the same symbol are equal. The symbol may be empty.
    Any(String),
}

impl Graph {
    /// Loads a file onto a device.
    ///
    /// # Errors
    /// [`LoadError::NoOnnxRuntime`], or [`LoadError::BadOnnx`] if the runtime rejects the file, or a port has a type
    /// without equivalent in the Open Inference Protocol.
    pub(super) fn load(file: &Path, device: DeviceChoice) -> Result<Self, LoadError> {
        let environment = library::environment()?;
        let refused = |error: &dyn std::fmt::Display| LoadError::bad_onnx(file, error.to_string());
        let mut builder = Session::builder(environment).map_err(|error| refused(&error))?;
        if let Some(provider) = provider(device) {
            let providers = builder.with_execution_providers([provider]);
            builder = providers.map_err(|error| refused(&error))?;
        }
        let session = builder.commit_from_file(file).map_err(|error| refused(&error))?;
        let ports = |outlets: &[Outlet]| {
            let ports = outlets.iter().map(|outlet| Port::of(file, outlet));
            ports.collect::<Result<Vec<_>, _>>()
        };
        let names = match session.metadata() {
            Ok(metadata) => METADATA.iter().filter_map(|key| metadata.custom(key)).collect(),
            Err(_) => Vec::new(),
        };
        Ok(Self {
            inputs: ports(session.inputs())?,
            outputs: ports(session.outputs())?,
            names,
            session,
        })
    }

    /// Runs the graph on named inputs.
    ///
    /// # Errors
    /// [`ModelError::Failed`] with the runtime's message, or [`ModelError::BadOutput`] for an output that is not a
    /// tensor.
    pub(super) fn run(&mut self, inputs: &[Tensor]) -> Result<Vec<Tensor>, ModelError> {
        let mut values: Vec<(&str, SessionInputValue<'_>)> = Vec::with_capacity(inputs.len());
        for input in inputs {
            let value = to_value(input).map_err(|error| failed(&error))?;
            values.push((input.name.as_str(), value.into()));
        }
        let outputs = self.session.run(values).map_err(|error| failed(&error))?;
        outputs
            .iter()
            .map(|(name, value)| from_value(name, &value))
            .collect()
    }
}

/// Returns the execution provider of a device; the CPU needs none.
fn provider(device: DeviceChoice) -> Option<ExecutionProviderDispatch> {
    match device {
        DeviceChoice::Cpu => None,
        // A library without the provider is an error, so that a model placed on a GPU never runs on the CPU unnoticed.
        DeviceChoice::Cuda(index) => {
            let provider = ort::ep::CUDA::default().with_device_id(index.into());
            Some(provider.build().error_on_failure())
        }
    }
}

impl Port {
    fn of(file: &Path, outlet: &Outlet) -> Result<Self, LoadError> {
        let name = outlet.name().to_owned();
        let ValueType::Tensor {
            ty,
            shape,
            dimension_symbols,
        } = outlet.dtype()
        else {
            // By default, skl2onnx ends classifiers with a dictionary per row.
            let hint = match outlet.dtype() {
                ValueType::Sequence(_) | ValueType::Map { .. } => {
                    "; export scikit-learn models with `options={'zipmap': False}`"
                }
                _ => "",
            };
            return Err(LoadError::bad_onnx(
                file,
                format!("`{name}` is not a tensor, but {}{hint}", outlet.dtype()),
            ));
        };
        let datatype = datatype(*ty).ok_or_else(|| {
            LoadError::bad_onnx(
                file,
                format!("`{name}` has elements of type {ty}, which is not served"),
            )
        })?;
        let symbols = dimension_symbols
            .iter()
            .map(String::as_str)
            .chain(std::iter::repeat(""));
        let dimension = |(extent, symbol): (&i64, &str)| match usize::try_from(*extent) {
            Ok(extent) => Dimension::Exactly(extent),
            Err(_) => Dimension::Any(symbol.to_owned()),
        };
        Ok(Self {
            name,
            datatype,
            shape: shape.iter().zip(symbols).map(dimension).collect(),
        })
    }
}

fn datatype(element: TensorElementType) -> Option<Datatype> {
    Some(match element {
        TensorElementType::Bool => Datatype::Bool,
        TensorElementType::Uint8 => Datatype::U8,
        TensorElementType::Uint16 => Datatype::U16,
        TensorElementType::Uint32 => Datatype::U32,
        TensorElementType::Uint64 => Datatype::U64,
        TensorElementType::Int8 => Datatype::I8,
        TensorElementType::Int16 => Datatype::I16,
        TensorElementType::Int32 => Datatype::I32,
        TensorElementType::Int64 => Datatype::I64,
        TensorElementType::Float16 => Datatype::F16,
        TensorElementType::Bfloat16 => Datatype::Bf16,
        TensorElementType::Float32 => Datatype::F32,
        TensorElementType::Float64 => Datatype::F64,
        TensorElementType::String => Datatype::Bytes,
        _ => return None,
    })
}

/// Copies a tensor to a value of the runtime.
fn to_value(tensor: &Tensor) -> Result<DynValue, ort::Error> {
    let shape: Vec<i64> = tensor
        .shape
        .iter()
        .map(|extent| i64::try_from(*extent).unwrap_or(i64::MAX))
        .collect();
    macro_rules! numbers {
        ($read:expr) => {
            ort::value::Tensor::from_array((shape, elements(&tensor.data, $read)))?.into_dyn()
        };
    }
    Ok(match tensor.datatype {
        Datatype::Bool => numbers!(|[byte]: [u8; 1]| byte != 0),
        Datatype::U8 => numbers!(u8::from_le_bytes),
        Datatype::I8 => numbers!(i8::from_le_bytes),
        Datatype::U16 => numbers!(u16::from_le_bytes),
        Datatype::U32 => numbers!(u32::from_le_bytes),
        Datatype::U64 => numbers!(u64::from_le_bytes),
        Datatype::I16 => numbers!(i16::from_le_bytes),
        Datatype::I32 => numbers!(i32::from_le_bytes),
        Datatype::I64 => numbers!(i64::from_le_bytes),
        Datatype::F16 => numbers!(f16::from_le_bytes),
        Datatype::Bf16 => numbers!(bf16::from_le_bytes),
        Datatype::F32 => numbers!(f32::from_le_bytes),
        Datatype::F64 => numbers!(f64::from_le_bytes),
        Datatype::Bytes => {
            let texts = tensor
                .to_texts()
                .map_err(|error| ort::Error::new(error.to_string()))?;
            let texts: Vec<String> = texts.into_iter().map(str::to_owned).collect();
            ort::value::Tensor::from_string_array((shape, texts.as_slice()))?.into_dyn()
        }
    })
}

fn elements<T, const N: usize>(data: &[u8], read: impl Fn([u8; N]) -> T) -> Vec<T> {
    let chunks = data.chunks_exact(N);
    chunks
        .filter_map(|bytes| bytes.try_into().ok())
        .map(read)
        .collect()
}

/// Copies a value of the runtime to a tensor.
fn from_value(name: &str, value: &DynValue) -> Result<Tensor, ModelError> {
    let bad = |reason: String| ModelError::BadOutput { reason };
    let ValueType::Tensor { ty, .. } = value.dtype() else {
        return Err(bad(format!("output `{name}` is not a tensor")));
    };
    let datatype = datatype(*ty).ok_or_else(|| {
        bad(format!(
            "output `{name}` has elements of type {ty}, which is not served"
        ))
    })?;
    let extents = |shape: &[i64]| {
        shape
            .iter()
            .map(|extent| usize::try_from(*extent).unwrap_or_default())
            .collect()
    };
    macro_rules! numbers {
        ($type:ty, $write:expr) => {{
            let (shape, values) = value
                .try_extract_tensor::<$type>()
                .map_err(|error| failed(&error))?;
            let data: Vec<u8> = values.iter().flat_map($write).collect();
            (extents(shape), data)
        }};
    }
    let (shape, data): (Vec<usize>, Vec<u8>) = match datatype {
        Datatype::Bool => numbers!(bool, |value| [u8::from(*value)]),
        Datatype::U8 => numbers!(u8, |value| value.to_le_bytes()),
        Datatype::I8 => numbers!(i8, |value| value.to_le_bytes()),
        Datatype::U16 => numbers!(u16, |value| value.to_le_bytes()),
        Datatype::U32 => numbers!(u32, |value| value.to_le_bytes()),
        Datatype::U64 => numbers!(u64, |value| value.to_le_bytes()),
        Datatype::I16 => numbers!(i16, |value| value.to_le_bytes()),
        Datatype::I32 => numbers!(i32, |value| value.to_le_bytes()),
        Datatype::I64 => numbers!(i64, |value| value.to_le_bytes()),
        Datatype::F16 => numbers!(f16, |value| value.to_le_bytes()),
        Datatype::Bf16 => numbers!(bf16, |value| value.to_le_bytes()),
        Datatype::F32 => numbers!(f32, |value| value.to_le_bytes()),
        Datatype::F64 => numbers!(f64, |value| value.to_le_bytes()),
        Datatype::Bytes => {
            let (shape, texts) = value.try_extract_strings().map_err(|error| failed(&error))?;
            let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
            (extents(shape), Tensor::from_texts(name, &texts)?.data.to_vec())
        }
    };
    Ok(Tensor {
        name: name.to_owned(),
        shape,
        datatype,
        data: data.into(),
    })
}

fn failed(error: &dyn std::fmt::Display) -> ModelError {
    ModelError::Failed {
        reason: error.to_string(),
    }
}
