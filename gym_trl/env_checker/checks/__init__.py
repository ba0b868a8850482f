"""Checks of an environment, one function for each requirement of training."""

from gym_trl.env_checker import subject

# Their order, which is that of a report, is alphabetical as well.
from gym_trl.env_checker.checks import contract, episodes, outcomes, resources

CHECKS = subject.check
"""All checks by name, with the reasons for them."""

__all__ = ["CHECKS", "contract", "episodes", "outcomes", "resources"]
