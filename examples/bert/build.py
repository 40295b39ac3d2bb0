"""Write the graph of all-MiniLM-L6-v2 (a BERT encoder) as ONNX whose weights stay where they are.

Every initializer is an ONNX external tensor that points at its bytes inside ``model.safetensors`` and
carries the tensor's own name, so the ONNX file holds no weights (a few KB), onnxruntime can run it as
it is, and Sylvite can bind the very same safetensors file as the parameter archive.

    python examples/bert/build.py model.safetensors -o minilm.onnx --batch 6 --length 32

Source: Devlin et al., "BERT" (2018); sentence-transformers mean pooling and L2 normalisation.
"""

from __future__ import annotations

import argparse
import json
import math
import struct
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

HIDDEN = 384
HEADS = 12
LAYERS = 6
VOCABULARY = 30522
EPSILON = 1e-12


def external_tensors(weights: Path, names: set[str]) -> list[onnx.TensorProto]:
    """Initializers for ``names`` that refer to their bytes in a safetensors file by offset."""
    with weights.open("rb") as file:
        (header_length,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(header_length))
    tensors = []
    for name in sorted(names):
        entry = header[name]
        begin, end = entry["data_offsets"]
        tensor = onnx.TensorProto(name=name, dims=entry["shape"], data_type=TensorProto.FLOAT)
        tensor.data_location = TensorProto.EXTERNAL
        place = {"location": weights.name, "offset": 8 + header_length + begin, "length": end - begin}
        for key, value in place.items():
            tensor.external_data.add(key=key, value=str(value))
        tensors.append(tensor)
    return tensors


class GraphBuilder:
    """Collects nodes; each method returns the name of the value it makes."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, onnx.TensorProto] = {}
        self.weights: set[str] = set()

    def op(self, kind: str, *inputs: str, **attributes: object) -> str:
        output = f"{kind.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [output], **attributes))
        return output

    def constant(self, name: str, value: np.ndarray) -> str:
        self.constants[name] = numpy_helper.from_array(value, name)
        return name

    def weight(self, name: str) -> str:
        self.weights.add(name)
        return name

    def first_rows(self, weight: str, count: int) -> str:
        start = self.constant("zero_index", np.zeros(1, np.int64))
        end = self.constant(f"rows_{count}", np.array([count], np.int64))
        return self.op("Slice", self.weight(weight), start, end)

    def dense(self, x: str, prefix: str) -> str:
        """x @ W.T + b, the layout PyTorch stores."""
        transposed = self.op("Transpose", self.weight(f"{prefix}.weight"), perm=[1, 0])
        return self.op("Add", self.op("MatMul", x, transposed), self.weight(f"{prefix}.bias"))

    def layer_norm(self, x: str, prefix: str) -> str:
        scale, bias = self.weight(f"{prefix}.weight"), self.weight(f"{prefix}.bias")
        return self.op("LayerNormalization", x, scale, bias, axis=-1, epsilon=EPSILON)

    def gelu(self, x: str) -> str:
        half = self.constant("half", np.float32(0.5))
        one = self.constant("one", np.float32(1))
        inverse_root = self.constant("inverse_root_two", np.float32(1 / math.sqrt(2)))
        bell = self.op("Add", self.op("Erf", self.op("Mul", x, inverse_root)), one)
        return self.op("Mul", self.op("Mul", x, half), bell)


def attention(graph: GraphBuilder, x: str, prefix: str, bias: str, batch: int, length: int) -> str:
    """Multi-head self-attention; ``bias`` f32[batch,1,1,length] is added to the scores."""
    split = graph.constant("split", np.array([batch, length, HEADS, HIDDEN // HEADS], np.int64))
    merge = graph.constant("merge", np.array([batch, length, HIDDEN], np.int64))
    scale = graph.constant("scale", np.float32(1 / math.sqrt(HIDDEN // HEADS)))

    def heads(name: str, order: list[int]) -> str:
        dense = graph.dense(x, f"{prefix}.self.{name}")
        return graph.op("Transpose", graph.op("Reshape", dense, split), perm=order)

    query, value = heads("query", [0, 2, 1, 3]), heads("value", [0, 2, 1, 3])
    scores = graph.op("MatMul", query, heads("key", [0, 2, 3, 1]))
    scores = graph.op("Add", graph.op("Mul", scores, scale), bias)
    mixed = graph.op("MatMul", graph.op("Softmax", scores, axis=-1), value)
    mixed = graph.op("Reshape", graph.op("Transpose", mixed, perm=[0, 2, 1, 3]), merge)
    dense = graph.dense(mixed, f"{prefix}.output.dense")
    return graph.layer_norm(graph.op("Add", dense, x), f"{prefix}.output.LayerNorm")


def mean_pool(graph: GraphBuilder, x: str, mask: str) -> str:
    """Mean over the tokens that the mask keeps, then unit length."""
    axis = graph.constant("sequence_axis", np.array([1], np.int64))
    last = graph.constant("last_axis", np.array([2], np.int64))
    kept = graph.op("Unsqueeze", mask, last)
    total = graph.op("ReduceSum", graph.op("Mul", x, kept), axis, keepdims=0)
    mean = graph.op("Div", total, graph.op("ReduceSum", kept, axis, keepdims=0))
    return graph.op("Div", mean, graph.op("ReduceL2", mean, axes=[1], keepdims=1))


def build(weights: Path, *, batch: int, length: int, pooled: bool = True) -> onnx.ModelProto:
    """The encoder for token ids i64[batch,length] and a mask i64[batch,length].

    Returns sentence embeddings f32[batch,384] of unit length, or with ``pooled=False`` the last
    hidden state f32[batch,length,384].
    """
    graph = GraphBuilder()
    words = graph.op("Gather", graph.weight("embeddings.word_embeddings.weight"), "input_ids", axis=0)
    position = graph.first_rows("embeddings.position_embeddings.weight", length)
    kind = graph.first_rows("embeddings.token_type_embeddings.weight", 1)
    x = graph.op("Add", graph.op("Add", words, position), kind)
    x = graph.layer_norm(x, "embeddings.LayerNorm")
    mask = graph.op("Cast", "attention_mask", to=TensorProto.FLOAT)
    axes = graph.constant("head_axes", np.array([1, 2], np.int64))
    one = graph.constant("one", np.float32(1))
    very_negative = graph.constant("very_negative", np.float32(-10000))
    bias = graph.op("Mul", graph.op("Sub", one, graph.op("Unsqueeze", mask, axes)), very_negative)
    for index in range(LAYERS):
        prefix = f"encoder.layer.{index}"
        x = attention(graph, x, f"{prefix}.attention", bias, batch, length)
        wide = graph.gelu(graph.dense(x, f"{prefix}.intermediate.dense"))
        narrow = graph.dense(wide, f"{prefix}.output.dense")
        x = graph.layer_norm(graph.op("Add", narrow, x), f"{prefix}.output.LayerNorm")
    result, shape = (mean_pool(graph, x, mask), [batch, HIDDEN]) if pooled else (x, [batch, length, HIDDEN])
    output = "embedding" if pooled else "last_hidden_state"
    graph.nodes.append(helper.make_node("Identity", [result], [output]))
    inputs = [
        helper.make_tensor_value_info(name, TensorProto.INT64, [batch, length])
        for name in ("input_ids", "attention_mask")
    ]
    outputs = [helper.make_tensor_value_info(output, TensorProto.FLOAT, shape)]
    initializers = [*external_tensors(weights, graph.weights), *graph.constants.values()]
    model_graph = helper.make_graph(graph.nodes, "minilm", inputs, outputs, initializers)
    return helper.make_model(model_graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("weights", type=Path, help="model.safetensors")
    parser.add_argument("-o", "--output", type=Path, default=Path("minilm.onnx"))
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--length", type=int, default=128, help="tokens per sentence, padding included")
    parser.add_argument(
        "--hidden", action="store_true", help="return the last hidden state, not the embedding"
    )
    options = parser.parse_args()
    model = build(options.weights, batch=options.batch, length=options.length, pooled=not options.hidden)
    onnx.save(model, options.output)
    print(f"{options.output}: {options.output.stat().st_size} bytes, weights stay in {options.weights.name}")


if __name__ == "__main__":
    main()
