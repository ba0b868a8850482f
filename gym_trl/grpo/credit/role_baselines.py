"""Role-conditioned baselines: a running mean of the returns of each seat of each game."""

from collections.abc import Mapping, Sequence
from typing import Any

from gym_trl.errors import ConfigError
from gym_trl.grpo.credit.estimators import Advantages, TurnRewards


class RoleBaselines:
    """Estimator that compares an episode's return with a running mean of the returns of its role.

        A_i,t = R_i - b_role        b_role <- decay b_role + (1 - decay) R_i

    SPIRAL's role-conditioned advantage estimation (RAE), arXiv:2506.24119, section 4.2, whose decay is 0.95; prime-rl's
    algorithm ``rae`` (its pull request 3136) differs in moving a baseline after each episode, not after each batch. A
    role is a seat of an environment, and in a league also the kind of opponent: the model itself, its past, or another.
    Advantages of a batch use the baselines before it, so that no baseline depends on the episode itself; then the
    batch's episodes are counted one after the other. SPIRAL does not divide by a deviation: train with
    ``scale_rewards="none"`` to do the same.

    >>> baselines = RoleBaselines(decay=0.5)
    >>> won, lost = TurnRewards([1.0], "ab", role="first"), TurnRewards([0.0, -1.0], "abc", role="second")
    >>> baselines([won, lost])
    [[1.0], [-1.0, -1.0]]
    >>> baselines.count([[won, lost]])
    >>> baselines([won, lost]), baselines.state
    ([[0.5], [-0.5, -0.5]], {'first': 0.5, 'second': -0.5})

    Args:
        decay: Weight of a role's earlier returns, from 0 to below 1.

    Raises:
        ConfigError: ``decay`` is out of range.
    """

    def __init__(self, decay: float = 0.95) -> None:
        if not 0 <= decay < 1:
            raise ConfigError(f"decay must be from 0 to below 1, got {decay!r}")
        self.decay = decay
        self._baselines: dict[str, float] = {}
        self.before: dict[str, float] = {}
        """Baseline of each role before the batch that was counted last."""

    @property
    def state(self) -> dict[str, Any]:
        """Baseline of each role; can be assigned to restore it."""
        return dict(self._baselines)

    @state.setter
    def state(self, state: Mapping[str, float]) -> None:
        self._baselines = dict(state)

    def __call__(self, group: Sequence[TurnRewards]) -> Advantages:
        """Return the advantages of these episodes by the baselines so far."""
        advantages = [sum(one.rewards) - self._baselines.get(one.role or "", 0.0) for one in group]
        return [[value] * one.turns for value, one in zip(advantages, group, strict=True)]

    def count(self, groups: Sequence[Sequence[TurnRewards]]) -> None:
        """Move the baselines towards the returns of a batch's episodes."""
        self.before = dict(self._baselines)
        for group in groups:
            for one in group:
                role, value = one.role or "", sum(one.rewards)
                self._baselines[role] = self.decay * self._baselines.get(role, 0.0) + (1 - self.decay) * value
