"""A run as one page of HTML: curves, episodes, every token; in a file, or live on loopback."""
