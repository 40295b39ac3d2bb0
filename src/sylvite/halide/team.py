"""The host's half of parallel pipelines: memory and constants of the scheduler, calls that have helpers."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, Protocol

from ..engines.base import Extern, Function, RawCall
from ..errors import ClosedError
from ..wasm.types import ValueType
from .jobs import Team, team_bytes
from .scheduler import SESSION

if TYPE_CHECKING:
    from ..linker import LinkSpace

__all__ = ["HelperTeam", "Workers", "constant_per_worker"]

_I32: Final = ValueType.I32
# A cache line for each worker.
_TALLY_BYTES: Final = 64


class Workers(Protocol):
    """What a device offers whose threads may help in a pipeline's call."""

    count: int

    @property
    def functions(self) -> Mapping[str, Function]:
        """The guest functions ``open(control, program)``, ``summon(control)`` and ``gather(control)``."""

    @property
    def control(self) -> int:
        """Their first argument."""

    @property
    def stop_word(self) -> int:
        """Guest address of a word that is not 0 when the call is to end."""

    def helpers_program(self) -> int:
        """Make the second argument of ``open``."""

    def set_helpers_function(self, program: int, slot: int) -> None:
        """Say which function helpers call in it."""

    def lend(self, call: RawCall, entry: int, argument: int) -> int:
        """Call a guest function that may use the others."""


def constant_per_worker(space: LinkSpace, values: Sequence[int]) -> Extern:
    """An immutable global of a space and its replicas, with a value for each that may run pipelines; others
    get the last one."""
    made = space.store.create_global(_I32, values[0], mutable=False)
    others = [*values[1:], *([values[-1]] * len(space.replicas))]
    for replica, value in zip(space.replicas, others, strict=False):
        replica.add_global(made, _I32, value, mutable=False)
    return made


class HelperTeam:
    """The workers of one space, for its runtime.

    Args:
        space: the space.
        workers: its device's; not owned.
    """

    def __init__(self, space: LinkSpace, workers: Workers) -> None:
        self.count = workers.count
        self._workers = weakref.ref(workers)
        self._memory = space.memory
        self._length = team_bytes(self.count)
        self._address = space.heap.allocate(self._length)
        self._tallies = space.heap.allocate(_TALLY_BYTES * self.count)
        space.memory.clear(self._address, self._length)
        space.memory.clear(self._tallies, _TALLY_BYTES * self.count)
        self._program = workers.helpers_program()
        self._call: RawCall | None = None
        self._is_running = False

    def imports(self, space: LinkSpace) -> dict[tuple[str, str], Extern]:
        """What the runtime's module imports of the team."""
        workers = self._open_workers()
        numbers = range(self.count)
        constants = {
            "team": [self._address] * self.count,
            "worker": list(numbers),
            "workers": [self.count] * self.count,
            "tally": [self._tallies + _TALLY_BYTES * number for number in numbers],
            "control": [workers.control] * self.count,
            "stop": [workers.stop_word] * self.count,
            "program": [self._program] * self.count,
        }
        found = {("host", name): constant_per_worker(space, values) for name, values in constants.items()}
        for name in ("open", "summon", "gather"):
            found["host", name] = workers.functions[name]
        return found

    def attach(self, space: LinkSpace, exports: Mapping[str, Function]) -> None:
        """Take the functions of the runtime's module. Their table slots stay for good."""
        slot = space.place_function(exports["help"], contextlib.ExitStack())
        self._open_workers().set_helpers_function(self._program, slot)
        self._call = exports[SESSION].prepare()

    def _open_workers(self) -> Workers:
        workers = self._workers()
        if workers is None:
            raise ClosedError("the device of the pipeline is gone")
        return workers

    @property
    def is_running(self) -> bool:
        """Whether a call has the helpers."""
        return self._is_running

    def run(self, entry: int, argv: int) -> int:
        """Call a pipeline; helpers take part in its parallel loops.

        Raises:
            TrapError, DeadlineExceededError: it failed on one of the workers.
            BaseException: what a host function raised, on any worker.
        """
        if self._call is None:
            raise ClosedError("the team has no functions yet")
        self._is_running = True
        try:
            return self._open_workers().lend(self._call, entry, argv)
        finally:
            self._is_running = False

    def reset(self) -> None:
        """After a call that did not return: nobody is inside."""
        self._memory.clear(self._address, self._length)

    @property
    def is_deadlocked(self) -> bool:
        """Whether tasks of the latest call have waited for each other."""
        return bool(self._memory.view(self._address + Team.DEADLOCK, 4).cast("I")[0])

    @property
    def iterations(self) -> tuple[int, ...]:
        """Iterations of parallel loops and tasks that each worker has begun, ever."""
        words = self._memory.view(self._tallies, _TALLY_BYTES * self.count).cast("Q")
        return tuple(words[:: _TALLY_BYTES // 8])
