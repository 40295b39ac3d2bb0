"""Calls that come again: recorded once per set of input shapes, then done by the device at once.

The first call with new shapes goes through the virtual machine; the second one too, and is recorded; those
after it are done from the recording where the program allows it. Results, errors, limits and statistics are
the same either way; a `Tracer` with listeners makes calls go through the machine, whose spans it wants.
"""

from __future__ import annotations

import collections
import threading
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ..errors import SylviteError
from ..hal import BufferView, Device
from ..hal.call_plan import PreparedCall
from ..vm.context import Context, FunctionHandle
from ..vm.frames import VmFrame, add_frames
from .signature import Signature

__all__ = ["CallPlans", "Key", "PlannedCall", "collect"]

Array = npt.NDArray[Any]
Key = tuple[tuple["np.dtype[Any]", "tuple[int, ...]"], ...]
"""Dtype and shape of each input."""

_CAPACITY: Final = 16
"""Plans kept per function, and shapes remembered that were seen once."""


def collect(arrays: list[Array]) -> Any:
    """Results as Python takes them: one value, or a tuple."""
    return arrays[0] if len(arrays) == 1 else tuple(arrays)


class PlannedCall:
    """What is done for inputs of one set of dtypes and shapes.

    Args:
        key: that set.
        prepared: the device's half.
        frames: what an error of a kernel says about the program.
        dtypes: of results.
    """

    __slots__ = ("_count", "_frames", "_input_dtypes", "_input_shapes", "_output_dtypes", "_prepared")

    def __init__(
        self,
        key: Key,
        prepared: PreparedCall,
        frames: tuple[VmFrame, ...],
        dtypes: Sequence[np.dtype[Any]],
    ) -> None:
        self._count = len(key)
        self._input_dtypes = tuple(dtype for dtype, _ in key)
        self._input_shapes = tuple(shape for _, shape in key)
        self._prepared = prepared
        self._frames = frames
        self._output_dtypes = tuple(dtypes)

    def fits(self, values: Sequence[Any]) -> bool:
        """Whether it is for these inputs. May miss arrays whose dtype is equal but another object."""
        if len(values) != self._count:
            return False
        for value, dtype, shape in zip(values, self._input_dtypes, self._input_shapes):  # noqa: B905 - slower
            if value.__class__ is not np.ndarray or value.dtype is not dtype or value.shape != shape:
                return False
        return True

    def run(self, values: Sequence[Array], timeout_ns: int | None) -> list[Array] | None:
        """Do it; see `PreparedCall.run`.

        Raises:
            TrapError, KernelError, DeadlineExceededError: a kernel failed; they name it.
        """
        try:
            return self._prepared.run(values, self._output_dtypes, timeout_ns)
        except SylviteError as error:
            add_frames(error, self._frames)
            raise

    def close(self) -> None:
        """Wait for the call in progress and let go of everything. Idempotent."""
        self._prepared.close()


class CallPlans:
    """The plans of one function.

    Args:
        context: of the program.
        handle: the function's synchronous form.
        signature: its signature; all inputs are tensors.
        device: the program's device.
        timeout_ns: longest time that any call may take, in nanoseconds.
    """

    def __init__(
        self,
        context: Context,
        handle: FunctionHandle,
        signature: Signature,
        device: Device,
        timeout_ns: int | None,
    ) -> None:
        self.timeout_ns = timeout_ns
        self._context = context
        self._handle = handle
        self._signature = signature
        self._device = device
        self._plans: collections.OrderedDict[Key, PlannedCall] = collections.OrderedDict()
        self._seen: collections.OrderedDict[Key, None] = collections.OrderedDict()
        self._lock = threading.Lock()
        # Unknown until a shape comes for the second time, because the look takes a moment.
        self._is_possible: bool | None = None
        self._closed = False
        self.latest: PlannedCall | None = None
        """The plan of the call before."""

    def call(self, values: Sequence[Any]) -> list[Array] | None:
        """Results for inputs in order, or ``None`` when there is no plan for them that holds.

        Raises:
            TrapError, KernelError, DeadlineExceededError: a kernel failed; they name it.
        """
        if self.latest is None:
            return None
        key = self.key_of(values)
        return None if key is None else self.run(key, values, self.timeout_ns)

    def key_of(self, values: Sequence[Any]) -> Key | None:
        """Dtypes and shapes; ``None`` when an input is not simply an array, or no plan can be made."""
        if self._is_possible is False:
            return None
        for value in values:
            if value.__class__ is not np.ndarray:
                return None
        return tuple((value.dtype, value.shape) for value in values)

    def run(self, key: Key, values: Sequence[Array], timeout_ns: int | None) -> list[Array] | None:
        """Results, or ``None`` when there is no plan that holds.

        Raises:
            TrapError, KernelError, DeadlineExceededError: a kernel failed; they name it.
        """
        plan = self._plans.get(key)
        if plan is None:
            return None
        self.latest = plan
        return plan.run(values, timeout_ns)

    def wants(self, key: Key) -> bool:
        """Whether the call that is about to be made should be recorded."""
        if self._is_possible is False:
            return False
        with self._lock:
            if self._closed or key in self._plans:
                return False
            if key not in self._seen:
                self._seen[key] = None
                if len(self._seen) > _CAPACITY:
                    self._seen.popitem(last=False)
                return False
            if self._is_possible is None:
                self._is_possible = self._context.is_repeatable(self._handle)
            return self._is_possible and not self._device.tracer.enabled

    def record(self, key: Key, arguments: Sequence[BufferView], timeout_ns: int | None) -> Any:
        """Call the function and make a plan of what it does.

        Returns:
            The results of the call.

        Raises: as `Context.invoke`.
        """
        results, recording = self._context.record(
            self._handle, self._device, *arguments, timeout_ns=timeout_ns
        )
        prepared = None
        if recording is not None and len(recording.plan.outputs) == len(self._signature.outputs):
            try:
                prepared = self._device.prepare_call(recording.plan)
            except SylviteError:
                # No memory for it, or closed meanwhile: the call itself was right.
                return results
        if recording is None or prepared is None:
            # Another function of shapes than what was seen would be surprising: never mind them.
            self._is_possible = False
            return results
        dtypes = []
        for output, declared in zip(recording.plan.outputs, self._signature.outputs, strict=True):
            dtype = output.element_type.numpy_dtype
            wanted = declared.dtype
            dtypes.append(wanted if wanted is not None and wanted.itemsize == dtype.itemsize else dtype)
        self._keep(key, PlannedCall(key, prepared, recording.frames, dtypes))
        return results

    def _keep(self, key: Key, plan: PlannedCall) -> None:
        left: PlannedCall | None = plan
        with self._lock:
            if not self._closed and key not in self._plans:
                self._seen.pop(key, None)
                self._plans[key] = plan
                left = self._plans.popitem(last=False)[1] if len(self._plans) > _CAPACITY else None
        if left is not None:
            left.close()

    def close(self) -> None:
        """Wait for the call in progress and let go of all plans. Idempotent."""
        with self._lock:
            self._closed = True
            plans = list(self._plans.values())
            self._plans.clear()
            self.latest = None
        for plan in plans:
            plan.close()
