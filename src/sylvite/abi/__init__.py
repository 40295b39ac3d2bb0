"""Data layouts and boundary structs: what a call between two programs depends on."""
