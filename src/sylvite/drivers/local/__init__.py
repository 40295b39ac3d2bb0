"""Devices that run WebAssembly executables in one linear memory."""
