"""Which Python objects are of which reference type."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from ..errors import ProgramError, StatusCode
from .native import NativeModule
from .refs import VmBuffer, VmList

__all__ = ["ReferenceTypes", "TypeCheck"]

_BUILTIN: Mapping[str, type | tuple[type, ...]] = {"vm.buffer": VmBuffer, "vm.list": VmList}
_ANY = frozenset({"!vm.opaque", "!vm.ref<?>"})


class TypeCheck:
    """The check for one type. ``known`` are classes that passed, for a test without a call."""

    __slots__ = ("_classes", "known", "name")

    def __init__(self, name: str, classes: type | tuple[type, ...] | None) -> None:
        self.name = name
        self._classes = classes
        self.known: set[type] = set()

    def matches(self, value: object) -> bool:
        """Whether ``value`` is null or of the type."""
        if value is None or value.__class__ in self.known:
            return True
        if self._classes is None or isinstance(value, self._classes):
            self.known.add(value.__class__)
            return True
        return False

    def check(self, value: object) -> None:
        """Raises ProgramError (status ``INVALID_ARGUMENT``) when ``value`` is of another type."""
        if not self.matches(value):
            raise ProgramError(
                f"a {type(value).__name__} where a reference of type {self.name} is expected",
                status=StatusCode.INVALID_ARGUMENT,
            )


class ReferenceTypes:
    """The reference types of one context: the machine's own and those of its native modules."""

    def __init__(self, modules: Iterable[object]) -> None:
        self._classes = dict(_BUILTIN)
        self._checks: dict[str, TypeCheck] = {}
        for module in modules:
            if isinstance(module, NativeModule):
                self._classes.update(module.reference_types)

    def __getitem__(self, name: str) -> TypeCheck:
        """The check for a type as modules write it: ``!hal.buffer``, ``!vm.list<i32>``, ``i32``."""
        check = self._checks.get(name)
        if check is None:
            base = name.lstrip("!").partition("<")[0]
            classes = None if name in _ANY else self._classes.get(base)
            check = self._checks[name] = TypeCheck(name, classes)
        return check

    def matcher(self, name: str) -> Callable[[object], bool]:
        """`TypeCheck.matches` of a type."""
        return self[name].matches
