"""Tests of other systems."""
