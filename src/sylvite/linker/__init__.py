"""The dynamic linker: position-independent side modules in one memory and one table."""
