"""The names of the systems that this library can replace, one module for each."""
