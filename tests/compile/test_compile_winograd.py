"""3x3 convolutions by Winograd's algorithm agree with the plain build, and others are left alone."""

from __future__ import annotations

import numpy as np
import pytest

import sylvite
from sylvite import engines
from sylvite.compile import winograd
from sylvite.compile.dataflow import Dispatch, Region
from sylvite.compile.winograd import Convolution
from sylvite.drivers import create_device
from sylvite.kernels import PATCHES_NAME, WINOGRAD_IMAGE_NAME, WINOGRAD_PRODUCT_NAME

pytestmark = pytest.mark.compiler


class Graph:
    """A model of convolutions of one image."""

    def __init__(self, channels, height, width):
        self.onnx = pytest.importorskip("onnx")
        self.random = np.random.default_rng(4)
        self.nodes, self.weights = [], []
        self.shape = [1, channels, height, width]

    def add(self, operator, *inputs, **attributes):
        name = f"v{len(self.nodes)}"
        self.nodes.append(self.onnx.helper.make_node(operator, inputs, [name], **attributes))
        return name

    def weight(self, *shape):
        name = f"w{len(self.weights)}"
        values = (self.random.standard_normal(shape) / 8).astype(np.float32)
        self.weights.append(self.onnx.numpy_helper.from_array(values, name))
        return name

    def convolution(self, x, inputs, filters, *, size=3, stride=1, dilation=1):
        operands = [x, self.weight(filters, inputs, size, size), self.weight(filters)]
        pads = [dilation * (size // 2)] * 4
        return self.add("Conv", *operands, pads=pads, strides=[stride] * 2, dilations=[dilation] * 2)

    def results(self, *names):
        """The model, an image, and onnxruntime's results."""
        onnxruntime = pytest.importorskip("onnxruntime")
        helper, kind = self.onnx.helper, self.onnx.TensorProto.FLOAT
        image = helper.make_tensor_value_info("x", kind, self.shape)
        outputs = [helper.make_tensor_value_info(name, kind, None) for name in names]
        graph = helper.make_graph(self.nodes, "winograd", [image], outputs, self.weights)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
        model = self.onnx.shape_inference.infer_shapes(model)
        x = self.random.standard_normal(self.shape).astype(np.float32)
        session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
        return model, x, session.run(None, {"x": x})


def run(artifact, x, device="local-sync", *, deterministic=False):
    engine = engines.create("wasmtime", deterministic=deterministic)
    with create_device(device, engine=engine) as opened, sylvite.load(artifact, device=opened) as loaded:
        results = loaded(x)
        return [np.array(y) for y in (results if isinstance(results, tuple) else (results,))]


def check(model, x, want, *, is_called):
    tuned, plain = sylvite.compile(model), sylvite.compile(model, tuning="off")
    assert not any("without tuning" in note for note in tuned.notes)
    data = tuned.path.read_bytes()
    for name in (WINOGRAD_IMAGE_NAME, WINOGRAD_PRODUCT_NAME):
        assert (name.encode() in data) is is_called
    got, reference = run(tuned, x), run(plain, x)
    exact = run(tuned, x, deterministic=True)
    for y, same, other, expected in zip(got, exact, reference, want, strict=True):
        np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(y, other, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(same, other, rtol=1e-4, atol=1e-4)
    return tuned


@pytest.mark.parametrize(("height", "width"), [(16, 16), (8, 12), (6, 4)])
def test_compile_convolutions_by_winograd_agree(height, width):
    graph = Graph(16, height, width)
    first = graph.add("Relu", graph.convolution("x", 16, 24))
    second = graph.convolution(first, 24, 24)
    third = graph.add("Relu", graph.add("Add", first, second))
    plain = graph.convolution(third, 24, 8)
    check(*graph.results(third, plain), is_called=True)


def test_compile_convolution_by_winograd_alone_on_workers_has_the_same_bits():
    graph = Graph(32, 32, 24)
    operands = ["x", graph.weight(40, 32, 3, 3)]
    model, x, want = graph.results(graph.add("Conv", *operands, pads=[1] * 4))
    artifact = check(model, x, want, is_called=True)
    for one, two in zip(run(artifact, x), run(artifact, x, "local-task://2"), strict=True):
        np.testing.assert_array_equal(one, two)


def test_compile_convolution_by_winograd_feeds_a_product():
    graph = Graph(16, 16, 16)
    hidden = graph.add("HardSwish", graph.convolution("x", 16, 16))
    check(*graph.results(graph.convolution(hidden, 16, 24, size=1)), is_called=True)


def test_compile_convolutions_of_one_image_agree_where_only_one_could_go_by_winograd():
    graph = Graph(16, 16, 16)
    # Five filters do not fill a tile, and both read the same patches.
    check(*graph.results(graph.convolution("x", 16, 8), graph.convolution("x", 16, 5)), is_called=False)


def test_compile_convolution_of_few_channels_stays_a_product_of_patches():
    graph = Graph(3, 16, 16)
    check(*graph.results(graph.convolution("x", 3, 8)), is_called=False)


@pytest.mark.parametrize(
    ("height", "width", "options"),
    [(16, 16, {"size": 5}), (16, 16, {"stride": 2}), (16, 16, {"dilation": 2}), (15, 16, {}), (16, 18, {})],
)
def test_compile_other_convolutions_stay_products_of_patches(height, width, options):
    graph = Graph(16, height, width)
    check(*graph.results(graph.convolution("x", 16, 8, **options)), is_called=False)


IMAGE = Convolution(channels=2, rows=4, columns=8)
SOURCE = Region(binding=0, offset=0)


def command(name="", reads=(), writes=()):
    bindings = [("ro", *place) for place in reads] + [("wo", *place) for place in writes]
    return Dispatch(name=name, operands=(), bindings=bindings, reads=reads, writes=writes)


IMAGE_WRITES = command("image", reads=[("r", 0)], writes=[("r", 64)])
PRODUCT_READS = command("product", reads=[("r", 64)], writes=[("r", 9000)])


@pytest.mark.parametrize(
    ("program", "is_found"),
    [
        ([IMAGE_WRITES, PRODUCT_READS], True),
        ([IMAGE_WRITES, command("x", [("r", 9000)], [("r", 0)]), PRODUCT_READS], True),
        ([IMAGE_WRITES, PRODUCT_READS, IMAGE_WRITES, PRODUCT_READS], True),
        ([IMAGE_WRITES, PRODUCT_READS, command("x", [("r", 64)], [("r", 0)])], False),
        ([IMAGE_WRITES, PRODUCT_READS, command("x", [("r", None)], [("r", 0)])], False),
        ([IMAGE_WRITES, PRODUCT_READS, command("x", [("s", None)], [("r", 0)])], True),
        ([IMAGE_WRITES, command("x", [], [("r", 64)]), PRODUCT_READS], False),
        ([IMAGE_WRITES, PRODUCT_READS, command("x", [], [("r", 64)]), PRODUCT_READS], False),
        ([PRODUCT_READS, IMAGE_WRITES], False),
        ([IMAGE_WRITES, command("product", [("r", None)], [("r", 0)])], False),
        ([command("image", [("r", 0)], [("r", None)]), PRODUCT_READS], False),
        ([IMAGE_WRITES], False),
    ],
)
def test_plan_follows_every_reader_and_writer(program, is_found):
    found = winograd._paired([program], {"image": IMAGE}, {"product": (18, 8)}, {"product": SOURCE})
    assert found == ({"image": IMAGE, "product": IMAGE} if is_found else {})


def test_plan_refuses_other_extents_and_their_partners():
    images = {"image": IMAGE, "other": Convolution(channels=2, rows=8, columns=4)}
    program = [
        *(IMAGE_WRITES, PRODUCT_READS),
        *(command("other", writes=[("r", 64)]), PRODUCT_READS),
    ]
    assert winograd._paired([program], images, {"product": (18, 8)}, {"product": SOURCE}) == {}


def test_compile_without_winograd_still_packs_patches():
    graph = Graph(16, 16, 16)
    model, _, _ = graph.results(graph.convolution("x", 16, 8, size=5))
    assert PATCHES_NAME.encode() in sylvite.compile(model).path.read_bytes()
