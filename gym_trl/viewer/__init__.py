"""Viewer of a run as one HTML page with curves, episodes and every token; in a file, or served live on loopback."""
