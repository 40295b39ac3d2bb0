"""Damaged files through `sylvite.load`: each is refused with a typed error that names a place, or loads and
runs within its sandbox, in bounded time and memory. A child process does it, so that a crash is seen; the
models beside the damaged one go on.

The parts' own tests damage what each reads; here it is the whole product. What is damaged, and how, is in
``malformed_mutations.py``.
"""

from __future__ import annotations

import collections
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import malformed_mutations as mutations
import malformed_samples as samples_
import pytest

import sylvite
from sylvite.errors import SylviteError

pytestmark = [
    pytest.mark.compiler,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc, sets resource limits"),
]
pytest.importorskip("iree.compiler")
pytest.importorskip("safetensors")

SECONDS_PER_FILE = 5.0
SECONDS_OF_SILENCE = 60.0
RESIDENT_BYTES = {"onnx": 700 << 20}
LARGEST_RESIDENT_BYTES = 300 << 20

# Together 500, and more than 20,000.
QUICK = {"vmfb": 170, "wasm": 150, "onnx": 60, "irpa": 60, "safetensors": 60}
MANY = {"vmfb": 7000, "wasm": 6000, "onnx": 3500, "irpa": 2000, "safetensors": 2000}
PARTS = 4


@pytest.fixture(scope="module")
def samples(tmp_path_factory) -> Path:
    directory = tmp_path_factory.mktemp("samples")
    samples_.write(directory)
    return directory


class Worker:
    """A process that judges damaged files."""

    def __init__(self, samples: Path) -> None:
        self._samples = samples
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the worker
        worker = Path(__file__).parent / "malformed_worker.py"
        environment = {**os.environ, "PYTHONPATH": str(worker.parent), "PYTHONWARNINGS": "ignore"}
        self._process = subprocess.Popen(
            [sys.executable, "-X", "faulthandler", str(worker), str(samples)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env=environment,
        )
        self._lines: queue.Queue[str] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put("")

    def ask(self, kind: str, first: int, count: int):
        """Answers to a request, one by one; ends early when the process does or falls silent."""
        print(
            json.dumps({"kind": kind, "first": first, "count": count}), file=self._process.stdin, flush=True
        )
        while True:
            try:
                line = self._lines.get(timeout=SECONDS_OF_SILENCE)
            except queue.Empty:
                return
            if not line:
                return
            answer = json.loads(line)
            yield answer
            if "resident" in answer:
                return

    def close(self) -> str:
        """End it; how it ended and the end of what it wrote to standard error."""
        self._process.stdin.close()
        try:
            code = self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = f"silent for {SECONDS_OF_SILENCE} s ({self._process.wait()})"
        self._reader.join()
        self._process.stdout.close()
        self._errors.seek(0)
        said = self._errors.read()[-3000:].decode(errors="replace")
        self._errors.close()
        return f"ended: {code}\n{said}"


def judge(samples: Path, kind: str, first: int, count: int) -> collections.Counter[str]:
    """Have files judged; outcomes by number. Fails on the first few that are not as they must be."""
    outcomes: collections.Counter[str] = collections.Counter()
    problems: list[str] = []
    seed, end = first, first + count
    while seed < end and len(problems) < 5:
        worker = Worker(samples)
        finished = False
        for answer in worker.ask(kind, seed, end - seed):
            if "begin" in answer:
                seed = answer["begin"]
            elif "resident" in answer:
                finished = True
                assert answer["resident"] < RESIDENT_BYTES.get(kind, LARGEST_RESIDENT_BYTES), answer
            else:
                outcomes[answer["outcome"].split()[0]] += 1
                if answer["outcome"] == "escaped":
                    problems.append(f"{kind} {seed}: {answer['detail'][-2000:]}")
                elif answer["seconds"] > SECONDS_PER_FILE:
                    problems.append(f"{kind} {seed}: {answer['seconds']:.1f} s")
        how = worker.close()
        if finished:
            break
        outcomes["crashed"] += 1
        if kind != "onnx" or not survives_isolated(samples, seed):
            problems.append(f"{kind} {seed}: {how}")
        seed += 1
    assert not problems, "\n\n".join(problems)
    return outcomes


def survives_isolated(samples: Path, seed: int) -> bool:
    """Whether an ONNX file that takes native code of the front end down is a typed error in the product,
    where that code has a process of its own."""
    _, data = mutations.mutant("onnx", samples, seed)
    return load_whole(data) in ("loaded", "refused")


def load_whole(data: bytes) -> str:
    """Load through everything, compiler included."""
    try:
        with sylvite.load(data, cache=False, timeout_s=60):
            return "loaded"
    except SylviteError as error:
        return "refused" if str(error) else "refused without a word"


def test_samples_are_whole(samples):
    """What is damaged works before, and its parts are found."""
    weights = {"model": samples / "weights.safetensors"}
    for path in sorted(samples.glob("*.bare")):
        data = path.read_bytes()
        assert len(mutations.archive_places(data)) > 8
        same = mutations.with_executable(data, mutations.executable_of(data))
        assert same == data
        parameters = weights if path.stem == "parametrized" else None
        with sylvite.load(data, parameters=parameters, cache=False) as model:
            assert len(model.functions) > 0
    assert len(mutations.field_places((samples / "graph.onnx").read_bytes())) > 50


@pytest.mark.parametrize("kind", QUICK)
def test_damaged_file_is_refused_or_contained(samples, kind):
    outcomes = judge(samples, kind, 0, QUICK[kind])
    assert sum(outcomes.values()) == QUICK[kind]
    # The damage is neither hidden nor all of one sort.
    assert outcomes["refused"] > QUICK[kind] // 4
    assert outcomes["ran"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("kind", MANY)
def test_many_damaged_files_are_refused_or_contained(samples, kind, part):
    count = MANY[kind] // PARTS
    outcomes = judge(samples, kind, QUICK[kind] + part * count, count)
    assert sum(outcomes.values()) == count


@pytest.mark.parametrize("seed", [1, *(pytest.param(n, marks=pytest.mark.slow) for n in range(2, 42))])
def test_damaged_onnx_through_the_compiler_is_loaded_or_refused(samples, seed):
    import random

    data = mutations.other_graph((samples / "graph.onnx").read_bytes(), random.Random(f"whole {seed}"))
    assert load_whole(data) in ("loaded", "refused")
