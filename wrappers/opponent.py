"""A game for two, of which the environment's own player is given."""

from collections.abc import Callable
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np

from gym_trl.errors import ConfigError, InfrastructureError, caused_by_model
from gym_trl.seeding import derive_seed
from gym_trl.types import Policy
from gym_trl.wrappers.admissible_actions import listed_actions
from gym_trl.wrappers.frozen import FrozenAfterEnd, Step
from gym_trl.wrappers.inner import check_text, load_function

_MOST_ACTIONS = 1_000


class Opponent(FrozenAfterEnd, gym.utils.RecordConstructorArgs):
    """Play one side of an environment whose two players move in turn; a policy plays the other.

    >>> import gymnasium as gym
    >>> def guess_low(seed):
    ...     return lambda observation: "1"
    >>> env = Opponent(gym.make("TrlEnv/GuessNumber-v0"), guess_low)  # who finds it first?
    >>> _ = env.reset(options={"instance": 0})
    >>> observation, reward, terminated, truncated, info = env.step("25")
    >>> reward, terminated, info["success"], info["opponent_actions"]
    (-1.0, True, False, ['1'])

    The players alternate; an action that is not valid has to be repeated by whoever made it. Where that is not the rule
    ``info["to_move"]`` says, 0 or 1, who is next. What is paid: ``info["payoffs"]`` has a number for each player, or
    else the reward is of the player who acted and what one wins the other loses. ``info["success"]`` is whether the
    agent won. ``info["opponent_actions"]`` has what was played since the agent's last action. The library's own games
    for two have opponents of their own (``opponent=`` of ``gym.make``); with ``opponent="self"`` they can be given
    one of this kind.

    Args:
        env: An environment whose observations, each for the player who is next, and actions are text.
        policy: Makes the opponent of one episode from a seed, from which it must draw all that is random; also by name,
            as ``"package.module:function"``. ``"random"`` plays the actions that ``info`` lists (see
            ``AdmissibleActions``). For an environment to pickle in mid-episode what it makes must pickle.
        seat: Who the agent is: 0 begins, 1 is second, ``None`` is drawn at each reset.

    Raises:
        ConfigError: a seat or a function that does not exist; in a step or at reset, ``"random"`` without a list, or an
            opponent that does not come to an end.
        NotTextError: observations or actions are not text.
    """

    optimal_success: ClassVar[None] = None
    """Nobody knows how well this opponent plays."""
    optimal_return: ClassVar[None] = None
    """Nobody knows how well this opponent plays."""

    def __init__(
        self, env: gym.Env[str, str], policy: Callable[[int], Policy] | str = "random", seat: int | None = 0
    ) -> None:
        if seat is not None and (isinstance(seat, bool) or seat not in (0, 1)):
            raise ConfigError(f"seat must be 0, 1 or None, got {seat!r}")
        check_text(env, "Opponent", observations=True, actions=True)
        gym.utils.RecordConstructorArgs.__init__(self, policy=policy, seat=seat)
        FrozenAfterEnd.__init__(self, env)
        self.seat = seat
        self._make_policy = None if policy == "random" else load_function(policy)
        self._policy: Policy | None = None
        self._rng = np.random.default_rng()
        self._agent = self._next = 0
        self._over_at_reset: Step | None = None
        self._owed = 0.0  # for what the opponent did before the agent's first action

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode; an opponent who begins has played when it returns."""
        if seed is not None:
            self._rng = np.random.default_rng(derive_seed(seed, "opponent"))
        return super().reset(seed=seed, options=options)

    def _restart(self, observation: str, info: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        self._agent = int(self._rng.integers(2)) if self.seat is None else self.seat
        self._policy = None if self._make_policy is None else self._make_policy(int(self._rng.integers(2**31)))
        self._next = int(info.get("to_move", 0))
        self._over_at_reset, self._owed = None, 0.0
        observation, reward, terminated, truncated, info = self._answered((observation, 0.0, False, False, info))
        if terminated or truncated:
            self._over_at_reset = observation, reward, terminated, truncated, info
        else:
            self._owed = float(reward)
        return observation, info

    def _step(self, action: str) -> Step:
        if self._over_at_reset is not None:
            return self._over_at_reset
        observation, reward, terminated, truncated, info = self._answered(self._play(action))
        owed, self._owed = self._owed, 0.0
        return observation, float(reward) + owed if owed else reward, terminated, truncated, info

    def _answered(self, step: Step) -> Step:
        """What an action led to once the opponent has played, if it is the opponent's turn."""
        observation, total, terminated, truncated, info = step
        actions: list[str] = []
        while not (terminated or truncated) and self._next != self._agent:
            if len(actions) == _MOST_ACTIONS:
                raise ConfigError(f"the opponent has played {_MOST_ACTIONS} actions and it is its turn again")
            actions.append(self._choose(observation, info))
            observation, reward, terminated, truncated, info = self._play(actions[-1])
            total = float(total) + float(reward)
        return observation, total, terminated, truncated, {**info, "opponent_actions": actions}

    def _choose(self, observation: str, info: dict[str, Any]) -> str:
        if self._policy is not None:
            try:
                return self._policy(observation)
            except Exception as error:
                if caused_by_model(error):  # it would be said, and the agent's action has no part in it
                    raise InfrastructureError(f"the opponent raised {type(error).__name__}: {error}") from error
                raise
        listed = listed_actions(self.env, info)
        if not listed:
            raise ConfigError(f'{self.env} lists no actions for the opponent "random": give it a policy')
        return listed[int(self._rng.integers(len(listed)))]

    def _play(self, action: str) -> Step:
        """An action of whoever is next, and what it is worth to the agent."""
        mine = self._next == self._agent
        observation, reward, terminated, truncated, info = self.env.step(action)
        if "to_move" in info:
            self._next = int(info["to_move"])
        elif info.get("action_valid", True):
            self._next = 1 - self._next
        if "payoffs" in info:
            reward = float(info["payoffs"][self._agent])
            info = {**info, "success": reward > 0}
        elif not mine:
            # Not a negative zero, and what the opponent did is no merit or fault of the agent's.
            reward = 0.0 - float(reward)
            info = {**info, "action_valid": True}
            if info.get("success") is not None:
                info["success"] = False
        return observation, reward, terminated, truncated and not terminated, info
