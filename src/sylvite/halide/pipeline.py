"""Pipelines: linked modules that are called with numpy arrays."""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ..errors import ClosedError, InvalidArgumentError, PipelineError, SylviteError
from .arrays import AxisOrder, Region
from .binding import Bound, bind
from .fast import FastCall, call_key
from .metadata import Argument, Number, Signature
from .plan import BoundBuffer, Mode, Plan, dimensions_of
from .planner import Planner
from .runtime import Runtime
from .slab import Slab

if TYPE_CHECKING:
    from ..linker import LinkedModule
    from .device_buffers import DeviceRange
    from .device_runtime import DeviceRuntime
    from .place import Place

__all__ = ["Pipeline"]

Array: TypeAlias = "npt.NDArray[Any]"

_MOST_PLANS = 32
_ABSENT = object()


class Pipeline:
    """A Halide pipeline on a device. `sylvite.halide.load` and `sylvite.halide.compile` make it.

    Calling it takes the buffers and scalars of its signature, by position or by name: arrays go to the
    buffers in order, inputs first, numbers to the scalars. Arrays may have any strides. Those that lie in
    the device's memory are used in place; others are copied in, and outputs out, which
    ``device.tracer.counters.bytes_copied`` counts. Outputs that are not given get new memory, as large as the
    inputs allow, and come back as arrays over it.
    """

    def __init__(
        self,
        place: Place,
        runtime: Runtime,
        module: LinkedModule,
        signature: Signature,
        *,
        entry: int,
        order: AxisOrder,
        owns_place: bool,
        is_parallel: bool = False,
    ) -> None:
        self._place = place
        self._runtime = runtime
        self._module = module
        self._signature = signature
        self._entry = entry
        self._order = order
        self._owns_place = owns_place
        self._counters = place.space.tracer.counters
        self._planner = Planner(place, signature, order, self._query)
        self._plans: collections.OrderedDict[Any, Plan] = collections.OrderedDict()
        self._forced: dict[Any, frozenset[int]] = {}
        self._fast: dict[Any, FastCall] = {}
        self._latest: Plan | None = None
        self._lock = place.call_lock
        self._is_parallel = is_parallel
        # What enters the sandbox. Bounds queries run no loops.
        self._run_entry = runtime.run_parallel if is_parallel else runtime.run
        self._tracer = place.space.tracer
        self._device = place.device_runtime
        self._closed = False

    # What it is

    @property
    def name(self) -> str:
        """Its name."""
        return self._signature.name

    @property
    def signature(self) -> Signature:
        """What it takes and gives."""
        return self._signature

    @property
    def order(self) -> AxisOrder:
        """Which numpy axis each dimension is."""
        return self._order

    @property
    def place(self) -> Place:
        """Where it runs."""
        return self._place

    @property
    def runtime(self) -> Runtime:
        """The runtime it imports: what it prints, its memoized results, its profiles."""
        return self._runtime

    @property
    def module(self) -> LinkedModule:
        """The linked module."""
        return self._module

    @property
    def is_parallel(self) -> bool:
        """Whether it can use several workers."""
        return self._is_parallel

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    # Calling

    def __call__(
        self,
        *args: Any,
        out: Any = None,
        shape: Any = None,
        **named: Any,
    ) -> Array | tuple[Array, ...]:
        """Run it.

        Args:
            args: arrays (or `Window`\\ s) for the buffers and numbers for the scalars, each in order.
            out: the output array, or a sequence of them.
            shape: shape of outputs that are not given: a tuple, a `Region`, or a dict of them by name.
            named: arguments by name.

        Returns:
            The output array, or a tuple of them.

        Raises:
            InvalidArgumentError: an argument is missing, unknown, of another type or rank.
            PipelineError: the pipeline refused its arguments: which buffer, dimension and bound.
            TrapError, DeadlineExceededError: it failed; the device stays usable.
            OutOfMemoryError, ClosedError
        """
        if shape is None and (out is None or type(out) is np.ndarray):
            values = (*args, *named.values()) if named else args
            names: tuple[str, ...] = tuple(named)
            if out is not None:
                values, names = (*values, out), (*names, "out=")
            key = call_key(values, names)
            fast = self._fast.get(key)
            if fast is not None:
                with self._lock:
                    if fast.prepare(values):
                        self._enter(fast.address)
                        return fast.results(values)
            bound = bind(self._signature, self._planner.axes, args, named, out=out)
            with self._lock:
                self._require_open()
                result = self._run(bound)
                self._learn(key, bound, values)
                return result
        bound = bind(self._signature, self._planner.axes, args, named, out=out, shape=shape)
        with self._lock:
            self._require_open()
            return self._run(bound)

    def _learn(self, key: Any, bound: Bound, values: Sequence[Any]) -> None:
        """Remember a call whose like can take the short way."""
        plan = self._latest
        if plan is None or self._device is not None:
            return
        sources: list[tuple[int, Any]] = []
        scalars = iter(bound.scalars)
        for index, argument in enumerate(self._signature.arguments):
            default = None if argument.is_buffer else next(scalars)
            if argument.is_buffer and index not in bound.given:
                sources.append((-1, None))
                continue
            item = bound.given[index].array if argument.is_buffer else bound.source.get(index, _ABSENT)
            at = next((i for i, value in enumerate(values) if value is item), -1)
            if at < 0 and (argument.is_buffer or index in bound.source):
                return
            sources.append((at, default))
        if len({at for at, _ in sources if at >= 0}) < len(values):
            return
        if len(self._fast) >= _MOST_PLANS:
            self._fast.clear()
        self._fast[key] = FastCall(self._place, plan, self._signature, sources)

    def _run(self, bound: Bound) -> Array | tuple[Array, ...]:
        hosts: dict[int, int] = {}
        in_guest = []
        for index, given in bound.given.items():
            address = self._place.address_of(given.array.__array_interface__["data"][0])
            if address is not None and given.array.size:
                hosts[index] = address
                in_guest.append(index)
        key = (bound.key, tuple(in_guest))
        plan = self._plan(key, bound, self._forced.get(key, frozenset()))
        if plan.checks_overlap:
            plan = self._separate(plan, key, bound, hosts)
        try:
            return self._execute(plan, bound, hosts)
        except PipelineError as error:
            forced = _stride_offender(error, plan)
            if forced is None:
                raise
            # Its strides are not those the pipeline was compiled for: go through a copy from now on.
            self._forced[key] = self._forced.get(key, frozenset()) | {forced}
        return self._execute(self._plan(key, bound, self._forced[key]), bound, hosts)

    def _plan(self, key: Any, bound: Bound, forced: frozenset[int]) -> Plan:
        key = (key, forced)
        plan = self._plans.get(key)
        if plan is None:
            plan = self._planner.plan(
                bound.given,
                bound.regions,
                bound.scalars,
                in_guest=frozenset(key[0][1]),
                force_staged=forced,
            )
            self._plans[key] = plan
            if len(self._plans) > _MOST_PLANS:
                self._plans.popitem(last=False)
        return plan

    def _separate(self, plan: Plan, key: Any, bound: Bound, hosts: dict[int, int]) -> Plan:
        """Copy inputs that an output would overwrite while they are read."""
        clash = plan.overlapping_outputs(hosts)
        if clash is not None:
            raise InvalidArgumentError(f"the outputs {clash[0]} and {clash[1]} share memory")
        overlapping = plan.overlapping_inputs(hosts)
        if not overlapping:
            return plan
        return self._plan(key, bound, self._forced.get(key, frozenset()) | overlapping)

    def _execute(self, plan: Plan, bound: Bound, hosts: dict[int, int]) -> Array | tuple[Array, ...]:
        used: dict[int, int] = {}
        fresh: dict[int, Array] = {}
        if self._device is not None:
            return self._execute_on(self._device, plan, bound, hosts)
        for buffer in plan.buffers:
            index = buffer.index
            if buffer.mode is Mode.DIRECT:
                used[index] = hosts[index]
            elif buffer.mode is Mode.STAGED:
                used[index] = buffer.stage_address
                if not buffer.is_output:
                    self._copy_in(buffer, bound.given[index].array)
            else:
                array = fresh[index] = buffer.make(self._place)
                used[index] = self._address(array)
        plan.slab.fill(used, bound.scalars)
        self._enter(plan.slab.address)
        self._latest = plan
        results = [self._result(buffer, bound, fresh) for buffer in plan.outputs]
        return results[0] if len(results) == 1 else tuple(results)

    def _execute_on(
        self, device: DeviceRuntime, plan: Plan, bound: Bound, hosts: dict[int, int]
    ) -> Array | tuple[Array, ...]:
        """As `_execute`, with kernels on a device, and memory there for arrays that lie there."""
        shared = self._shared(plan, bound)
        used: dict[int, int] = {}
        fresh: dict[int, Array] = {}
        for buffer in plan.buffers:
            index = buffer.index
            if buffer.mode is Mode.FRESH:
                array = fresh[index] = buffer.make(self._place)
                used[index] = self._address(array)
                continue
            used[index] = hosts[index] if buffer.mode is Mode.DIRECT else buffer.stage_address
            if buffer.mode is Mode.STAGED and not buffer.is_output and index not in shared:
                self._copy_in(buffer, bound.given[index].array)
        plan.slab.fill(used, bound.scalars)
        device.begin()
        try:
            for buffer in plan.buffers:
                address = plan.slab.buffer_address(buffer.index)
                if buffer.index in shared:
                    device.share(address, shared[buffer.index], is_input=not buffer.is_output)
                elif not buffer.is_output:
                    device.offer(address)
            self._enter(plan.slab.address)
            left = {b.index for b in plan.outputs if not device.fetch(plan.slab.buffer_address(b.index))}
            device.finish()
        finally:
            device.release()
        results = [
            bound.given[b.index].array if b.index in left else self._result(b, bound, fresh)
            for b in plan.outputs
        ]
        return results[0] if len(results) == 1 else tuple(results)

    def _shared(self, plan: Plan, bound: Bound) -> dict[int, DeviceRange]:
        """Arrays in the device's memory that are laid out as the plan wants them."""
        found = {}
        for buffer in plan.buffers:
            if buffer.mode is not Mode.STAGED:
                continue
            given = bound.given[buffer.index]
            if dimensions_of(given, buffer.axes) == buffer.dims:
                contents = self._place.shared(given.array)
                if contents is not None:
                    found[buffer.index] = contents
        return found

    def _address(self, array: Array) -> int:
        address = self._place.address_of(array.__array_interface__["data"][0])
        if address is None:
            raise InvalidArgumentError("the place allocates outside its own memory")
        return address

    def _copy_in(self, buffer: BoundBuffer, source: Array) -> None:
        stage = buffer.stage
        if stage is not None:
            np.copyto(stage, source)
            self._counters.bytes_copied += source.nbytes

    def _result(self, buffer: BoundBuffer, bound: Bound, fresh: Mapping[int, Array]) -> Array:
        if buffer.mode is Mode.FRESH:
            return fresh[buffer.index][buffer.crop]
        target = bound.given[buffer.index].array
        if buffer.mode is Mode.STAGED and buffer.stage is not None:
            np.copyto(target, buffer.stage)
            self._counters.bytes_copied += target.nbytes
        return target

    def _query(self, slab: Slab, scalars: Sequence[Number]) -> None:
        self._enter(slab.address, self._runtime.run)

    def _enter(self, address: int, run: Callable[[int, int], int] | None = None) -> None:
        """Run the pipeline on a filled argument block."""
        run = run or self._run_entry
        runtime = self._runtime
        runtime.forget_failure()
        self._counters.engine_calls += 1
        try:
            if self._tracer.enabled:
                with self._tracer.span(self.name, category="halide"):
                    code = run(self._entry, address)
            else:
                code = run(self._entry, address)
        except BaseException as error:
            # The call did not come back: what it held is taken from it.
            self._place.space.reset_stack()
            runtime.reset()
            if isinstance(error, SylviteError) and getattr(error, "kernel", "") is None:
                error.kernel = self.name  # type: ignore[attr-defined]
            raise
        if code:
            failure = None if self._device is None else self._device.take_failure()
            raise failure or runtime.failure(code, self.name)

    # Asking

    def required(self, *args: Any, out: Any = None, shape: Any = None, **named: Any) -> dict[str, Region]:
        """The region of every input that a call would read, without running it.

        Takes the arguments of a call; inputs may be left out. Regions are in numpy's axis order.

        Raises:
            InvalidArgumentError: no output and no shape is given.
            PipelineError: the pipeline refuses its scalars.
        """
        bound = bind(self._signature, self._planner.axes, args, named, out=out, shape=shape, partial=True)
        with self._lock:
            self._require_open()
            dims = self._planner.wanted(bound.given, bound.regions)
            found = self._planner.query(dims, bound.scalars)
        regions = {}
        for index, argument in self._buffers():
            if argument in self._signature.inputs:
                axes = self._planner.axes[index]
                order = [axes.index(axis) for axis in range(len(axes))]
                regions[argument.name] = Region(
                    shape=tuple(found[index][d].extent for d in order),
                    min=tuple(found[index][d].min for d in order),
                )
        return regions

    def _buffers(self) -> Iterator[tuple[int, Argument]]:
        return ((i, a) for i, a in enumerate(self._signature.arguments) if a.is_buffer)

    # Lifetime

    def close(self) -> None:
        """Unload it, and close the memory that was made for it alone. Results stay valid. Idempotent."""
        if self._closed:
            return
        self._closed = True
        with self._place.lock:
            self._plans.clear()
            self._fast.clear()
            self._latest = None
            self._module.close()
            if self._owns_place:
                self._place.close()

    def _require_open(self) -> None:
        if self._closed:
            raise ClosedError(f"pipeline {self.name} is closed")
        self._place.check_open()

    def __enter__(self) -> Pipeline:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Pipeline {self._signature}>"


def _stride_offender(error: PipelineError, plan: Plan) -> int | None:
    """The argument whose strides in place the pipeline does not take."""
    if error.reason != "constraint_violated":
        return None
    name, _, rest = str(error.details.get("variable", "")).rpartition(".stride.")
    if not rest:
        return None
    return next((b.index for b in plan.direct if b.argument.name == name), None)
