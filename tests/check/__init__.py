"""Tests of ``gym-trl check``."""
