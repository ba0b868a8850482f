"""State key: a short text that names the state of an episode, so that turns of different episodes can be compared.

Credit per turn compares what followed from one state in several episodes of a task. Two things name the state:

* **The environment** declares its key as ``info["state_key"]`` at reset and after each step, or as the attribute
  ``state_key``, which is read only if somebody asks and does not show a hidden state to those who read ``info``. A key
  is made of strings, numbers, booleans, ``None`` and tuples of these. It names the state within one task.
* **Its wrappers** add what they keep: the attribute ``state_part`` of a wrapper is the state of its own that later
  observations, rewards or ends depend on, and ``None`` if there is none. Every limit on the number of actions
  (``turns_left``, also Gymnasium's ``TimeLimit``) makes time part of the state.

A key is *Markov* if states that share it behave alike under the same actions: equal observations, rewards, ends and
keys from then on. An environment that promises this has ``metadata["markov_state_key"] = True``, and
``gym-trl validate`` tests it. Only then are parts of wrappers added, and only then may returns of one episode stand in
for those of another. A key without the promise still serves a baseline, for which any grouping of states is sound. It
is used as it is: the coarser, the more company a turn has.

A Markov state has two more names. Its *place* is the key without the turns left, where one limit counts them, does
nothing but end the episode (``limit_only_ends``) and pays nothing. The *task* is named by the environment's attribute
``task_key``, if seeds that share it have the same states: then episodes of different seeds can be compared.
"""

import math
from collections.abc import Callable, Hashable, Sequence
from hashlib import blake2b
from typing import Any, TypeAlias

import gymnasium as gym

from gym_trl.errors import ConfigError, described, raise_interrupt, safe_str
from gym_trl.kinds import load_function
from gym_trl.types import StateName
from gym_trl.wrappers.frozen import FrozenAfterEnd, Step
from gym_trl.wrappers.minigrid_text import minigrid_key
from gym_trl.wrappers.settlement import pays_at_limit, traits_of_layers, turns_left
from gym_trl.wrappers.toy_text import toy_text_key
from gym_trl.wrappers.traits import LayerTraits, has_state_key, layers_of, task_key_of

KeyFunction: TypeAlias = Callable[[Any], Hashable]
"""Function from the unwrapped environment to the key of its current state."""

_PLAIN = frozenset({str, int, float, bool, type(None), bytes})
_LONGEST = 48
_STATELESS = (
    gym.ObservationWrapper,
    gym.ActionWrapper,
    gym.RewardWrapper,
    gym.wrappers.TimeLimit,
    gym.wrappers.OrderEnforcing,
    gym.wrappers.PassiveEnvChecker,
    gym.wrappers.RecordEpisodeStatistics,
)
"""Wrappers of Gymnasium that keep no state, or a number of turns, which every layer is asked for."""
_STATEFUL = frozenset({"DelayObservation", "NormalizeObservation", "StickyAction", "TimeAwareObservation"})
"""Names of Gymnasium's wrappers that keep or show a state although their base class suggests otherwise."""


class StateKey(FrozenAfterEnd):
    """Wrapper that puts the key of the current state into ``info["state_key"]``, as a text equal in every process.

    >>> import gymnasium as gym
    >>> env = StateKey(gym.make("FrozenLake-v1", is_slippery=False), key=lambda lake: int(lake.s))
    >>> env.reset(seed=0)[1]["state_key"], env.step(2)[4]["state_key"]
    ('0', '1')
    >>> env.markov_state_key
    False

    Put it outside of all other wrappers, as ``GymSpec(state_key=...)`` does. The key is that of ``key``; without it the
    one that the environment declares (see ``gym_trl.wrappers.state_key``), which is known for Gymnasium's toy-text
    games (Markov) and for MiniGrid (not Markov); if there is none, a digest of the history of observations and parsed
    actions, which is not Markov either. A key of more than 48 characters becomes a digest of 32.

    Args:
        env: Any environment, with its wrappers.
        key: Function of the unwrapped environment, called after each reset and each step, or its name,
            ``"package.module:function"``. It replaces the key that the environment declares. The attribute
            ``markov_state_key = True`` of the function declares that its keys are Markov.

    Raises:
        ConfigError: The function does not exist; at reset or in a step, the function raises, or a key is not hashable
            or is made of other things than strings, numbers, booleans, ``None`` and tuples of these. Within an episode
            this is a failure of the infrastructure, so the episode is unscored.
    """

    reads_text = False

    def __init__(self, env: gym.Env[Any, Any], key: KeyFunction | str | None = None) -> None:
        super().__init__(env, key=key)
        self._function: KeyFunction | None = None if key is None else load_function(key)
        self._read: Callable[[dict[str, Any]], Hashable] | None = None
        self._layers: list[tuple[Any, LayerTraits]] = []  # those that add to the key
        self._owner: Any = None  # the layer with the attribute
        self._declared: Hashable = None
        self._history = ""
        self._limit_pays = True
        self._place: tuple[str, int] | None = None
        self.state_key = ""
        """Key of the current state."""
        self.markov_state_key = False
        """True if states that share a key are promised to behave alike; valid after a reset."""
        self.task_key = ""
        """Name of the task, the same for all seeds whose episodes have the same states; empty if there is none."""

    @property
    def declared(self) -> bool:
        """True if the environment or ``key`` names the state, so that it is not named by its history."""
        return self._read is not None

    @property
    def state(self) -> StateName:
        """Names of the current state.

        The place and the turns left are known if the keys are Markov, a single limit counts turns, it does nothing but
        end the episode (``limit_only_ends``, and Gymnasium's ``TimeLimit``), and it pays nothing.
        """
        return StateName(self.state_key) if self._place is None else StateName(self.state_key, *self._place)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode."""
        self._history = repr((seed, options or {}))
        return super().reset(seed=seed, options=options)

    def _restart(self, observation: Any, info: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        self._plan(info)
        self._history = _digest(f"{self._history} {observation!r}")
        self.state_key = self._now(info)
        return observation, {**info, "state_key": self.state_key}

    def _step(self, action: Any) -> Step:
        observation, reward, terminated, truncated, info = self.env.step(action)
        if self._read is None:
            played = None if "parse_error" in info else info.get("action", action)
            self._history = _digest(f"{self._history} {played!r} {observation!r}")
        self.state_key = self._now(info)
        return observation, reward, terminated, truncated, {**info, "state_key": self.state_key}

    def _plan(self, info: dict[str, Any]) -> None:
        """Choose the source of the episode's keys, and the layers that add to them."""
        layers = layers_of(self.env)
        declared = traits_of_layers(self.env)
        markov = bool(self.env.metadata.get("markov_state_key"))
        self._read = None
        if self._function is not None:
            self._read, markov = self._of_function, bool(getattr(self._function, "markov_state_key", False))
        elif "state_key" in info:
            self._declared, self._read = info["state_key"], self._in_info
        elif (owner := next(filter(has_state_key, reversed(layers)), None)) is not None:
            self._owner, self._read = owner, self._of_attribute
        elif toy_text_key(self.unwrapped) is not None:
            self._read, markov = self._of_toy_text, True
        elif minigrid_key(self.unwrapped) is not None:
            self._read = self._of_minigrid
        self.markov_state_key = self._read is not None and markov and all(map(_adds_all, layers[1:], declared[1:]))
        pairs = zip(layers, declared, strict=True) if self.markov_state_key else ()
        self._layers = [pair for pair in pairs if _adds(*pair)]
        self._limit_pays = pays_at_limit(self.env) if self._layers else True
        self.task_key = self._named_task(declared) if self.markov_state_key else ""

    def _named_task(self, declared: Sequence[LayerTraits]) -> str:
        """Return the name of the task, if no wrapper has a state or a generator of its own that depends on the seed."""
        if any(one.markov_state_key is not None for one in declared[1:]) or self._function is not None:
            return ""
        if self._read == self._of_toy_text:
            return "any"  # its keys name the state among all tasks
        key: Hashable = task_key_of(self.unwrapped)
        return "" if key is None else as_text_key(key)

    def _of_function(self, info: dict[str, Any]) -> Hashable:
        assert self._function is not None
        try:
            return self._function(self.unwrapped)
        except ConfigError:
            raise
        except BaseException as error:
            raise_interrupt(error)
            raise ConfigError(f"state_key for {safe_str(self.unwrapped)} raised {described(error)}") from error

    def _in_info(self, info: dict[str, Any]) -> Hashable:
        # A wrapper that did not step the environment, because it found no action, has no key of it in `info`.
        self._declared = info.get("state_key", self._declared)
        return self._declared

    def _of_attribute(self, info: dict[str, Any]) -> Hashable:
        key: Hashable = self._owner.state_key
        return key

    def _of_toy_text(self, info: dict[str, Any]) -> Hashable:
        return toy_text_key(self.unwrapped)

    def _of_minigrid(self, info: dict[str, Any]) -> Hashable:
        return minigrid_key(self.unwrapped)

    def _now(self, info: dict[str, Any]) -> str:
        if self._read is None:
            return self._history
        key, self._place = self._read(info), None
        if not self._layers:
            return as_text_key(key)
        parts = _parts(self._layers)
        counting = [(only_ends, left) for only_ends, left, _ in parts if left is not None]
        if not self._limit_pays and len(counting) == 1 and counting[0][0]:
            timeless = [part for *_, part in parts if part is not None]
            self._place = as_text_key((key, *timeless) if timeless else key), counting[0][1]
        return as_text_key((key, *[_joined(*part) for _, *part in parts]))


def as_text_key(key: Hashable) -> str:
    """Return a state key as a text that is equal in every process.

    >>> as_text_key((3, "left", True)), as_text_key("kitchen"), len(as_text_key(tuple(range(99))))
    ("(3, 'left', True)", "'kitchen'", 32)
    >>> as_text_key([3, 4])
    Traceback (most recent call last):
        ...
    gym_trl.errors.ConfigError: a state key must be hashable and made of strings, numbers, ..., got list: [3, 4]

    Raises:
        ConfigError: It is not hashable, or made of something else.
    """
    written = repr(_plain(key))
    return written if len(written) <= _LONGEST else _digest(written)


def _plain(key: Any) -> Any:
    """Return a key whose ``repr`` is the same in every process."""
    kind = type(key)
    if kind is tuple:
        return key if _PLAIN.issuperset(map(type, key)) else tuple([_plain(part) for part in key])
    return key if kind in _PLAIN else _made_plain(key)


def _made_plain(key: Any) -> Any:
    if isinstance(key, tuple):
        return tuple(map(_plain, key))
    if isinstance(key, frozenset):
        return ("frozenset", *sorted(map(repr, map(_plain, key))))
    for plain in (str, int, float):
        if isinstance(key, plain):  # of a subclass, such as an enumeration
            return plain.__str__(key) if plain is str else plain(key)
    if hasattr(key, "item") and getattr(key, "shape", None) == ():  # NumPy's other numbers
        return key.item()
    raise ConfigError(
        "a state key must be hashable and made of strings, numbers, booleans, None and tuples of these, "
        f"got {type(key).__name__}: {key!r:.80}"
    )


def _digest(text: str) -> str:
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def _adds_all(layer: Any, declared: LayerTraits) -> bool:
    """Return True if everything is known that a wrapper adds to the state."""
    names = {kind.__name__ for kind in type(layer).__mro__}
    stateless = isinstance(layer, _STATELESS) and not names & _STATEFUL
    return declared.state_part or stateless if declared.markov_state_key is None else declared.markov_state_key


def _adds(layer: Any, declared: LayerTraits) -> bool:
    """Return True if a layer adds to the key, or to the number of actions that reach the layers inside of it."""
    return declared.actions_per_turn != 1 or turns_left(layer, declared) < math.inf or _own(layer, declared) is not None


def _own(layer: Any, declared: LayerTraits) -> Hashable:
    part: Hashable = layer.state_part if declared.state_part else None
    return part


def _parts(layers: list[tuple[Any, LayerTraits]]) -> list[tuple[bool, int | None, Any]]:
    """Return what layers add to the key: the turns left, the layer's own state, or both; the innermost layer first.

    The first of the three is true if the layer's limit only ends the episode.

    A ``TimeLimit`` of Gymnasium that is further away than a limit around it never applies, so it is no part of the
    state: otherwise two episodes with different numbers of unreadable responses would never share one.
    """
    parts: list[tuple[bool, int | None, Any]] = []
    most = math.inf  # actions that can still reach the layer
    for layer, declared in reversed(layers):
        part, left = _own(layer, declared), turns_left(layer, declared)
        timed = isinstance(layer, gym.wrappers.TimeLimit)
        applies = left < math.inf and not (timed and left > most)
        if applies or part is not None:
            parts.append((timed or declared.limit_only_ends, int(left) if applies else None, part))
        most = min(most, left) * declared.actions_per_turn
    return parts[::-1]


def _joined(left: int | None, part: Any) -> Any:
    return part if left is None else left if part is None else (left, part)
