"""WebAssembly engines behind one interface. The table is lazy: no engine is imported before use."""
