r"""Formats with which the actions in given responses could have been read, compared without asking the model again."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from time import perf_counter

from gym_trl.envspec import EnvSpec
from gym_trl.errors import failures_ignored, raise_interrupt
from gym_trl.executors.protocol import TextEnvironment
from gym_trl.executors.step import close_env, take_step
from gym_trl.random_play import plays_characters, random_play
from gym_trl.seeding import derive_seed
from gym_trl.text.parsing import ActionFormat
from gym_trl.types import StepResult, Task

LAST_LINE = r"regex:([^\n]*\S)\s*\Z"
FIRST_LINE = r"regex:\A\s*(\S[^\n]*)"
_MARKED = ("tag", "boxed")
_SAMPLES, _FEW = 100, 20
"""Number of actions that are sampled, and the largest number of different ones that a pattern lists."""
_NUMBER = re.compile(r"-?[0-9]+")
_PARTS = re.compile(r"[0-9]+|[a-z]+|[A-Z]+|[A-Za-z]+|\s+|.", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Response:
    """Response of a model in an episode."""

    text: str
    """Its text without thinking."""
    cut: bool
    """``max_tokens`` cut it off."""
    task: Task
    before: tuple[str, ...]
    """Actions that reached the environment earlier in the episode."""


@dataclass(frozen=True, slots=True)
class Reading:
    """Result of reading the same responses with one action format."""

    format: str
    readable: int
    """Number of responses with an action."""
    legal: int | None
    """Number of responses with an action that the environment accepts; ``None`` if it was not asked."""
    example: tuple[str, str] | None
    """A response and the action in it, a legal one if there is one."""

    @property
    def useful(self) -> int:
        """Number of legal actions, or of readable ones where legality is unknown."""
        return self.readable if self.legal is None else self.legal


def sample_actions(env: TextEnvironment, tasks: Sequence[Task], *, seed: int = 0) -> list[str]:
    """Return legal actions of an environment, from episodes of random play; none if it would draw any characters.

    >>> import gymnasium as gym
    >>> found = sample_actions(gym.make("TrlEnv/GuessNumber-v0", high=8), [Task("TrlEnv/GuessNumber-v0", 0)])
    >>> all(1 <= int(action) <= 8 for action in found)
    True
    """
    found: list[str] = []
    with failures_ignored():  # a broken environment has been reported by the episodes
        for number, task in enumerate(tasks):
            observation, info = env.reset(seed=task.seed, options=dict(task.options) or None)
            if plays_characters(env, info):
                break
            act = random_play(env, derive_seed(seed, "actions", number))
            for _ in range(_SAMPLES):
                action = act(observation, info)
                result = take_step(env, action)
                if not isinstance(result, StepResult):
                    break
                if result.info.get("action_valid", True):
                    found.append(action)
                if result.terminated or result.truncated or len(found) >= _SAMPLES:
                    break
                observation, info = result.observation, {**result.info}
    return found[:_SAMPLES]


def candidate_formats(legal: Iterable[str], *, marked: bool = False) -> list[str]:
    r"""Return formats that could read actions such as these, the simplest first.

    >>> candidate_formats(["7", "12"])[5:]
    ['regex:(\\d+)', 'regex:\\A\\D*(\\d+)']
    >>> candidate_formats(["left", "right", "up"])[5:]
    ['regex:(?i)\\b(right|left|up)\\b']
    >>> candidate_formats(f"{row} {column}" for row in range(9) for column in range(9))[5:]
    ['regex:\\b(\\d+\\s+\\d+)\\b']

    Besides ``"tag"``, ``"boxed"``, ``"plain"``, the last line and the first line these are: the last number and the
    first one, if all actions are integers; a list of the actions, if there are few; or their common shape. With
    ``marked`` the formats are left out that read something from any response.
    """
    general = _MARKED if marked else (*_MARKED, "plain", LAST_LINE, FIRST_LINE)
    return [*general, *_patterns(sorted(set(legal)))]


def _patterns(actions: Sequence[str]) -> list[str]:
    if not actions or not all(actions):
        return []
    if all(_NUMBER.fullmatch(action) for action in actions):
        if any(action.startswith("-") for action in actions):
            return [r"regex:(-?\d+)", r"regex:\A[^\d-]*(-?\d+)"]
        return [r"regex:(\d+)", r"regex:\A\D*(\d+)"]
    if len(actions) <= _FEW:
        longest_first = sorted(actions, key=len, reverse=True)
        return [rf"regex:(?i){_bounded('|'.join(map(re.escape, longest_first)), actions)}"]
    shapes = {_shape(action) for action in actions}
    if len(shapes) == 1:
        return [f"regex:{_bounded(shapes.pop(), actions)}"]
    return []


def _bounded(pattern: str, actions: Sequence[str]) -> str:
    """Return a pattern in a group, between word boundaries where all actions begin and end with a letter or digit."""
    edge = r"\b" if all(action[0].isalnum() and action[-1].isalnum() for action in actions) else ""
    return f"{edge}({pattern}){edge}"


def _shape(action: str) -> str:
    r"""Return a pattern of texts like this one.

    >>> _shape("e2 e4"), _shape("crane")
    ('[a-z]{1}\\d+\\s+[a-z]{1}\\d+', '[a-z]{5}')
    """
    return "".join(map(_shape_of_part, _PARTS.findall(action)))


def _shape_of_part(part: str) -> str:
    if part.isdecimal():
        return r"\d+"
    if part.isascii() and part.isalpha():
        letters = "[a-z]" if part.islower() else "[A-Z]" if part.isupper() else "[a-zA-Z]"
        return f"{letters}{{{len(part)}}}"
    return r"\s+" if part.isspace() else re.escape(part)


def read_again(
    formats: Iterable[str], responses: Sequence[Response], judge: "Judge | None", *, accept_cut: bool = False
) -> list[Reading]:
    """Return how many of ``responses`` each format reads, and how many of these actions are legal, the best first.

    >>> said = [Response("I say 3.", False, Task("TrlEnv/TicTacToe-v0", 0), ()), Response("2", False, Task("", 0), ())]
    >>> [(one.format, one.readable, one.legal) for one in read_again(["tag", "plain"], said, None)]
    [('plain', 2, None), ('tag', 0, None)]

    Args:
        formats: Action formats; of equally good ones the earlier is first.
        responses: Responses to read.
        judge: Asks the environment. Default: legality is not known.
        accept_cut: Read actions that ``max_tokens`` cut off as if they were complete.
    """
    readings = [_read(one, responses, judge, accept_cut=accept_cut) for one in formats]
    return sorted(readings, key=lambda one: -one.useful)


def _read(name: str, responses: Sequence[Response], judge: "Judge | None", *, accept_cut: bool) -> Reading:
    format_ = ActionFormat(name)
    readable = legal = 0
    example: tuple[str, str] | None = None
    for response in responses:
        action = format_.find(response.text, cut=response.cut and not accept_cut)
        if action is None:
            continue
        readable += 1
        accepted = judge is not None and judge.accepts(response, action)
        if example is None or (accepted and not legal):
            example = (response.text, action)
        legal += accepted
    return Reading(name, readable, None if judge is None else legal, example)


class Judge:
    """Asks an environment if it accepts an action, by playing the episode up to there again.

    >>> with Judge(EnvSpec("TrlEnv/GuessNumber-v0"), seconds=9) as judge:
    ...     response = Response("", False, Task("TrlEnv/GuessNumber-v0", 0), ("25",))
    ...     judge.accepts(response, "7"), judge.accepts(response, "seven")
    (True, False)

    Args:
        spec: The environments. Their action format is not used, and they are stepped in this process.
        seconds: Maximum time for all answers together; afterwards no action is accepted and ``exhausted`` is true.
    """

    def __init__(self, spec: EnvSpec, *, seconds: float) -> None:
        self._spec = replace(spec, action_format="plain", end_after_invalid=None)
        self._seconds = seconds
        self._envs: dict[str, TextEnvironment] = {}
        self._known: dict[tuple[str, tuple[str, ...], str], bool] = {}

    def __enter__(self) -> "Judge":
        return self

    def __exit__(self, *_: object) -> None:
        for env in self._envs.values():
            close_env(env)

    @property
    def exhausted(self) -> bool:
        """True if the time is used up."""
        return self._seconds <= 0

    def env(self, env_id: str) -> TextEnvironment:
        """Return the environment with this id, which takes actions without marks."""
        if env_id not in self._envs:
            self._envs[env_id] = self._spec.make(env_id)
        return self._envs[env_id]

    def accepts(self, response: Response, action: str) -> bool:
        """Return whether the environment accepts ``action`` where ``response`` was given."""
        key = (response.task.to_json(), response.before, action)
        if key not in self._known:
            if self.exhausted:
                return False
            began = perf_counter()
            self._known[key] = self._asks(response, action)
            self._seconds -= perf_counter() - began
        return self._known[key]

    def _asks(self, response: Response, action: str) -> bool:
        task = response.task
        try:
            env = self.env(task.env_id)
            env.reset(seed=task.seed, options=dict(task.options) or None)
            for earlier in response.before:
                take_step(env, earlier)
            result = take_step(env, action)
        except BaseException as error:  # whatever an environment raises, it did not accept the action
            raise_interrupt(error)
            return False
        return isinstance(result, StepResult) and bool(result.info.get("action_valid", True))
