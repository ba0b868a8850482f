"""Environments as a user configures them: ids, wrappers, text conversion and action format. No trainer is needed."""

import math
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import KW_ONLY, dataclass, field
from functools import lru_cache, partial
from inspect import signature
from itertools import accumulate
from typing import Any, Literal, NamedTuple

import gymnasium as gym
import numpy as np

from gym_trl.errors import ConfigError, GymTRLError, failures_ignored, raise_interrupt, refused, stops_a_rollout
from gym_trl.executors import EXECUTORS, Executor, make_pool
from gym_trl.executors.inline import TextEnvironment, close_env
from gym_trl.options import Envs, Function, check_options
from gym_trl.random_play import random_play
from gym_trl.registration import EnvMaker, EnvSource, cannot_make, env_name, find_maker
from gym_trl.seeding import OwnGlobalRandom, derive_seed, task_seed
from gym_trl.spaces import holds, holds_text
from gym_trl.text.parsing import ActionFormat
from gym_trl.types import Task
from gym_trl.wrappers.as_text import TextAction, TextObservation, as_text
from gym_trl.wrappers.base import attribute_of, instructions_of, layer_of
from gym_trl.wrappers.declare_success import declare_success
from gym_trl.wrappers.instructions import Instructions
from gym_trl.wrappers.levels import Levels
from gym_trl.wrappers.parse_action import ParseAction
from gym_trl.wrappers.reward import InvalidActionPenalty
from gym_trl.wrappers.seats import Seats, plays_all_seats
from gym_trl.wrappers.state_key import StateKey
from gym_trl.wrappers.turn_limit import TurnLimit

END_AFTER_INVALID = 3
"""Consecutive invalid actions that end an episode without a ``turn_limit``: a response without an action is no turn of
the environment's, so nothing else but the context would end it."""


class Probed(NamedTuple):
    """Properties of a specification's environments, by id, and the executor chosen for them."""

    instructions: dict[str, str]
    """Instructions without the sentence on the action format."""
    num_instances: dict[str, int | None]
    """Number of instances that ``reset`` can choose from; ``None`` if unknown."""
    executor: Executor
    seats: dict[str, int]
    """Number of seats that are played; 1 unless all seats are."""


@dataclass(frozen=True, eq=False)
class EnvSpec:
    r"""Configuration of environments, by the names of ``GymSpec``'s arguments; it can be pickled if they can.

    >>> spec = EnvSpec("TrlEnv/GuessNumber-v0", env_kwargs={"high": 8, "turns": 4}, action_format="boxed")
    >>> env = spec.make("TrlEnv/GuessNumber-v0")
    >>> env.reset(seed=0, options={"instance": 3})[0], env.step("\\boxed{4}")[0]
    ('Guess 1 to 8 in 4 tries.', 'Correct.')

    Raises:
        ConfigError: An id is unknown, or an argument is invalid.
    """

    env: Envs
    _: KW_ONLY
    env_kwargs: Mapping[str, Any] = field(default_factory=dict)
    seats: Literal["self"] | None = None
    curriculum: Sequence[Mapping[str, Any]] = ()
    """Arguments of the environment by level of difficulty, in addition to ``env_kwargs``."""
    wrappers: Sequence[Function] = ()
    observe: Any = None
    act: Any = None
    action_format: str | None = "tag"
    invalid_penalty: float = 0.0
    end_after_invalid: int | None = None
    """Consecutive invalid actions that end an episode. Default: 3 without ``turn_limit``, otherwise none do."""
    turn_limit: int | None = None
    instructions: str | None = None
    success: Any = None
    state_keys: bool = False
    """States get names, for credit per turn (``StateKey``)."""
    weights: Mapping[str, float] = field(init=False)
    """Share of each environment in the tasks, by id."""
    _makers: Mapping[str, EnvMaker] = field(init=False, repr=False)
    _kwargs: Mapping[str, dict[str, Any]] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Check the arguments, and find the environments."""
        checked = check_options(vars(self))
        makers, weights = _makers_and_weights(self.env)
        derived = {"_makers": makers, "weights": weights, "_kwargs": kwargs_by_id(weights, self.env_kwargs)}
        for name, value in (checked | derived).items():
            object.__setattr__(self, name, value)
        if self.action_format is not None:
            try:
                ActionFormat(self.action_format)
            except ConfigError as error:
                raise ConfigError(f"action_{error}") from error  # which begins with "format"
        if self.curriculum and len(weights) > 1:
            raise ConfigError(f"a curriculum has the levels of one environment, got {list(weights)}")

    def make(self, env_id: str) -> TextEnvironment:
        """Make one of the environments, with its wrappers."""
        if env_id not in self._kwargs:
            raise ConfigError(f"a task asks for {env_id!r}, which is not one of the spec's: {list(self.weights)}")
        env = Levels(partial(self._stack, env_id), self.curriculum) if self.curriculum else self._stack(env_id)
        return StateKey(env) if self.state_keys else env

    @contextmanager
    def checked(self, env_id: str) -> Iterator[TextEnvironment]:
        """Provide one of the environments, which the ``with`` block closes.

        Raises:
            ConfigError: It cannot be made.
            NotTextError: Observations or actions cannot be converted to text, and ``observe`` or ``act`` is missing.
        """
        try:
            env = self.make(env_id)
        except GymTRLError:
            raise
        except BaseException as error:
            raise_interrupt(error)
            raise cannot_make(env_id, self._makers[env_id], self._kwargs[env_id], error) from error
        with ExitStack() as stack:
            stack.callback(close_env, env)
            stack.enter_context(refused(f"{env_id} cannot be used: it"))
            yield env

    def probe(self, executor: Executor | None = None, *, step_timeout: float | None = None) -> Probed:
        """Make each environment once, to report errors before a model is loaded, and choose an executor.

        Without ``executor`` it is the one that meets the needs of all environments.

        If a function is given (``observe``, ``act`` or ``success``), the environment is reset, and each is called once,
        unless its executor has processes or a timeout is given: such an environment may hang or exit, so only the
        arguments of the functions are checked. With ``state_keys`` it is reset in any case.

        Raises:
            ConfigError: An environment cannot be made, or not be stepped by the executor, or a function does not take
                or return what it must.
            NotTextError: Observations or actions cannot be converted to text, and ``observe`` or ``act`` is missing.
        """
        for place, wrap in enumerate(self.wrappers):
            _check_arguments(f"wrappers[{place}]", wrap, "env")
        _check_arguments("observe", self.observe, "observation", "info")
        _check_arguments("act", self.act, "text")
        _check_arguments("success", self.success, "info", "return")
        instructions, num_instances, choices = dict[str, str](), dict[str, int | None](), set[str]()
        seats = dict[str, int]()
        for env_id in self.weights:
            with self.checked(env_id) as env:
                rules = instructions_of(env)
                instructions[env_id] = without_format(rules, self.action_format)
                num_instances[env_id] = attribute_of(env, "num_instances")
                seats[env_id] = 1 if self.seats is None else attribute_of(env, "num_seats", 1)
                if self.seats is None and plays_all_seats(env):
                    raise ConfigError(
                        f"{env_id} has {attribute_of(env, 'num_seats')} seats, and its reward is that of none of them: "
                        "let the model play all seats (seats='self', --seats self), evaluate it with gym-trl eval "
                        "--against, or have the other seats played by gym_trl.wrappers.Opponent"
                    )
                self._check_functions(env, executor, step_timeout)
                if executor is None:
                    preferred = attribute_of(env, "preferred_executor") or "thread"
                    if preferred not in EXECUTORS:
                        raise ConfigError(
                            f"{env_id!r} has the preferred_executor {preferred!r}, not one of {tuple(EXECUTORS)}"
                        )
                    choices.add(preferred)
        if executor is None:
            executor = max(choices, key=list(EXECUTORS).index)  # which meets the needs of all
            if step_timeout is not None and executor == "inline":
                executor = "process"  # inline stepping has no timeout
        make_pool(self.make, executor, step_timeout=step_timeout).close()  # reports invalid arguments now
        return Probed(instructions, num_instances, executor, seats)

    def _check_functions(self, env: TextEnvironment, executor: Executor | None, step_timeout: float | None) -> None:
        """Call the functions that a user gave on an environment that is reset, as far as ``probe`` says.

        What the environment raises is left to the first rollout, which counts it, and so is what ``act`` and
        ``success`` raise. The global random generators are not changed.
        """
        executor = executor or attribute_of(env, "preferred_executor") or "thread"
        apart = executor not in ("inline", "thread") or step_timeout is not None
        given = any(map(callable, (self.observe, self.act, self.success)))
        if not self.state_keys and (apart or not given):
            return
        with OwnGlobalRandom(0), left_to_the_rollout():
            if callable(self.observe) and not apart:
                observation, info = layer_of(env, TextObservation).env.reset(seed=0)  # type: ignore[union-attr]
                if observation is not None and isinstance(info, Mapping):
                    with refused("observe"):
                        text = self.observe(observation, info)
                    _check_returned("observe", isinstance(text, str), text, "text")
            observation, info = env.reset(seed=0)
            if apart or not isinstance(info, Mapping):
                return
            if callable(self.success):
                solved: Any = None
                with failures_ignored():
                    solved = self.success(info, 0.0)
                right = solved is None or isinstance(solved, bool | np.bool_)
                _check_returned("success", right, solved, "True, False or None")
            if self.act is not None:
                space = layer_of(env, TextAction).env.action_space  # type: ignore[union-attr]
                right, action = True, None
                with failures_ignored():
                    action = self.act(random_play(env, 0)(observation, info))
                    right = isinstance(action, str) if holds_text(space) else holds(space, action)
                _check_returned("act", right, action, f"an action of {space!s:.100}, or raise ValueError for none")

    def _stack(self, env_id: str, **level: Any) -> TextEnvironment:
        kwargs = {**self._kwargs[env_id], **level}
        made = self._makers[env_id](**kwargs)
        if not isinstance(made, gym.Env):
            raise ConfigError(f"{env_id} makes no gymnasium.Env: {type(made).__name__}")
        # Seats declares the success of each seat.
        made = declare_success(made, self.success) if self.seats is None else Seats(made)
        for place, wrap in enumerate(self.wrappers):
            inner, made = made, wrap(made)
            if not isinstance(made, gym.Env):
                close_env(inner)
                raise ConfigError(f"wrappers[{place}] must return a gymnasium.Env, got {made!r:.80} from {wrap!r:.80}")
        env = as_text(made, observe=self.observe, act=self.act)
        if self.instructions:  # before the format's sentence, which the model still needs
            env = Instructions(env, self.instructions)
        # One of the user's wrappers may parse responses already.
        if self.action_format is not None or not attribute_of(env, "reads_responses"):
            usual = END_AFTER_INVALID if self.turn_limit is None else None  # the limit ends them as well
            env = ParseAction(env, self.action_format, end_after=self.end_after_invalid or usual)
        if self.turn_limit is not None:
            env = TurnLimit(env, self.turn_limit)
        if self.invalid_penalty:
            env = InvalidActionPenalty(env, self.invalid_penalty)
        return Instructions(env, "") if self.instructions == "" else env


def _check_returned(name: str, right: bool, returned: Any, wanted: str) -> None:
    if not right:
        raise ConfigError(f"{name} must return {wanted}, got {type(returned).__name__} {returned!r:.80}")


def _check_arguments(name: str, function: Any, *arguments: str) -> None:
    """Check that a function can be called with these arguments, by position; one without a signature is not checked.

    Raises:
        ConfigError: It cannot.
    """
    if not callable(function):
        return
    try:
        taken = signature(function)
    except (TypeError, ValueError):  # a function of Python's own
        return
    try:
        taken.bind(*arguments)
    except TypeError as error:
        raise ConfigError(f"{name} must take ({', '.join(arguments)}), got {function!r:.100}: {error}") from error


@contextmanager
def left_to_the_rollout() -> Iterator[None]:
    """Ignore what an environment raises in the block, but for mistakes of the user and interrupts of this program."""
    try:
        yield
    except BaseException as error:
        raise_interrupt(error)
        if stops_a_rollout(error):
            raise


@dataclass(frozen=True, eq=False)
class TaskPlan:
    """Tasks of several environments, mixed by weight; instances that can be counted are cycled through.

    >>> plan = TaskPlan({"Echo-v0": 1, "TicTacToe-v0": 2}, {"TicTacToe-v0": 2}, {"train": 3}, seed=0)
    >>> [(task.env_id, task.options) for task in plan.tasks("train")]
    [('TicTacToe-v0', {'instance': 0}), ('Echo-v0', {}), ('TicTacToe-v0', {'instance': 1})]
    """

    weights: Mapping[str, float]
    num_instances: Mapping[str, int | None]
    """Number of instances of the environments whose instances are cycled through."""
    sizes: Mapping[str, int]
    """Number of tasks of each split."""
    seed: int

    def tasks(self, split: str) -> Iterator[Task]:
        """Generate the tasks of a split; no two tasks of the plan have the same seed."""
        if split not in self.sizes:
            raise ConfigError(f"split must be one of {sorted(self.sizes)}, got {split!r}")
        played: Counter[str] = Counter()
        for index in range(self.sizes[split]):
            # Next is the environment that is furthest behind its share, which mixes every stretch of tasks evenly.
            env_id = min(self.weights, key=lambda name: (played[name] + 1) / self.weights[name])
            yield Task(env_id, task_seed(self.seed, split, index), self._options(env_id, split, played[env_id]))
            played[env_id] += 1

    def assign(self, split: str, number: int) -> Task:
        """Return the task of group ``number`` of a split, for prompts that carry none."""
        totals = list(accumulate(self.weights.values()))
        point = derive_seed(number, "environment") / 2**63 * totals[-1]
        return Task(list(self.weights)[bisect_right(totals, point)], task_seed(self.seed, split, number))

    def _options(self, env_id: str, split: str, index: int) -> dict[str, Any]:
        count = self.num_instances.get(env_id)
        if count is None or count > 2**20:  # too many instances to permute: they are sampled by seed
            return {}
        round_, place = divmod(index, count)
        order = split if round_ else "train"
        if split == "eval" and not round_:  # from the other end of the order, so that trainings do not reach them soon
            place = count - 1 - place
        return {"instance": int(_shuffled(derive_seed(self.seed, "spread", order, env_id, round_), count)[place])}


@lru_cache(maxsize=8)
def _shuffled(seed: int, count: int) -> Any:
    return np.random.default_rng(seed).permutation(count)


def without_format(instructions: str, action_format: str | re.Pattern[str] | None) -> str:
    """Return the instructions without the sentence of ``ParseAction`` on the action format, which tools do not need.

    >>> without_format("Guess a word. Put your action between <action> and </action>.", "tag")
    'Guess a word.'
    """
    if action_format is None:
        return instructions
    return instructions.removesuffix(ActionFormat(action_format).sentence).strip()


def kwargs_by_id(ids: Collection[str], env_kwargs: Mapping[str, Any] | None) -> dict[str, dict[str, Any]]:
    """Return the arguments of each environment; with a single id ``env_kwargs`` may be given without the id.

    >>> kwargs_by_id(["Echo-v0"], {"turns": 2}), kwargs_by_id(["Echo-v0", "TicTacToe-v0"], {"Echo-v0": {"turns": 2}})
    ({'Echo-v0': {'turns': 2}}, {'Echo-v0': {'turns': 2}, 'TicTacToe-v0': {}})
    """
    given = dict(env_kwargs or {})
    if len(ids) == 1:
        only = next(iter(ids))
        return {only: dict(given[only]) if set(given) == {only} else given}
    if unknown := sorted(set(given) - set(ids)):
        raise ConfigError(f"with several ids env_kwargs must be {{id: kwargs}}; {unknown[0]!r} is none of the ids")
    return {env_id: dict(given.get(env_id, {})) for env_id in ids}


def _makers_and_weights(env: Envs) -> tuple[dict[str, EnvMaker], dict[str, float]]:
    """Return the maker and the weight of each environment, by name."""
    if isinstance(env, Mapping):
        given: list[tuple[EnvSource, float]] = list(env.items())
    else:
        given = [(one, 1.0) for one in (env if isinstance(env, Sequence) and not isinstance(env, str) else [env])]
    if not given:
        raise ConfigError("env must name at least one environment, got none")
    makers: dict[str, EnvMaker] = {}
    weights: dict[str, float] = {}
    for source, weight in given:
        name = env_name(source)
        if not isinstance(weight, int | float) or not 0 < weight < math.inf:
            raise ConfigError(f"the weight of {name!r} must be a positive finite number, got {weight!r}")
        maker = find_maker(source)
        if name in makers and not isinstance(source, str) and makers[name] is not maker:
            raise ConfigError(f"two environments are called {name}: give functions or classes with names of their own")
        makers[name], weights[name] = maker, weight
    return makers, weights
