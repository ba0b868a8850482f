"""Wrapper that plays all seats of a game but one with a policy."""

from collections.abc import Callable
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np

from gym_trl.errors import ConfigError, apart_from_the_model
from gym_trl.kinds import load_function
from gym_trl.seeding import derive_seed, generator_key
from gym_trl.types import Policy
from gym_trl.wrappers.admissible_actions import listed_actions
from gym_trl.wrappers.frozen import FrozenAfterEnd, Step
from gym_trl.wrappers.inner import check_text
from gym_trl.wrappers.traits import traits

_MOST_ACTIONS = 1_000


class Opponent(FrozenAfterEnd):
    """Wrapper for an environment whose players move in turn; a policy plays the other side, or all other seats.

    >>> import gymnasium as gym
    >>> def guess_low(seed):
    ...     return lambda observation: "1"
    >>> env = Opponent(gym.make("TrlEnv/GuessNumber-v0"), guess_low)  # who finds it first?
    >>> _ = env.reset(options={"instance": 0})
    >>> observation, reward, terminated, truncated, info = env.step("25")
    >>> reward, terminated, info["success"], info["opponent_actions"]
    (-1.0, True, False, ['1'])

    The players alternate; after an invalid action the same player moves again. In other games ``info["to_move"]`` is
    the next player, from 0. ``info["payoffs"]`` has a reward for each player; without it the reward belongs to the
    player who acted, and the other player's is its negative. ``info["success"]`` is true if the agent won.
    ``info["opponent_actions"]`` lists the opponent's actions since the agent's last one. The library's own games for
    two have their own opponents (``opponent=`` of ``gym.make``); with ``opponent="self"`` they can be used with this
    wrapper.

    Args:
        env: Environment with text actions, and text observations for the player who is next.
        policy: Function from a seed to the opponent of one episode, which must draw all random numbers from this seed,
            called for each of the other seats;
            or its name, ``"package.module:function"``. ``"random"`` samples from the actions listed in ``info`` (see
            ``AdmissibleActions``). To pickle an environment in mid-episode, the policy must be picklable.
        seat: Seat of the agent: 0 begins in a game for two; ``None`` is drawn at each reset.

    Raises:
        ConfigError: The seat or the function does not exist; in a step or at reset, ``"random"`` has no list of
            actions, or the opponent moves endlessly.
        NotTextError: Observations or actions are not text.
    """

    num_seats: ClassVar[int] = 1
    """The agent's seat; the policy plays the other one."""
    optimal_success: ClassVar[None] = None
    """Unknown, because the strength of the opponent is unknown."""
    optimal_return: ClassVar[None] = None
    """Unknown, because the strength of the opponent is unknown."""

    def __init__(
        self, env: gym.Env[str, str], policy: Callable[[int], Policy] | str = "random", seat: int | None = 0
    ) -> None:
        self._seats = max(2, traits(env).num_seats)
        if seat is not None and (isinstance(seat, bool) or seat not in range(self._seats)):
            raise ConfigError(f"seat must be an integer from 0 to {self._seats - 1} or None, got {seat!r}")
        check_text(env, "Opponent", observations=True, actions=True)
        super().__init__(env, policy=policy, seat=seat)
        self.seat = seat
        self._make_policy = None if policy == "random" else load_function(policy)
        self._policies: dict[int, Policy] = {}
        self._rng = np.random.default_rng()
        self._agent = self._next = 0
        self._over_at_reset: Step | None = None
        self._owed = 0.0  # reward of the opponent's actions before the agent's first one

    @property
    def state_part(self) -> tuple[Any, ...]:
        """Seats of the agent and of the next player, the reward owed, and the state of the generator."""
        return self._agent, self._next, self._owed, generator_key(self._rng)

    @property
    def markov_state_key(self) -> bool:
        """False if a policy plays the other side, whose state is unknown."""
        return self._make_policy is None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode, including the opponent's actions if it begins."""
        if seed is not None:
            self._rng = np.random.default_rng(derive_seed(seed, "opponent"))
        return super().reset(seed=seed, options=options)

    def _restart(self, observation: str, info: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        self._agent = int(self._rng.integers(self._seats)) if self.seat is None else self.seat
        others = [seat for seat in range(self._seats) if seat != self._agent]
        make = self._make_policy
        self._policies = {} if make is None else {seat: make(int(self._rng.integers(2**31))) for seat in others}
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
        """Play the opponent's actions after a step until the agent's turn, and return the resulting step."""
        observation, total, terminated, truncated, info = step
        actions: list[str] = []
        while not (terminated or truncated) and self._next != self._agent:
            if len(actions) == _MOST_ACTIONS:
                raise ConfigError(f"the opponent has played {_MOST_ACTIONS} actions and it is still its turn")
            actions.append(self._choose(observation, info))
            observation, reward, terminated, truncated, info = self._play(actions[-1])
            total = float(total) + float(reward)
        return observation, total, terminated, truncated, {**info, "opponent_actions": actions}

    def _choose(self, observation: str, info: dict[str, Any]) -> str:
        if self._policies:
            with apart_from_the_model("the opponent"):
                return self._policies[self._next](observation)
        listed = listed_actions(self.env, info)
        if not listed:
            raise ConfigError(f'{self.env} lists no actions for the opponent "random": give it a policy')
        return listed[int(self._rng.integers(len(listed)))]

    def _play(self, action: str) -> Step:
        """Play an action of the next player, with the reward of the agent."""
        mine = self._next == self._agent
        observation, reward, terminated, truncated, info = self.env.step(action)
        if "to_move" in info:
            self._next = int(info["to_move"])
        elif info.get("action_valid", True):
            self._next = (self._next + 1) % self._seats
        if "payoffs" in info:
            reward = float(info["payoffs"][self._agent])
            info = {**info, "success": reward > 0}
        elif not mine:
            # 0.0 - x avoids a negative zero. The validity and success of an opponent's action are not the agent's.
            reward = 0.0 - float(reward)
            info = {**info, "action_valid": True}
            if info.get("success") is not None:
                info["success"] = False
        return observation, reward, terminated, truncated, info
