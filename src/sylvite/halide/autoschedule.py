"""Halide's autoschedulers, as the wheel ships them."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from ..errors import InvalidArgumentError, UnavailableError

__all__ = ["AUTOSCHEDULERS", "Autoscheduler", "apply_autoscheduler"]

AUTOSCHEDULERS: Final[Mapping[str, str]] = {
    "Mullapudi2016": "autoschedule_mullapudi2016",
    "Adams2019": "autoschedule_adams2019",
    "Li2018": "autoschedule_li2018",
    "Anderson2021": "autoschedule_anderson2021",
}
"""Plugins by the scheduler's name. Anderson2021 schedules for GPUs only and refuses other targets."""

_loaded: set[str] = set()
_lock = threading.Lock()


@dataclasses.dataclass(frozen=True, slots=True)
class Autoscheduler:
    """An autoscheduler with its parameters, such as ``{"parallelism": 4}``."""

    name: str
    parameters: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def apply_autoscheduler(
    hl: ModuleType, pipeline: Any, target: Any, autoscheduler: Autoscheduler | str
) -> str:
    """Schedule a pipeline, which must have estimates; return the schedule as source text.

    Raises:
        InvalidArgumentError: no such autoscheduler.
        UnavailableError: the wheel does not hold its plugin.
    """
    if isinstance(autoscheduler, str):
        autoscheduler = Autoscheduler(autoscheduler)
    if autoscheduler.name not in AUTOSCHEDULERS:
        known = ", ".join(AUTOSCHEDULERS)
        raise InvalidArgumentError(f"no autoscheduler {autoscheduler.name!r}: there are {known}")
    _load(hl, AUTOSCHEDULERS[autoscheduler.name])
    parameters = {key: str(value) for key, value in autoscheduler.parameters.items()}
    results = pipeline.apply_autoscheduler(target, hl.AutoschedulerParams(autoscheduler.name, parameters))
    return str(results.schedule_source)


def _load(hl: ModuleType, plugin: str) -> None:
    with _lock:
        if plugin in _loaded:
            return
        folder = Path(hl.__file__ or "").parent
        for name in (f"lib{plugin}.so", f"lib{plugin}.dylib", f"{plugin}.dll"):
            found = next(folder.glob(f"*/{name}"), None)
            if found is not None:
                hl.load_plugin(str(found))
                _loaded.add(plugin)
                return
        raise UnavailableError(f"this Halide has no plugin {plugin}")
