"""The ABI guard: which C functions, callbacks and records portable code may share between targets.

    from sylvite import abi

    report = abi.check("webgpu.h", targets="64-bit", base="x86_64-generic")
    for entity in report.entities:
        print(entity.verdict, entity.name, entity.reason)

Clang is the oracle (`sylvite.abi.oracle`); `sylvite.abi.structs` holds the layouts of our own boundary.
Names below are loaded on first use; clang comes with the ``abi`` extra.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .allowlist import AllowList as AllowList
    from .allowlist import load_allow_list as load_allow_list
    from .guard import check as check
    from .ir_gate import check_ir as check_ir
    from .ir_gate import check_ir_file as check_ir_file
    from .oracle import Examination as Examination
    from .oracle import Query as Query
    from .oracle import examine as examine
    from .report import report_to_json as report_to_json
    from .report import report_to_sarif as report_to_sarif
    from .retarget import retarget as retarget
    from .rules import Entity as Entity
    from .rules import Finding as Finding
    from .rules import Report as Report
    from .rules import Verdict as Verdict
    from .running import run_pair as run_pair
    from .shim import Shim as Shim
    from .shim import generate_shim as generate_shim
    from .targets import GROUPS as GROUPS
    from .targets import TARGETS as TARGETS
    from .targets import Target as Target
    from .targets import find_target as find_target
    from .targets import select_targets as select_targets
    from .wasm_gate import check_wasm as check_wasm

_LAZY = {
    "AllowList": "allowlist",
    "load_allow_list": "allowlist",
    "check": "guard",
    "check_ir": "ir_gate",
    "check_ir_file": "ir_gate",
    "Examination": "oracle",
    "Query": "oracle",
    "examine": "oracle",
    "report_to_json": "report",
    "report_to_sarif": "report",
    "retarget": "retarget",
    "Entity": "rules",
    "Finding": "rules",
    "Report": "rules",
    "Verdict": "rules",
    "run_pair": "running",
    "Shim": "shim",
    "generate_shim": "shim",
    "GROUPS": "targets",
    "TARGETS": "targets",
    "Target": "targets",
    "find_target": "targets",
    "select_targets": "targets",
    "check_wasm": "wasm_gate",
}

__all__ = sorted(_LAZY)


def __getattr__(name: str) -> Any:
    module = _LAZY.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{module}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})
