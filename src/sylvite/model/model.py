"""`Model`: the functions of a compiled program, called with numpy arrays."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn

from ..errors import ClosedError, InvalidArgumentError, NotFoundError
from ..hal import Device
from .function import Function, Invocation, fence_invocation, nanoseconds, thread_invocation
from .signature import Signature
from .variants import ProgramSource

if TYPE_CHECKING:
    from typing_extensions import Self

    from ..compile import Artifact

__all__ = ["Functions", "Model"]


class Functions(Mapping[str, Function]):
    """The functions of a model by name, in order of the module."""

    def __init__(self, functions: Mapping[str, Function]) -> None:
        self._functions = functions

    def __getitem__(self, name: str) -> Function:
        try:
            return self._functions[name]
        except KeyError:
            known = ", ".join(self._functions) or "none"
            raise NotFoundError(f"no function {name!r}; there are: {known}") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._functions)

    def __len__(self) -> int:
        return len(self._functions)

    def __contains__(self, name: object) -> bool:
        return name in self._functions

    def __repr__(self) -> str:
        return f"<Functions {', '.join(self._functions)}>"


class Model:
    """A loaded model. Made by `load`.

    Call it (its main function), one of its functions as an attribute, or through `functions`, with inputs
    by position or by name. Inputs are numpy arrays of any strides, DLPack objects, Python numbers and lists,
    arrays of `allocate` (not copied), or buffer views, such as outputs of another model on the same device
    (not copied). Outputs are numpy arrays over guest memory: they stay valid and unchanged after later calls
    and after `close`; each keeps its memory from being used for anything else, so copy what you keep long.

    Calls from several threads are safe; calls into one model run one after the other.
    """

    def __init__(
        self,
        source: ProgramSource,
        device: Device,
        *,
        owns_device: bool,
        copy: bool,
        artifacts: Sequence[Artifact] = (),
    ) -> None:
        self._source = source
        self._device = device
        self._owns_device = owns_device
        self._copy = copy
        self._artifacts = artifacts
        self._closed = False
        self._signatures = dict(source.signatures)
        self._functions = Functions(
            {name: Function(self, name, None if copy else source.plans(name)) for name in self._signatures}
        )

        has_main = len(self._functions) == 1 or "main" in self._functions
        self._main_plans = source.plans(self.main.name) if has_main and not copy else None

    @property
    def device(self) -> Device:
        """The device the model runs on."""
        return self._device

    @property
    def artifacts(self) -> tuple[Artifact, ...]:
        """What was compiled to load the model, in order; empty for modules that were compiled already."""
        return tuple(self._artifacts)

    @property
    def functions(self) -> Functions:
        """All functions by name."""
        return self._functions

    @property
    def main(self) -> Function:
        """What calling the model calls: its only function, or the one named ``main``.

        Raises:
            InvalidArgumentError: there are several and none has that name.
        """
        if len(self._functions) == 1:
            return next(iter(self._functions.values()))
        if "main" in self._functions:
            return self._functions["main"]
        names = ", ".join(self._functions) or "none"
        raise InvalidArgumentError(f"the model has no main function, call one by name; there are: {names}")

    def signature(self, name: str) -> Signature:
        """The signature of a function.

        Raises:
            NotFoundError: there is none of that name.
        """
        return self._signatures[self._functions[name].name]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the main function; see `Function.run`."""
        plans = self._main_plans
        if plans is not None and not kwargs:
            # As in Function.__call__, which small models would notice as one call more.
            plan = plans.latest
            arrays = None if plan is None else plan.run(args, plans.timeout_ns)
            if arrays is not None:
                return arrays[0] if len(arrays) == 1 else tuple(arrays)
        return self.main(*args, **kwargs)

    def __getitem__(self, name: str) -> Function:
        return self._functions[name]

    def __getattr__(self, name: str) -> Function:
        functions = self.__dict__.get("_functions")
        if functions is not None and name in functions:
            found: Function = functions[name]
            return found
        raise AttributeError(f"{type(self).__name__} has no attribute or function {name!r}")

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self._functions})

    def _call(
        self,
        name: str,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        *,
        copy: bool | None,
        timeout_s: float | None,
    ) -> Any:
        self._check_open()
        values = self._signatures[name].bind(args, kwargs)
        program = self._source.program(name, values)
        return program.call(
            program.entry(name),
            values,
            copy=self._copy if copy is None else copy,
            timeout_ns=nanoseconds(timeout_s),
        )

    def _start(self, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Invocation:
        self._check_open()
        values = self._signatures[name].bind(args, kwargs)
        program = self._source.program(name, values)
        entry = program.entry(name)
        arguments = program.convert_inputs(entry, values)
        if entry.asynchronous is None:
            return thread_invocation(lambda: program.call(entry, arguments, copy=self._copy), name)
        results, fence = program.submit(entry, arguments)
        return fence_invocation(fence, lambda: program.convert_results(entry, results, copy=self._copy))

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("the model is closed")

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    def close(self) -> None:
        """Give back the program, its parameters, and the device if `load` made it. Outputs stay valid.
        Idempotent."""
        if self._closed:
            return
        self._closed = True
        try:
            self._source.close()
        finally:
            if self._owns_device:
                self._device.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        raise InvalidArgumentError(
            "a Model cannot be pickled or copied, as it holds a device; load it again where it is needed"
        )

    def __repr__(self) -> str:
        state = "closed" if self._closed else ", ".join(map(str, self._signatures.values()))
        return f"<Model on {self._device.identifier}: {state}>"
