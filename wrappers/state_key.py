"""State key: a short text that names the state of an episode, so that turns of different episodes can be compared.

The environment declares its key as the attribute ``state_key``, made of strings, numbers, booleans, ``None`` and tuples
of these; it names the state within one task. Its wrappers add what they keep (``TextWrapper.part``), and every limit on
turns (``turns_left``, also Gymnasium's ``TimeLimit``) makes time part of the state.

A key is *Markov* if states that share it behave alike under the same actions: equal observations, rewards, ends and
keys from then on. An environment that promises this has ``metadata["markov_state_key"] = True``. Only then may returns
of one episode stand in for those of another; any key serves a baseline, for which any grouping of states is sound.

A Markov state has two more names. Its *place* is the key without the turns left, where one limit counts them and ending
an episode by it pays nothing. The *task* is named by the environment's attribute ``task_key``, if seeds that share it
have the same states.
"""

from collections.abc import Hashable, Mapping
from hashlib import blake2b
from typing import Any

import gymnasium as gym
import numpy as np

from gym_trl.errors import ConfigError
from gym_trl.seeding import generator_key
from gym_trl.types import UNNAMED, StateName
from gym_trl.wrappers.base import Reset, Step, TextWrapper, layers_of
from gym_trl.wrappers.reward import PotentialShaping
from gym_trl.wrappers.turn_limit import limits_of, loss_return_of

_LONGEST = 48


class StateKey(TextWrapper):
    """Wrapper that names the current state, by texts that are equal in every process.

    >>> env = StateKey(gym.make("TrlEnv/GuessNumber-v0"))
    >>> _ = env.reset(seed=0), env.step("25")
    >>> env.state
    StateName(key='((26, 50), 5)', place='(26, 50)', turns_left=5)

    Put it outside of all other wrappers, as ``GymSpec`` does where credit is per turn. The key is the environment's
    (see ``gym_trl.wrappers.state_key``), which is known for Gymnasium's toy-text games; if there is none, a digest of
    the history of observations and actions, which is not Markov. A key of more than 48 characters becomes a digest of
    32.

    Raises:
        ConfigError: At reset or in a step, a key is not hashable or is made of something else.
    """

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        self.state: StateName = UNNAMED
        """Names of the current state."""
        self.markov_state_key = False
        """True if states that share a key are promised to behave alike; valid after a reset."""
        self.task_key = ""
        """Name of the task, the same for all seeds whose episodes have the same states; empty if there is none."""
        self._history = ""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Reset:
        """Start an episode."""
        self._history = repr((seed, options or {}))
        return super().reset(seed=seed, options=options)

    def begin(self, observation: Any, info: dict[str, Any]) -> Reset:
        """Choose how states are named in this episode."""
        layers = layers_of(self.env)
        self._owner = next((layer for layer in layers if hasattr(layer, "state_key")), None)
        self._toy = self._owner is None and type(self.unwrapped).__module__.startswith("gymnasium.envs.toy_text.")
        markov = self._toy or (self._owner is not None and bool(self.env.metadata.get("markov_state_key")))
        self.markov_state_key = markov and all(map(_is_known, layers[:-1]))
        self._layers = [layer for layer in layers if isinstance(layer, TextWrapper)]
        shaped = any(isinstance(layer, PotentialShaping) for layer in layers)
        self._has_place = not shaped and not loss_return_of(self.env, turns=0)
        task = "any" if self._toy else getattr(self.unwrapped, "task_key", None)
        plays = any(hasattr(layer, "num_seats") for layer in self._layers)  # other seats, which draw from the seed
        shares = self.markov_state_key and not plays and task is not None
        self.task_key = as_text_key(task) if shares else ""
        self._name(observation)
        return observation, info

    def act(self, action: Any) -> Step:
        """Play an action."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        self._name((None if "parse_error" in info else info.get("action", action), observation))
        return observation, reward, terminated, truncated, info

    def _name(self, new: Any) -> None:
        """Name the state after a reset or a step, of which the history gets ``new``."""
        if self._owner is not None:
            key = self._owner.state_key
        elif self._toy:
            key = _toy_text_key(self.unwrapped)
        else:
            self._history = _digest(f"{self._history} {new!r}")
            self.state = StateName(self._history)
            return
        if not self.markov_state_key:
            self.state = StateName(as_text_key(key))
            return
        parts = [part for layer in self._layers if (part := layer.part()) is not None]
        place = (key, *parts) if parts else key
        limits = limits_of(self.env)
        # A limit that is further away than one around it does not apply.
        left = [int(one) for number, one in enumerate(limits) if all(one < outer for outer in limits[:number])]
        named = as_text_key((place, *left) if left else place)
        one_limit = len(left) == 1 and self._has_place
        self.state = StateName(named, as_text_key(place), left[0]) if one_limit else StateName(named)


def as_text_key(key: Hashable) -> str:
    """Return a state key as a text that is equal in every process.

    >>> as_text_key((3, "left", True)), as_text_key("kitchen"), len(as_text_key(tuple(range(99))))
    ("(3, 'left', True)", "'kitchen'", 32)
    >>> as_text_key([3, 4])
    Traceback (most recent call last):
        ...
    gym_trl.errors.ConfigError: state_key must be hashable and made of strings, numbers, ..., got list: [3, 4]

    Raises:
        ConfigError: It is not hashable, or made of something else.
    """
    try:
        hash(key)
        written = repr(plain(key))
    except TypeError as error:
        raise ConfigError(
            "state_key must be hashable and made of strings, numbers, booleans, None and tuples of these, "
            f"got {type(key).__name__}: {key!r:.80}"
        ) from error
    return written if len(written) <= _LONGEST else _digest(written)


def plain(value: Any) -> Any:
    """Return a value as one of Python's own classes, or NumPy's arrays: it is the same in every process.

    Raises:
        TypeError: It is, or holds, something else.
    """
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, np.ndarray | np.generic) and not value.dtype.hasobject:
        return np.asarray(value) if isinstance(value, np.ndarray) else value.item()
    if isinstance(value, Mapping):
        return {plain(key): plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return (list if isinstance(value, list) else tuple)(map(plain, value))
    for kind, convert in ((str, str.__str__), (int, int), (float, float)):  # also of a subclass
        if isinstance(value, kind):
            return convert(value)
    raise TypeError(f"{type(value).__name__} is not plain")


def _digest(text: str) -> str:
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def _is_known(layer: Any) -> bool:
    """Return whether it is known what a wrapper adds to the state; of others than ours, some check, count or reward."""
    if not isinstance(layer, TextWrapper):
        return type(layer).__module__ == "gymnasium.wrappers.common" or isinstance(layer, gym.RewardWrapper)
    try:
        layer.part()
    except AttributeError:
        return False
    return True


def _toy_text_key(game: Any) -> Hashable:
    """Return the state of one of Gymnasium's toy-text games, with the generator where outcomes are random."""
    if not hasattr(game, "s"):  # Blackjack
        return tuple(map(int, game.dealer)), tuple(map(int, game.player)), generator_key(game.np_random)
    slips = any(len(ways) > 1 for ways in game.P[int(game.initial_state_distrib.argmax())].values())
    if slips or getattr(game, "fickle_passenger", False):
        return int(game.s), bool(getattr(game, "fickle_step", False)), generator_key(game.np_random)
    return int(game.s)
