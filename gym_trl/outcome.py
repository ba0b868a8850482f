"""Outcome of an episode, from what its environment returned."""

from collections.abc import Callable, Mapping
from typing import Any

from gym_trl.types import StopReason


class FailureNotes:
    """Notes of the first episode that could not be scored, and of the first that an action has crashed.

    >>> notes = FailureNotes(print)
    >>> notes.add("env_error", "step raised KeyError: 'x'", scored=False)
    An episode could not be scored (env_error): step raised KeyError: 'x'
    >>> notes.add("env_error", "step raised KeyError: 'y'", scored=False)
    """

    def __init__(self, note: Callable[[str], None]) -> None:
        self._note, self._noted = note, set[bool]()

    def add(self, reason: str, error: str | None, *, scored: bool) -> None:
        """Note the error of an episode if it is the first of its kind."""
        crashed = reason == StopReason.CRASHED
        if (crashed or not scored) and error and crashed not in self._noted:
            self._noted.add(crashed)
            what = "An action ended an episode" if crashed else "An episode could not be scored"
            self._note(f"{what} ({reason}): {error}")


_BY_SUCCESS = {True: StopReason.SUCCESS, False: StopReason.FAILURE, None: StopReason.TERMINATED}


def why_it_ended(info: Mapping[str, Any], *, terminated: bool) -> StopReason:
    """Return the stop reason of an episode that the environment ended, from the ``info`` of its last step.

    >>> why_it_ended({"success": True}, terminated=True), why_it_ended({}, terminated=True)
    (<StopReason.SUCCESS: 'success'>, <StopReason.TERMINATED: 'terminated'>)
    >>> why_it_ended({"stop_reason": "invalid_action"}, terminated=True)
    <StopReason.INVALID_ACTION: 'invalid_action'>

    A ``stop_reason`` in ``info`` is used unchanged, except for ``success``, ``failure`` and ``terminated``: these
    follow from ``info["success"]``.
    """
    named = info.get("stop_reason")
    if isinstance(named, str) and named in StopReason.__members__.values() and named not in _BY_SUCCESS.values():
        return StopReason(named)
    return _BY_SUCCESS[declared_in(info)] if terminated else StopReason.TURN_LIMIT


def success_of(reason: StopReason, info: Mapping[str, Any], *, declares: bool) -> bool | None:
    """Return whether an episode that ended for ``reason`` solved its task; ``None`` if it is not declared.

    >>> success_of(StopReason.TURN_LIMIT, {"success": True}, declares=True)  # solved, and cut off in the same step
    True
    >>> success_of(StopReason.TOKEN_LIMIT, {}, declares=True), success_of(StopReason.TOKEN_LIMIT, {}, declares=False)
    (False, None)
    >>> success_of(StopReason.ENV_ERROR, {"success": False}, declares=True) is None
    True

    Success is declared in ``info["success"]`` of the last step, never inferred from rewards. Where the environment is
    known to declare success (``declares``), a scored episode without a declaration has failed. What only other episodes
    show of the environment is taken into account by ``gym_trl.success.counted_successes``.

    Args:
        reason: Stop reason of the episode; an unscored episode has no success.
        info: ``info`` of the last step.
        declares: The environment or the spec declares success: in this step, an earlier one or at the end.
    """
    if not reason.scored:
        return None
    declared = declared_in(info)
    return False if declared is None and declares else declared


def declared_in(info: Mapping[str, Any]) -> bool | None:
    """Return the success that ``info`` declares, or ``None``."""
    declared = info.get("success")
    return None if declared is None else bool(declared)


_LARGEST = (2 - 2**-23) * 2.0**127  # of a 32-bit float, the type of trainers' rewards


def add_reward(so_far: float, reward: float) -> float:
    """Return the sum of an episode's return so far and one more reward.

    >>> add_reward(0.5, 1.0)
    1.5
    >>> add_reward(3e38, 3e38)
    Traceback (most recent call last):
        ...
    ValueError: the return must be a finite number of 32 bits, got 6e+38 after a reward of 3e+38

    Raises:
        ValueError: the sum is not a finite 32-bit float, which trainers compute with.
    """
    total = so_far + reward
    if not abs(total) <= _LARGEST:  # true for NaN, too
        raise ValueError(f"the return must be a finite number of 32 bits, got {total:g} after a reward of {reward:g}")
    return total
