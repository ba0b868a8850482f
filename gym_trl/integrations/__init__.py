"""The names of other systems, implemented with this library: one module each."""
