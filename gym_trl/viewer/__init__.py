"""Viewer of a run as one HTML file with curves, episodes and every token."""
