"""Functions of a model, and calls of them that have not ended yet."""

from __future__ import annotations

import math
import numbers
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from ..errors import DeadlineExceededError, InvalidArgumentError
from ..hal import Fence
from .plans import CallPlans
from .signature import Signature

if TYPE_CHECKING:
    from .model import Model

__all__ = ["Function", "Invocation"]


class Invocation:
    """A call that was started. Results are there once `done`."""

    def __init__(self, finish: Callable[[float | None], Any], done: Callable[[], bool]) -> None:
        self._finish = finish
        self._done = done

    @property
    def done(self) -> bool:
        """Whether the results are there, or the call has failed."""
        return self._done()

    def result(self, timeout_s: float | None = None) -> Any:
        """Wait for the results, as calling the function returns them.

        Raises:
            DeadlineExceededError: they were not there within ``timeout_s`` seconds; the call goes on.
            SylviteError: the call failed.
        """
        return self._finish(timeout_s)


class Function:
    """One function of a model. Call it with numpy arrays; see `Model` for what else it takes."""

    __slots__ = ("_model", "_plans", "name")

    def __init__(self, model: Model, name: str, plans: CallPlans | None) -> None:
        self._model = model
        self._plans = plans
        self.name = name

    @property
    def signature(self) -> Signature:
        """Names, dtypes and shapes of inputs and outputs."""
        return self._model.signature(self.name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call with inputs by position or by name; see `run`."""
        plans = self._plans
        if plans is not None and not kwargs:
            # The short way, for calls like some before.
            plan = plans.latest
            if plan is not None:
                arrays = plan.run(args, plans.timeout_ns)
                if arrays is None:
                    arrays = plans.call(args)
                if arrays is not None:
                    return arrays[0] if len(arrays) == 1 else tuple(arrays)
        return self.run(args, kwargs)

    def run(
        self,
        inputs: Sequence[Any] = (),
        named: Mapping[str, Any] | None = None,
        *,
        copy: bool | None = None,
        timeout_s: float | None = None,
    ) -> Any:
        """Call the function and wait for it.

        Args:
            inputs: inputs by position.
            named: inputs by name.
            copy: return copies of outputs instead of views; ``None`` means what the model was loaded with.
            timeout_s: longest time the call may take, in seconds.

        Returns:
            ``None``, one output, or a tuple of several.

        Raises:
            InvalidArgumentError: an input is missing, or of the wrong dtype or shape.
            ClosedError: the model is closed.
            GuestError: the program failed.
            OutOfMemoryError: the memory limit was reached.
        """
        return self._model._call(self.name, inputs, named or {}, copy=copy, timeout_s=timeout_s)

    def start(self, *args: Any, **kwargs: Any) -> Invocation:
        """Begin a call and return at once; takes what calling takes.

        Functions with an asynchronous form are submitted to the device's queue. Others run in a thread of
        their own.

        Raises:
            InvalidArgumentError, ClosedError: as for `run`.
        """
        return self._model._start(self.name, args, kwargs)

    def __reduce__(self) -> NoReturn:
        raise InvalidArgumentError("a Function cannot be pickled or copied, as it belongs to a model")

    def __repr__(self) -> str:
        return f"<Function {self.signature}>"


def nanoseconds(timeout_s: float | None) -> int | None:
    """A timeout in nanoseconds; ``None`` for none, which infinity is too.

    Raises:
        InvalidArgumentError: it is negative, or no number.
    """
    if timeout_s is None or timeout_s == math.inf:
        return None
    if isinstance(timeout_s, bool) or not isinstance(timeout_s, numbers.Real) or not timeout_s >= 0:
        raise InvalidArgumentError(f"timeout_s must be a number of seconds, got {timeout_s!r}")
    # More than a year is no limit, and more than some systems can wait for.
    return int(timeout_s * 1e9) if timeout_s < 3e7 else None


def fence_invocation(fence: Fence, convert: Callable[[], Any]) -> Invocation:
    """An invocation whose results are ready when ``fence`` is reached."""

    def finish(timeout_s: float | None) -> Any:
        fence.wait(nanoseconds(timeout_s))
        return convert()

    def done() -> bool:
        # A failed fence raises; for the question whether anything is left to wait for, that is a yes.
        try:
            return fence.query()
        except Exception:  # noqa: BLE001 - whatever it is, result() raises it
            return True

    return Invocation(finish, done)


def thread_invocation(call: Callable[[], Any], name: str) -> Invocation:
    """An invocation that runs ``call`` in a thread."""
    finished = threading.Event()
    outcome: list[tuple[Any, BaseException | None]] = []

    def work() -> None:
        try:
            outcome.append((call(), None))
        except BaseException as error:  # noqa: BLE001 - handed to whoever asks for the result
            outcome.append((None, error))
        finally:
            finished.set()

    threading.Thread(target=work, name=f"sylvite {name}", daemon=True).start()

    def finish(timeout_s: float | None) -> Any:
        timeout_ns = nanoseconds(timeout_s)
        if not finished.wait(None if timeout_ns is None else timeout_ns / 1e9):
            raise DeadlineExceededError(f"{name} has not ended within {timeout_s} s")
        result, error = outcome[0]
        if error is not None:
            raise error
        return result

    return Invocation(finish, finished.is_set)
