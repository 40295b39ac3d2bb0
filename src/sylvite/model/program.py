"""One compiled module, linked and ready to be called."""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from ..engines.base import Limits
from ..errors import (
    ClosedError,
    InvalidArgumentError,
    NotFoundError,
    ProgramError,
    StatusCode,
    SylviteError,
    UnsupportedFeatureError,
)
from ..hal import Device, Fence
from ..vm.context import Context, FunctionHandle
from ..vm.module import BytecodeModule
from ..vm.modules import CheckModule, HalModule, IoParametersModule
from ..vm.native import NativeModule
from ..vm.parameters import ParameterProvider
from ..vmfb import Archive
from .arrays import from_program, to_program
from .plans import CallPlans, collect
from .signature import Signature, ValueKind, function_signature

__all__ = ["Entry", "Program"]

ASYNC_SUFFIX = "$async"
_WANTED_TARGET = re.compile(r'#hal\.executable\.target<"([^"]+)", "([^"]+)"')


class Entry:
    """An exported function of a program: a synchronous form, an asynchronous one, or both."""

    __slots__ = ("asynchronous", "name", "plans", "signature", "synchronous")

    def __init__(self, name: str, signature: Signature) -> None:
        self.name = name
        self.signature = signature
        self.plans: CallPlans | None = None
        self.synchronous: FunctionHandle | None = None
        self.asynchronous: FunctionHandle | None = None


class Program:
    """A module with its context and parameters. Calls are serialized by the context.

    Args:
        archive: the module; owned from here on.
        device: what it runs on; stays the caller's.
        providers: parameters; owned from here on.
        modules: further modules it may import from.
        limits: bounds of calls and of host memory.
        plans: whether calls that come again are done from a recording.

    Raises:
        FormatError: the bytecode is malformed.
        LinkError: imports that are missing or do not match.
        GuestError: an initializer failed.
    """

    def __init__(
        self,
        archive: Archive,
        *,
        device: Device,
        providers: Sequence[ParameterProvider] = (),
        modules: Sequence[NativeModule] = (),
        limits: Limits | None = None,
        plans: bool = True,
    ) -> None:
        self.device = device
        self._limits = limits or Limits()
        self._providers = tuple(providers)
        self._lock = threading.Lock()
        self._closed = False
        try:
            self._module = BytecodeModule(archive, cache=device.code_cache)
        except BaseException:
            archive.close()
            for provider in self._providers:
                provider.close()
            raise
        self.name = self._module.name
        native = [HalModule([device]), IoParametersModule(self._providers), CheckModule(), *modules]
        try:
            self._context = Context([*native, self._module], limits=limits, tracer=device.tracer)
            device.allocator.settle()
            self.entries: Mapping[str, Entry] = MappingProxyType(self._find_entries())
            if plans:
                for entry in self.entries.values():
                    self._add_plans(entry)
        except BaseException as error:
            self._release()
            if isinstance(error, ProgramError):
                raise _explain_target(error, device, self.name) from error
            raise

    def _find_entries(self) -> dict[str, Entry]:
        definition = self._module.definition
        entries: dict[str, Entry] = {}
        for export in definition.exports:
            if export.name.startswith("__"):
                continue
            signature, is_async = function_signature(definition.functions[export.ordinal], export.name)
            name = export.name.removesuffix(ASYNC_SUFFIX) if is_async else export.name
            entry = entries.setdefault(name, Entry(name, signature))
            handle = self._context.lookup(f"{self.name}.{export.name}")
            if is_async:
                entry.asynchronous = handle
            else:
                entry.synchronous, entry.signature = handle, signature
        return entries

    def _add_plans(self, entry: Entry) -> None:
        only_tensors = all(argument.kind is ValueKind.TENSOR for argument in entry.signature.inputs)
        # Recorded calls do not look at values.
        is_narrowed = any(argument.narrowed for argument in entry.signature.inputs)
        if is_narrowed:
            return
        if entry.synchronous is not None and only_tensors and entry.signature.inputs:
            entry.plans = CallPlans(
                self._context, entry.synchronous, entry.signature, self.device, self._limits.deadline_ns
            )

    def entry(self, name: str) -> Entry:
        """The function of that name.

        Raises:
            NotFoundError: there is none; the message lists what there is.
        """
        entry = self.entries.get(name)
        if entry is None:
            raise NotFoundError(f"no function {name!r}; there are: {', '.join(self.entries) or 'none'}")
        return entry

    def convert_inputs(self, entry: Entry, values: Sequence[Any]) -> list[Any]:
        """Inputs in order as the program takes them. See `arrays.to_program`."""
        self._check_open()
        return [
            to_program(value, argument, self.device, f"input {argument.name!r} of {entry.name}")
            for value, argument in zip(values, entry.signature.inputs, strict=True)
        ]

    def call(self, entry: Entry, values: Sequence[Any], *, copy: bool, timeout_ns: int | None = None) -> Any:
        """Call a function and wait; inputs in order, results as `convert_results` makes them."""
        bound_ns = _shorter(timeout_ns, self._limits.deadline_ns)
        key = None if entry.plans is None else entry.plans.key_of(values)
        if entry.plans is not None and key is not None:
            arrays = entry.plans.run(key, values, bound_ns)
            if arrays is not None:
                return collect([array.copy() for array in arrays] if copy else arrays)
        arguments = self.convert_inputs(entry, values)
        with self.device.guard(bound_ns):
            if entry.synchronous is None:
                results, fence = self.submit(entry, arguments)
                fence.wait(timeout_ns)
            elif entry.plans is not None and key is not None and entry.plans.wants(key):
                results = entry.plans.record(key, arguments, timeout_ns)
            else:
                results = self._context.invoke(entry.synchronous, *arguments, timeout_ns=timeout_ns)
        return self.convert_results(entry, results, copy=copy)

    def submit(self, entry: Entry, arguments: Sequence[Any], wait: Fence | None = None) -> tuple[Any, Fence]:
        """Call the asynchronous form with converted inputs: its results, and a fence that is reached when
        they are ready.

        Raises:
            InvalidArgumentError: the function has no asynchronous form.
        """
        self._check_open()
        if entry.asynchronous is None:
            raise InvalidArgumentError(f"{entry.name} has no asynchronous form")
        fence = self.device.create_fence()
        return self._context.invoke(entry.asynchronous, *arguments, wait, fence), fence

    def convert_results(self, entry: Entry, results: Any, *, copy: bool) -> Any:
        """Results as Python takes them: nothing, one value, or a tuple."""
        outputs = entry.signature.outputs
        if not outputs:
            return None
        if len(outputs) == 1:
            return from_program(results, outputs[0], copy=copy)
        return tuple(
            from_program(value, argument, copy=copy) for value, argument in zip(results, outputs, strict=True)
        )

    def interrupt(self) -> None:
        """Stop the call that is running, from another thread."""
        self._context.interrupt()

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("the model is closed")

    def close(self) -> None:
        """Wait for the running call, run deinitializers, give everything back. Idempotent."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        for entry in self.entries.values():
            if entry.plans is not None:
                entry.plans.close()
        try:
            self._context.close()
        finally:
            self._release()

    def _release(self) -> None:
        self._module.close()
        for provider in self._providers:
            provider.close()


def _shorter(first: int | None, second: int | None) -> int | None:
    if first is None or second is None:
        return second if first is None else first
    return min(first, second)


def _explain_target(error: ProgramError, device: Device, name: str) -> SylviteError:
    """What to say instead when an initializer found no device for the module's code."""
    wanted = dict.fromkeys(_WANTED_TARGET.findall(str(error)))
    if error.status is not StatusCode.INCOMPATIBLE or not wanted:
        return error
    formats = ", ".join(f"{code_format} ({backend})" for backend, code_format in wanted)
    return UnsupportedFeatureError(
        f"the module is compiled for {formats}, which device {device.identifier} does not run; compile the "
        "model for wasm32: `sylvite compile MODEL -o MODEL.vmfb`, or pass the model itself to sylvite.load",
        where=f"module {name}",
    )
