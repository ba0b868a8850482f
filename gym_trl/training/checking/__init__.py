"""Recomputation of recorded training steps, stage by stage, without a GPU."""
