"""Signatures from reflection attributes and calling conventions."""

from __future__ import annotations

import time

import archive_writer as writer
import pytest

from sylvite import vmfb
from sylvite.errors import FormatError
from sylvite.vmfb import ArgumentKind, read_signature
from sylvite.vmfb.calling_convention import Span, parse_calling_convention
from sylvite.vmfb.isa import ValueType


def signature(declaration: str | None = None, convention: str = "0rr_r", model: str | None = None, name="f0"):
    attrs = []
    if declaration is not None:
        attrs.append({"key": "iree.abi.declaration", "value": declaration})
    if model is not None:
        attrs.append({"key": "iree.abi.model", "value": model})
    values = writer.module(
        writer.RETURN_FIRST,
        function_signatures=[{"calling_convention": convention, "attrs": attrs}],
        exported_functions=[{"local_name": name, "internal_ordinal": 0}],
    )
    archive = vmfb.open_archive(writer.archive(values), verify=False)
    return read_signature(archive.module.functions[0])


@pytest.mark.compiler
def test_signatures_of_compiled_model(model):
    module = vmfb.open_archive(model).module
    found = {e.name: read_signature(module.functions[e.ordinal], e.name) for e in module.exports}
    product = found["product"]
    assert [(a.name, a.kind, a.shape, a.element_type) for a in product.inputs] == [
        ("input0", ArgumentKind.TENSOR, (None, 8), "f32")
    ]
    loop = found["loop"]
    assert [(a.kind, a.type, a.shape) for a in loop.inputs] == [
        (ArgumentKind.SCALAR, "i32", ()),
        (ArgumentKind.TENSOR, "tensor<4xf32>", (4,)),
    ]
    assert [a.name for a in loop.outputs] == ["output0", "output1"]
    named = found["named"]
    assert [a.name for a in (*named.inputs, *named.outputs)] == ["pixels", "input1", "out"]
    assert named.inputs[1].element_type == "index"
    assert not any(s.is_async for s in found.values())
    for export in module.exports:
        declared = module.functions[export.ordinal].attrs.get("iree.abi.declaration")
        if declared is not None:
            assert str(found[export.name]) == declared


@pytest.mark.compiler
def test_signature_of_compiled_asynchronous_function_leaves_out_the_fences(compiler):
    text = (
        "func.func @later(%x: tensor<4xf32>) -> tensor<4xf32> {\n"
        "  %0 = arith.mulf %x, %x : tensor<4xf32>\n  return %0 : tensor<4xf32>\n}\n"
    )
    flags = ["--iree-hal-target-device=local", "--iree-hal-local-target-device-backends=vmvx"]
    module = vmfb.open_archive(
        compiler("later", text, *flags, "--iree-execution-model=async-external")
    ).module
    function = module.functions[module.export_ordinal("later")]
    assert function.calling_convention == "rrr_r"
    found = read_signature(function)
    assert found.is_async
    assert [a.type for a in found.inputs] == ["tensor<4xf32>"]
    assert str(found).startswith("async func @later(")


def test_signature_of_tensor_types():
    found = signature(
        "sync func @f0(%a: tensor<f64>, %b: tensor<2x?x3xcomplex<f32>>, %c: tensor<0xi1, #enc<a, b>>, "
        "%d: tensor<4xbf16>) -> (%o: !util.list<?>)",
        "0rrrr_r",
    )
    assert [(a.shape, a.element_type) for a in found.inputs] == [
        ((), "f64"),
        ((2, None, 3), "complex<f32>"),
        ((0,), "i1"),
        ((4,), "bf16"),
    ]
    assert found.outputs[0].kind is ArgumentKind.REFERENCE
    assert found.outputs[0].type == "!util.list<?>"


def test_signature_without_arguments():
    found = signature("sync func @f0() -> ()", "0v_v")
    assert (found.inputs, found.outputs) == ((), ())


def test_signature_with_argument_attributes_ignores_them():
    found = signature(
        'sync func @f0(%a: tensor<4xf32> {iree.abi.output = 0 : index, k = "x, y"}, %n: i32) -> (%o: f32)',
        "0ri_f",
    )
    assert [a.type for a in found.inputs] == ["tensor<4xf32>", "i32"]


def test_signature_with_odd_names():
    found = signature("sync func @a(b%c(%x:0: tensor<4xf32>, %y: z: i64) -> (%o: f64)", "0rI_F")
    assert found.outputs[0].element_type == "f64"
    found = signature("sync func @f(%serving_default_x:0: tensor<4xf32>) -> (%o: f64)", "0r_F")
    assert found.inputs[0].name == "serving_default_x:0"


@pytest.mark.parametrize(
    "declaration",
    [
        "",
        "anything a front end wrote (declaration)",
        "sync func @f0(%a: tensor<4xf32>) -> (%o: f32)",
        "sync func @f0(%a: tensor<4xf32>, %b: i32) -> (%o: tensor<f32>)",
        "sync func @f0(a: tensor<4xf32>, b: tensor<4xf32>) -> (o: tensor<f32>)",
        "sync func @f0(%a, %b) -> (%o)",
        "sync func @f0(%a: tensor<f32>, %b: tensor<f32>) -> (%o: tensor<f32>",
    ],
)
def test_signature_whose_declaration_does_not_fit_follows_the_calling_convention(declaration):
    found = signature(declaration, "0rr_r")
    assert [a.name for a in found.inputs] == ["input0", "input1"]
    assert {a.kind for a in (*found.inputs, *found.outputs)} == {ArgumentKind.REFERENCE}
    assert all(a.shape is None for a in found.inputs)
    assert found.declaration == declaration


def test_signature_without_attributes_follows_the_calling_convention():
    found = signature(None, "0iIfFrCrD_iF")
    assert [a.type for a in found.inputs] == ["i32", "i64", "f32", "f64", "!vm.ref<?>", "!vm.ref<?>"]
    assert [a.element_type for a in found.outputs] == ["i32", "f64"]


@pytest.mark.parametrize(
    ("declaration", "model", "name", "is_async"),
    [
        (None, None, "f", False),
        (None, None, "f$async", True),
        (None, "coarse-fences", "f", True),
        ("async func @f(%a: tensor<4xf32>) -> (%o: tensor<4xf32>)", None, "f", True),
        ("sync func @f(%a: tensor<4xf32>) -> (%o: tensor<4xf32>)", None, "f$async", False),
    ],
)
def test_signature_tells_asynchronous_functions(declaration, model, name, is_async):
    found = signature(declaration, "0rrr_r", model, name)
    assert found.is_async is is_async
    assert len(found.inputs) == (1 if is_async else 3)


@pytest.mark.parametrize(
    "declaration",
    [
        "sync func @" + "(" * 200_000,
        "sync func @f(" + ") -> (" * 60_000,
        "sync func @f(" + "%a: tensor<" * 60_000 + ") -> ()",
        "sync func @f(%a: tensor<" + "1x" * 100_000 + "f32>) -> ()",
        "sync func @f(%a: tensor<" + "9" * 100_000 + "xf32>) -> ()",
        "sync func @f(%a: " + "i" + "9" * 200_000 + "!) -> ()",
        "sync func @f(" + "%a: {" * 60_000 + ") -> ()",
    ],
)
def test_signature_of_hostile_declaration_takes_little_time(declaration):
    start = time.process_time()
    signature(declaration, "0r_v")
    assert time.process_time() - start < 2


def test_calling_convention_is_parsed():
    parsed = parse_calling_convention("rCiID_fF")
    assert parsed.arguments == (ValueType.REF, Span((ValueType.I32, ValueType.I64)))
    assert parsed.results == (ValueType.F32, ValueType.F64)
    assert parsed.is_variadic
    assert parse_calling_convention("") == parse_calling_convention("v_v") == parse_calling_convention("v")
    assert not parse_calling_convention("ir").is_variadic


@pytest.mark.parametrize("text", ["x", "i_x", "Ci", "CD", "CCiDD", "D", "_CiD", "i_i_i"])
def test_calling_convention_that_is_malformed_is_refused(text):
    with pytest.raises(FormatError, match="calling convention"):
        parse_calling_convention(text)
