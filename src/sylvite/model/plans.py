"""Calls that come again: recorded once per set of input shapes, then done by the device at once.

The first call with new shapes goes through the virtual machine; the second one too, and is recorded; those
after it are done from the recording where the program allows it. Results, errors, limits and statistics are
the same either way; a `Tracer` with listeners makes calls go through the machine, whose spans it wants.
"""

from __future__ import annotations

import collections
import dataclasses
import threading
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ..errors import SylviteError
from ..hal import BufferView, Device
from ..hal.call_plan import CallPlan, PlannedArray, PreparedCall
from ..vm.context import Context, FunctionHandle
from ..vm.frames import add_frames
from .signature import Signature

__all__ = ["CallPlans", "Key", "collect"]

Array = npt.NDArray[Any]
Key = tuple[tuple["np.dtype[Any]", "tuple[int, ...]"], ...]
"""Dtype and shape of each input."""

_CAPACITY: Final = 16
"""Plans kept per function, and shapes remembered that were seen once."""


def collect(arrays: list[Array]) -> Any:
    """Results as Python takes them: one value, or a tuple."""
    return arrays[0] if len(arrays) == 1 else tuple(arrays)


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
        self._plans: collections.OrderedDict[Key, PreparedCall] = collections.OrderedDict()
        self._seen: collections.OrderedDict[Key, None] = collections.OrderedDict()
        self._lock = threading.Lock()
        # Unknown until a shape comes for the second time, because the look takes a moment.
        self._is_possible: bool | None = None
        self._closed = False
        self.latest: PreparedCall | None = None
        """The plan of the call before."""

    def call(self, values: Sequence[Any]) -> list[Array] | None:
        """Results for inputs in order that `latest` is not for; ``None`` when no plan is.

        Raises:
            TrapError, KernelError, DeadlineExceededError: a kernel failed; they name it.
        """
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
            plan = dataclasses.replace(recording.plan, outputs=self._outputs(recording.plan))
            frames = recording.frames
            try:
                prepared = self._device.prepare_call(plan, lambda error: add_frames(error, frames))
            except SylviteError:
                # No memory for it, or closed meanwhile: the call itself was right.
                return results
        if prepared is None:
            # With other shapes it would be no different: what stands against it is in the program.
            self._is_possible = False
        else:
            self._keep(key, prepared)
        return results

    def _outputs(self, plan: CallPlan) -> tuple[PlannedArray, ...]:
        """Results with the dtypes of the signature, which may say more than the program does."""
        outputs = []
        for output, declared in zip(plan.outputs, self._signature.outputs, strict=True):
            dtype = declared.dtype
            if dtype is not None and dtype.itemsize == output.dtype.itemsize:
                output = dataclasses.replace(output, dtype=dtype)
            outputs.append(output)
        return tuple(outputs)

    def _keep(self, key: Key, plan: PreparedCall) -> None:
        left: PreparedCall | None = plan
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
