"""Writes a BERT classifier as an ONNX file, in f32 or with int8 weights.

    python export.py ../sentiment/weights/sentiment-pico pico
    python export.py ../sentiment/weights/sentiment-mini mini-int8 --int8

Reads `config.json`, `model.safetensors` and `tokenizer.json` of a directory; writes `model.onnx` into another one, with
copies of the configuration and the tokenizer. Needs the packages numpy and onnx, and onnxruntime for --int8. A model of
your own is exported by PyTorch (`torch.onnx.export`) or by Optimum; what Kaskade takes is in docs/how-to/onnx.md.
"""

import argparse
import json
import math
import shutil
import struct
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

OPSET = 17
# Scores of hidden tokens: low enough that their share is 0 in f32.
HIDDEN = -1e9


def read_weights(path):
    """Returns the tensors of a safetensors file, as f32."""
    raw = path.read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    header, data = json.loads(raw[8 : 8 + length]), raw[8 + length :]
    types = {"F32": np.float32, "F16": np.float16}
    tensors = {}
    for name, entry in header.items():
        if name != "__metadata__":
            begin, end = entry["data_offsets"]
            values = np.frombuffer(data[begin:end], types[entry["dtype"]])
            tensors[name] = values.reshape(entry["shape"]).astype(np.float32)
    return tensors


class Graph:
    """Collects the nodes and weights of a graph."""

    def __init__(self, weights):
        self.weights, self.nodes, self.initializers = weights, [], {}

    def op(self, kind, *inputs, **attributes):
        output = f"{kind.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [output], **attributes))
        return output

    def constant(self, name, values):
        self.initializers[name] = numpy_helper.from_array(np.asarray(values), name)
        return name

    def weight(self, name):
        return self.constant(name, self.weights[name])

    def linear(self, x, name):
        matrix = self.constant(f"{name}.weight", np.ascontiguousarray(self.weights[f"{name}.weight"].T))
        return self.op("Add", self.op("MatMul", x, matrix), self.weight(f"{name}.bias"))

    def norm(self, x, name, epsilon):
        scale, bias = self.weight(f"{name}.weight"), self.weight(f"{name}.bias")
        return self.op("LayerNormalization", x, scale, bias, axis=-1, epsilon=epsilon)

    def gelu(self, x):
        erf = self.op("Erf", self.op("Div", x, self.constant("sqrt_two", np.float32(math.sqrt(2)))))
        half = self.op("Mul", x, self.constant("half", np.float32(0.5)))
        return self.op("Mul", half, self.op("Add", erf, self.constant("one", np.float32(1))))


def attention(graph, x, bias, prefix, heads, width):
    """Self-attention of one layer over `x` [batch, sequence, width]."""
    split = graph.constant("heads", np.array([0, 0, heads, width // heads], np.int64))

    def projected(part, order):
        states = graph.linear(x, f"{prefix}.attention.self.{part}")
        return graph.op("Transpose", graph.op("Reshape", states, split), perm=order)

    query, value = projected("query", [0, 2, 1, 3]), projected("value", [0, 2, 1, 3])
    key = projected("key", [0, 2, 3, 1])
    scale = graph.constant("scale", np.float32(1 / math.sqrt(width // heads)))
    scores = graph.op("Add", graph.op("Mul", graph.op("MatMul", query, key), scale), bias)
    shares = graph.op("Softmax", scores, axis=-1)
    joined = graph.op("Transpose", graph.op("MatMul", shares, value), perm=[0, 2, 1, 3])
    joined = graph.op("Reshape", joined, graph.constant("width", np.array([0, 0, width], np.int64)))
    return graph.linear(joined, f"{prefix}.attention.output.dense")


def build(config, weights):
    """Returns the model of a `BertForSequenceClassification`."""
    if config["architectures"] != ["BertForSequenceClassification"] or config["hidden_act"] != "gelu":
        raise SystemExit("only BertForSequenceClassification with gelu is written here")
    graph = Graph(weights)
    width, heads, epsilon = config["hidden_size"], config["num_attention_heads"], config["layer_norm_eps"]
    tables = "bert.embeddings"
    x = graph.op("Gather", graph.weight(f"{tables}.word_embeddings.weight"), "input_ids")
    types = graph.op("Gather", graph.weight(f"{tables}.token_type_embeddings.weight"), "token_type_ids")
    zero, one = graph.constant("zero_index", np.int64(0)), graph.constant("one_index", np.int64(1))
    length = graph.op("Gather", graph.op("Shape", "input_ids"), one)
    places = graph.op("Range", zero, length, one)
    places = graph.op("Gather", graph.weight(f"{tables}.position_embeddings.weight"), places)
    x = graph.op("Add", graph.op("Add", x, types), places)
    x = graph.norm(x, f"{tables}.LayerNorm", epsilon)
    mask = graph.op("Cast", "attention_mask", to=TensorProto.FLOAT)
    mask = graph.op("Sub", graph.constant("one", np.float32(1)), mask)
    mask = graph.op("Mul", mask, graph.constant("hidden", np.float32(HIDDEN)))
    bias = graph.op("Unsqueeze", mask, graph.constant("axes", np.array([1, 2], np.int64)))
    for index in range(config["num_hidden_layers"]):
        prefix = f"bert.encoder.layer.{index}"
        attended = graph.op("Add", attention(graph, x, bias, prefix, heads, width), x)
        x = graph.norm(attended, f"{prefix}.attention.output.LayerNorm", epsilon)
        fed = graph.gelu(graph.linear(x, f"{prefix}.intermediate.dense"))
        fed = graph.op("Add", graph.linear(fed, f"{prefix}.output.dense"), x)
        x = graph.norm(fed, f"{prefix}.output.LayerNorm", epsilon)
    first = graph.op("Gather", x, zero, axis=1)
    pooled = graph.op("Tanh", graph.linear(first, "bert.pooler.dense"))
    graph.nodes.append(helper.make_node("Identity", [graph.linear(pooled, "classifier")], ["logits"]))
    ports = [
        helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "sequence"])
        for name in ("input_ids", "attention_mask", "token_type_ids")
    ]
    classes = len(config["id2label"])
    logits = helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", classes])
    made = helper.make_graph(graph.nodes, "bert", ports, [logits], list(graph.initializers.values()))
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=8)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkpoint", type=Path, help="directory with config.json and model.safetensors")
    parser.add_argument("out", type=Path, help="directory to write")
    parser.add_argument("--int8", action="store_true", help="quantise the weights of products to int8")
    options = parser.parse_args()
    config = json.loads((options.checkpoint / "config.json").read_text())
    model = build(config, read_weights(options.checkpoint / "model.safetensors"))
    onnx.checker.check_model(model)
    options.out.mkdir(parents=True, exist_ok=True)
    file = options.out / "model.onnx"
    onnx.save(model, file)
    if options.int8:
        from onnxruntime.quantization import QuantType, quantize_dynamic

        quantize_dynamic(file, file, weight_type=QuantType.QInt8)
    for name in ("config.json", "tokenizer.json"):
        if (options.checkpoint / name).exists():
            shutil.copy(options.checkpoint / name, options.out / name)
    print(f"{file}: {file.stat().st_size} bytes")


if __name__ == "__main__":
    main()
