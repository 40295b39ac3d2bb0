"""From hundreds of lines of compiler output to the cause and what to do about it."""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence

__all__ = ["explain"]

_ERROR = re.compile(r"^(?P<place>.*?):? ?\berror: (?P<text>.*)$")
_CRASH = re.compile(
    r"PLEASE submit a bug report|Please report issues to|Stack dump:|LLVM ERROR: (?P<text>.*)"
)
_NOISE = re.compile(r"\s*#|Please report|PLEASE submit|Stack dump")
_LOCATION = re.compile(r'^loc\((?:callsite\()?"([^"]*)"[^:]*\): ')
_ILLEGAL = re.compile(
    r"failed to legalize operation 'torch\.operator'.*?(?=\{name = \"onnx)\{name = \"(onnx\.\w+)\"\}>?(.*)"
)
_LINE_LIMIT = 300
_ERROR_LIMIT = 3

_ADVICE: tuple[tuple[re.Pattern[str], str], ...] = (
    (
        re.compile(r"onnx\.(If|Loop|Scan)\b"),
        "the compiler does not take control flow in the graph; fix the inputs it depends on (--dim, "
        "constants) so that simplification can fold it away",
    ),
    (
        re.compile(
            r"failed to legalize operation 'torch\.(?:operator|constant)|unregistered operation"
            r"|no lowering for onnx"
        ),
        "the compiler has no lowering for this operator or this use of it; natively it fails the same way. "
        "A newer operator set (opset=17, --opset 17) or an equivalent graph may help",
    ),
    (
        re.compile(r"does not fit in memory|out of memory|bad_alloc"),
        "the machine ran out of memory; keep the weights out of the module (external_parameters=True)",
    ),
    (
        re.compile(r"'arith\.(truncf|extf)'.*f64"),
        "64-bit floats stand in the way; let the compiler narrow them: "
        "flags=['--iree-input-demote-f64-to-f32=true']",
    ),
    (
        re.compile(r"undefined symbol"),
        "the linker met a symbol it could not leave open; please report this model",
    ),
    (
        re.compile(r"Unknown command line argument|for the --[\w-]+ option"),
        "a flag is not known to this release of iree-compile; see iree-compile --help",
    ),
    (
        re.compile(
            r"dialect `?'?\w+|custom op '|unknown MLIR|expected operation name|expected '|use of undeclared"
        ),
        "the MLIR text does not parse; it must be of dialects that this release of iree-compile takes",
    ),
)
_DYNAMIC_ADVICE = (
    "the model leaves dims open ({dims}), which the compiler often cannot take; fix them with "
    "dims={{{example}}} or --dim {option}"
)


def explain(tool: str, exit_code: int, output: str, symbolic: Sequence[str] = ()) -> str:
    """A short message: the first errors of ``output``, and advice.

    Args:
        tool: the program's name.
        exit_code: its exit code; negative for a signal.
        output: all it printed.
        symbolic: names of dims that the model left open.
    """
    causes = _causes(output)
    crash = _crash(tool, exit_code, output)
    lines = [crash] if crash else [f"{tool} refused the model"]
    lines += [f"  {cause}" for cause in causes]
    advice = _advice("\n".join(causes), symbolic)
    if advice:
        lines.append(f"advice: {advice}")
    return "\n".join(lines)


def _causes(output: str) -> list[str]:
    found: dict[str, None] = {}
    for line in output.splitlines():
        match = _ERROR.match(line)
        if match is None:
            continue
        place = match["place"].strip()
        text = _LOCATION.sub(r"\1: ", match["text"])
        text = _ILLEGAL.sub(r"no lowering for \1:\2", text)
        text = text if place in ("", "<unknown>:0") else f"{place}: {text}"
        found[text if len(text) <= _LINE_LIMIT else text[: _LINE_LIMIT - 1] + "…"] = None
        if len(found) == _ERROR_LIMIT:
            break
    if not found:
        found = dict.fromkeys(line.strip()[:_LINE_LIMIT] for line in _last_words(output))
    return list(found)


def _last_words(output: str) -> list[str]:
    lines = [line for line in output.splitlines() if line.strip() and not _NOISE.match(line)]
    return lines[-2:]


def _crash(tool: str, exit_code: int, output: str) -> str | None:
    match = _CRASH.search(output)
    if exit_code >= 0 and match is None:
        return None
    how = f"exit code {exit_code}"
    if exit_code < 0:
        try:
            how = signal.Signals(-exit_code).name
        except ValueError:
            how = f"signal {-exit_code}"
    if how == "SIGKILL":
        return f"{tool} was killed ({how}); the machine may have run out of memory"
    return f"{tool} crashed ({how}) on this model: a bug in the compiler"


def _advice(causes: str, symbolic: Sequence[str]) -> str | None:
    for pattern, advice in _ADVICE[:1]:
        if pattern.search(causes):
            return advice
    if symbolic:
        first = symbolic[0]
        return _DYNAMIC_ADVICE.format(dims=", ".join(symbolic), example=f'"{first}": 1', option=f"{first}=1")
    return next((advice for pattern, advice in _ADVICE if pattern.search(causes)), None)
