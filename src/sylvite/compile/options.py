"""Targets, options and the compiler flags they stand for."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from ..errors import InvalidArgumentError
from . import webgpu

__all__ = ["IN_PLACE", "PARAMETER_SCOPE", "TUNING_VERSION", "CompileOptions", "Target", "targets"]

PARAMETER_SCOPE = "model"
"""Scope under which external parameters are looked up."""

IN_PLACE: Literal["in-place"] = "in-place"
"""Value of ``external_parameters``: initializers in ONNX external data files stay in those files."""

TUNING_VERSION = 10
"""Raised when `sylvite.compile.tuning` makes another build of the same model; cached modules depend on it."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A code generation target: fixed flags, and the features one may choose."""

    name: str
    summary: str
    flags: tuple[str, ...]
    features: frozenset[str] | None
    default_features: tuple[str, ...]
    wasm_linker: bool


_LOCAL_LLVM = (
    "--iree-hal-target-device=local",
    "--iree-hal-local-target-device-backends=llvm-cpu",
)

_WASM_FEATURES = frozenset(
    {
        "bulk-memory",
        "extended-const",
        "multivalue",
        "mutable-globals",
        "nontrapping-fptoint",
        "reference-types",
        "relaxed-simd",
        "sign-ext",
        "simd128",
        "tail-call",
    }
)

_TARGETS: dict[str, Target] = {
    target.name: target
    for target in (
        Target(
            name="wasm32",
            summary="WebAssembly side modules, run by the local drivers",
            flags=(*_LOCAL_LLVM, "--iree-llvmcpu-target-triple=wasm32-unknown-emscripten"),
            features=_WASM_FEATURES,
            default_features=("simd128",),
            wasm_linker=True,
        ),
        Target(
            name="webgpu",
            summary="SPIR-V within the limits of WebGPU, which the webgpu driver turns into WGSL",
            flags=(),
            features=frozenset(),
            default_features=(),
            wasm_linker=False,
        ),
        Target(
            name="wasm32,webgpu",
            summary="both: the device that loads the module picks",
            flags=(),
            features=_WASM_FEATURES,
            default_features=("simd128",),
            wasm_linker=True,
        ),
        Target(
            name="native",
            summary="code of this machine's CPU, for comparison with iree.runtime",
            flags=_LOCAL_LLVM,
            features=None,
            default_features=("host",),
            wasm_linker=False,
        ),
    )
}


def targets() -> tuple[Target, ...]:
    """All targets."""
    return tuple(_TARGETS.values())


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CompileOptions:
    """Everything besides the source that decides the result.

    Args:
        target: name of a target.
        features: WebAssembly features; for ``native`` one CPU name (``host``, ``generic``, ...) and CPU
            features in LLVM's spelling (``sse4.2``).
        dims: extents for symbolic dims, by name.
        simplify: fold and simplify an ONNX graph before its import.
        external_parameters: keep initializers out of the module, in a parameter file; ``None`` does so
            when they exceed 64 MiB, and ``in-place`` keeps those in external data files where they are.
        opset: raise an ONNX model to at least this operator set before its import.
        img2col: rewrite convolutions to matrix products of patches: several times faster, at the cost of
            memory for the patches. ``None`` does so for ONNX models, unless they then do not compile.
        tuning: ``auto`` packs the operands of matrix products and leaves the products to Sylvite's kernels
            (wasm32 only; a model that then does not compile is compiled without); ``off`` does not.
        contraction: let engines with relaxed SIMD fuse multiplications and additions of compiled code when
            it is loaded (wasm32 only), which rounds once instead of twice; never with ``deterministic=True``.
        optimization: ``O0`` to ``O3``, or ``None`` for the compiler's default.
        flags: further flags for iree-compile.
    """

    target: str = "wasm32"
    features: tuple[str, ...] = ()
    dims: Mapping[str, int] = dataclasses.field(default_factory=dict)
    simplify: bool = True
    external_parameters: bool | Literal["in-place"] | None = None
    opset: int | None = None
    img2col: bool | None = None
    tuning: Literal["auto", "off"] = "auto"
    contraction: bool = True
    optimization: str | None = None
    flags: tuple[str, ...] = ()

    @property
    def webgpu_device(self) -> str | None:
        """The device to compile for when WebGPU is among the targets; see `sylvite.compile.webgpu`."""
        if self.target == "webgpu":
            return webgpu.device_attribute(wasm_features=None)
        if self.target == "wasm32,webgpu":
            names = _feature_names(self.features)
            return webgpu.device_attribute(wasm_features=names)
        return None

    @property
    def links_wasm(self) -> bool:
        """Whether the result holds WebAssembly."""
        return _TARGETS[self.target].wasm_linker

    def front_end(self) -> dict[str, Any]:
        """The options that decide the imported MLIR, as JSON values."""
        return {
            "dims": dict(sorted(self.dims.items())),
            "simplify": self.simplify,
            "external_parameters": self.external_parameters,
            "opset": self.opset,
            "img2col": self.img2col,
        }

    def back_end_flags(
        self, *, keep_f64: bool = False, img2col: bool = False, quantized: bool = False
    ) -> tuple[str, ...]:
        """Flags for iree-compile, without input, output and linker.

        ``keep_f64``: the model computes in f64. The stock default turns f64 into f32, in signatures too.
        It stays on elsewhere, because constants the importer makes along the way are f64 and the constant
        evaluator cannot narrow them.

        ``quantized``: weights that are widened when the module is loaded stay narrow in the file.
        """
        target = _TARGETS[self.target]
        # Targets with WebGPU carry their features in the description of the device.
        features = [] if self.webgpu_device is not None else _feature_flags(target, self.features)
        flags = [*target.flags, *features, _HOIST_FLAG]
        if quantized:
            flags.append("--iree-opt-const-eval=false")
        if keep_f64:
            flags.append("--iree-input-demote-f64-to-f32=false")
        if img2col:
            flags.append(_IMG2COL_FLAG)
        if self.optimization is not None:
            flags.append(f"--iree-opt-level={self.optimization}")
        return (*flags, *self.flags)


_HOIST_FLAG = f"--iree-opt-const-expr-max-size-increase-threshold={16 << 20}"
"""Let weights grow by up to 16 MiB each when they are widened or unfolded once, instead of in every call. The
stock limit of 1 MiB leaves the 384x1536 weights of an int8 MiniLM to be widened in every call, which takes as
long as all products together. Embeddings, of which a call reads a few rows, are usually beyond it."""

_IMG2COL_FLAG = "--iree-global-opt-use-im2col-for-convs"


def make_options(
    *,
    target: str,
    features: Sequence[str] | None,
    dims: Mapping[str, int] | None,
    optimization: str | None,
    flags: Sequence[str],
    **rest: Any,
) -> CompileOptions:
    """Check what the caller passed.

    Raises:
        InvalidArgumentError: an unknown target, feature or level, or an extent that is not one.
    """
    known = _TARGETS.get(target)
    if known is None:
        raise InvalidArgumentError(f"unknown target {target!r}; known: {', '.join(sorted(_TARGETS))}")
    chosen = known.default_features if features is None else tuple(dict.fromkeys(features))
    unknown = [name for name in chosen if known.features is not None and name not in known.features]
    if unknown and known.features is not None:
        raise InvalidArgumentError(
            f"target {target} has no feature {', '.join(unknown)}; known: {', '.join(sorted(known.features))}"
        )
    if rest.get("tuning", "auto") not in ("auto", "off"):
        raise InvalidArgumentError(f"unknown tuning {rest['tuning']!r}; known: auto, off")
    if not isinstance(rest.get("contraction", True), bool):
        raise InvalidArgumentError(f"contraction is True or False, not {rest['contraction']!r}")
    if optimization not in (None, "O0", "O1", "O2", "O3"):
        raise InvalidArgumentError(f"unknown optimization level {optimization!r}; known: O0, O1, O2, O3")
    return CompileOptions(
        target=target,
        features=chosen,
        dims=checked_dims(dims or {}),
        optimization=optimization,
        flags=tuple(flags),
        **rest,
    )


def checked_dims(dims: Mapping[str, int]) -> dict[str, int]:
    """A copy of ``dims``.

    Raises:
        InvalidArgumentError: an extent that is not one.
    """
    for name, extent in dims.items():
        if isinstance(extent, bool) or not isinstance(extent, int) or extent < 0:
            raise InvalidArgumentError(f"dim {name!r} needs a non-negative integer, got {extent!r}")
    return dict(dims)


def _feature_names(features: tuple[str, ...]) -> str:
    """WebAssembly features in LLVM's spelling."""
    # relaxed-simd extends simd128; LLVM accepts it alone, but baseline code then goes scalar.
    names = dict.fromkeys(("simd128", *features) if "relaxed-simd" in features else features)
    return ",".join("+" + name for name in names)


def _feature_flags(target: Target, features: tuple[str, ...]) -> list[str]:
    if target.features is not None:
        names = _feature_names(features)
        return [f"--iree-llvmcpu-target-cpu-features={names}"] if names else []
    cpu, *extra = features or ("generic",)
    flags = [f"--iree-llvmcpu-target-cpu={cpu}"]
    if extra:
        flags.append(f"--iree-llvmcpu-target-cpu-features={','.join('+' + name for name in extra)}")
    return flags
