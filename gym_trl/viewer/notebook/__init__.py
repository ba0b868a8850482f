"""Displays in notebooks: of specifications, scores, episodes and findings, of a training, and of a run's page."""
