"""Base class of the text games: a game implements only its rules."""

import math
import random
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from copy import deepcopy
from inspect import Parameter, Signature, signature
from operator import index
from typing import Any, ClassVar, Literal, NamedTuple, TypeAlias

import gymnasium as gym
import numpy as np
from gymnasium.error import ResetNeeded

from gym_trl.bases import Settling
from gym_trl.envs.arguments import check_argument
from gym_trl.errors import ActionTypeError, ConfigError
from gym_trl.seeding import generator_key
from gym_trl.spaces import AnyText
from gym_trl.types import Policy

Difficulty: TypeAlias = Literal["easy", "medium", "hard"]


class Outcome(NamedTuple):
    """Result of an action.

    >>> Outcome("Correct.", done=True, success=True).valid
    True
    """

    observation: str
    reward: float = 0.0
    """The game's own payoff. Ignored where rewards are for success and follow from ``success``."""
    done: bool = False
    """True if the game is over by its own rules, won or lost."""
    success: bool = False
    valid: bool = True
    """True if the rules allow the action."""
    info: Mapping[str, Any] = {}


_PAID_FOR_SUCCESS = {"success", "efficient", "shaped"}


class Steady:
    """Policy that repeats its last action when an observation does not show the game.

    >>> import re
    >>> policy = Steady(str.upper, re.compile("left|right").search)
    >>> policy("turn left"), policy("No action found.")
    ('TURN LEFT', 'TURN LEFT')

    Wrappers return such observations for actions that do not reach the game, whose state is then unchanged. ``shows``
    returns a true value for an observation that shows the game.
    """

    def __init__(self, policy: Policy, shows: Callable[[str], object]) -> None:
        self._policy, self._shows = policy, shows
        self._said = ""

    def __call__(self, observation: str) -> str:
        """Return the policy's action, or its last one."""
        if self._shows(observation):
            self._said = self._policy(observation)
        return self._said


def _always(action: str) -> Callable[[int], Policy]:
    """Return a function that makes a policy that repeats an action."""
    return lambda seed: lambda observation: action


class TextEnv(Settling, gym.Env[str, str], ABC):
    """Base class of games in text: a subclass implements the rules, this class the common guarantees.

    >>> class Coin(TextEnv):
    ...     instructions = "Call the coin: heads or tails."
    ...     def _start(self, instance, options):
    ...         self.side = self.np_random.choice(["heads", "tails"])
    ...         return "It is in the air."
    ...     def _act(self, action):
    ...         return Outcome(f"It is {self.side}.", done=True, success=action == self.side)
    >>> env = Coin()
    >>> env.reset(seed=0)
    ('It is in the air.', {})
    >>> env.step("tails")
    ('It is tails.', 1.0, True, False, {'action_valid': True, 'success': True})
    >>> env.step("tails")  # over is over
    ('It is tails.', 0.0, True, False, {'action_valid': True, 'success': True})

    These three members are required. All others are optional: ``admissible_actions`` (listed in ``info``, and played by
    the random policy), ``constant_action`` (a blind baseline), ``solver`` and ``optimal_success`` (an upper reference,
    and a check of the rules), ``num_instances`` (countable games, all of which are used in training), ``presets``,
    ``ranges``, ``reward_modes``, ``_reject``, ``_snapshot`` and ``draws`` (the ``state_key``, for credit per turn).

    The guarantees: actions and observations are text; an action that is too long is an invalid action and not an error;
    a finished game returns its last observation and no reward for every action; a game that ends by its rules, also
    when it is lost, is terminated and never truncated; ``info`` has ``action_valid`` and ``success`` after every step;
    randomness comes from ``np_random`` alone.

    Args:
        difficulty: Which of the class's ``presets`` supplies the arguments that are not given; no effect in a class
            without presets.
        reward: One of the class's ``reward_modes``. ``"success"`` pays 1.0 for a won game and nothing else.
            ``"efficient"`` pays, for a won game, the fewest actions needed divided by those taken. ``"shaped"`` is
            ``"success"`` plus the change of a potential, which is 0 at the end: the sum over an episode is that of
            ``"success"`` minus the potential of the start, so extra steps gain nothing. A wrapper that cuts an episode
            off pays ``settlement``, which subtracts the current potential.
        render_mode: ``"ansi"`` or ``"human"``.
        **arguments: Arguments in place of the preset's; each becomes an attribute. A class whose ``__init__`` lists
            its arguments itself completes them with ``_choose`` instead.

    Raises:
        ConfigError: an invalid argument; at reset, an unknown option or an instance that does not exist.
        ActionTypeError: an action that is not a string.
        gymnasium.error.ResetNeeded: a step before the first reset.
    """

    metadata: dict[str, Any] = {"render_modes": ["ansi", "human"], "render_fps": 4}  # noqa: RUF012 -- as gym.Env has it
    option_names: ClassVar[frozenset[str]] = frozenset()
    """Reset options of the game besides ``instance``."""
    presets: ClassVar[Mapping[Difficulty, Mapping[str, Any]]] = {}
    """Arguments by difficulty; each difficulty has all of them. Booleans must be replaced by booleans."""
    ranges: ClassVar[Mapping[str, tuple[Any, ...]]] = {}
    """Allowed values of arguments of ``presets``: the smallest and the largest, or every one of a text.

    ``None`` as a bound means no bound.
    """
    reward_modes: ClassVar[tuple[str, ...]] = ("success",)
    """Values of ``reward``; the first is the default."""
    loss_reward: float = 0.0
    """Least reward that the rest of a game can pay, where rewards are payoffs of its own."""
    garbage: ClassVar[str] = "xyzzy"
    """Text that resembles an action and is never valid."""
    declares_success: ClassVar[bool] = True
    """True: ``info["success"]`` states after every step whether the game is won."""
    preferred_executor: ClassVar[str] = "inline"
    """Default executor of ``GymSpec``: a step takes microseconds."""

    draws: bool = False
    """True if the rules draw random numbers after the start, so that the generator is part of the state."""

    _turns_left: Any = math.inf

    _named: ClassVar[tuple[str, ...]] = ()
    """Arguments of the presets that the signature of ``__init__`` does not list."""
    __signature__: ClassVar[Signature]

    def __init_subclass__(cls, **options: Any) -> None:
        """Give the class a signature that has the arguments of its presets."""
        super().__init_subclass__(**options)
        if "_snapshot" in vars(cls):
            cls.metadata = {**cls.metadata, "markov_state_key": True}
        shared = signature(TextEnv.__init__).parameters
        own = {one.name: one for one in list(signature(cls.__init__).parameters.values())[1:]}
        listed = [one for one in own.values() if one.kind is not Parameter.VAR_KEYWORD]
        if len(listed) < len(own):
            usual = {name: value for name, value in cls.presets.get("medium", {}).items() if name not in own}
            cls._named = tuple(usual)
            kinds = {name: type(value) | None for name, value in usual.items()}
            presets = [Parameter(name, Parameter.KEYWORD_ONLY, default=None, annotation=kinds[name]) for name in usual]
            extra = [one for one in listed if one.name not in shared]
            listed = [shared["difficulty"], *presets, shared["reward"], *extra, shared["render_mode"]]
        cls.__signature__ = Signature(listed)

    def __init__(
        self,
        *,
        difficulty: Difficulty = "medium",
        reward: str | None = None,
        render_mode: str | None = None,
        **arguments: Any,
    ) -> None:
        if unknown := [name for name in arguments if name not in self._named]:
            raise TypeError(f"{type(self).__name__}.__init__() got an unexpected keyword argument {unknown[0]!r}")
        if render_mode is not None and render_mode not in self.metadata["render_modes"]:
            raise ConfigError(f"render_mode must be one of {self.metadata['render_modes']}, got {render_mode!r}")
        if reward is not None and reward not in self.reward_modes:
            raise ConfigError(f"reward must be one of {list(self.reward_modes)}, got {reward!r}")
        if self.presets and difficulty not in list(self.presets):
            raise ConfigError(f"difficulty must be one of {list(self.presets)}, got {difficulty!r}")
        self.render_mode = render_mode
        self.reward = self.reward_modes[0] if reward is None else reward
        self.difficulty: Difficulty | None = difficulty
        """Difficulty of the preset; ``None`` if an argument differs from it."""
        self.observation_space: AnyText = AnyText()
        self.action_space: AnyText = AnyText()
        self._last: Outcome | None = None
        self._is_dealing = False
        self._undrawn: Hashable = None
        self._transcript: list[str] = []
        self._actions = 0
        self._potential_before = 0.0
        self._longest = self.action_space.max_length
        self._lists_actions = type(self).admissible_actions is not TextEnv.admissible_actions
        if self._named:
            for name, value in self._choose(**dict.fromkeys(self._named) | arguments).items():
                setattr(self, name, value)  # an update of __dict__ would make all attributes slower
            self._check_arguments()

    def _choose(self, **arguments: Any) -> dict[str, Any]:
        """Return the preset's arguments, overridden by those that are not ``None``."""
        preset = self.presets[self.difficulty] if self.difficulty else {}
        chosen = {name: preset[name] if value is None else value for name, value in arguments.items()}
        if chosen != preset:
            self.difficulty = None
        return chosen

    def _check_arguments(self) -> None:
        """Check the arguments of the presets; a game extends this with checks of its own."""
        for name in self._named:
            check_argument(name, getattr(self, name), self.presets["medium"][name], self.ranges.get(name))

    @property
    @abstractmethod
    def instructions(self) -> str:
        """Rules and action format, for the start of a prompt; observations do not repeat them."""

    @property
    def num_instances(self) -> int | None:
        """Number of different games, or ``None`` where they cannot be counted."""
        return None

    @property
    def optimal_success(self) -> float | None:
        """Share of games that perfect play wins; ``None``, the default, if unknown."""
        return None

    @property
    def optimum_is_shortest(self) -> bool:
        """True if perfect play also wins in the fewest actions, so that ``"efficient"`` pays 1.0 for each win."""
        return False

    @property
    def optimal_return(self) -> float | None:
        """Mean return of perfect play; ``None`` if unknown."""
        is_known = self.reward == "success" or (self.reward == "efficient" and self.optimum_is_shortest)
        return self.optimal_success if is_known else None

    solver: Callable[[], Policy]
    """Make a policy that plays one episode as well as is known from observations alone; games need not have one.

    If its action is replaced, for example by a wrapper, the next observation rejects an illegal action or does not show
    the game at all (``Steady``); the policy must then continue.
    """

    @property
    def constant_action(self) -> str | None:
        """Action that the rules allow, at least in the first turn; ``None``, the default, if not defined."""
        return None

    def admissible_actions(self) -> Sequence[str] | None:
        """Return all actions that the rules allow now, or ``None`` where they are too many to list."""
        return None

    @property
    def random_policy(self) -> Callable[[int], Policy]:
        """Make, from a seed, the policy of one episode that plays uniformly random legal actions.

        Raises:
            AttributeError: the game has neither ``admissible_actions`` nor a ``constant_action`` to choose from.
        """
        if not self._lists_actions and self.constant_action is None:
            raise AttributeError(f"{self._name} has no random policy: it needs admissible_actions() to choose from")
        return self._at_random

    def _at_random(self, seed: int) -> Policy:
        rng, always = random.Random(seed), self.constant_action
        fallback = self.garbage if always is None else always
        return lambda observation: rng.choice(self.admissible_actions() or [fallback])

    @property
    def baselines(self) -> dict[str, Callable[[int], Policy]]:
        """Solver, random legal actions, and policies that do not read, by name; each makes an episode's from a seed.

        >>> import gymnasium as gym
        >>> sorted(gym.make("TrlEnv/GuessNumber-v0").unwrapped.baselines)
        ['constant', 'garbage', 'noop', 'random', 'solver']
        """
        policies: dict[str, Callable[[int], Policy]] = {}
        if hasattr(self, "solver"):
            policies["solver"] = lambda seed: self.solver()
        if hasattr(self, "random_policy"):
            policies["random"] = self.random_policy
        if self.constant_action is not None:
            policies["constant"] = _always(self.constant_action)
        return policies | {"garbage": _always(self.garbage), "noop": _always("")}

    @abstractmethod
    def _start(self, instance: int | None, options: Mapping[str, Any]) -> str:
        """Set up game number ``instance`` and show it; draw one if it is ``None``, for games that are not counted."""

    @abstractmethod
    def _act(self, action: str) -> Outcome:
        """Play ``action`` in a game that is not over."""

    def _reject(self, reason: str) -> Outcome:
        """Return the outcome of an action that cannot be played; by default it costs nothing and the game continues."""
        return Outcome(reason, valid=False)

    def _fewest_actions(self) -> float:
        """Return the number of actions needed to win this game, for ``reward="efficient"``."""
        raise NotImplementedError

    def _potential(self) -> float:
        """Return the progress of the game from 0 to 1, for ``reward="shaped"``; not called when it is over."""
        raise NotImplementedError

    @property
    def settlement(self) -> float:
        """Reward that losing the game now would still pay: minus the potential if shaped, else ``loss_reward``."""
        if self._last is not None and self._last.done:
            return 0.0
        if self.reward == "shaped":
            return 0.0 - self._potential_before
        return 0.0 if self.reward in _PAID_FOR_SUCCESS else self.loss_reward

    @property
    def loss_return(self) -> float:
        """Lowest reward of the rest of a game that is lost."""
        return self.settlement

    @property
    def owes(self) -> bool:
        """True if ``settlement`` can differ from 0."""
        return self.reward == "shaped" or (self.reward not in _PAID_FOR_SUCCESS and self.loss_reward != 0)

    @property
    def turns_left(self) -> float:
        """Most actions the game takes from here on; infinite where its rules do not limit them."""
        if self._last is not None and self._last.done:
            return 0
        return float(self._turns_left)

    def _snapshot(self) -> Hashable:
        """Return all that the rest of the game depends on; a game that defines it has a ``state_key``.

        This is what the rules keep and, in a game that hides a part of its state, what the player was shown and may
        still use. The task, the turns left and the generator need not be in it.
        """
        raise NotImplementedError

    @property
    def state_key(self) -> Hashable:
        """Key of the game's state within its task, hidden parts included; see ``gym_trl.wrappers.state_key``.

        >>> import gymnasium as gym
        >>> env = gym.make("TrlEnv/GuessNumber-v0", low=1, high=8).unwrapped
        >>> _ = env.reset(options={"instance": 4}), env.step("2"), env.step("7")
        >>> env.state_key, env.metadata["markov_state_key"]
        ((3, 6), True)

        Raises:
            AttributeError: the game does not define ``_snapshot``.
        """
        if type(self)._snapshot is TextEnv._snapshot:
            raise AttributeError(f"{self._name} has no state key: it needs _snapshot()")
        if not (self.draws or self.reward == "efficient"):
            return self._snapshot()
        made = self._actions if self.reward == "efficient" else None  # a later success pays less
        return self._snapshot(), made, generator_key(self.np_random) if self.draws else None

    @property
    def np_random(self) -> np.random.Generator:
        """Generator of all that is random in a game."""
        generator = self._np_random or super().np_random
        if self._is_dealing and self._undrawn is None:
            self._undrawn = generator_key(generator)
        return generator

    @np_random.setter
    def np_random(self, value: np.random.Generator) -> None:
        gym.Env.np_random.fset(self, value)  # type: ignore[attr-defined]  # a property

    task_key: Hashable = None
    """Name of the task, the same for all seeds that deal the same game; ``None`` if more than its number decides."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Start a game: a random one, or number ``options["instance"]`` of ``num_instances``."""
        options = dict(options or ())
        if options:
            self._check_options(options)
        super().reset(seed=seed)
        instance = self._choose_instance(options)
        self._undrawn, self._is_dealing = None, instance is not None
        observation = self._start(instance, options)
        self._is_dealing = False
        if instance is None or (self._undrawn is not None and generator_key(self.np_random) != self._undrawn):
            self.task_key = None
        else:
            others = sorted(f"{name}={options[name]!r}" for name in options if name != "instance") if options else ()
            self.task_key = (instance, *others)
        self._last = Outcome(observation)
        self._actions = 0
        if self.reward == "shaped":
            self._potential_before = self._potential()
        if self.render_mode is not None:
            self._transcript = []
            self._show(observation)
        return observation, {"admissible_actions": self.admissible_actions()} if self._lists_actions else {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Play an action."""
        if not isinstance(action, str):
            raise ActionTypeError(f"{self._name} takes text as an action, got {type(action).__name__}: {action!r:.100}")
        last = self._last
        if last is None:
            raise ResetNeeded(f"{self._name} has no game to play yet: call reset() before step()")
        if last.done:
            self._last = last = last._replace(reward=0.0, info=deepcopy(last.info))
        else:
            self._actions += 1
            if len(action) <= self._longest:
                last = self._act(action)
            else:
                last = self._reject(f"An action has at most {self._longest} characters.")
            if last.success or last.reward or self.reward != "success":
                last = self._with_reward(last)
            self._last = last
            if self.render_mode is not None:
                self._show(f"> {action}", last.observation)
        observation, reward, done, success, valid, more = last
        info = {"action_valid": valid, "success": success, **more}
        if self._lists_actions:
            info["admissible_actions"] = [] if done else self.admissible_actions()
        return observation, reward, done, False, info

    def render(self) -> str | None:
        """Return the game so far in mode ``"ansi"``; in mode ``"human"`` it was printed during play."""
        if self.render_mode is None:
            gym.logger.warn(f"render() needs a render mode: gym.make({self._name!r}, render_mode='ansi')")
        return "\n".join(self._transcript) if self.render_mode == "ansi" else None

    @property
    def _name(self) -> str:
        return self.spec.id if self.spec is not None else type(self).__name__

    def _with_reward(self, outcome: Outcome) -> Outcome:
        """Return the outcome of an action with the reward of this mode; without success ``"success"`` pays nothing."""
        if self.reward not in _PAID_FOR_SUCCESS:
            return outcome
        reward = 1.0 if outcome.success else 0.0
        if self.reward == "efficient" and outcome.success:
            reward = min(1.0, self._fewest_actions() / self._actions)
        elif self.reward == "shaped":
            before, self._potential_before = self._potential_before, 0.0 if outcome.done else self._potential()
            reward += self._potential_before - before
        return outcome if reward == outcome.reward else outcome._replace(reward=reward)

    def _check_options(self, options: Mapping[str, Any]) -> None:
        allowed = self.option_names | ({"instance"} if self.num_instances is not None else set())
        if unknown := [name for name in options if name not in allowed]:
            raise ConfigError(f"{self._name} has no reset option {unknown[0]!r}; it has {sorted(allowed) or 'none'}")
        instance, count = options.get("instance"), self.num_instances
        if instance is None or count is None:
            return
        if isinstance(instance, bool) or not isinstance(instance, int | np.integer) or not 0 <= instance < count:
            raise ConfigError(f"instance must be an integer from 0 to {count - 1}, got {instance!r}")

    def _choose_instance(self, options: Mapping[str, Any]) -> int | None:
        count = self.num_instances
        if count is None:
            return None
        if options.get("instance") is not None:
            return index(options["instance"])
        if count == 1:
            return 0  # NumPy draws nothing for it either
        if count < 2**63:
            return int(self.np_random.integers(count))
        # 64 bits more than needed leave a bias of less than 2**-64.
        return int.from_bytes(self.np_random.bytes(count.bit_length() // 8 + 9)) % count

    def _show(self, *lines: str) -> None:
        if self.render_mode == "ansi":
            self._transcript += lines
        if self.render_mode == "human":
            # Text that a terminal cannot encode, such as a lone surrogate, must not stop the game.
            encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
            text = "".join(f"{line}\n" for line in lines)
            sys.stdout.write(text.encode(encoding, "backslashreplace").decode(encoding))
