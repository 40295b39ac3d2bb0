"""ONNX graphs written out here: two image classifiers with random weights, and single operators.

The classifiers have the layers of torchvision's ``mobilenet_v2`` and ``resnet18`` as ``torch.onnx.export``
writes them for inference: batch normalization is folded into weights and biases of the convolutions before.
Weights come from a fixed seed, scaled so that activations neither vanish nor grow from layer to layer.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

OPSET = 17
SEED = 7


class GraphBuilder:
    """Collects nodes and weights of one graph with one image as its input."""

    def __init__(self, name: str, shape: tuple[int, ...]) -> None:
        self.name = name
        self.shape = shape
        self.nodes: list[Any] = []
        self.weights: list[Any] = []
        self.random = np.random.default_rng(SEED)

    def add(self, operator: str, *inputs: str, **attributes: Any) -> str:
        """A node with one result, whose name is returned."""
        from onnx import helper

        result = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, list(inputs), [result], **attributes))
        return result

    def weight(self, array: np.ndarray) -> str:
        """An initializer; returns its name."""
        from onnx import numpy_helper

        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(array.astype(np.float32), name))
        return name

    def convolution(
        self,
        x: str,
        channels: tuple[int, int],
        kernel: int = 1,
        stride: int = 1,
        *,
        groups: int = 1,
        gain: float = 2.0,
        has_bias: bool = True,
    ) -> str:
        """A convolution that keeps the extent but for its stride. ``gain`` is the variance it keeps."""
        inputs, outputs = channels
        fan_in = inputs // groups * kernel * kernel
        filters = self.random.standard_normal((outputs, inputs // groups, kernel, kernel))
        operands = [x, self.weight(filters * math.sqrt(gain / fan_in))]
        if has_bias:
            operands.append(self.weight(self.random.standard_normal(outputs) * 0.1))
        return self.add(
            "Conv",
            *operands,
            kernel_shape=[kernel, kernel],
            strides=[stride, stride],
            pads=[kernel // 2] * 4,
            dilations=[1, 1],
            group=groups,
        )

    def classifier(self, x: str, features: int, classes: int = 1000) -> str:
        """Mean over the image, then scores."""
        flat = self.add("Flatten", self.add("GlobalAveragePool", x), axis=1)
        matrix = self.random.standard_normal((classes, features)) / math.sqrt(features)
        bias = self.random.standard_normal(classes) * 0.1
        return self.add("Gemm", flat, self.weight(matrix), self.weight(bias), transB=1)

    def save(self, path: Path, result: str, result_shape: tuple[int, ...]) -> None:
        """Write the model, whole or not at all."""
        import onnx
        from onnx import TensorProto, helper

        graph = helper.make_graph(
            self.nodes,
            self.name,
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, self.shape)],
            [helper.make_tensor_value_info(result, TensorProto.FLOAT, result_shape)],
            self.weights,
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=8)
        onnx.checker.check_model(model)
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".partial")
        onnx.save(model, partial)
        partial.rename(path)


# MobileNetV2: expansion, channels, blocks, stride of the first block.
MOBILENET_BLOCKS = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)


def write_mobilenet_v2(path: Path, size: int = 224) -> None:
    """MobileNetV2, f32[1,3,size,size] to f32[1,1000]."""
    graph = GraphBuilder("mobilenet_v2", (1, 3, size, size))
    low, high = graph.weight(np.array(0.0)), graph.weight(np.array(6.0))

    def relu6(x: str) -> str:
        return graph.add("Clip", x, low, high)

    channels = 32
    x = relu6(graph.convolution("x", (3, channels), 3, 2))
    for expansion, outputs, blocks, first_stride in MOBILENET_BLOCKS:
        for block in range(blocks):
            stride = first_stride if block == 0 else 1
            hidden, before, inputs = channels * expansion, x, channels
            if expansion != 1:
                x = relu6(graph.convolution(x, (channels, hidden)))
            x = relu6(graph.convolution(x, (hidden, hidden), 3, stride, groups=hidden))
            x = graph.convolution(x, (hidden, outputs), gain=1.0)
            channels = outputs
            if stride == 1 and inputs == outputs:
                x = graph.add("Add", before, x)
    x = relu6(graph.convolution(x, (channels, 1280)))
    graph.save(path, graph.classifier(x, 1280), (1, 1000))


def write_resnet18(path: Path, size: int = 224) -> None:
    """ResNet-18, f32[1,3,size,size] to f32[1,1000]."""
    graph = GraphBuilder("resnet18", (1, 3, size, size))
    channels = 64
    x = graph.add("Relu", graph.convolution("x", (3, channels), 7, 2))
    x = graph.add("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4, ceil_mode=0)
    for outputs in (64, 128, 256, 512):
        for block in range(2):
            stride = 2 if block == 0 and outputs != channels else 1
            before = x
            x = graph.add("Relu", graph.convolution(x, (channels, outputs), 3, stride))
            x = graph.convolution(x, (outputs, outputs), 3, gain=0.5)
            if stride != 1:
                before = graph.convolution(before, (channels, outputs), 1, stride, gain=1.0)
            x = graph.add("Relu", graph.add("Add", x, before))
            channels = outputs
    graph.save(path, graph.classifier(x, channels), (1, 1000))


def write_matmul(path: Path, m: int, n: int, k: int) -> None:
    """f32[m,k] times a constant f32[k,n]."""
    graph = GraphBuilder(f"matmul_{m}x{n}x{k}", (m, k))
    weight = graph.weight(graph.random.uniform(-1, 1, (k, n)))
    graph.save(path, graph.add("MatMul", "x", weight), (m, n))


def write_convolution(path: Path, size: int, channels: int, kernel: int) -> None:
    """f32[1,channels,size,size] through as many constant filters, without a bias."""
    graph = GraphBuilder(f"conv_{size}x{channels}x{kernel}", (1, channels, size, size))
    result = graph.convolution("x", (channels, channels), kernel, has_bias=False)
    graph.save(path, result, (1, channels, size, size))
