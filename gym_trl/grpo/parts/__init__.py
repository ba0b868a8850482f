"""Features of a rollout, one object each."""
