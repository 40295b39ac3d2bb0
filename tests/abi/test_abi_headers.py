"""Headers that real people use parse and are judged."""

from __future__ import annotations

import glob

import pytest
from conftest_abi import header, python_header, wgpu_resources

from sylvite import abi

DEBIAN = ("/usr/include", *glob.glob("/usr/include/*-linux-gnu*"))


def judge(
    path: str, targets: str = "x86_64-linux,arm64-linux,arm64-macos,s390x-linux", **options
) -> abi.Report:
    return abi.check(
        path, targets=targets, base="x86_64-generic", include_dirs=DEBIAN, cache=False, **options
    )


def test_zlib_is_judged():
    report = judge(header("/usr/include/zlib.h"), targets="all")
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
    report = judge(python_header(), targets="x86_64-linux,arm64-linux")
    assert report.find("PyErr_Format").verdict is abi.Verdict.RULE
    assert report.find("PyComplex_FromCComplex").verdict is abi.Verdict.SHIM
    assert len(report.entities) > 1000
