"""``sylvite halide``, and pipelines in ``sylvite inspect`` and ``sylvite bench``."""

from __future__ import annotations

import json

import imageio.v3
import numpy as np
import pytest

from sylvite.cli import main

SOURCE = """
import halide as hl

x, y, c = hl.vars("x y c")
photo = hl.ImageParam(hl.UInt(8), 3, "photo")
radius = hl.Param(hl.Int(32), "radius", 1)
brighter = hl.Func("brighter")
brighter[x, y, c] = hl.u8_sat(hl.i32(photo[x, y, c]) + radius)

def with_arguments():
    gray = hl.ImageParam(hl.Float(32), 2, "gray")
    out = hl.Func("out")
    out[x, y] = gray[x, y] * 0.5
    return out, [gray]

broken = 3
"""


GENERATOR = """
import halide as hl

x, y = hl.vars("x y")

@hl.generator(name="cli_gain")
class Gain:
    gain = hl.GeneratorParam(2)
    source = hl.InputBuffer(hl.UInt(8), 2)
    result = hl.OutputBuffer(hl.UInt(8), 2)

    def generate(self):
        self.result[x, y] = self.source[x, y] * hl.u8(self.gain)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cli")
    (folder / "app.py").write_text(SOURCE)
    # Halide registers a generator when its file is imported, which it must be only once.
    (folder / "generator.py").write_text(GENERATOR)
    assert main(["halide", "build", f"{folder / 'app.py'}:brighter", "-o", str(folder / "b.wasm")]) == 0
    image = np.random.default_rng(0).integers(0, 256, (12, 16, 3), np.uint8)
    imageio.v3.imwrite(folder / "in.png", image)
    np.save(folder / "in.npy", image)
    return folder


@pytest.mark.parametrize("source", ["in.png", "in.npy"])
@pytest.mark.parametrize("output", ["out.png", "out.npy"])
def test_run_reads_and_writes_files(folder, source, output, capsys):
    arguments = [f"photo={folder / source}", f"output={folder / output}", "radius=9"]
    assert main(["halide", "run", str(folder / "b.wasm"), *arguments]) == 0
    read = np.load if output.endswith("npy") else imageio.v3.imread
    expected = np.minimum(np.load(folder / "in.npy").astype(int) + 9, 255)
    np.testing.assert_array_equal(read(folder / output), expected)
    assert "brighter: uint8[12, 16, 3]" in capsys.readouterr().out


def test_run_shows_pictures_and_writes_a_page(folder, capsys):
    page = folder / "page.html"
    arguments = [f"photo={folder / 'in.png'}", "--show", "--html", str(page)]
    assert main(["halide", "run", str(folder / "b.wasm"), *arguments]) == 0
    assert "▀" in capsys.readouterr().out
    assert page.read_text().count("<img") == 2


def test_run_writes_jpeg_and_converts_to_grey_floats(folder):
    module = folder / "gray.wasm"
    assert main(["halide", "build", f"{folder / 'app.py'}:with_arguments", "-o", str(module)]) == 0
    arguments = [f"gray={folder / 'in.png'}", f"out={folder / 'out.jpg'}", f"out={folder / 'out.jpg'}"]
    assert main(["halide", "run", str(module), *arguments]) == 0
    assert imageio.v3.imread(folder / "out.jpg").shape == (12, 16)


def test_build_of_generator_takes_parameters(folder, capsys):
    module = folder / "gain.wasm"
    command = ["halide", "build", f"{folder / 'generator.py'}:Gain", "-o", str(module), "--param", "gain=3"]
    assert main(command) == 0
    np.save(folder / "gray.npy", np.full((4, 4), 5, np.uint8))
    arguments = [f"source={folder / 'gray.npy'}", f"result={folder / 'r.npy'}"]
    assert main(["halide", "run", str(module), *arguments]) == 0
    assert (np.load(folder / "r.npy") == 15).all()


@pytest.mark.parametrize("command", [["inspect"], ["halide", "inspect"]])
def test_inspect_shows_the_signature(folder, command, capsys):
    assert main([*command, str(folder / "b.wasm")]) == 0
    assert "brighter(photo: uint8[3d], radius: int32 = 1) -> brighter: uint8[3d]" in capsys.readouterr().out
    assert main([*command, str(folder / "b.wasm"), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    pipelines = report["pipelines"] if command == ["inspect"] else report
    assert pipelines[0]["arguments"][1]["default"] == 1


def test_bench_times_a_pipeline(folder, capsys):
    command = ["halide", "bench", str(folder / "b.wasm"), "--shape", "40,50", "--runs", "3", "--json"]
    assert main(command) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["shape"] == [40, 50, 3]
    assert 0 < report["minimum_s"] <= report["median_s"]
    assert main(["bench", str(folder / "b.wasm"), "--runs", "2"]) == 0


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["run", "{f}/b.wasm", "photo={f}/none.png"], "no such file"),
        (["run", "{f}/b.wasm", "photo={f}/app.py"], "cannot be read"),
        (["run", "{f}/b.wasm", "image={f}/in.png"], "no argument 'image'"),
        (["run", "{f}/b.wasm", "photo={f}/in.png", "radius=wide"], "radius is of type int32, got 'wide'"),
        (["run", "{f}/b.wasm", "photo"], "expected NAME=VALUE"),
        (["run", "{f}/app.py"], "not WebAssembly"),
        (["build", "{f}/app.py:missing"], "defines no 'missing'"),
        (["build", "{f}/none.py:x"], "no such file"),
        (["build", "{f}/app.py:broken"], "not int"),
    ],
)
def test_mistakes_are_explained(folder, arguments, text, capsys):
    assert main(["halide", *[a.format(f=folder) for a in arguments]]) == 1
    assert text in capsys.readouterr().err
