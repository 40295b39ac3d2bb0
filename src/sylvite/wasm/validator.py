"""Full validation of a module: what `decode` checked, and the types of every expression and body.

Engines validate again; this exists to give an error with a place before an engine is asked, to judge
rewritten modules in tests, and to check modules where no engine is at hand.

Source: core specification, 3.3 to 3.4.
"""

from __future__ import annotations

import dataclasses

from ..errors import FormatError
from .checks import check_module, section_error
from .instructions import decode_body
from .module import Expression, Module, SegmentMode
from .stack import Context, StackChecker, StackError
from .types import ExternKind, FunctionType, SectionId, ValueType

__all__ = ["validate", "validate_function"]

_ARITHMETIC = {f"{type_}.{operation}" for type_ in ("i32", "i64") for operation in ("add", "sub", "mul")}
_CONSTANT = _ARITHMETIC | {f"{type_}.const" for type_ in ("i32", "i64", "f32", "f64", "v128")}
_CONSTANT |= {"ref.null", "ref.func", "global.get", "end"}
"""Instructions allowed in constant expressions (with the extended-const proposal)."""


def _declared_functions(module: Module) -> frozenset[int]:
    """Functions that ref.func may name in bodies."""
    declared = {export.index for export in module.exports if export.kind is ExternKind.FUNCTION}
    expressions = [item.initializer for item in module.globals]
    for segment in module.elements:
        declared.update(segment.functions or ())
        expressions.extend(segment.expressions or ())
    for expression in expressions:
        if b"\xd2" in expression.code:
            declared.update(i.immediates[0] for i in expression.instructions() if i.name == "ref.func")
    return frozenset(declared)


def _context(module: Module) -> Context:
    return Context(
        types=module.types,
        functions=module.all_functions,
        tables=module.all_tables,
        memories=module.all_memories,
        globals=module.all_globals,
        tags=module.all_tags,
        elements=[segment.element for segment in module.elements],
        data_count=module.data_count or 0,
        declared=_declared_functions(module),
    )


def _constant(expression: Expression, wanted: ValueType, context: Context, where: str) -> None:
    """Check a constant expression; globals it reads must be immutable and stand in ``context``."""
    checker = StackChecker(context, [], (wanted,))
    for name, immediates, offset in expression.instructions():
        try:
            if name not in _CONSTANT:
                raise StackError(f"{name} is not constant")
            checker.step(name, immediates)
            if name == "global.get" and context.globals[immediates[0]].mutable:
                raise StackError(f"{name}: global {immediates[0]} is mutable")
        except StackError as error:
            raise FormatError(str(error), offset=expression.offset + offset, where=where) from None


def _globals(module: Module, context: Context, where: str) -> None:
    # An initializer may read only globals before its own.
    before = list(context.globals[: module.imported_count(ExternKind.GLOBAL)])
    constant_context = dataclasses.replace(context, declared=None, globals=before)
    for item in module.globals:
        _constant(item.initializer, item.type.value, constant_context, f"{where}, global section")
        before.append(item.type)


def _segments(module: Module, context: Context, where: str) -> None:
    context = dataclasses.replace(context, declared=None)
    for segment in module.elements:
        place = f"{where}, element section"
        if segment.mode is SegmentMode.ACTIVE and segment.offset is not None:
            table = context.tables[segment.table]
            if table.element is not segment.element:
                message = f"segment of {segment.element.text} for a table of {table.element.text}"
                raise section_error(module, SectionId.ELEMENT, message, where)
            _constant(segment.offset, table.address_type, context, place)
        for expression in segment.expressions or ():
            _constant(expression, segment.element, context, place)
    for data in module.data:
        if data.offset is not None:
            address_type = context.memories[data.memory].address_type
            _constant(data.offset, address_type, context, f"{where}, data section")


def _body(module: Module, index: int, context: Context, where: str) -> None:
    number = len(context.functions) - len(module.functions) + index
    where = f"{where}, code section, function {number}"
    body = module.code[index]
    function_type: FunctionType = module.types[module.functions[index]]
    runs, code, offset = body.split(where=where)
    local_types = list(function_type.parameters)
    for run in runs:
        local_types.extend([run.type] * run.count)
    checker = StackChecker(context, local_types, function_type.results)
    for name, immediates, position in decode_body(code, base=offset, where=where):
        try:
            checker.step(name, immediates)
        except StackError as error:
            raise FormatError(str(error), offset=offset + position, where=where) from None


def validate_function(module: Module, index: int, *, where: str = "module") -> None:
    """Check one function body by its place in ``module.code``.

    Raises:
        FormatError: the body is malformed or ill-typed.
        UnsupportedFeatureError: it uses a proposal that is not supported.
    """
    _body(module, index, _context(module), where)


def validate(module: Module, *, where: str = "module") -> None:
    """Check a whole module.

    Raises:
        FormatError: something is malformed or ill-typed.
        UnsupportedFeatureError: it uses a proposal that is not supported.
    """
    check_module(module, where=where)
    context = _context(module)
    for tag in context.tags:
        if module.types[tag.type_index].results:
            section = SectionId.TAG if module.tags else SectionId.IMPORT
            raise section_error(module, section, "the type of a tag has results", where)
    _globals(module, context, where)
    _segments(module, context, where)
    for index in range(len(module.code)):
        _body(module, index, context, where)
