"""``hal.fence.*``.

Source: IREE's ``hal.imports.mlir`` and ``iree/modules/hal/module.c``.
"""

# mypy: disable-error-code="type-abstract"
# Abstract classes are only compared with here (`expect`), never made.

from __future__ import annotations

from ....errors import ProgramError, StatusCode, SylviteError
from ....hal.device import Device
from ....hal.fence import Fence
from ..arguments import expect, expect_or_none
from .state import HalState

_INFINITE_MILLIS = -1
_STATUS_CODE_MASK = 0x1F


def fence_create(_state: HalState, device: Device, _flags: int) -> Fence:
    """A fence that is not reached yet."""
    return expect(device, Device, "device").create_fence()


def fence_join(_state: HalState, _flags: int, fences: list[Fence | None]) -> Fence | None:
    """A fence that is reached when all are; null when there is nothing to wait for."""
    joined = Fence.join([expect_or_none(fence, Fence, "fences") for fence in fences])
    return joined if joined.timepoints else None


def fence_query(_state: HalState, fence: Fence) -> int:
    """A status code: OK when reached, DEFERRED before, else the failure's code."""
    fence = expect(fence, Fence, "fence")
    try:
        reached = fence.query()
    except SylviteError as error:
        return int(error.status)
    return int(StatusCode.OK if reached else StatusCode.DEFERRED)


def fence_signal(_state: HalState, fence: Fence) -> None:
    """Reach it now."""
    expect(fence, Fence, "fence").signal()


def fence_fail(_state: HalState, fence: Fence, status: int) -> None:
    """Fail it with a status code of the program's choice."""
    fence = expect(fence, Fence, "fence")
    code = status & _STATUS_CODE_MASK
    known = code in StatusCode._value2member_map_ and code != StatusCode.OK
    chosen = StatusCode(code) if known else StatusCode.UNKNOWN
    fence.fail(ProgramError(f"the program failed a fence with status {chosen.name}", status=chosen))


def fence_await(state: HalState, timeout_millis: int, _flags: int, fences: list[Fence | None]) -> int:
    """Block until all are reached: OK, or DEADLINE_EXCEEDED when that took too long.

    Raises:
        SylviteError: The failure of one of the fences.
        DeadlineExceededError: The call's time was over before.
        ProgramError: The call was interrupted.
    """
    joined = Fence.join([expect_or_none(fence, Fence, "fences") for fence in fences])
    if joined.is_reached or joined.query():
        return int(StatusCode.OK)
    timeout_ns = None if timeout_millis == _INFINITE_MILLIS else (timeout_millis & 0xFFFFFFFF) * 1_000_000
    reached = state.watch.wait(joined, timeout_ns)
    return int(StatusCode.OK if reached else StatusCode.DEADLINE_EXCEEDED)
