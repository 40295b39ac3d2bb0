"""Headers that real people use parse and are judged."""

from __future__ import annotations

import glob
import os
from pathlib import Path

import pytest
from conftest_abi import header, python_header, wgpu_resources

from sylvite import abi

DEBIAN = ("/usr/include", *glob.glob("/usr/include/*-linux-gnu*"))


OWN_CONFIGURATION = Path(__file__).parent / "data" / "pyconfig.h"


def judge(path: str, include_dirs=DEBIAN, **options) -> abi.Report:
    """The report over all targets, none of which may refuse the header."""
    report = abi.check(
        path, targets="all", base="x86_64-generic", include_dirs=include_dirs, cache=False, **options
    )
    assert [f"{r.target}: {r.message}" for r in report.rejections] == []
    return report


def test_zlib_is_judged():
    report = judge(header("/usr/include/zlib.h"))
    assert report.find("deflate").verdict is abi.Verdict.LAYOUT
    assert "variadic" in {finding.rule for finding in report.find("gzprintf").findings}
    assert len(report.entities) > 80


def test_sqlite_is_judged():
    report = judge(header("/usr/include/sqlite3.h"))
    assert len(report.entities) > 250
    assert "variadic" in {finding.rule for finding in report.find("sqlite3_config").findings}
    assert report.find("sqlite3_vmprintf").verdict.severity >= abi.Verdict.RULE.severity


def test_libpng_is_judged():
    report = judge(header("/usr/include/libpng16/png.h"))
    assert report.find("png_create_read_struct") is not None
    assert len(report.entities) > 200


def test_opencl_is_judged():
    report = judge(header("/usr/include/CL/cl.h"), defines=["CL_TARGET_OPENCL_VERSION=300"])
    assert report.find("clBuildProgram") is not None
    assert len(report.entities) > 100


def test_webgpu_is_judged():
    assert len(judge(str(wgpu_resources() / "webgpu.h")).entities) > 500


@pytest.mark.slow
def test_vulkan_is_judged():
    path = header("/usr/include/vulkan/vulkan_core.h")
    report = judge(path)
    assert len(report.entities) > 1000
    assert report.find("vkCreateInstance") is not None


@pytest.mark.slow
def test_sdl_is_judged():
    path = header("/usr/include/SDL2/SDL.h")
    report = judge(path, defines=["SDL_DISABLE_IMMINTRIN_H", "SDL_DISABLE_ARM_NEON_H"])
    assert report.find("SDL_JoystickGetDeviceGUID", "function").verdict is abi.Verdict.SHIM
    assert len(report.entities) > 800


@pytest.mark.slow
def test_cpython_is_judged():
    # An installed pyconfig.h holds one platform's sizes and refuses all others; ours asks the compiler.
    report = judge(python_header(), include_dirs=(), includes=[str(OWN_CONFIGURATION)])
    assert report.find("PyErr_Format").verdict.severity >= abi.Verdict.RULE.severity
    assert report.find("PyComplex_FromCComplex").verdict is abi.Verdict.SHIM
    assert len(report.entities) > 1000


@pytest.mark.slow
def test_cpython_configured_for_this_machine_is_refused_by_others_with_the_place():
    report = abi.check(python_header(), targets="x86_64-linux,i386-linux", cache=False)
    assert [(r.target, os.path.basename(r.file)) for r in report.rejections] == [("i386-linux", "pyport.h")]
    assert "sylvite-oracle" not in report.rejections[0].message


def test_wasm_c_api_is_judged():
    path = os.environ.get("SYLVITE_WASM_H")
    if not path:
        pytest.skip("set SYLVITE_WASM_H to include/wasm.h of WebAssembly/wasm-c-api: no package brings it")
    report = judge(path)
    assert report.find("wasm_func_callback_t", "callback") is not None
    assert report.find("wasm_val_t", "struct") is not None
    # A limits pointer in, a type out: nothing but pointers crosses.
    assert report.find("wasm_engine_new").verdict is abi.Verdict.SAFE
    assert len(report.entities) > 250
