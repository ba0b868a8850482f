"""Settings of play that a check, an evaluation and a training agree on, saved beside the weights."""

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, TypedDict

from gym_trl.envspec import EnvSpec, Probed, TaskPlan, left_to_the_rollout
from gym_trl.errors import ConfigError, UntrustedError
from gym_trl.executors.inline import TextEnvironment
from gym_trl.history import make_history
from gym_trl.options import check_options
from gym_trl.play import History
from gym_trl.random_play import plays_characters, random_play, solve
from gym_trl.records import to_json, write_json
from gym_trl.registration import GAMES, EnvSource, env_name, find_maker, is_registered
from gym_trl.seeding import OwnGlobalRandom
from gym_trl.types import Message, Task
from gym_trl.wrappers.base import attribute_of

FILE = "gym_trl.json"
"""Name of the file that is saved beside a model."""
LONG_ANSWER = 512
"""Maximum number of tokens of an answer where nothing says how long an action can be."""
_LONG_OF_TINY = 16
_REACHING_OUTSIDE = frozenset({"TrlEnv/CodeAgent-v0", "TrlEnv/OpenEnv-v0", "TrlEnv/QA-v0"})
_OF_THE_MODEL = ("action_format", "system_prompt", "max_tokens_per_turn", "history", "chat_template_kwargs")
_EPISODES, _TURNS = 40, 20  # that are played to find legal actions


class Options(TypedDict, total=False):
    """Options of play; what is left out or ``None`` is as it was trained, or the default.

    Args:
        env_kwargs: Arguments of the environment.
        action_format: Mark-up of the action in an answer: tag, boxed, json:FIELD, regex:PATTERN, plain for the whole
            answer, or open, which may be cut off. Default: open for the tiny model and after a warm start, else tag.
        instructions: Replacement of the environment's instructions.
        system_prompt: First message of each conversation.
        turn_limit: Maximum turns of an episode.
        success: Definition of success: a minimum return, info for what the environment declares, or a function of the
            last info and the return.
        invalid_penalty: Reward subtracted for an invalid action.
        seats: self, if one model plays all seats of a game.
        max_tokens_per_turn: Maximum tokens of an answer. Default: the longest legal action, where that is the whole
            answer, else 512.
        history: What the model sees of a long conversation: the last so many turns, notes, rendered, or a function.
        observe: Function (observation, info) -> text, or render.
        act: Function text -> action.
        executor: Where environments are stepped: inline, thread, process or ray. Default: what they declare.
        chat_template_kwargs: Arguments of the chat template, such as enable_thinking=false.
    """

    env_kwargs: dict[str, Any] | None
    action_format: str | None
    instructions: str | None
    system_prompt: str | None
    turn_limit: int | None
    success: float | str | Callable[..., Any] | None
    invalid_penalty: float | None
    seats: Literal["self"] | None
    max_tokens_per_turn: int | None
    history: int | str | Callable[..., Any] | None
    observe: str | Callable[..., Any] | None
    act: str | Callable[..., Any] | None
    executor: str | Callable[..., Any] | None
    chat_template_kwargs: dict[str, Any] | None


@dataclass(frozen=True)
class Setting:
    """An environment and how it is played; the fields are those of ``Options``.

    >>> setting = Setting("TrlEnv/GuessNumber-v0", env_kwargs={"high": 8}, action_format="plain")
    >>> env = setting.make()
    >>> env.reset(seed=0)[0]
    'Guess 1 to 8 in 6 tries.'
    >>> [task.options for task in setting.tasks(2)]
    [{'instance': 7}, {'instance': 0}]

    Raises:
        ConfigError: An option has a wrong value, or there is no such environment.
    """

    env: EnvSource
    """Registered id, ``file.py:Class``, ``module:Class``, class or function."""
    env_kwargs: Mapping[str, Any] = field(default_factory=dict)
    action_format: str | None = None
    instructions: str | None = None
    system_prompt: str | None = None
    turn_limit: int | None = None
    success: float | str | Callable[..., Any] | None = None
    invalid_penalty: float = 0.0
    seats: Literal["self"] | None = None
    max_tokens_per_turn: int | None = None
    history: int | str | Callable[..., Any] | None = None
    observe: str | Callable[..., Any] | None = None
    act: str | Callable[..., Any] | None = None
    executor: str | Callable[..., Any] | None = None
    chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "env", _whole_name(self.env))
        check_options({name: value for name, value in self.options.items() if name not in self.text})
        self.spec  # noqa: B018 -- refuses what is no environment, and its options

    @property
    def name(self) -> str:
        """Name of the environment, which its tasks have."""
        return env_name(self.env)

    @property
    def options(self) -> dict[str, Any]:
        """All ``Options``, by name."""
        return {one.name: getattr(self, one.name) for one in fields(self) if one.name != "env"}

    @property
    def text(self) -> dict[str, Any]:
        """Options of the environment, by the names of ``EnvSpec``'s arguments."""
        format_ = "tag" if self.action_format is None else self.action_format  # an empty one is refused
        of_env = {name: value for name, value in self.options.items() if name in EnvSpec.__dataclass_fields__}
        return of_env | {"action_format": format_}

    @property
    def of_spec(self) -> dict[str, Any]:
        """Options by the names of ``GymSpec``'s arguments; those of the chat template are TRL's."""
        options = self.options | self.text
        del options["chat_template_kwargs"]
        return options

    @cached_property
    def spec(self) -> EnvSpec:
        """The environments."""
        return EnvSpec(self.env, **self.text)

    @cached_property
    def probed(self) -> Probed:
        """Properties of the environments, and the executor that steps them."""
        executor: Any = self.executor
        return self.spec.probe(executor)

    @cached_property
    def shorten(self) -> History | None:
        """Function that is the history."""
        return make_history(check_options({"history": self.history})["history"])

    @property
    def num_seats(self) -> int:
        """Number of seats that are played."""
        return self.probed.seats[self.name]

    @property
    def has_markov_keys(self) -> bool:
        """True if keys that are promised to be Markov name the states of the one seat, for credit per turn."""
        if self.num_seats > 1:
            return False
        spec = replace(self.spec, state_keys=True)
        with spec.checked(self.name) as env, OwnGlobalRandom(0), left_to_the_rollout():
            env.reset(seed=0)
            return bool(attribute_of(env, "markov_state_key"))
        return False

    @property
    def preamble(self) -> list[Message]:
        """Messages before the first observation."""
        return [] if self.system_prompt is None else [Message("system", self.system_prompt)]

    def make(self) -> TextEnvironment:
        """Make an environment."""
        return self.spec.make(self.name)

    def tasks(self, count: int, *, split: str = "eval", seed: int = 0) -> list[Task]:
        """Return the first tasks of a split, which are the same for everybody with this seed."""
        sizes = {"train": 0, "eval": 0, split: count}
        return list(TaskPlan(self.spec.weights, self.probed.num_instances, sizes, seed).tasks(split))

    def for_model(self, tokenizer: Any, *, plain: bool = False, tiny: bool = False) -> "Setting":
        """Return the setting for a model, with the action format and the longest answer, where they were left open.

        Args:
            tokenizer: The model's tokenizer; ``None`` if it is not known.
            plain: The model writes bare actions, after a warm start on actions.
            tiny: It is tiny: it writes bare actions, and has not learned to end them.
        """
        longest, format_ = self.max_tokens_per_turn, self.action_format or ("plain" if plain or tiny else "tag")
        if longest is None:
            actions = self.legal_actions() if format_ in ("plain", "open") and tokenizer is not None else ()
            lengths = [len(tokenizer.encode(action, add_special_tokens=False)) for action in actions]
            if lengths and self.action_format is None:
                format_ = "open"  # the longest action is whole at the limit
            ends = not tiny or format_ != "open"  # there is room for the token that ends a turn
            longest = max(lengths) + ends if lengths else _LONG_OF_TINY if tiny else LONG_ANSWER
        return replace(self, action_format=format_, max_tokens_per_turn=longest)

    def legal_actions(self) -> set[str]:
        """Return actions of random play and of the solver; none if nothing says which texts are actions."""
        env, actions = self.make(), set[str]()
        try:
            for number, task in enumerate(self.tasks(_EPISODES, split="train")):
                observation, info = env.reset(seed=task.seed, options=dict(task.options) or None)
                unknown = plays_characters(env, observation, info)
                solves = attribute_of(env, "solver") is not None and (number % 2 == 1 or unknown)
                if unknown and not solves:
                    return set()
                act = solve(env) if solves else random_play(env, task.seed)
                over, turns = False, 0
                while not over and turns < _TURNS:
                    actions.add(action := act(observation, info))
                    observation, _, terminated, truncated, info = env.step(action)
                    over, turns = terminated or truncated, turns + 1
        finally:
            env.close()
        return actions

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as JSON values; functions are replaced by their names."""
        plain: dict[str, Any] = json.loads(to_json({"env": self.name, **self.options}))
        return plain

    def save(self, folder: str | Path) -> None:
        """Write the setting beside a model, for ``beside``."""
        write_json(Path(folder, FILE), self.as_dict())

    @classmethod
    def beside(cls, model: Any, *, env: EnvSource | None = None, **given: Any) -> "Setting":
        """Return the setting that was saved beside a model, with what is given in its place.

        A file is data: it names registered environments and no functions, unless the user repeats the environment.

        Args:
            model: Folder of a run, a model or a checkpoint; for anything else nothing was saved.
            env: Environment. Default: the saved one.
            given: ``Options``.

        Raises:
            ConfigError: There is no environment, or it is not the user who names it.
        """
        file = _file_beside(model)
        saved = {} if file is None else _read(file)
        if env is not None:
            same = saved and _same_class(env_name(_whole_name(env))) == _same_class(saved["env"])
            saved = {name: value for name, value in saved.items() if same or name in _OF_THE_MODEL} | {"env": env}
        elif saved:
            _refuse_code(file, saved)
        else:
            raise ConfigError("name an environment, or give the folder of a model that was trained by gym-trl train")
        if isinstance(model, str) and model == "tiny":  # it has no mark-up to begin with
            saved["action_format"] = "open"
        return cls(**(saved | {name: value for name, value in given.items() if value is not None}))


def _whole_name(env: EnvSource) -> EnvSource:
    """Return the name of an environment with its class, where it names a file only."""
    if isinstance(env, str) and env.endswith(".py"):
        maker: Any = find_maker(env)
        return f"{env}:{maker.__name__}" if isinstance(maker, type) else env
    return env


def _same_class(name: str) -> str:
    """Return what ``games/haggle.py:Haggle``, ``haggle.py:Haggle`` and ``haggle:Haggle`` have in common."""
    return name.rpartition("/")[2].replace(".py:", ":") if ".py:" in name else name


def _file_beside(model: Any) -> Path | None:
    """Return the file that was saved beside a model, or in the run to which it belongs."""
    for folder in [Path(model) / "model", Path(model)] if isinstance(model, str | Path) else []:
        with suppress(OSError):  # of what is no path
            if (folder / FILE).is_file():
                return folder / FILE
    return None


def _read(file: Path) -> dict[str, Any]:
    try:
        saved = json.loads(file.read_text(encoding="utf-8"))
        return {"env": saved["env"]} | {one.name: saved[one.name] for one in fields(Setting) if one.name in saved}
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise ConfigError(f"{file} is not a setting that gym-trl has saved: {error!r:.100}") from error


def _refuse_code(file: Path | None, saved: Mapping[str, Any]) -> None:
    """Refuse a file that names more than registered environments; nothing of it has been imported.

    Texts in the arguments of an environment can name anything, but those of this library's games are data.

    Raises:
        UntrustedError: It does.
    """
    env, arguments = saved["env"], dict(saved.get("env_kwargs") or {})
    functions = [saved.get(name) for name in ("success", "history", "observe", "act", "executor")]
    named: list[Any] = [one for one in functions if isinstance(one, str) and not one.isidentifier()]
    if not isinstance(env, str) or not is_registered(env):
        named.append(env)
    are_data = env in GAMES and env not in _REACHING_OUTSIDE
    if not are_data and '"' in json.dumps(list(arguments.values())):
        named.append(arguments)
    if named:
        raise UntrustedError(
            f"{file} names {named[0]!a:.200}, which may be code, and nothing of it has been used. If you trust it, "
            f"repeat the environment: {env!a:.200}"
        )
