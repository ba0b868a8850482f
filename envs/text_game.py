"""Base class of the text games: a game has its rules and its solver, this class the rest of ``gymnasium.Env``."""

import random
from collections.abc import Callable, Hashable, Mapping, Sequence
from inspect import Parameter, Signature
from typing import Any, ClassVar, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium.error import ResetNeeded

from gym_trl.errors import ActionTypeError, ConfigError
from gym_trl.seeding import generator_key
from gym_trl.spaces import MAX_LENGTH, AnyText
from gym_trl.text import counted
from gym_trl.types import Policy


class Step(NamedTuple):
    """Result of an action."""

    text: str
    done: bool = False
    success: bool | None = False
    """Success; ``None`` if it is not declared, then ``info`` has none."""
    valid: bool = True
    reward: float | None = None
    """Payoff of the game's own; ``None`` pays 1.0 for success and nothing else."""
    truncated: bool = False
    """True if the game is over by a limit and not by its own rules."""
    info: Mapping[str, Any] = {}
    """Further items of ``info``; never a solution."""

    def returned(self) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Return what ``gymnasium.Env.step`` returns."""
        reward = float(bool(self.success)) if self.reward is None else self.reward
        info = {"action_valid": self.valid, **({} if self.success is None else {"success": self.success}), **self.info}
        return self.text, reward, self.done and not self.truncated, self.truncated, info


def instance_of(options: Mapping[str, Any] | None, count: int | None) -> int | None:
    """Return the number of the game that options of ``reset`` name, of ``count`` games; ``None`` if they name none.

    Raises:
        ConfigError: There is no such game, or another option.
    """
    others = dict(options or {})
    chosen = others.pop("instance", None)
    if others or (chosen is not None and count is None):
        raise ConfigError(f"there is no reset option {min(others, default='instance')!r}")
    if chosen is None or count is None:
        return None
    if isinstance(chosen, bool) or not isinstance(chosen, int | np.integer) or not 0 <= chosen < count:
        raise ConfigError(f"instance must be an integer from 0 to {count - 1}, got {chosen!r}")
    return int(chosen)


class TextGame(gym.Env[str, str]):
    r"""Game for one player: ``deal`` sets it up, ``look`` shows it, ``play`` plays an action, ``solve`` chooses one.

    >>> class Lamp(TextGame):
    ...     presets = {"medium": {"turns": 3, "presses": 2}}
    ...     instructions = "Press until the lamp is off."
    ...     def deal(self): self.on = self.presses
    ...     def look(self): return "on" if self.on else "off"
    ...     def legal(self): return ["press"]
    ...     def play(self, action):
    ...         if action != "press":
    ...             return self.reject("Not a press.")
    ...         self.on -= 1
    ...         return self.turn(success=self.on == 0)
    ...     def solve(self): return "press"
    >>> env = Lamp(turns=2)
    >>> env.reset(seed=0)[0], env.step("pull")[0]
    ('on\n2 turns left.', 'Not a press.\non\n1 turn left.')

    A game has ``presets``, ``instructions``, ``deal``, ``look`` and ``play``. All else has a default: ``legal`` (listed
    in ``info``) or ``guess`` for random play; ``solve`` for the solver; ``num_instances`` where games can be counted
    (``deal`` then sets up number ``instance``, without randomness); ``state`` for credit per turn.

    The rest holds for every game. Randomness comes from ``np_random`` alone. An action that is not legal costs a turn.
    ``read`` finds the legal action that a text names, and ``tell`` writes what the player is told after a turn.
    A game that is over returns its last text and pays nothing. ``info`` has ``action_valid`` and ``success`` after each
    step. ``solve`` reads the game, and uses nothing but what the player was shown: two games with equal histories have
    equal choices.

    Args:
        difficulty: One of ``presets``.
        **arguments: Arguments in place of the preset's; each is an attribute.

    Raises:
        ConfigError: An argument is not allowed; at reset, an option does not exist.
        ActionTypeError: An action is no text.
    """

    metadata: dict[str, Any] = {"render_modes": [], "markov_state_key": True}  # noqa: RUF012 -- as gym.Env has it
    instructions: str
    """Rules and action format, as a model reads them."""
    presets: ClassVar[Mapping[str, Mapping[str, Any]]]
    """Arguments by difficulty; each difficulty has all of them."""
    ranges: ClassVar[Mapping[str, tuple[Any, ...]]] = {}
    """Smallest and largest number that an argument may be (``None``: no limit), or the texts that it may be."""
    between: ClassVar[str] = "\n"
    """Text between a message and the state that is shown."""
    declares_success: ClassVar[bool] = True
    preferred_executor: str = "inline"
    num_instances: int | None = None
    """Number of different games; ``None`` if they cannot be counted."""
    optimal_success: float | None = None
    """Share of games that perfect play wins; ``None`` if it is not known."""
    draws: bool = False
    """True if ``play`` draws from ``np_random``, which is a part of the state then."""
    loss_return: float | None = 0.0
    """Lowest return of a game that is lost."""
    solve: Callable[[], str]
    """Return the best action that is known."""
    turns: int = 0
    """Turns of a game; 0 if nothing limits them."""
    turns_left: int
    """Turns left, if they are limited."""
    instance: int | None = None
    _last: Step | None = None

    def __init_subclass__(cls) -> None:
        """Give the class the signature of its presets, unless it has an ``__init__`` of its own."""
        super().__init_subclass__()
        if cls.__init__ is not TextGame.__init__:
            return
        usual = {"difficulty": "medium", **getattr(cls, "presets", {}).get("medium", {})}
        named = [Parameter(name, Parameter.KEYWORD_ONLY, default=value) for name, value in usual.items()]
        cls.__signature__ = Signature(named)  # type: ignore[attr-defined]

    def __init__(self, difficulty: str = "medium", **arguments: Any) -> None:
        if difficulty not in list(self.presets):  # also of what is not hashable
            raise ConfigError(f"difficulty must be one of {list(self.presets)}, got {difficulty!r}")
        usual = self.presets[difficulty]
        for name in arguments:
            if name not in usual:
                raise TypeError(f"{type(self).__name__}.__init__() got an unexpected keyword argument {name!r}")
        for name, value in {**usual, **arguments}.items():
            self._check_argument(name, value, type(usual[name]))
            setattr(self, name, value)
        self.prepare()
        self.observation_space, self.action_space = AnyText(), AnyText()

    @property
    def optimal_return(self) -> float | None:
        """Mean return of perfect play, which is its success where nothing else pays; ``None`` if it is not known."""
        return self.optimal_success

    def prepare(self) -> None:
        """Check arguments together (``ConfigError``), and set what follows from them, such as ``instructions``."""

    def deal(self) -> None:
        """Set up game number ``instance``, or a random one where it is ``None``."""
        raise NotImplementedError

    def look(self) -> str:
        """Return the state as the player sees it, without the turns left."""
        raise NotImplementedError

    def play(self, action: str) -> Step:
        """Play an action in a game that is not over."""
        raise NotImplementedError

    def legal(self) -> Sequence[str] | None:
        """Return the actions that the rules allow now; ``None`` if they are too many to list."""
        return None

    def best_actions(self) -> Sequence[str]:
        """Return the best actions that are known, if several are equally good; otherwise the one of ``solve()``."""
        return [self.solve()]

    def guess(self, rng: random.Random) -> str:
        """Return a random legal action."""
        return rng.choice(self.legal() or [""])

    def state(self) -> Hashable:
        """Return all that the rest of a game depends on, but for its turns left and the generator."""
        raise AttributeError(f"{type(self).__name__} has no state()")

    def show(self) -> str:
        """Return what the player is shown."""
        return f"{self.look()}\n{counted(self.turns_left, 'turn')} left." if self.turns else self.look()

    def tell(self, message: str) -> str:
        """Return what the player is told after a turn."""
        return f"{message}{self.between}{self.show()}" if message else self.show()

    def read(self, action: str) -> str | None:
        """Return the legal action that a text names, whatever its case and its white space."""
        said = " ".join(action.split())
        return next((one for one in self.legal() or () if said.isascii() and said.lower() == one.lower()), None)

    def turn(
        self,
        message: str = "",
        *,
        success: bool = False,
        done: bool = False,
        valid: bool = True,
        reward: float | None = None,
    ) -> Step:
        """End a turn: the game is over if it is won, lost (``done``), or no turn is left."""
        if self.turns:
            self.turns_left -= 1
            done = done or self.turns_left == 0
        return Step(self.tell(message), done or success, success, valid, reward)

    def reject(self, reason: str) -> Step:
        """Return the step of an action that is not legal."""
        return self.turn(reason, valid=False)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Start a random game, or number ``options["instance"]``."""
        super().reset(seed=seed)
        count, self.instance = self.num_instances, instance_of(options, self.num_instances)
        if count is not None and self.instance is None:
            # 64 bits more than needed leave a bias of less than 2**-64; up to 63 bits NumPy has none.
            large = int.from_bytes(self.np_random.bytes(count.bit_length() // 8 + 9)) if count >= 2**63 else None
            self.instance = int(self.np_random.integers(count)) if large is None else large % count
        self._last = None
        if self.turns:
            self.turns_left = self.turns
        self.deal()
        self._last = Step(self.show())
        return self._last.text, self._info()

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Play an action."""
        if not isinstance(action, str):
            raise ActionTypeError(f"an action is text, got {type(action).__name__}: {action!r:.100}")
        last = self._last
        if last is None:
            raise ResetNeeded("call reset() before step()")
        if last.done:
            step = last._replace(reward=0.0)
        elif len(action) > MAX_LENGTH:
            step = self.reject(f"An action has at most {MAX_LENGTH} characters.")
        else:
            step = self.play(action)
        self._last = step
        text, reward, terminated, truncated, info = step.returned()
        return text, reward, terminated, truncated, {**info, **self._info()}

    @property
    def solver(self) -> Callable[..., Policy]:
        """Make, from a seed, a policy that plays one of ``best_actions()``; a game need not have one."""
        if not hasattr(self, "solve"):
            raise AttributeError(f"{type(self).__name__} has no solver: it needs solve()")

        def make(seed: int = 0) -> Policy:
            rng = random.Random(seed)
            return lambda observation: rng.choice(self.best_actions())

        return make

    @property
    def random_policy(self) -> Callable[[int], Policy]:
        """Make, from a seed, a policy that plays random legal actions; a game need not have one."""
        if type(self).legal is TextGame.legal and type(self).guess is TextGame.guess:
            raise AttributeError(f"{type(self).__name__} has no random policy: it needs legal() or guess()")

        def make(seed: int) -> Policy:
            rng = random.Random(seed)
            return lambda observation: self.guess(rng)

        return make

    @property
    def state_key(self) -> Hashable:
        """Key of the state within a task, without the turns left (see ``gym_trl.wrappers.state_key``)."""
        return (self.state(), generator_key(self.np_random)) if self.draws else self.state()

    @property
    def task_key(self) -> int | None:
        """Name of the task, equal for all seeds that deal the same game; ``None`` if more than its number decides."""
        return None if self.draws else self.instance

    def _info(self) -> dict[str, Any]:
        legal = self.legal()
        if legal is None:
            return {}
        over = self._last is not None and self._last.done
        return {"admissible_actions": [] if over else list(legal)}

    def _check_argument(self, name: str, value: Any, kind: type) -> None:
        """Check the type of an argument, which is that of the preset's, and its range."""
        allowed = self.ranges.get(name, (1, None) if name == "turns" else ())
        fits = type(value) is kind or (kind is float and type(value) is int)
        if fits and allowed and kind in (int, float):
            least, most = allowed
            fits = (least is None or value >= least) and (most is None or value <= most)
        elif fits and allowed:
            fits = value in allowed
        if not fits:
            limits = f" of the range {allowed}" if allowed else ""
            raise ConfigError(f"{name} must be of type {kind.__name__}{limits}, got {value!r}")
