"""A photograph through Halide into a model, in one memory: nothing is copied in between.

Run it from a checkout: ``python examples/halide/measure.py``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

PHOTO = Path(__file__).with_name("photo.jpg")
SIZE = 60


def meter(size: int = SIZE) -> Any:
    """An ONNX model that measures a picture f32[1,3,size,size]: the energy of its edges (mean square of a
    Laplacian of the grey picture) and its mean colour."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    kernel = np.array([[0, 1, 0], [1, -4, 1], [0, 1, 0]], np.float32) / 3
    weights = {
        "kernel": np.broadcast_to(kernel, (1, 3, 3, 3)).copy(),
        "all": np.array([1, 2, 3], np.int64),
        "plane": np.array([2, 3], np.int64),
    }
    nodes = [
        helper.make_node("Conv", ["picture", "kernel"], ["edges"]),
        helper.make_node("Mul", ["edges", "edges"], ["squares"]),
        helper.make_node("ReduceMean", ["squares", "all"], ["sharpness"], keepdims=0),
        helper.make_node("ReduceMean", ["picture", "plane"], ["colour"], keepdims=0),
    ]
    graph = helper.make_graph(
        nodes,
        "meter",
        [helper.make_tensor_value_info("picture", TensorProto.FLOAT, [1, 3, size, size])],
        [
            helper.make_tensor_value_info("sharpness", TensorProto.FLOAT, [1]),
            helper.make_tensor_value_info("colour", TensorProto.FLOAT, [1, 3]),
        ],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    onnx.checker.check_model(model)
    return model


class Meter:
    """A Halide stage and a model on one device, sharing the model's input buffer.

    Args:
        device: where both run.
        model: the loaded `meter`.
        prepare: the loaded pipeline ``prepare`` of ``pipelines.py``.
    """

    def __init__(self, device: Any, model: Any, prepare: Any) -> None:
        self.device = device
        self.model = model
        self.prepare = prepare
        self.picture = device.allocate((1, 3, SIZE, SIZE), np.float32)
        # The same memory as [y, x, c], which is what a pipeline writes.
        self.tensor = self.picture[0].transpose(1, 2, 0)

    def __call__(self, photo: np.ndarray) -> tuple[float, np.ndarray]:
        """Sharpness and mean colour of a photo u8[4*SIZE,4*SIZE,3]."""
        self.prepare(photo, self.tensor)
        sharpness, colour = self.model(self.picture)
        return float(sharpness[0]), np.array(colour[0])


def read_photo() -> np.ndarray:
    """The photograph, u8[240,240,3]."""
    import imageio.v3

    return np.asarray(imageio.v3.imread(PHOTO))


def main() -> None:
    import pipelines

    import sylvite
    from sylvite import halide

    photo = read_photo()
    with sylvite.load(sylvite.compile(meter())) as model:
        device = model.device
        prepare = halide.compile(*pipelines.prepare(), device=device, name="prepare")
        sharpen = halide.compile(*pipelines.sharpen(), device=device, name="sharpen")
        measure = Meter(device, model, prepare)
        original = device.allocate(photo.shape, np.uint8)
        original[...] = photo
        for amount in (-1.0, 0.0, 1.5):
            changed = sharpen(original, amount)
            before = device.tracer.counters.bytes_copied
            sharpness, colour = measure(changed)
            copied = device.tracer.counters.bytes_copied - before
            print(f"amount {amount:+.1f}: sharpness {sharpness:.5f}, colour {colour}, {copied} bytes copied")


if __name__ == "__main__":
    main()
