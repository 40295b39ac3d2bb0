"""The instruction set of IREE VM bytecode 17.0 as one table.

Everything that reads bytecode is driven by this table: the decoder (`sylvite.vmfb.bytecode`), the
verifier, the disassembler, the translator and their tests. An operation is an opcode within an
opcode set (core, or an extension reached through a prefix byte), a name, and an encoding: the
fields that follow the opcode, in order. Encodings are written in a small notation::

    name:T    a register that is read, holding a value of type T
    name=T    a register that is written
    name:T~   a register whose MOVE bit may be set (references only)
    name#kind anything else; the kinds are in `FieldKind`, ``#kind:T`` gives it a value type

``T`` and ``U`` stand for the types given in an operation's row.

Source: IREE ``runtime/src/iree/vm/bytecode/isa`` (schema of bytecode version 17.0).
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping
from typing import Final

__all__ = [
    "BYTECODE_VERSION",
    "BY_NAME",
    "COMPILER_RELEASE",
    "CORE",
    "ENCODINGS",
    "EXT_F32",
    "EXT_F64",
    "OPERATIONS",
    "PREFIXES",
    "Access",
    "Feature",
    "Field",
    "FieldKind",
    "OpInfo",
    "ValueType",
]

BYTECODE_VERSION: Final = (17, 0)
"""Major and minor version. Another major, or a greater minor, cannot be read."""

COMPILER_RELEASE: Final = "iree-base-compiler 3.13.0"
"""The compiler release whose bytecode this table describes."""

I32_REGISTER_LIMIT: Final = 0x7FFF
"""Exclusive upper bound of value-register ordinals (the mask of the encoding)."""

REF_REGISTER_LIMIT: Final = 0x3FFF
"""Exclusive upper bound of reference-register ordinals (the mask of the encoding)."""

REF_TYPE_BIT: Final = 0x8000
REF_MOVE_BIT: Final = 0x4000
IMPORT_BIT: Final = 0x8000_0000


class Feature(enum.IntFlag):
    """Requirement bits of modules and functions. Source: ``FeatureBits`` of the module schema."""

    EXT_F32 = 1
    EXT_F64 = 2
    YIELD = 4
    UNWIND = 8


class ValueType(str, enum.Enum):
    """What a register holds. 64-bit values occupy an even register and its successor."""

    I32 = "i32"
    I64 = "i64"
    F32 = "f32"
    F64 = "f64"
    REF = "ref"
    ANY = "any"

    @property
    def is_wide(self) -> bool:
        """Whether a value takes a pair of registers."""
        return self is ValueType.I64 or self is ValueType.F64


class Access(str, enum.Enum):
    """How an instruction uses a register."""

    READ = "read"
    WRITE = "write"


class FieldKind(str, enum.Enum):
    """How a field is encoded, and what the decoder gives for it."""

    REGISTER = "register"  # u16 -> Reg
    IMMEDIATE = "immediate"  # a literal of the field's type -> int or float
    GLOBAL = "global"  # u32 -> int: byte offset into the globals, or ordinal of a global reference
    RODATA = "rodata"  # u32 -> int: ordinal of a read-only data segment
    TYPE = "type"  # u32 -> int: index into the module's type table
    FUNCTION = "function"  # u32 -> FunctionRef
    STRING = "string"  # u16 length, bytes -> str
    OPERANDS = "operands"  # aligned u16 count, u16 registers -> tuple[Reg, ...]
    RESULTS = "results"  # the same, registers written
    SEGMENTS = "segments"  # aligned u16 count, u16 values -> tuple[int, ...]; -1 marks a plain argument
    BRANCH = "branch"  # u32 target, aligned u16 count, (source, target) pairs -> Branch
    TARGET = "target"  # u32 target -> Branch without remaps
    CASES = "cases"  # u16 count, that many branches -> tuple[Branch, ...]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One field of an encoding. ``type`` and ``access`` are set where registers are involved."""

    name: str
    kind: FieldKind
    type: ValueType | None = None
    access: Access | None = None
    allows_move: bool = False


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class OpInfo:
    """One operation.

    ``name`` is the mnemonic without the ``vm.`` prefix (``add.i32``); ``encoding`` names the row of
    `ENCODINGS`; ``types`` are the value types that stand for ``T`` and ``U`` in it; ``feature`` is
    what a function must require to use it; ``is_terminator`` marks the last instruction of a block.
    """

    name: str
    opcode: int
    encoding: str
    types: tuple[ValueType, ...]
    fields: tuple[Field, ...]
    feature: Feature
    is_terminator: bool

    @property
    def results(self) -> tuple[Field, ...]:
        """The fields that name written registers."""
        return tuple(field for field in self.fields if field.access is Access.WRITE)


ENCODINGS: Final[Mapping[str, str]] = {
    "unary": "operand:T result=T",
    "binary": "left:T right:T result=T",
    "ternary": "first:T second:T third:T result=T",
    "shift": "operand:T amount:i32 result=T",
    "select": "condition:i32 true_value:T false_value:T result=T",
    "select_ref": "condition:i32 type#type true_value:ref~ false_value:ref~ result=ref~",
    "switch": "index:i32 default:T values#operands:T result=T",
    "switch_ref": "index:i32 type#type default:ref~ values#operands:ref~ result=ref~",
    "test": "operand:T result=i32",
    "compare": "left:T right:T result=i32",
    "convert": "operand:T result=U",
    "cast_any_ref": "operand:ref~ type#type result=ref~",
    "assign_ref": "source:ref~ result=ref~",
    "discard_refs": "refs#operands:any",
    "constant": "value#immediate:T result=T",
    "zero": "result=T",
    "const_ref_zero": "result=ref~",
    "const_ref_rodata": "rodata#rodata result=ref~",
    "global_load": "global#global result=T",
    "global_store": "global#global value:T",
    "global_load_indirect": "global:i32 result=T",
    "global_store_indirect": "global:i32 value:T",
    "global_load_ref": "global#global type#type result=ref~",
    "global_store_ref": "global#global type#type value:ref~",
    "global_load_indirect_ref": "global:i32 type#type result=ref~",
    "global_store_indirect_ref": "global:i32 type#type value:ref~",
    "list_alloc": "type#type capacity:i32 result=ref~",
    "list_reserve": "list:ref capacity:i32",
    "list_size": "list:ref result=i32",
    "list_resize": "list:ref size:i32",
    "list_get": "list:ref index:i32 result=T",
    "list_set": "list:ref index:i32 value:T",
    "list_get_ref": "list:ref index:i32 type#type result=ref~",
    "list_set_ref": "list:ref index:i32 value:ref~",
    "buffer_alloc": "length:i64 alignment:i32 result=ref~",
    "buffer_clone": "source:ref offset:i64 length:i64 alignment:i32 result=ref~",
    "buffer_length": "buffer:ref result=i64",
    "buffer_copy": "source:ref source_offset:i64 target:ref target_offset:i64 length:i64",
    "buffer_compare": "left:ref left_offset:i64 right:ref right_offset:i64 length:i64 result=i32",
    "buffer_hash": "buffer:ref offset:i64 length:i64 result=i64",
    "buffer_load": "buffer:ref offset:i64 result=T",
    "buffer_store": "buffer:ref offset:i64 value:T",
    "buffer_fill": "buffer:ref offset:i64 length:i64 value:T",
    "block": "",
    "branch": "target#branch",
    "cond_branch": "condition:i32 true_target#branch false_target#branch",
    "cond_break": "condition:i32 target#branch",
    "branch_table": "index:i32 default#branch cases#cases",
    "call": "callee#function operands#operands:any results#results:any",
    "call_variadic": "callee#function segments#segments operands#operands:any results#results:any",
    "call_yieldable": "callee#function operands#operands:any target#target results#results:any",
    "call_variadic_yieldable": (
        "callee#function segments#segments operands#operands:any target#target results#results:any"
    ),
    "return": "operands#operands:any",
    "fail": "status:i32 message#string",
    "import_resolved": "callee#function result=i32",
    "trace": "message#string operands#operands:any",
}
"""Encoding name -> fields in the notation of the module docstring."""

_TERMINATORS: Final = frozenset(
    {
        "br",
        "cond_br",
        "br_table",
        "return",
        "fail",
        "yield",
        "break",
        "cond_break",
        "call.yieldable",
        "call.variadic.yieldable",
    }
)

_Rows = tuple[tuple[int | str, ...], ...]

_CORE: _Rows = (
    (0, "global.load.i32", "global_load", "i32"),
    (1, "global.store.i32", "global_store", "i32"),
    (2, "global.load.indirect.i32", "global_load_indirect", "i32"),
    (3, "global.store.indirect.i32", "global_store_indirect", "i32"),
    (4, "global.load.i64", "global_load", "i64"),
    (5, "global.store.i64", "global_store", "i64"),
    (6, "global.load.indirect.i64", "global_load_indirect", "i64"),
    (7, "global.store.indirect.i64", "global_store_indirect", "i64"),
    (8, "global.load.ref", "global_load_ref"),
    (9, "global.store.ref", "global_store_ref"),
    (10, "global.load.indirect.ref", "global_load_indirect_ref"),
    (11, "global.store.indirect.ref", "global_store_indirect_ref"),
    (12, "const.i32.zero", "zero", "i32"),
    (13, "const.i32", "constant", "i32"),
    (14, "const.i64.zero", "zero", "i64"),
    (15, "const.i64", "constant", "i64"),
    (16, "const.ref.zero", "const_ref_zero"),
    (17, "const.ref.rodata", "const_ref_rodata"),
    (18, "list.alloc", "list_alloc"),
    (19, "list.reserve", "list_reserve"),
    (20, "list.size", "list_size"),
    (21, "list.resize", "list_resize"),
    (22, "list.get.i32", "list_get", "i32"),
    (23, "list.set.i32", "list_set", "i32"),
    (24, "list.get.i64", "list_get", "i64"),
    (25, "list.set.i64", "list_set", "i64"),
    (26, "list.get.ref", "list_get_ref"),
    (27, "list.set.ref", "list_set_ref"),
    (28, "select.i32", "select", "i32"),
    (29, "select.i64", "select", "i64"),
    (30, "select.ref", "select_ref"),
    (31, "switch.i32", "switch", "i32"),
    (32, "switch.i64", "switch", "i64"),
    (33, "switch.ref", "switch_ref"),
    (34, "add.i32", "binary", "i32"),
    (35, "sub.i32", "binary", "i32"),
    (36, "mul.i32", "binary", "i32"),
    (37, "div.i32.s", "binary", "i32"),
    (38, "div.i32.u", "binary", "i32"),
    (39, "rem.i32.s", "binary", "i32"),
    (40, "rem.i32.u", "binary", "i32"),
    (41, "fma.i32", "ternary", "i32"),
    (42, "add.i64", "binary", "i64"),
    (43, "sub.i64", "binary", "i64"),
    (44, "mul.i64", "binary", "i64"),
    (45, "div.i64.s", "binary", "i64"),
    (46, "div.i64.u", "binary", "i64"),
    (47, "rem.i64.s", "binary", "i64"),
    (48, "rem.i64.u", "binary", "i64"),
    (49, "fma.i64", "ternary", "i64"),
    (50, "not.i32", "unary", "i32"),
    (51, "and.i32", "binary", "i32"),
    (52, "or.i32", "binary", "i32"),
    (53, "xor.i32", "binary", "i32"),
    (54, "not.i64", "unary", "i64"),
    (55, "and.i64", "binary", "i64"),
    (56, "or.i64", "binary", "i64"),
    (57, "xor.i64", "binary", "i64"),
    (58, "shl.i32", "shift", "i32"),
    (59, "shr.i32.s", "shift", "i32"),
    (60, "shr.i32.u", "shift", "i32"),
    (61, "shl.i64", "shift", "i64"),
    (62, "shr.i64.s", "shift", "i64"),
    (63, "shr.i64.u", "shift", "i64"),
    (64, "trunc.i32.i8", "unary", "i32"),
    (65, "trunc.i32.i16", "unary", "i32"),
    (66, "trunc.i64.i32", "convert", "i64", "i32"),
    (67, "ext.i8.i32.s", "unary", "i32"),
    (68, "ext.i8.i32.u", "unary", "i32"),
    (69, "ext.i16.i32.s", "unary", "i32"),
    (70, "ext.i16.i32.u", "unary", "i32"),
    (71, "ext.i32.i64.s", "convert", "i32", "i64"),
    (72, "ext.i32.i64.u", "convert", "i32", "i64"),
    (73, "cmp.eq.i32", "compare", "i32"),
    (74, "cmp.ne.i32", "compare", "i32"),
    (75, "cmp.lt.i32.s", "compare", "i32"),
    (76, "cmp.lt.i32.u", "compare", "i32"),
    (77, "cmp.nz.i32", "test", "i32"),
    (78, "cmp.eq.i64", "compare", "i64"),
    (79, "cmp.ne.i64", "compare", "i64"),
    (80, "cmp.lt.i64.s", "compare", "i64"),
    (81, "cmp.lt.i64.u", "compare", "i64"),
    (82, "cmp.nz.i64", "test", "i64"),
    (83, "cmp.eq.ref", "compare", "ref"),
    (84, "cmp.ne.ref", "compare", "ref"),
    (85, "cmp.nz.ref", "test", "ref"),
    (86, "br", "branch"),
    (87, "cond_br", "cond_branch"),
    (88, "call", "call"),
    (89, "call.variadic", "call_variadic"),
    (90, "return", "return"),
    (91, "fail", "fail"),
    (92, "import.resolved", "import_resolved"),
    (93, "yield", "branch"),
    (94, "trace", "trace"),
    (95, "print", "trace"),
    (96, "cond_break", "cond_break"),
    (97, "break", "branch"),
    (98, "buffer.load.i8.u", "buffer_load", "i32"),
    (99, "buffer.load.i8.s", "buffer_load", "i32"),
    (100, "buffer.load.i16.u", "buffer_load", "i32"),
    (101, "buffer.load.i16.s", "buffer_load", "i32"),
    (102, "buffer.load.i32", "buffer_load", "i32"),
    (103, "buffer.load.i64", "buffer_load", "i64"),
    (104, "buffer.store.i8", "buffer_store", "i32"),
    (105, "buffer.store.i16", "buffer_store", "i32"),
    (106, "buffer.store.i32", "buffer_store", "i32"),
    (107, "buffer.store.i64", "buffer_store", "i64"),
    (108, "buffer.alloc", "buffer_alloc"),
    (109, "buffer.clone", "buffer_clone"),
    (110, "buffer.length", "buffer_length"),
    (111, "buffer.copy", "buffer_copy"),
    (112, "buffer.compare", "buffer_compare"),
    (113, "buffer.fill.i8", "buffer_fill", "i32"),
    (114, "buffer.fill.i16", "buffer_fill", "i32"),
    (115, "buffer.fill.i32", "buffer_fill", "i32"),
    (116, "buffer.fill.i64", "buffer_fill", "i64"),
    (117, "ctlz.i32", "unary", "i32"),
    (118, "ctlz.i64", "unary", "i64"),
    (119, "abs.i32", "unary", "i32"),
    (120, "abs.i64", "unary", "i64"),
    (121, "block", "block"),
    (122, "min.i32.s", "binary", "i32"),
    (123, "min.i32.u", "binary", "i32"),
    (124, "max.i32.s", "binary", "i32"),
    (125, "max.i32.u", "binary", "i32"),
    (126, "min.i64.s", "binary", "i64"),
    (127, "min.i64.u", "binary", "i64"),
    (128, "max.i64.s", "binary", "i64"),
    (129, "max.i64.u", "binary", "i64"),
    (130, "cast.any.ref", "cast_any_ref"),
    (131, "br_table", "branch_table"),
    (132, "buffer.hash", "buffer_hash"),
    (133, "discard.refs", "discard_refs"),
    (134, "assign.ref", "assign_ref"),
    (135, "call.yieldable", "call_yieldable"),
    (136, "call.variadic.yieldable", "call_variadic_yieldable"),
)
_F32: _Rows = (
    (0, "global.load.f32", "global_load", "f32"),
    (1, "global.store.f32", "global_store", "f32"),
    (2, "global.load.indirect.f32", "global_load_indirect", "f32"),
    (3, "global.store.indirect.f32", "global_store_indirect", "f32"),
    (4, "const.f32.zero", "zero", "f32"),
    (5, "const.f32", "constant", "f32"),
    (6, "list.get.f32", "list_get", "f32"),
    (7, "list.set.f32", "list_set", "f32"),
    (8, "select.f32", "select", "f32"),
    (9, "switch.f32", "switch", "f32"),
    (10, "add.f32", "binary", "f32"),
    (11, "sub.f32", "binary", "f32"),
    (12, "mul.f32", "binary", "f32"),
    (13, "div.f32", "binary", "f32"),
    (14, "rem.f32", "binary", "f32"),
    (15, "fma.f32", "ternary", "f32"),
    (16, "abs.f32", "unary", "f32"),
    (17, "neg.f32", "unary", "f32"),
    (18, "ceil.f32", "unary", "f32"),
    (19, "floor.f32", "unary", "f32"),
    (20, "cast.si32.f32", "convert", "i32", "f32"),
    (21, "cast.ui32.f32", "convert", "i32", "f32"),
    (22, "cast.f32.si32", "convert", "f32", "i32"),
    (23, "cast.f32.ui32", "convert", "f32", "i32"),
    (24, "bitcast.i32.f32", "convert", "i32", "f32"),
    (25, "bitcast.f32.i32", "convert", "f32", "i32"),
    (26, "atan.f32", "unary", "f32"),
    (27, "atan2.f32", "binary", "f32"),
    (28, "cos.f32", "unary", "f32"),
    (29, "sin.f32", "unary", "f32"),
    (30, "exp.f32", "unary", "f32"),
    (31, "exp2.f32", "unary", "f32"),
    (32, "expm1.f32", "unary", "f32"),
    (33, "log.f32", "unary", "f32"),
    (34, "log10.f32", "unary", "f32"),
    (35, "log1p.f32", "unary", "f32"),
    (36, "log2.f32", "unary", "f32"),
    (37, "pow.f32", "binary", "f32"),
    (38, "rsqrt.f32", "unary", "f32"),
    (39, "sqrt.f32", "unary", "f32"),
    (40, "tanh.f32", "unary", "f32"),
    (41, "erf.f32", "unary", "f32"),
    (42, "cmp.eq.f32.o", "compare", "f32"),
    (43, "cmp.eq.f32.u", "compare", "f32"),
    (44, "cmp.ne.f32.o", "compare", "f32"),
    (45, "cmp.ne.f32.u", "compare", "f32"),
    (46, "cmp.lt.f32.o", "compare", "f32"),
    (47, "cmp.lt.f32.u", "compare", "f32"),
    (48, "cmp.lte.f32.o", "compare", "f32"),
    (49, "cmp.lte.f32.u", "compare", "f32"),
    (50, "cmp.nan.f32", "test", "f32"),
    (51, "buffer.load.f32", "buffer_load", "f32"),
    (52, "buffer.store.f32", "buffer_store", "f32"),
    (53, "buffer.fill.f32", "buffer_fill", "f32"),
    (54, "round.f32", "unary", "f32"),
    (55, "min.f32", "binary", "f32"),
    (56, "max.f32", "binary", "f32"),
    (57, "round.f32.even", "unary", "f32"),
    (58, "cast.f32.si64", "convert", "f32", "i64"),
    (59, "cast.f32.ui64", "convert", "f32", "i64"),
    (60, "cast.si64.f32", "convert", "i64", "f32"),
    (61, "cast.ui64.f32", "convert", "i64", "f32"),
)
_F64: _Rows = (
    (0, "global.load.f64", "global_load", "f64"),
    (1, "global.store.f64", "global_store", "f64"),
    (2, "global.load.indirect.f64", "global_load_indirect", "f64"),
    (3, "global.store.indirect.f64", "global_store_indirect", "f64"),
    (4, "const.f64.zero", "zero", "f64"),
    (5, "const.f64", "constant", "f64"),
    (6, "list.get.f64", "list_get", "f64"),
    (7, "list.set.f64", "list_set", "f64"),
    (8, "select.f64", "select", "f64"),
    (9, "switch.f64", "switch", "f64"),
    (10, "add.f64", "binary", "f64"),
    (11, "sub.f64", "binary", "f64"),
    (12, "mul.f64", "binary", "f64"),
    (13, "div.f64", "binary", "f64"),
    (14, "rem.f64", "binary", "f64"),
    (15, "fma.f64", "ternary", "f64"),
    (16, "abs.f64", "unary", "f64"),
    (17, "neg.f64", "unary", "f64"),
    (18, "ceil.f64", "unary", "f64"),
    (19, "floor.f64", "unary", "f64"),
    (20, "trunc.f64.f32", "convert", "f64", "f32"),
    (21, "ext.f32.f64", "convert", "f32", "f64"),
    (22, "cast.si32.f64", "convert", "i32", "f64"),
    (23, "cast.ui32.f64", "convert", "i32", "f64"),
    (24, "cast.f64.si32", "convert", "f64", "i32"),
    (25, "cast.f64.ui32", "convert", "f64", "i32"),
    (26, "cast.si64.f64", "convert", "i64", "f64"),
    (27, "cast.ui64.f64", "convert", "i64", "f64"),
    (28, "cast.f64.si64", "convert", "f64", "i64"),
    (29, "cast.f64.ui64", "convert", "f64", "i64"),
    (30, "bitcast.i64.f64", "convert", "i64", "f64"),
    (31, "bitcast.f64.i64", "convert", "f64", "i64"),
    (32, "atan.f64", "unary", "f64"),
    (33, "atan2.f64", "binary", "f64"),
    (34, "cos.f64", "unary", "f64"),
    (35, "sin.f64", "unary", "f64"),
    (36, "exp.f64", "unary", "f64"),
    (37, "exp2.f64", "unary", "f64"),
    (38, "expm1.f64", "unary", "f64"),
    (39, "log.f64", "unary", "f64"),
    (40, "log10.f64", "unary", "f64"),
    (41, "log1p.f64", "unary", "f64"),
    (42, "log2.f64", "unary", "f64"),
    (43, "pow.f64", "binary", "f64"),
    (44, "rsqrt.f64", "unary", "f64"),
    (45, "sqrt.f64", "unary", "f64"),
    (46, "tanh.f64", "unary", "f64"),
    (47, "erf.f64", "unary", "f64"),
    (48, "cmp.eq.f64.o", "compare", "f64"),
    (49, "cmp.eq.f64.u", "compare", "f64"),
    (50, "cmp.ne.f64.o", "compare", "f64"),
    (51, "cmp.ne.f64.u", "compare", "f64"),
    (52, "cmp.lt.f64.o", "compare", "f64"),
    (53, "cmp.lt.f64.u", "compare", "f64"),
    (54, "cmp.lte.f64.o", "compare", "f64"),
    (55, "cmp.lte.f64.u", "compare", "f64"),
    (56, "cmp.nan.f64", "test", "f64"),
    (57, "buffer.load.f64", "buffer_load", "f64"),
    (58, "buffer.store.f64", "buffer_store", "f64"),
    (59, "buffer.fill.f64", "buffer_fill", "f64"),
    (60, "round.f64", "unary", "f64"),
    (61, "min.f64", "binary", "f64"),
    (62, "max.f64", "binary", "f64"),
    (63, "round.f64.even", "unary", "f64"),
)


def _parse_field(text: str, types: Mapping[str, ValueType]) -> Field:
    allows_move = text.endswith("~")
    text = text.rstrip("~")
    if "#" in text:
        name, _, rest = text.partition("#")
        kind_name, _, type_name = rest.partition(":")
        kind = FieldKind(kind_name)
        access = {FieldKind.OPERANDS: Access.READ, FieldKind.RESULTS: Access.WRITE}.get(kind)
    else:
        access = Access.WRITE if "=" in text else Access.READ
        name, _, type_name = text.replace("=", ":").partition(":")
        kind = FieldKind.REGISTER
    value_type = types.get(type_name) or (ValueType(type_name) if type_name else None)
    return Field(name=name, kind=kind, type=value_type, access=access, allows_move=allows_move)


def _operation(row: tuple[int | str, ...], feature: Feature) -> OpInfo:
    opcode, name, encoding = int(row[0]), str(row[1]), str(row[2])
    types = tuple(ValueType(name) for name in row[3:])
    letters = dict(zip("TU", types, strict=False))
    return OpInfo(
        name=name,
        opcode=opcode,
        encoding=encoding,
        types=types,
        fields=tuple(_parse_field(text, letters) for text in ENCODINGS[encoding].split()),
        feature=feature,
        is_terminator=name in _TERMINATORS,
    )


def _opcode_set(rows: _Rows, feature: Feature) -> dict[int, OpInfo]:
    return {op.opcode: op for op in (_operation(row, feature) for row in rows)}


CORE: Final[Mapping[int, OpInfo]] = _opcode_set(_CORE, Feature(0))
"""Core operations by opcode."""

EXT_F32: Final[Mapping[int, OpInfo]] = _opcode_set(_F32, Feature.EXT_F32)
"""Operations of the f32 extension by opcode after the prefix."""

EXT_F64: Final[Mapping[int, OpInfo]] = _opcode_set(_F64, Feature.EXT_F64)
"""Operations of the f64 extension by opcode after the prefix."""

PREFIXES: Final[Mapping[int, Mapping[int, OpInfo]]] = {0xE0: EXT_F32, 0xE1: EXT_F64}
"""Prefix byte -> the opcode set it opens."""

OPERATIONS: Final[tuple[OpInfo, ...]] = (*CORE.values(), *EXT_F32.values(), *EXT_F64.values())
"""All operations, core first, by opcode."""

BY_NAME: Final[Mapping[str, OpInfo]] = {op.name: op for op in OPERATIONS}
"""All operations by name."""
