"""Vector environment for text environments, with Gymnasium's interface."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import VectorEnv
from gymnasium.vector.utils import batch_space

from gym_trl.errors import ActionTypeError, ConfigError, check_counts
from gym_trl.executors.crews import CREWS, AutoresetMode, EnvStep, Maker
from gym_trl.spaces import AnyText

_MISSING: Any = object()
_EMPTY: dict[type, Any] = {bool: False, int: 0, float: 0.0, object: None}


class TextVectorEnv(VectorEnv[Any, Any, Any]):
    """Vector environment of text environments that are reset and stepped together.

    >>> import gymnasium as gym
    >>> envs = gym.make_vec("TrlEnv/GuessNumber-v0", 4)
    >>> observations, _ = envs.reset(seed=7, group_size=2)
    >>> observations, rewards, terminated, truncated, infos = envs.step(["25"] * 4)
    >>> observations[0] == observations[1], observations[2] == observations[3], infos["action_valid"].tolist()
    (True, True, [True, True, True, True])
    >>> envs.step_some({3: "30"})[3][1]
    0.0

    ``gym.make_vec`` makes one for this library's ids. It follows Gymnasium's interface: seeds count up from ``seed``,
    infos are arrays with masks, and ended episodes restart according to ``autoreset_mode`` (in the next step, in the
    same step with ``final_obs`` and ``final_info``, or only by ``reset(options={"reset_mask": ...})``).

    An exception of an environment is not raised: its episode is truncated with ``info["error"]``, the other
    environments continue, and a new instance plays its next episode.

    Args:
        makers: Functions that make one environment each; all must have the same spaces.
        autoreset_mode: ``"NextStep"``, ``"SameStep"`` or ``"Disabled"``.
        executor: ``"inline"``; ``"thread"`` for environments that wait for something outside Python; ``"process"`` for
            those that compute, or cannot share an interpreter.
        workers: Number of threads or processes. Default: one for each environment, at most 32.

    Raises:
        ConfigError: no environments, environments with different spaces, or an invalid argument.
        gymnasium.error.ClosedEnvironmentError: it is used after ``close``.
    """

    closed = True  # until the workers have started

    def __init__(
        self,
        makers: Sequence[Maker],
        *,
        autoreset_mode: str | AutoresetMode = AutoresetMode.NEXT_STEP,
        executor: str = "inline",
        workers: int | None = None,
    ) -> None:
        if not makers:
            raise ConfigError("TextVectorEnv needs at least one environment")
        if executor not in CREWS:
            raise ConfigError(f"executor must be one of {list(CREWS)}, got {executor!r}")
        self.num_envs = len(makers)
        workers = min(32, self.num_envs) if workers is None else workers
        check_counts(workers=workers)
        self.autoreset_mode = AutoresetMode(autoreset_mode)
        self._crew = CREWS[executor](list(makers), self.autoreset_mode, min(workers, self.num_envs))
        try:
            properties = self._crew.run([(index, "properties", ()) for index in range(self.num_envs)])
            _check_same_spaces(properties)
            first = properties[0]
            self.metadata = {**first["metadata"], "autoreset_mode": self.autoreset_mode}
            self.render_mode = first["render_mode"]
            self.single_observation_space = first["observation_space"]
            self.single_action_space = first["action_space"]
            self.observation_space = batch_space(self.single_observation_space, self.num_envs)
            self.action_space = batch_space(self.single_action_space, self.num_envs)
            self._takes_text = isinstance(self.single_action_space, AnyText | gym.spaces.Text)
        except BaseException:  # close() is never called if __init__ raises
            self._crew.close()
            raise
        self._observations: list[Any] = [""] * self.num_envs
        self._over = [True] * self.num_envs
        self._began = False
        self.closed = False

    @property
    def np_random_seed(self) -> tuple[int | None, ...]:  # type: ignore[override]  # as in Gymnasium's own vectors
        """Seed of every environment's generator."""
        return self.get_attr("np_random_seed")

    @property  # type: ignore[misc]  # read-only in Gymnasium's vectors, too
    def np_random(self) -> tuple[np.random.Generator, ...]:  # type: ignore[override]
        """Generator of every environment; copies of them if the environments are in processes."""
        return self.get_attr("np_random")

    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: dict[str, Any] | None = None,
        group_size: int = 1,
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Start an episode in every environment; each group of ``group_size`` neighbors gets the same seed.

        Args:
            seed: Seed of the first group, counted up for the others; or one seed for each environment.
            options: Options for every environment; ``"reset_mask"`` is an array that selects the ones to reset.
            group_size: Number of environments with the same seed.
        """
        self._check_open("reset")
        options = dict(options or {})
        mask = options.pop("reset_mask", None)
        chosen = range(self.num_envs) if mask is None else np.flatnonzero(_mask(mask, self.num_envs)).tolist()
        seeds = _seeds(seed, self.num_envs, group_size)
        results = self._crew.run([(index, "begun", (seeds[index], options or None)) for index in chosen])
        for index, result in zip(chosen, results, strict=True):
            self._over[index] = "error" in result[4]
            self._observations[index] = result[0]
        self._began = True
        return tuple(self._observations), self._infos(chosen, [result[4] for result in results])

    def step(
        self, actions: Sequence[Any]
    ) -> tuple[tuple[Any, ...], np.ndarray[Any, Any], np.ndarray[Any, Any], np.ndarray[Any, Any], dict[str, Any]]:
        """Execute an action in every environment.

        Raises:
            ConfigError: ``actions`` is not a sequence of one action for each environment.
            ActionTypeError: an action of an environment with text actions is not a string; no environment is stepped.
        """
        self._check_open("step")
        if isinstance(actions, str | bytes | Mapping) or not isinstance(actions, Collection):
            raise ConfigError(f"step needs a list of {self.num_envs} actions, got {actions!r:.80}")
        if len(actions) != self.num_envs:
            raise ConfigError(f"step needs one action for each of {self.num_envs} environments, got {len(actions)}")
        every = range(self.num_envs)
        observations, rewards, terminated, truncated, infos = zip(*self._advance(every, actions), strict=True)
        self._observations = list(observations)
        return (
            observations,
            np.array(rewards, dtype=np.float64),
            np.array(terminated, dtype=np.bool_),
            np.array(truncated, dtype=np.bool_),
            self._infos(every, infos),
        )

    def step_some(self, actions: Mapping[int, Any]) -> dict[int, EnvStep]:
        """Execute actions in some environments only, and return the results of ``Env.step`` by index."""
        results = self._advance(list(actions), list(actions.values()))
        for index, result in zip(actions, results, strict=True):
            self._observations[index] = result[0]
        return dict(zip(actions, results, strict=True))

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Return an attribute of every environment, or the result of its method of this name."""
        self._check_open("call")
        return tuple(self._crew.run([(index, "called", (name, args, kwargs)) for index in range(self.num_envs)]))

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """Return an attribute of every environment."""
        return self.call(name)

    def set_attr(self, name: str, values: Any) -> None:
        """Set an attribute of every environment, to one value or to one each."""
        self._check_open("set_attr")
        each = values if isinstance(values, list | tuple) else [values] * self.num_envs
        if len(each) != self.num_envs:
            raise ConfigError(f"set_attr takes one value or {self.num_envs}, got {len(each)}")
        self._crew.run([(index, "set", (name, value)) for index, value in enumerate(each)])

    def render(self) -> tuple[Any, ...]:
        """Return the rendering of every environment."""
        return self.call("render")

    def close_extras(self, **kwargs: Any) -> None:
        """Close every environment and end the workers."""
        self._crew.close()

    def _check_open(self, method: str) -> None:
        if self.closed:
            raise gym.error.ClosedEnvironmentError(f"TextVectorEnv.{method} was called after close(); make a new one")

    def _advance(self, indexes: Sequence[int], actions: Sequence[Any]) -> list[EnvStep]:
        self._check_open("step")
        if not self._began:
            raise gym.error.ResetNeeded("TextVectorEnv has not been reset: call reset() before step()")
        over = self._over
        if self.autoreset_mode is AutoresetMode.DISABLED and any(over[index] for index in indexes):
            first = next(index for index in indexes if over[index])
            raise ConfigError(
                f"the episode of environment {first} is over: reset it with options={{'reset_mask': ...}}"
            )
        if self._takes_text:
            for index, action in zip(indexes, actions, strict=True):
                if not isinstance(action, str) and not over[index]:  # an episode that is over ignores its action
                    what = f"{type(action).__name__}: {action!r:.100}"
                    raise ActionTypeError(f"environment {index} takes text, got {what}")
        results = self._crew.step(indexes, actions, over)
        for index, result in zip(indexes, results, strict=True):
            over[index] = (result[2] or result[3]) and "final_obs" not in result[4]
        return results

    def _infos(self, indexes: Sequence[int], infos: Sequence[dict[str, Any]]) -> dict[str, Any]:
        if len(infos) == self.num_envs and (arrays := _columns(infos)) is not None:
            return arrays
        arrays = {}
        for index, info in zip(indexes, infos, strict=True):
            arrays = self._add_info(arrays, info, index)
        return arrays


def _check_same_spaces(properties: Sequence[Mapping[str, Any]]) -> None:
    for name in ("observation_space", "action_space"):
        for index, one in enumerate(properties):
            if one[name] != properties[0][name]:
                raise ConfigError(
                    f"all environments of a vector must have one {name}: that of environment 0 is "
                    f"{properties[0][name]}, and that of environment {index} is {one[name]}; make a vector for each"
                )


def _columns(infos: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """Return the result of ``VectorEnv._add_info`` for all infos at once; ``None`` if their keys or types differ."""
    fullest = max(infos, key=len)
    arrays: dict[str, Any] = {}
    seen = 0
    for key, value in fullest.items():
        kind = object if isinstance(value, str) else type(value)
        if kind not in _EMPTY:
            return None
        column: list[Any] = [info.get(key, _MISSING) for info in infos]
        mask = np.ones(len(infos), dtype=np.bool_)
        missing = column.count(_MISSING)
        if missing:
            mask = np.array([value is not _MISSING for value in column], dtype=np.bool_)
            column = [_EMPTY[kind] if value is _MISSING else value for value in column]
        if kind is not object and {*map(type, column)} != {kind}:
            return None
        arrays[key], arrays[f"_{key}"] = np.array(column, dtype=kind), mask
        seen += len(infos) - missing
    return arrays if seen == sum(map(len, infos)) else None  # otherwise an info has a key that the fullest lacks


def _seeds(seed: int | Sequence[int | None] | None, count: int, group_size: int) -> Sequence[int | None]:
    check_counts(group_size=group_size)
    if seed is None:
        if group_size > 1:
            raise ConfigError("groups share a task only with a seed: reset(seed=..., group_size=...)")
        return [None] * count
    if isinstance(seed, int | np.integer):
        return [int(seed) + index // group_size for index in range(count)]
    if len(seed) != count:
        raise ConfigError(f"seed must be one number or {count}, got {len(seed)}")
    return seed


def _mask(mask: Any, count: int) -> np.ndarray[Any, Any]:
    array = np.asarray(mask)
    if array.shape != (count,) or array.dtype != np.bool_ or not array.any():
        raise ConfigError(f"reset_mask must be an array of {count} bools with a true one among them, got {mask!r}")
    return array


def __getattr__(name: str) -> Any:
    """Return the vector entry point of the environment with class ``name``, for Gymnasium's registry.

    An entry point must be an attribute of a module, and is called without the id.
    """
    env_id = next((one for one, spec in gym.registry.items() if _vector_of(spec) == name), None)
    if env_id is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def make(
        num_envs: int,
        *,
        autoreset_mode: str | AutoresetMode = AutoresetMode.NEXT_STEP,
        executor: str = "inline",
        workers: int | None = None,
        **kwargs: Any,
    ) -> TextVectorEnv:
        makers = [partial(_make, env_id, kwargs)] * num_envs
        return TextVectorEnv(makers, autoreset_mode=autoreset_mode, executor=executor, workers=workers)

    return make


def _make(env_id: str, kwargs: Mapping[str, Any]) -> gym.Env[Any, Any]:
    # Both wrappers cost time in every step. The checker is not needed, because tests check these environments, and they
    # refuse a step before a reset themselves.
    spec = replace(gym.spec(env_id), order_enforce=False, disable_env_checker=True)
    return gym.make(spec, **kwargs)


def _vector_of(spec: Any) -> str:
    return str(spec.vector_entry_point).removeprefix(f"{__name__}:")
