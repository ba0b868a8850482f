"""Durations as text."""

from durations.reading import parse
from durations.writing import show

__all__ = ["parse", "show"]
