"""One instrument that says whether an environment is fit to train on, by games of a few policies."""

from gym_trl.check.contract import Finding
from gym_trl.check.evidence import Blind, best_blind
from gym_trl.check.report import Report, Table
from gym_trl.check.run import CHECKS, check

__all__ = ["CHECKS", "Blind", "Finding", "Report", "Table", "best_blind", "check"]
