"""The instruction table is consistent with itself."""

from __future__ import annotations

import pytest

from sylvite.vmfb import isa
from sylvite.vmfb.isa import Access, FieldKind, ValueType


def test_table_has_all_operations_of_17_0():
    assert (len(isa.CORE), len(isa.EXT_F32), len(isa.EXT_F64)) == (137, 62, 64)
    assert len(isa.BY_NAME) == len(isa.OPERATIONS) == 263


@pytest.mark.parametrize("opcodes", [isa.CORE, isa.EXT_F32, isa.EXT_F64], ids=["core", "f32", "f64"])
def test_opcodes_are_contiguous_and_apart_from_prefixes(opcodes):
    assert sorted(opcodes) == list(range(len(opcodes)))
    assert not set(opcodes) & set(isa.PREFIXES)


def test_every_encoding_is_used():
    assert {op.encoding for op in isa.OPERATIONS} == set(isa.ENCODINGS)


@pytest.mark.parametrize("op", isa.OPERATIONS, ids=lambda op: op.name)
def test_fields_are_complete(op):
    names = [field.name for field in op.fields]
    assert len(set(names)) == len(names)
    for field in op.fields:
        if field.kind is FieldKind.REGISTER:
            assert field.type not in (None, ValueType.ANY)
            assert field.access is not None
        assert not field.allows_move or field.type is ValueType.REF
    if op.feature:
        assert any(t.value in op.name for t in (ValueType.F32, ValueType.F64))


def test_terminators_are_the_operations_with_branches_and_the_exits():
    branching = {
        op.name
        for op in isa.OPERATIONS
        if any(field.kind in (FieldKind.BRANCH, FieldKind.TARGET) for field in op.fields)
    }
    assert {op.name for op in isa.OPERATIONS if op.is_terminator} == branching | {"return", "fail"}


def test_results_lists_written_registers():
    assert [field.name for field in isa.BY_NAME["call"].results] == ["results"]
    assert [field.name for field in isa.BY_NAME["add.i32"].results] == ["result"]
    assert all(field.access is Access.WRITE for op in isa.OPERATIONS for field in op.results)


def test_types_in_names_agree_with_operand_types():
    assert [f.type.value for f in isa.BY_NAME["shl.i64"].fields] == ["i64", "i32", "i64"]
    assert [f.type.value for f in isa.BY_NAME["cast.f64.ui32"].fields] == ["f64", "i32"]
    assert [f.type.value for f in isa.BY_NAME["cmp.lt.f32.o"].fields] == ["f32", "f32", "i32"]
