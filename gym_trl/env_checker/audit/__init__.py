"""Audit of many environments: each is measured in a process of its own and judged in one word."""

from gym_trl.env_checker.audit.audits import Budget, audit
from gym_trl.env_checker.audit.subjects import AuditedEnv, envs_of
from gym_trl.env_checker.audit.verdicts import AuditRow, AuditVerdict, judge

__all__ = ["AuditRow", "AuditVerdict", "AuditedEnv", "Budget", "audit", "envs_of", "judge"]
