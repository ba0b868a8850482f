"""Wrapper that lets policies play all seats of a game but one."""

from collections.abc import Callable, Hashable
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np

from gym_trl.errors import ConfigError, InfrastructureError, apart_from_the_model
from gym_trl.options import load_function
from gym_trl.seeding import derive_seed, generator_key
from gym_trl.types import Policy
from gym_trl.wrappers.admissible_actions import listed_actions
from gym_trl.wrappers.base import Reset, Step, TextWrapper, attribute_of, check_text, layer_of
from gym_trl.wrappers.seats import Seats

_MOST_ACTIONS = 1_000


class Opponent(TextWrapper):
    """Wrapper for a game of several seats; one policy plays all seats but the agent's.

    >>> env = Opponent(gym.make("TrlEnv/KuhnPoker-v0"), lambda seed: lambda observation: "bet")
    >>> _ = env.reset(seed=1)
    >>> observation, reward, terminated, _, info = env.step("bet")
    >>> reward, terminated, info["success"], info["opponent_actions"]
    (-2.0, True, False, ['bet'])

    The reward is that of the agent's seat, also for what the others do. ``info["opponent_actions"]`` lists the actions
    of the others since the agent's last one. ``Seats`` checks the game, and declares success. What fails while another
    seat acts, in its policy or in the game, is no fault of the agent's: the episode is unscored (``gym_trl.errors``),
    also if a step does not return in time or ends its process, whoever was to move.

    Args:
        env: Game of several seats (``gym_trl.wrappers.seats``).
        policy: ``"random"``: one of the actions that ``info`` lists; ``"solver"``: the game's own; or a function from a
            seed to the policy of one episode and seat, or its name ``"package.module:function"``.
        seat: Seat of the agent; ``None`` is drawn at each reset.

    Raises:
        ConfigError: The seat or the policy does not exist, or the game has one seat; in a step or at reset,
            ``"random"`` has no list of actions.
        InfrastructureError: In a step or at reset, another seat fails, or its policy finds no valid action.
        NotTextError: Observations or actions are not text.
    """

    num_seats: ClassVar[int] = 1
    """The agent's seat."""
    declares_success: ClassVar[bool] = True
    optimal_success: ClassVar[None] = None
    """Unknown, because the strength of the opponent is unknown."""

    def __init__(
        self, env: gym.Env[str, str], policy: Callable[[int], Policy] | str = "random", seat: int | None = 0
    ) -> None:
        check_text(env, "Opponent", env.observation_space, env.action_space)
        env = env if layer_of(env, Seats) else Seats(env)
        super().__init__(env, policy=policy, seat=seat)
        self._seats = attribute_of(env, "num_seats")
        if seat is not None and seat not in range(self._seats):
            raise ConfigError(f"seat must be an integer from 0 to {self._seats - 1} or None, got {seat!r}")
        self.seat = seat
        self._make: Callable[[int], Policy] | None = None  # random play
        if policy != "random":
            self._make = attribute_of(env, "solver") if policy == "solver" else load_function(policy)
            if self._make is None:
                raise ConfigError(f"{env} has no solver that could play against the agent")
        self._policies: dict[int, Policy] | None = None
        self._rng = np.random.default_rng()
        self._agent = 0
        self._owed = 0.0
        self._over: Step | None = None

    def part(self) -> Hashable:
        """Return the agent's seat, what is owed, and the state of the generator.

        Raises:
            AttributeError: A policy plays, whose state is not known.
        """
        if self._make is not None:
            raise AttributeError("the state of an opponent is not known")
        return self._agent, self._owed, generator_key(self._rng)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Reset:
        """Start an episode, with the actions of those who are before the agent."""
        if seed is not None:
            self._rng = np.random.default_rng(derive_seed(seed, "opponent"))
        return super().reset(seed=seed, options=options)

    def begin(self, observation: str, info: dict[str, Any]) -> Reset:
        """Make the policies, and play until it is the agent's turn."""
        self._agent = int(self._rng.integers(self._seats)) if self.seat is None else self.seat
        seeds = {seat: int(self._rng.integers(2**31)) for seat in range(self._seats) if seat != self._agent}
        self._policies = {seat: self._make(seed) for seat, seed in seeds.items()} if self._make else None
        self._over = None
        observation, owed, terminated, truncated, info = self._answered((observation, 0.0, False, False, info))
        self._owed = float(owed)  # paid before the agent's first action
        if terminated or truncated:
            self._over = observation, 0.0, terminated, truncated, info
        return observation, info

    def act(self, action: str) -> Step:
        """Play an action of the agent, and those that follow."""
        observation, reward, *rest = self._over or self._answered(self._play(action))
        reward, self._owed = float(reward) + self._owed, 0.0
        return observation, reward, *rest

    def _answered(self, step: Step) -> Step:
        """Play the others' actions after a step until it is the agent's turn or the game is over."""
        observation, total, terminated, truncated, info = step
        own, actions = info, list[str]()
        while not (terminated or truncated) and (seat := int(info["to_move"])) != self._agent:
            if len(actions) == _MOST_ACTIONS:
                raise InfrastructureError(f"the opponents have played {_MOST_ACTIONS} actions, and it is their turn")
            with apart_from_the_model("the opponent"):
                actions.append(self._policies[seat](observation) if self._policies else self._draw(info))
                observation, reward, terminated, truncated, info = self._play(actions[-1])
            total = float(total) + float(reward)
        info = {name: value for name, value in info.items() if name not in ("to_move", "success", "action_valid")}
        if "action_valid" in own:  # that of the agent's action
            info["action_valid"] = own["action_valid"]
        if terminated or truncated:
            info["success"] = info["successes"][self._agent]
            own_text = observation if info["player"] == self._agent else ""
            observation = info.get("observations", {}).get(self._agent, own_text)
        return observation, total, terminated, truncated, {**info, "opponent_actions": actions}

    def _play(self, action: str) -> Step:
        """Play an action of the seat to move, with the agent's reward."""
        observation, _, terminated, truncated, info = self.env.step(action)
        return observation, info["payoffs"][self._agent], terminated, truncated, info

    def _draw(self, info: dict[str, Any]) -> str:
        if not (listed := listed_actions(self.env, info)):
            raise ConfigError(f'{self.env} lists no actions for the opponent "random": give it a policy')
        return listed[int(self._rng.integers(len(listed)))]
