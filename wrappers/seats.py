"""Games of several seats: the protocol between an environment and those who play it, and the wrapper that checks it.

An environment of several seats is a text environment in which the seats act one after the other:

* the attribute ``num_seats`` is their number;
* ``info["to_move"]`` of ``reset``, and of every ``step`` that does not end the game, is the seat that acts next, an
  integer from 0; the observation is what this seat sees, and nobody else is shown it. A step with
  ``info["action_valid"]`` false may leave it out: it is the same seat's turn again;
* ``info["payoffs"]`` has a reward for each seat; the last step must have it, an earlier one may. It is the only way to
  pay: where it is missing, nothing is paid. What a seat is paid before its first turn belongs to that;
* ``info["observations"]`` of the last step may have a text for each seat, by its number; without it the last
  observation belongs to the seat that acted;
* ``info["successes"]`` of the last step may have a truth value for each seat; without it a seat has succeeded if its
  payoffs add up to more than 0, and the game was not truncated;
* ``zero_sum = True`` promises that the payoffs of every step add up to 0;
* a method ``observe(seat)`` may return what a seat sees now. Then the observation of ``reset``, and of every step with
  a valid action that does not end the game, must be equal to ``observe(info["to_move"])``.

Where several seats act at the same time, the environment asks them one after the other, shows none of them what the
others have done, and plays the actions when it has all of them.
"""

import math
from collections.abc import Mapping
from typing import Any

import gymnasium as gym

from gym_trl.errors import ConfigError, SeatError
from gym_trl.wrappers.base import Reset, Step, TextWrapper, attribute_of, layer_of, layers_of

_ROUNDING = 1e-6


class Seats(TextWrapper):
    r"""Wrapper for an environment of several seats that checks its protocol and pays each seat for its own actions.

    >>> env = Seats(gym.make("TrlEnv/KuhnPoker-v0"))
    >>> observation, info = env.reset(seed=1)
    >>> info["to_move"], observation
    (0, 'You are player 1.\nYour card: Q. Played: nothing.')
    >>> observation, reward, terminated, truncated, info = env.step("bet")
    >>> info["player"], info["to_move"], observation
    (0, 1, 'You are player 2.\nYour card: K. Played: bet.')
    >>> env.step("bet")[4]["payoffs"]
    (-2.0, 2.0)

    The reward of a step is the payoff of the seat that acted, ``info["player"]``. ``info["payoffs"]`` is present after
    every step, and ``info["successes"]`` after the last one. The protocol is that of ``gym_trl.wrappers.seats``.

    Args:
        env: Environment of several seats. The wrapper belongs inside of those that parse actions.

    Raises:
        ConfigError: The environment has one seat.
        SeatError: In a reset or a step the environment breaks the protocol; the message names the seat and the turn.
    """

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        self.num_seats = int(attribute_of(env, "num_seats", 1))
        """Number of seats."""
        if self.num_seats < 2:
            raise ConfigError(
                f"{env} has one seat: an environment of several has the attribute num_seats, info['to_move'] and "
                "info['payoffs'] (see gym_trl.wrappers.seats)"
            )
        as_it_is = all(type(layer).__module__ == "gymnasium.wrappers.common" for layer in layers_of(env)[:-1])
        self._observe = attribute_of(env, "observe") if as_it_is else None
        self._next = self._turns = 0
        self._paid: list[float] = []

    def begin(self, observation: Any, info: dict[str, Any]) -> Reset:
        """Check who begins."""
        self._turns = 0
        self._paid = [0.0] * self.num_seats
        self._pass_to(info, observation, "at reset")
        return observation, info

    def act(self, action: Any) -> Step:
        """Play an action of the seat to move."""
        player, self._turns = self._next, self._turns + 1
        where = f"in turn {self._turns}, of seat {player}"
        observation, reward, terminated, truncated, info = self.env.step(action)
        over = terminated or truncated
        payoffs = self._payoffs(info, where, float(reward), terminated=terminated)
        self._paid = [sum(pair) for pair in zip(self._paid, payoffs, strict=True)]
        info = {**info, "player": player, "payoffs": payoffs}
        info.pop("success", None)  # whose would it be?
        if over:
            declared = info.get("successes")
            if declared is not None and (isinstance(declared, str | Mapping) or len(declared) != self.num_seats):
                raise SeatError(f"info['successes'] must have {self.num_seats} entries {where}, got {declared!r:.100}")
            won = [terminated and paid > _ROUNDING for paid in self._paid] if declared is None else declared
            info["successes"] = tuple(map(bool, won))
            info["success"] = info["successes"][player]
            return observation, payoffs[player], terminated, truncated, info
        valid = bool(info.get("action_valid", True))
        if not valid:
            info.setdefault("to_move", player)  # a wrapper that refuses an action knows nothing of seats
        self._pass_to(info, observation if valid else None, where)
        return observation, payoffs[player], False, False, info

    def _pass_to(self, info: dict[str, Any], observation: Any, where: str) -> None:
        """Note the seat to move, and check that the observation is what it sees, if the environment can say that."""
        seat: Any = info.get("to_move")
        if seat not in range(self.num_seats):
            raise SeatError(
                f"info['to_move'] must be the seat that acts next, 0 to {self.num_seats - 1}; got {seat!r:.100} {where}"
            )
        self._next = int(seat)
        if self._observe is None or not isinstance(observation, str):
            return
        if observation != (own := self._observe(self._next)):
            others = [seat for seat in range(self.num_seats) if self._observe(seat) == observation]
            whose = f", which is what seat {others[0]} sees" if others else ""
            raise SeatError(f"seat {self._next} is shown {observation!r:.200}{whose}, not {own!r:.200}, {where}")

    def _payoffs(self, info: dict[str, Any], where: str, reward: float, *, terminated: bool) -> tuple[float, ...]:
        """Return the checked payoffs of a step."""
        declared: Any = info.get("payoffs")
        if declared is None:
            if terminated:
                raise SeatError(f"the game ends without info['payoffs'], a reward for each seat, {where}")
            if reward:
                raise SeatError(f"a reward of {reward:g} is paid without info['payoffs'], which says to whom, {where}")
            return (0.0,) * self.num_seats
        try:
            payoffs = () if isinstance(declared, str | Mapping) else tuple(float(value) for value in declared)
        except (TypeError, ValueError):
            payoffs = ()
        if len(payoffs) != self.num_seats or not all(map(math.isfinite, payoffs)):
            raise SeatError(f"info['payoffs'] must be {self.num_seats} finite numbers, got {declared!r:.100} {where}")
        total = math.fsum(payoffs)
        if attribute_of(self.env, "zero_sum") and abs(total) > _ROUNDING * max(1.0, *map(abs, payoffs)):
            raise SeatError(f"zero_sum is declared, and the payoffs {payoffs} add up to {total:g} {where}")
        return payoffs


def plays_all_seats(env: gym.Env[Any, Any]) -> bool:
    """Return whether whoever steps an environment plays several seats, which ``Seats`` does not tell apart.

    >>> plays_all_seats(gym.make("TrlEnv/KuhnPoker-v0")), plays_all_seats(gym.make("TrlEnv/Echo-v0"))
    (True, False)
    """
    return attribute_of(env, "num_seats", 1) > 1 and layer_of(env, Seats) is None
