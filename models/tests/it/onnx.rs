//! ONNX files: compares exports of the sentiment family with the CPU kernels. Skipped, with the reason on standard error,
//! if the Python packages cannot be installed.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use kaskade_models::images::image_file;
use kaskade_models::{
    Datatype, Device, DeviceChoice, Inputs, LoadError, LoadOptions, Loaded, ModelError, Partition, Tensor,
    load, load_onnx,
};
use kaskade_testkit::{ROOT, onnx_python};

const TEXTS: [&str; 5] = [
    "a warm, funny and moving film",
    "bad",
    "an awful waste of time and money, and of the talents of everybody in it",
    "",
    "naïve 漢 film",
];

/// Returns the interpreter of the test's environment, which has ONNX Runtime; `None` if there is none.
pub(super) fn python() -> Option<PathBuf> {
    static FOUND: OnceLock<Option<PathBuf>> = OnceLock::new();
    FOUND
        .get_or_init(|| match onnx_python() {
            Ok(python) => Some(python),
            Err(reason) => {
                eprintln!("SKIPPED: no Python with onnx and onnxruntime: {reason}");
                None
            }
        })
        .clone()
}

/// Runs a test in its own process, whose `PATH` begins with the environment, so that its ONNX Runtime is found. Returns
/// whether this is that process.
pub(super) fn in_environment(test: &str) -> bool {
    let Some(python) = python() else { return false };
    if std::env::var_os("KASKADE_TEST_ONNX").is_some() {
        return true;
    }
    let bin = python.parent().unwrap().to_str().unwrap().to_owned();
    let path = format!("{bin}:{}", std::env::var("PATH").unwrap_or_default());
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env("KASKADE_TEST_ONNX", "1")
        .env("PATH", path)
        .env_remove("ORT_DYLIB_PATH")
        .output()
        .unwrap();
    let said =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
    false
}

fn weights(variant: &str) -> PathBuf {
    Path::new(ROOT).join("examples/sentiment/weights").join(variant)
}

fn exported(folder: &Path, variant: &str, more: &[&str]) -> PathBuf {
    let output = Command::new(python().unwrap())
        .arg(Path::new(ROOT).join("examples/onnx/export.py"))
        .args([weights(variant), folder.to_owned()])
        .args(more)
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    folder.join("model.onnx")
}

fn onnx(file: &Path) -> Loaded {
    load_onnx(file, DeviceChoice::Cpu, &LoadOptions::default()).unwrap()
}

fn text(text: &str) -> Inputs {
    vec![Tensor::from_texts("text", &[text]).unwrap()]
}

fn logits(loaded: &mut Loaded, requests: &[Inputs]) -> Vec<Vec<f32>> {
    let answers = loaded.model.run(requests).into_iter();
    answers
        .map(|answer| {
            let outputs = answer.unwrap();
            assert_eq!(outputs[0].name, "logits");
            outputs[0].to_f32().unwrap()
        })
        .collect()
}

fn distance(left: &[Vec<f32>], right: &[Vec<f32>]) -> f32 {
    let pairs = left.iter().flatten().zip(right.iter().flatten());
    pairs
        .map(|(left, right)| (left - right).abs())
        .fold(0.0, f32::max)
}

#[test]
fn an_export_answers_like_the_cpu_kernels() {
    if !in_environment("onnx::an_export_answers_like_the_cpu_kernels") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let requests: Vec<Inputs> = TEXTS.iter().map(|one| text(one)).collect();
    for variant in ["sentiment-pico", "sentiment-mini"] {
        let mut exported = onnx(&exported(&folder.path().join(variant), variant, &[]));
        let mut ours = load(&weights(variant), &Device::Cpu, &LoadOptions::default()).unwrap();
        assert_eq!(exported.info.labels, ours.info.labels);
        assert_eq!(exported.info.task, ours.info.task);
        assert_eq!(exported.model.signature(), ours.model.signature());
        let weights = ours.info.parameters;
        // The graph also has a few constants.
        assert!(
            (weights..weights + 64).contains(&exported.info.parameters),
            "{:?}",
            exported.info
        );
        let (theirs, ours) = (logits(&mut exported, &requests), logits(&mut ours, &requests));
        let difference = distance(&theirs, &ours);
        eprintln!("{variant}: largest difference {difference:.2e}");
        assert!(difference < 1e-4, "{variant}: {theirs:?} {ours:?}");
        // An invalid request fails alone.
        let mixed = [requests[0].clone(), Vec::new(), requests[1].clone()];
        let answers = exported.model.run(&mixed);
        assert!(answers[0].is_ok() && answers[2].is_ok());
        assert!(
            matches!(answers[1], Err(ModelError::BadInput { .. })),
            "{answers:?}"
        );
    }
}

#[test]
fn int8_weights_are_served() {
    if !in_environment("onnx::int8_weights_are_served") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let file = exported(folder.path(), "sentiment-mini", &["--int8"]);
    let mut int8 = onnx(&file);
    let mut ours = load(&weights("sentiment-mini"), &Device::Cpu, &LoadOptions::default()).unwrap();
    // The file also holds scales and names.
    assert!(
        int8.info.weight_bytes < int8.info.parameters * 5 / 4,
        "{:?}",
        int8.info
    );
    let requests: Vec<Inputs> = TEXTS.iter().map(|one| text(one)).collect();
    let class = |rows: Vec<Vec<f32>>| -> Vec<bool> { rows.iter().map(|row| row[1] > row[0]).collect() };
    // Only the first and the third text are far from the decision boundary.
    let (theirs, ours) = (
        class(logits(&mut int8, &requests)),
        class(logits(&mut ours, &requests)),
    );
    assert_eq!([theirs[0], theirs[2]], [ours[0], ours[2]]);
}

/// Script that writes a graph that maps `x` FP32 `[batch, 2, any]` to its sum over the last dimension, and to FP64.
const SUMS: &str = r#"
import sys, onnx
from onnx import TensorProto as T, helper as h
def port(name, kind, shape): return h.make_tensor_value_info(name, kind, shape)
batch = sys.argv[2] if not sys.argv[2].isdigit() else int(sys.argv[2])
nodes = [h.make_node("ReduceSum", ["x", "axes"], ["sums"], keepdims=0), h.make_node("Cast", ["x"], ["wide"], to=T.DOUBLE)]
axes = h.make_tensor("axes", T.INT64, [1], [2])
graph = h.make_graph(nodes, "sums", [port("x", T.FLOAT, [batch, 2, "n"])],
    [port("sums", T.FLOAT, [batch, 2]), port("wide", T.DOUBLE, [batch, 2, "n"])], [axes])
onnx.save(h.make_model(graph, opset_imports=[h.make_opsetid("", 13)], ir_version=8), sys.argv[1])
"#;

/// Script that writes a graph that returns `pixel_values` FP32 `[batch, 3, height, width]`.
const PIXELS: &str = r#"
import sys, onnx
from onnx import TensorProto as T, helper as h
def port(name): return h.make_tensor_value_info(name, T.FLOAT, ["batch", 3, "height", "width"])
graph = h.make_graph([h.make_node("Identity", ["pixel_values"], ["same"])], "same", [port("pixel_values")], [port("same")])
onnx.save(h.make_model(graph, opset_imports=[h.make_opsetid("", 13)], ir_version=8), sys.argv[1])
"#;

/// Returns a BMP file of 2x2 pixels of one colour.
fn bmp([red, green, blue]: [u8; 3]) -> Vec<u8> {
    let row = [blue, green, red, blue, green, red, 0, 0];
    let numbers =
        |values: &[u32]| -> Vec<u8> { values.iter().flat_map(|value| value.to_le_bytes()).collect() };
    let header = [b"BM".to_vec(), numbers(&[70, 0, 54, 40, 2, 2])].concat();
    let rest = [vec![1, 0, 24, 0], numbers(&[0, 16, 0, 0, 0, 0])].concat();
    [header, rest, row.to_vec(), row.to_vec()].concat()
}

#[test]
fn image_files_are_read_by_the_settings_beside_the_file() {
    if !in_environment("onnx::image_files_are_read_by_the_settings_beside_the_file") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("onnx/model.onnx");
    std::fs::create_dir(file.parent().unwrap()).unwrap();
    let written = Command::new(python().unwrap())
        .args(["-c", PIXELS])
        .arg(&file)
        .status();
    assert!(written.unwrap().success());
    let names = |loaded: &Loaded| -> Vec<String> {
        let inputs = loaded.model.signature().inputs.into_iter();
        inputs.map(|input| input.name).collect()
    };
    assert_eq!(names(&onnx(&file)), ["pixel_values"]);
    let settings = r#"{"size": {"height": 2, "width": 2}}"#;
    std::fs::write(folder.path().join("preprocessor_config.json"), settings).unwrap();
    let mut pixels = onnx(&file);
    assert_eq!(names(&pixels), ["pixel_values", "image_file"]);
    let of_file = |colour| vec![image_file(&bmp(colour)).unwrap()];
    let tensor = |values: &[f32]| vec![Tensor::from_f32("pixel_values", &[3, 2, 2], values).unwrap()];
    let broken = vec![image_file(b"BM").unwrap()];
    let requests = [
        of_file([255, 0, 0]),
        tensor(&[0.5; 12]),
        broken.clone(),
        Vec::new(),
        of_file([0, 255, 255]),
    ];
    let answers = pixels.model.run(&requests);
    let values = |place: usize| answers[place].as_ref().unwrap()[0].to_f32().unwrap();
    let red: Vec<f32> = [1.0, -1.0, -1.0].iter().flat_map(|value| [*value; 4]).collect();
    let cyan: Vec<f32> = red.iter().map(|value| -value).collect();
    assert_eq!(values(0), red);
    assert_eq!(values(1), [0.5; 12]);
    assert_eq!(values(4), cyan);
    assert!(matches!(&answers[2], Err(ModelError::BadInput { name, .. }) if name == "image_file"));
    assert!(matches!(answers[3], Err(ModelError::MissingInput { .. })));
    assert_eq!(pixels.model.check_request(&requests[0]), Ok(()));
    assert!(pixels.model.check_request(&broken).is_err());
}

#[test]
fn tensors_of_several_shapes_are_batched() {
    if !in_environment("onnx::tensors_of_several_shapes_are_batched") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    for batch in ["batch", "1"] {
        let file = folder.path().join(format!("{batch}.onnx"));
        let written = Command::new(python().unwrap())
            .args(["-c", SUMS])
            .arg(&file)
            .arg(batch)
            .status();
        assert!(written.unwrap().success());
        let mut sums = onnx(&file);
        let request = |values: &[f32]| vec![Tensor::from_f32("x", &[2, values.len() / 2], values).unwrap()];
        let wrong = vec![Tensor::from_f32("x", &[3, 1], &[1.0; 3]).unwrap()];
        let requests = [
            request(&[1.0, 2.0]),
            request(&[1.0, 2.0, 3.0, 4.0]),
            wrong,
            request(&[5.0, 6.0]),
        ];
        let answers = sums.model.run(&requests);
        let sum = |place: usize| answers[place].as_ref().unwrap()[0].to_f32().unwrap();
        assert_eq!([sum(0), sum(1), sum(3)], [[1.0, 2.0], [3.0, 7.0], [5.0, 6.0]]);
        assert!(
            matches!(answers[2], Err(ModelError::WrongShape { .. })),
            "{answers:?}"
        );
        let wide = &answers[1].as_ref().unwrap()[1];
        assert_eq!(
            (wide.name.as_str(), wide.datatype, wide.shape.as_slice()),
            ("wide", Datatype::F64, &[2, 2][..])
        );
    }
}

/// Script that writes a classifier of `x` FP32 `[batch, 2]` with the scores `x * [[1, 0, -1], [0, 2, 1]]`, and outputs of a kind.
const CLASSIFIER: &str = r#"
import sys, onnx
from onnx import TensorProto as T, helper as h
def port(name, kind, shape): return h.make_tensor_value_info(name, kind, shape)
nodes = [h.make_node("MatMul", ["x", "w"], ["scores"])]
outputs = {
    "softmax": [port("p", T.FLOAT, ["n", 3])],
    "labelled": [port("output_label", T.INT64, ["n"]), port("output_probability", T.FLOAT, ["n", 3])],
    "sum": [port("probabilities", T.FLOAT, ["n", 3]), port("extra", T.FLOAT, ["n", 3])],
}[sys.argv[2]]
if sys.argv[2] == "softmax":
    nodes.append(h.make_node("Softmax", ["scores"], ["p"], axis=1))
elif sys.argv[2] == "labelled":
    nodes.append(h.make_node("Softmax", ["scores"], ["output_probability"], axis=1))
    nodes.append(h.make_node("ArgMax", ["scores"], ["output_label"], axis=1, keepdims=0))
else:
    nodes.append(h.make_node("Identity", ["scores"], ["probabilities"]))
    nodes.append(h.make_node("Identity", ["scores"], ["extra"]))
w = h.make_tensor("w", T.FLOAT, [2, 3], [1, 0, -1, 0, 2, 1])
graph = h.make_graph(nodes, "classifier", [port("x", T.FLOAT, ["n", 2])], outputs, [w])
onnx.save(h.make_model(graph, opset_imports=[h.make_opsetid("", 13)], ir_version=8), sys.argv[1])
"#;

#[test]
fn probabilities_are_served_as_logits() {
    if !in_environment("onnx::probabilities_are_served_as_logits") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let written = |kind: &str| {
        let file = folder.path().join(format!("{kind}.onnx"));
        let program = Command::new(python().unwrap())
            .args(["-c", CLASSIFIER])
            .arg(&file)
            .arg(kind)
            .status();
        assert!(program.unwrap().success());
        onnx(&file)
    };
    let (x, scores) = ([0.5, -1.0], [0.5_f32, -2.0, -1.5]);
    let request = vec![vec![Tensor::from_f32("x", &[2], &x).unwrap()]];
    let total: f32 = scores.iter().map(|score| score.exp()).sum();
    for (kind, place) in [("softmax", 0), ("labelled", 1)] {
        let mut model = written(kind);
        assert_eq!(model.info.labels.len(), 3, "{kind}");
        let outputs = model.model.run(&request).remove(0).unwrap();
        assert_eq!(outputs[place].name, "logits", "{kind}");
        // The softmax of the logits equals the graph's probabilities.
        for (logit, score) in outputs[place].to_f32().unwrap().iter().zip(scores) {
            let expected = score.exp() / total;
            assert!((logit.exp() - expected).abs() < 1e-6, "{kind}: {outputs:?}");
        }
    }
    // An output `probabilities` that is not a distribution is an error, not a confident answer.
    let answer = written("sum").model.run(&request).remove(0);
    assert!(matches!(answer, Err(ModelError::BadOutput { .. })), "{answer:?}");
}

/// Script that writes classifiers of `x` FP32 `[batch, 2]` with class names in the file's metadata, or as written by skl2onnx.
const NAMED: &str = r#"
import sys, onnx
from onnx import TensorProto as T, helper as h
def port(name, kind, shape): return h.make_tensor_value_info(name, kind, shape)
x, file = port("x", T.FLOAT, ["n", 2]), sys.argv[1]
if sys.argv[2] == "metadata":
    w = h.make_tensor("w", T.FLOAT, [2, 2], [1, 0, 0, 1])
    graph = h.make_graph([h.make_node("MatMul", ["x", "w"], ["logits"])], "g", [x], [port("logits", T.FLOAT, ["n", 2])], [w])
else:
    node = h.make_node("LinearClassifier", ["x"], ["label", "probabilities"], domain="ai.onnx.ml", coefficients=[1.0, 0.0, 0.0, 1.0],
        intercepts=[0.0, 0.0], classlabels_strings=["no", "yes"], post_transform="SOFTMAX")
    graph = h.make_graph([node], "g", [x], [port("label", T.STRING, ["n"]), port("probabilities", T.FLOAT, ["n", 2])])
model = h.make_model(graph, opset_imports=[h.make_opsetid("", 13), h.make_opsetid("ai.onnx.ml", 3)], ir_version=8)
if sys.argv[2] == "metadata":
    h.set_model_props(model, {"id2label": '{"0": "no", "1": "yes"}'})
onnx.save(model, file)
"#;

#[test]
fn classes_with_names_are_named_in_answers() {
    if !in_environment("onnx::classes_with_names_are_named_in_answers") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let request = |x: [f32; 2]| vec![Tensor::from_f32("x", &[2], &x).unwrap()];
    for kind in ["metadata", "nodes"] {
        let file = folder.path().join(format!("{kind}.onnx"));
        let program = Command::new(python().unwrap())
            .args(["-c", NAMED])
            .arg(&file)
            .arg(kind)
            .status();
        assert!(program.unwrap().success());
        let mut model = onnx(&file);
        assert_eq!(model.info.labels, ["no", "yes"], "{kind}");
        let answers = model.model.run(&[request([2.0, 1.0]), request([0.0, 3.0])]);
        for (answer, name) in answers.into_iter().zip(["no", "yes"]) {
            let outputs = answer.unwrap();
            let label = outputs
                .iter()
                .filter(|output| output.name == "label")
                .collect::<Vec<_>>();
            assert_eq!(
                (label.len(), label[0].to_texts().unwrap()),
                (1, vec![name]),
                "{kind}: {outputs:?}"
            );
            assert!(outputs.iter().any(|output| output.name == "logits"), "{kind}");
        }
    }
}

#[test]
fn files_that_are_no_models_are_refused() {
    if !in_environment("onnx::files_that_are_no_models_are_refused") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("model.onnx");
    let refused = |options: &LoadOptions, device| load_onnx(&file, device, options).err().unwrap();
    let whole = LoadOptions::default();
    assert!(matches!(refused(&whole, DeviceChoice::Cpu), LoadError::Io { .. }));
    for bytes in [&b""[..], b"onnx", &[7 << 3 | 2, 2, 1 << 3, 1]] {
        std::fs::write(&file, bytes).unwrap();
        let error = refused(&whole, DeviceChoice::Cpu);
        assert!(matches!(error, LoadError::BadOnnx { .. }), "{error}");
    }
    let half = LoadOptions {
        partition: Partition::new(0, 2).unwrap(),
        ..LoadOptions::default()
    };
    assert!(matches!(
        refused(&half, DeviceChoice::Cpu),
        LoadError::NotPartitioned { .. }
    ));
    // The library has no CUDA provider; there is no fallback to the CPU.
    exported(folder.path(), "sentiment-pico", &[]);
    let error = refused(&whole, DeviceChoice::Cuda(0));
    assert!(
        matches!(error, LoadError::BadOnnx { .. }) && error.to_string().contains("CUDA"),
        "{error}"
    );
}

#[test]
fn without_the_library_the_error_says_how_to_get_it() {
    let missing = Path::new("/nonexistent/libonnxruntime.so");
    if std::env::var_os("ORT_DYLIB_PATH").is_none_or(|named| named != missing) {
        let output = Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "onnx::without_the_library_the_error_says_how_to_get_it",
                "--nocapture",
            ])
            .env("ORT_DYLIB_PATH", missing)
            .output()
            .unwrap();
        let said =
            String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout);
        return assert!(output.status.success() && said.contains("1 passed"), "{said}");
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("model.onnx");
    std::fs::write(&file, [7 << 3 | 2, 2, 1 << 3, 1]).unwrap();
    let error = load_onnx(&file, DeviceChoice::Cpu, &LoadOptions::default())
        .err()
        .unwrap();
    assert!(matches!(error, LoadError::NoOnnxRuntime { .. }), "{error}");
    assert!(
        error.to_string().contains("ORT_DYLIB_PATH names `/nonexistent"),
        "{error}"
    );
}
