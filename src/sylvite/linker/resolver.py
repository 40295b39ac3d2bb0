"""Symbol resolution: which definition an import gets."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeAlias

from ..engines.base import Extern, Function, Global
from ..errors import InvalidArgumentError, LinkError
from ..kernels import KERNEL_NAMES
from ..kernels import assemble as assemble_kernels
from ..own_sources import sources_digest
from ..wasm import FunctionType, ModuleBuilder
from . import support
from .side_module import ENVIRONMENT, GOT_DATA, GOT_FUNCTIONS, SideModule
from .support import HOST_MATH, WASM_ROUTINES, HostFunctionSpec

if TYPE_CHECKING:
    from .linked import LinkedModule
    from .space import LinkSpace

__all__ = ["Resolution", "Resolver", "Symbol"]

Symbol: TypeAlias = "Function | HostFunctionSpec | int"
"""A definition given by the host: a function, or the guest address of data."""

# C++ registers destructors of static objects under a handle; nothing runs them, unloading drops the memory.
_BUILT_IN_DATA = {"__dso_handle": 0}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _FoundFunction:
    """A definition: ``module`` is where it comes from, ``private`` that only this load has it."""

    function: Function
    module: LinkedModule | None = None
    private: bool = False


@dataclasses.dataclass(slots=True, kw_only=True)
class Resolution:
    """Imports of one module, its GOT entries, and those of its own functions, which get values later."""

    imports: dict[tuple[str, str], Extern] = dataclasses.field(default_factory=dict)
    own_functions: dict[str, Global] = dataclasses.field(default_factory=dict)
    entries: list[Global] = dataclasses.field(default_factory=list)
    missing: dict[str, None] = dataclasses.field(default_factory=dict)


class Resolver:
    """Knows the definitions of one link space."""

    def __init__(self, space: LinkSpace) -> None:
        self._space = space
        self._defined: dict[str, Symbol] = {}
        self._public: list[LinkedModule] = []
        self._host_math: dict[str, Function] = {}
        # Host functions made from specs, by the spec's identity; kept, so that the id stays its own.
        self._from_specs: dict[int, tuple[HostFunctionSpec, Function]] = {}
        self._support: Mapping[str, Function] | None = None
        self._kernels: Mapping[str, Function] | None = None
        # Table slots of functions that no module owns; they stay for good.
        self._slots: dict[str, int] = {}
        self._permanent = contextlib.ExitStack()

    def define(self, name: str, item: Symbol) -> None:
        """Add a definition for all modules loaded later."""
        if name in self._defined:
            raise InvalidArgumentError(f"symbol {name} is defined already")
        self._defined[name] = item

    def publish(self, module: LinkedModule) -> None:
        """Let later modules link against ``module``."""
        self._public.append(module)

    def withdraw(self, module: LinkedModule) -> None:
        """Undo `publish`."""
        if module in self._public:
            self._public.remove(module)

    @property
    def support(self) -> Mapping[str, Function]:
        """The wasm routines, instantiated when first asked for."""
        if self._support is None:
            space = self._space
            routines = _kept(space, "linker", b"support", support.assemble)
            instance = space.instantiate(space.compile(routines, name="support"))
            functions: Mapping[str, Function] = instance.exports  # type: ignore[assignment]
            self._support = functions
        return self._support

    @property
    def kernels(self) -> Mapping[str, Function]:
        """The microkernels for this engine, instantiated when first asked for."""
        if self._kernels is None:
            space = self._space
            capabilities = space.engine.capabilities
            relaxed = capabilities.relaxed_simd and not capabilities.deterministic
            kernels = _kept(space, "kernels", bytes([relaxed]), lambda: assemble_kernels(relaxed=relaxed))
            instance = space.instantiate(space.compile(kernels, name="kernels"))
            functions: Mapping[str, Function] = instance.exports  # type: ignore[assignment]
            self._kernels = functions
        return self._kernels

    def resolve(
        self,
        side: SideModule,
        symbols: Mapping[str, Symbol],
        memory_base: int,
        resources: contextlib.ExitStack,
    ) -> Resolution:
        """Find all imports of a module that the platform does not provide.

        Args:
            side: the module.
            symbols: definitions for it alone.
            memory_base: where its data is.
            resources: takes what must be given back with the module.

        Raises:
            LinkError: symbols are undefined; all are named.
        """
        resolution = Resolution()
        self._resolve_functions(side, symbols, resources, resolution)
        self._resolve_function_addresses(side, symbols, resources, resolution)
        self._resolve_data_addresses(side, symbols, memory_base, resources, resolution)
        if resolution.missing:
            raise LinkError(
                f"module {side.name} has undefined symbols: {', '.join(resolution.missing)}",
                module=side.name,
                symbols=list(resolution.missing),
            )
        return resolution

    def _resolve_functions(
        self,
        side: SideModule,
        symbols: Mapping[str, Symbol],
        resources: contextlib.ExitStack,
        resolution: Resolution,
    ) -> None:
        for (space, name), function_type in side.function_imports.items():
            found = self._find_function(name, symbols) if space == ENVIRONMENT else None
            if found is not None:
                _hold(found.module, resources)
                resolution.imports[space, name] = found.function
            elif name in side.weak:
                resolution.imports[space, name] = self._trapping(name, function_type)
            else:
                resolution.missing[name if space == ENVIRONMENT else f"{space}.{name}"] = None

    def _resolve_function_addresses(
        self,
        side: SideModule,
        symbols: Mapping[str, Symbol],
        resources: contextlib.ExitStack,
        resolution: Resolution,
    ) -> None:
        for name in side.got_functions:
            slot = 0
            is_own = name in side.function_exports and name not in symbols
            if not is_own:
                found = self._find_function(name, symbols)
                if found is not None:
                    slot = self._slot_of(name, found, resources)
                elif name not in side.weak:
                    resolution.missing[name] = None
                    continue
            entry = self._entry(slot)
            resolution.imports[GOT_FUNCTIONS, name] = entry
            resolution.entries.append(entry)
            if is_own:
                resolution.own_functions[name] = entry

    def _resolve_data_addresses(
        self,
        side: SideModule,
        symbols: Mapping[str, Symbol],
        memory_base: int,
        resources: contextlib.ExitStack,
        resolution: Resolution,
    ) -> None:
        for name in side.got_data:
            address = self._find_data(name, side, symbols, memory_base, resources)
            if address is None and name in side.weak:
                address = 0
            if address is None:
                resolution.missing[name] = None
                continue
            resolution.imports[GOT_DATA, name] = entry = self._entry(address)
            resolution.entries.append(entry)

    def _find_function(self, name: str, symbols: Mapping[str, Symbol]) -> _FoundFunction | None:
        for definitions, private in ((symbols, True), (self._defined, False)):
            item = definitions.get(name)
            if item is not None and not isinstance(item, int):
                return _FoundFunction(function=self._function_of(item), private=private)
        if name in WASM_ROUTINES:
            return _FoundFunction(function=self.support[name])
        if name in KERNEL_NAMES:
            return _FoundFunction(function=self.kernels[name])
        host = self._host_function(name)
        if host is not None:
            return _FoundFunction(function=host)
        for module in reversed(self._public):
            function = module.exports.get(name)
            if function is not None:
                return _FoundFunction(function=function, module=module)
        return None

    def _find_data(
        self,
        name: str,
        side: SideModule,
        symbols: Mapping[str, Symbol],
        memory_base: int,
        resources: contextlib.ExitStack,
    ) -> int | None:
        item = symbols.get(name)
        if isinstance(item, int):
            return item
        if name in side.data_exports:
            return (memory_base + side.data_exports[name]) & 0xFFFFFFFF
        item = self._defined.get(name, _BUILT_IN_DATA.get(name))
        if isinstance(item, int):
            return item
        for module in reversed(self._public):
            address = module.data_exports.get(name)
            if address is not None:
                _hold(module, resources)
                return address
        return None

    def _slot_of(self, name: str, found: _FoundFunction, resources: contextlib.ExitStack) -> int:
        if found.module is not None:
            _hold(found.module, resources)
            return found.module.slot_of(name)
        if found.private:
            return self._space.place_function(found.function, resources)
        slot = self._slots.get(name)
        if slot is None:
            slot = self._slots[name] = self._space.place_function(found.function, self._permanent)
        return slot

    def _host_function(self, name: str) -> Function | None:
        function = self._host_math.get(name)
        if function is None:
            spec = HOST_MATH[name].spec() if name in HOST_MATH else None
            if name in ("sincos", "sincosf"):
                spec = support.sincos_specs(self._space.memory)[name]
            if spec is not None:
                function = self._host_math[name] = self._make(spec)
        return function

    def _function_of(self, item: Function | HostFunctionSpec) -> Function:
        if not isinstance(item, HostFunctionSpec):
            return item
        known = self._from_specs.get(id(item))
        if known is None:
            known = self._from_specs[id(item)] = (item, self._make(item))
        return known[1]

    def _make(self, spec: HostFunctionSpec) -> Function:
        return self._space.make_function(
            spec.parameter_types, spec.result_types, _counted(self._space, spec.function)
        )

    def _trapping(self, name: str, function_type: FunctionType) -> Function:
        """What a call of an undefined weak function gets."""
        module = ModuleBuilder(f"undefined weak {name}")
        module.function(name, list(function_type.parameters), list(function_type.results), export=True).emit(
            "unreachable"
        )
        compiled = self._space.compile(module.build(), name=name)
        function: Function = self._space.instantiate(compiled, {}).exports[name]  # type: ignore[assignment]
        return function

    def _entry(self, value: int) -> Global:
        return self._space.make_entry(value)


def _counted(space: LinkSpace, function: Callable[..., object]) -> Callable[..., int | float | None]:
    counters = space.tracer.counters

    def counted(*args: int | float) -> int | float | None:
        counters.host_callbacks += 1
        return function(*args)  # type: ignore[return-value]

    return counted


def _kept(space: LinkSpace, generator: str, variant: bytes, assemble: Callable[[], bytes]) -> bytes:
    """A module that a generator of this package writes, through the engine's cache: writing it takes far
    longer than loading its machine code."""
    cache = space.engine.cache
    digest = None if cache is None else sources_digest(generator, "wasm")
    if cache is None or digest is None:
        return assemble()
    return cache.remember(cache.key(b"assembled", digest, variant), assemble)


def _hold(module: LinkedModule | None, resources: contextlib.ExitStack) -> None:
    if module is not None:
        module.acquire()
        resources.callback(module.release)
