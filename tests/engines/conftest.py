"""Modules in WebAssembly text, through wasmtime's own assembler."""

from __future__ import annotations

import pytest
import wasmtime

from sylvite import engines


@pytest.fixture(scope="session")
def wat():
    return lambda text: bytes(wasmtime.wat2wasm(text))


@pytest.fixture(scope="session")
def engine():
    with engines.create("wasmtime") as created:
        yield created


@pytest.fixture
def store(engine):
    with engine.create_store() as created:
        yield created
