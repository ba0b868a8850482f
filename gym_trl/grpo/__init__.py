"""Training of models with TRL's GRPO trainers."""
