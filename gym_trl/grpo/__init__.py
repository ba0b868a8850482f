"""Adapters that speak TRL."""
