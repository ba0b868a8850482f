"""Conversion between values and text: observations, actions, action formats, credentials."""
