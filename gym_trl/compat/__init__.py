"""Interfaces of other training libraries under their own names, one module per library."""
