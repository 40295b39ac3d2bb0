"""Programs of many operators, run by Sylvite (wasm32) and by iree.runtime (this host's code), compared.

And programs that judge themselves with IREE's check dialect.
"""

import functools

import check_programs
import numpy as np
import pytest

import sylvite.compile
from sylvite import drivers
from sylvite.errors import ProgramError
from sylvite.hal import BufferView
from sylvite.vm.context import Context
from sylvite.vm.modules import CheckModule, HalModule
from sylvite.vm.modules.check import TABLE as CHECK_TABLE
from sylvite.vm.modules.hal.table import TABLE as HAL_TABLE
from sylvite.vmfb import open_archive

pytestmark = pytest.mark.compiler
PROGRAMS = {program.name: program for program in check_programs.programs()}
CASES = [
    pytest.param(program.name, name, marks=[pytest.mark.slow] if program.slow else [])
    for program in PROGRAMS.values()
    for name in program.inputs
]
# Functions natively wrong or missing are not in the programs; whatever runs natively has to agree here.
FLAGS = ("--iree-input-demote-f64-to-f32=false",)


def compiled(source, target):
    return sylvite.compile.compile(source, target, flags=FLAGS).path


@pytest.fixture(scope="module")
def device():
    with drivers.create_device("local-sync") as device:
        yield device


@functools.cache
def native_module(name):
    """The program as iree.runtime runs it, compiled for this host."""
    import iree.runtime

    config = iree.runtime.Config("local-sync")
    context = iree.runtime.SystemContext(config=config)
    data = compiled(PROGRAMS[name].source, "native").read_bytes()
    module = iree.runtime.VmModule.copy_buffer(context.instance, data)
    context.add_vm_module(module)
    return context, context.modules[module.name]


@pytest.fixture(scope="module")
def contexts(device):
    made = {}

    def get(name):
        if name not in made:
            archive = open_archive(compiled(PROGRAMS[name].source, "wasm32"))
            made[name] = Context([HalModule([device]), archive])
        return made[name]

    yield get
    for context in made.values():
        context.close()


def as_list(results):
    if results is None:
        return []
    return list(results) if isinstance(results, (tuple, list)) else [results]


def run_here(context, device, name, arguments):
    views = [
        BufferView.from_numpy(device.allocator, value)
        if isinstance(value, (np.ndarray, np.generic))
        else value
        for value in arguments
    ]
    results = as_list(context.invoke(f"module.{name}", *views))
    return [np.array(value.numpy()) if isinstance(value, BufferView) else value for value in results]


def run_native(module, name, arguments):
    return [
        value.to_host() if hasattr(value, "to_host") else value for value in as_list(module[name](*arguments))
    ]


def tolerance_of(dtype):
    for name, kind in check_programs.DTYPES.items():
        if dtype == kind:
            return check_programs.TOLERANCES.get(name, 0.0)
    return 0.0


def assert_same(actual, expected):
    if not isinstance(actual, np.ndarray):
        assert actual == pytest.approx(expected, rel=1e-6)
        return
    expected = np.asarray(expected)
    assert actual.shape == expected.shape
    if actual.dtype.itemsize == expected.dtype.itemsize and actual.dtype != expected.dtype:
        expected = expected.view(actual.dtype)  # iree.runtime has other names for bf16
    assert actual.dtype == expected.dtype
    tolerance = tolerance_of(actual.dtype)
    if not tolerance:
        np.testing.assert_array_equal(actual, expected)
        return
    wide = (actual.astype(np.float64), expected.astype(np.float64))
    np.testing.assert_allclose(*wide, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(("program", "name"), CASES)
def test_program_agrees_with_native_iree(device, contexts, program, name):
    rng = np.random.default_rng(sum(map(ord, program + name)))
    arguments = PROGRAMS[program].inputs[name](rng)
    _, native = native_module(program)
    expected = run_native(native, name, arguments)
    actual = run_here(contexts(program), device, name, arguments)
    assert len(actual) == len(expected)
    for here, there in zip(actual, expected, strict=True):
        assert_same(here, there)


@pytest.mark.parametrize("rows", [0, 1, 2, 7, 64])
def test_dynamic_extents_agree_with_numpy(device, contexts, rows):
    context = contexts("dynamic")
    rng = np.random.default_rng(rows)
    x = rng.uniform(-1, 1, (rows, 4)).astype(np.float32)
    (added,) = run_here(context, device, "add", [x, x])
    np.testing.assert_array_equal(added, x + x)
    (sums,) = run_here(context, device, "row_sums", [x])
    np.testing.assert_allclose(sums, x.sum(axis=1), rtol=1e-5, atol=1e-6)
    assert run_here(context, device, "extent", [rng.integers(0, 9, (rows, 3)).astype(np.int8)]) == [rows, 3]


def test_dynamic_extents_that_do_not_match_raise(device, contexts):
    x, y = np.zeros((3, 4), np.float32), np.zeros((3, 5), np.float32)
    with pytest.raises(Exception, match=r"input1.*shape"):
        run_here(contexts("dynamic"), device, "add", [x, y])


def test_libm_functions_the_compiler_leaves_open_agree_with_numpy(device):
    archive = open_archive(compiled(check_programs.LIBM, "wasm32"))
    rng = np.random.default_rng(1)
    x, y = rng.uniform(-9, 9, (2, 3, 7))
    with Context([HalModule([device]), archive]) as context:
        for actual, function in zip(
            run_here(context, device, "unary", [x]), (np.tanh, np.sin, np.cos), strict=True
        ):
            np.testing.assert_allclose(actual, function(x), rtol=1e-12, atol=1e-14)
        np.testing.assert_allclose(
            run_here(context, device, "binary", [x, y])[0], np.arctan2(x, y), rtol=1e-12
        )


@pytest.fixture(scope="module")
def check_archive():
    with open_archive(compiled(check_programs.CHECKS, "wasm32")) as archive:
        yield archive


TABLES = {"hal": HAL_TABLE, "check": CHECK_TABLE}


def test_imports_of_compiled_modules_are_in_the_tables(check_archive):
    seen = {}
    for source in (check_programs.CONTROL.source, check_programs.DYNAMIC.source, check_programs.CHECKS):
        with open_archive(compiled(source, "wasm32")) as archive:
            seen.update({item.full_name: item for item in archive.module.imports})
    assert len(seen) > 25
    known = {
        f"{module}.{name}": convention for module, table in TABLES.items() for name, convention, _ in table
    }
    for full_name, item in seen.items():
        assert item.calling_convention.lstrip("0") == known[full_name], full_name


def test_check_programs_that_hold_pass(device, check_archive):
    with Context([HalModule([device]), CheckModule(), check_archive]) as context:
        names = [name for name in context.function_names("module") if name.startswith("holds_")]
        assert len(names) == 4
        for name in names:
            context.invoke(f"module.{name}")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("fails_equal", "elements differ\n  lhs: 3xi32=2 4 6\n  rhs: 3xi32=2 4 7"),
        ("fails_almost", r"element \[1\] is 4 and should be 4.5"),
        ("fails_true", "expected a true value"),
        ("fails_all_true", r"element \[1\] is zero"),
    ],
)
def test_check_program_that_does_not_hold_raises(device, check_archive, name, text):
    with (
        Context([HalModule([device]), CheckModule(), check_archive]) as context,
        pytest.raises(ProgramError, match=text),
    ):
        context.invoke(f"module.{name}")


def test_check_module_is_optional(device, check_archive):
    with Context([HalModule([device]), check_archive]) as context:
        assert context.invoke("module.fails_equal") is None
