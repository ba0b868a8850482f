"""Options of a specification, a training and an evaluation, each declared once.

An option has a name, a type with bounds, a default, a sentence and a unit here, and nowhere else.

Python arguments, flags of the commands, run files, ``config.json`` and the tables of the docs derive from the types in
this module. A group (``Task``, ``Text``, ...) is passed whole to the room that uses it; ``SpecOptions`` and
``TrainOptions`` are several groups, whose names are unique.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, MISSING, Field, dataclass, field, fields
from typing import Annotated, Any, Literal, Self, TypeAlias, get_args, get_origin

from gym_trl.errors import ConfigError
from gym_trl.kinds import (
    Arguments,
    ByName,
    Count,
    Penalty,
    Positive,
    Range,
    Seconds,
    Seed,
    Share,
    Whole,
    check_option,
    expected,
    literals_in,
    load_function,
    marks_in,
    name_of,
    option_types,
    types_in,
)
from gym_trl.registration import EnvSource, did_you_mean

Function: TypeAlias = Annotated[Callable[..., Any], ByName(), "a function or its name module:function"]
"""Function, given as an object or by its name ``"module:function"``; the options hold the object."""
ExecutorName: TypeAlias = Literal["inline", "auto", "thread", "process", "ray"]
CreditName: TypeAlias = Literal["episode", "return_to_go", "gigpo", "pool", "rae"]
CutActions: TypeAlias = Literal["reject", "accept"]
"""Treatment of an action that ``max_tokens_per_turn`` cut off."""
DEFAULT_ENV = "TrlEnv/GuessNumber-v0"
"""Environment of a training without a choice."""
DType: TypeAlias = Literal["float32", "bfloat16", "float16", "auto"]
Role: TypeAlias = Literal["limit", "marks"]
"""``"limit"`` of an option that changes what an episode is worth, whoever plays it; ``"marks"`` of one about the marks
of actions, which only language models write."""
VLLMMode: TypeAlias = Literal["colocate", "server"]
Envs: TypeAlias = Annotated[
    EnvSource | Sequence[Any] | Mapping[Any, Any], "an id, file.py:Class, a class or a function that makes one"
]
"""One environment, several, or several with weights."""


def option(default: Any, sentence: str, unset: str = "", *, flag: bool = True, role: Role | None = None) -> Any:
    """Declare an option, as a field of a data class.

    Args:
        default: Its default; a mapping or a list is copied.
        sentence: Its meaning, for the help and the docs.
        unset: Meaning of the default ``None``.
        flag: Whether the command line has it.
        role: Use in an evaluation by other policies than models in this process.
    """
    metadata = {"sentence": sentence, "unset": unset, "flag": flag, "role": role}
    if isinstance(default, dict):
        return field(default_factory=default.copy, metadata=metadata)
    return field(default=default, metadata=metadata)


@dataclass(frozen=True)
class Options:
    """Base of all options: values are converted and checked when they are made.

    Texts that name functions become these functions, lists become tuples, and mappings become the options that they are
    the arguments of.

    Raises:
        ConfigError: A value is of another type or out of its bounds; the message begins with the option's name.
    """

    def __post_init__(self) -> None:
        """Convert the values, and check them."""
        for name, kind in option_types(type(self)).items():
            given = vars(self)[name]
            object.__setattr__(self, name, converted(name, given, kind))
            try:
                check_option(name, vars(self)[name], kind)
            except ConfigError:
                check_option(name, given, kind)  # the message has the value that the user gave
                raise

    @classmethod
    def of(cls, given: Mapping[str, Any], path: str = "") -> Self:
        """Return the options with these values by name.

        >>> Cutoff.of({"episode_s": 60}).episode_s
        60
        >>> Cutoff.of({"episode": 60}, "cutoff.")
        Traceback (most recent call last):
            ...
        gym_trl.errors.ConfigError: there is no option cutoff.episode; did you mean 'episode_s'?

        Args:
            given: Values by name.
            path: Beginning of the names in messages.

        Raises:
            ConfigError: An option is unknown, is missing, or has a wrong value.
        """
        cls.check_names(given, path)
        for one in fields(cls):
            if one.init and one.name not in given and one.default is MISSING and one.default_factory is MISSING:
                raise ConfigError(f"{path}{one.name} must be given")
        if not path:
            return cls(**given)
        try:
            return cls(**given)
        except ConfigError as error:
            raise ConfigError(f"{path}{error}") from error

    @classmethod
    def check_names(cls, given: Iterable[str], path: str = "") -> None:
        """Check that all names are those of options.

        Raises:
            ConfigError: One is not.
        """
        known = option_types(cls)
        for name in given:
            if name not in known:
                raise ConfigError(f"there is no option {path}{name}{did_you_mean(str(name), known)}")

    def as_dict(self) -> dict[str, Any]:
        """Return the options as values that JSON has: functions by their names.

        >>> Cutoff(episode_s=60).as_dict()
        {'episode_s': 60, 'rollout_s': None, 'stragglers': None, 'on_cutoff': 'unscored'}

        Raises:
            ConfigError: A value cannot be stored, such as a lambda; the message says why.
        """
        return {name: stored(name, getattr(self, name)) for name in option_types(type(self))}


def converted(name: str, value: Any, kind: Any) -> Any:
    """Return a value as its option holds it."""
    choices = list(types_in(kind))
    named = isinstance(value, str) and ":" in value and any(isinstance(one, ByName) for one in marks_in(kind))
    if named and value not in literals_in(kind):
        try:
            return load_function(value)
        except ConfigError as error:
            raise ConfigError(f"{name} must be {expected(kind)}, got {value!r}: {error}") from error
    nested = nested_in(kind)
    if nested and isinstance(value, Mapping):
        return _nested(name, value, nested)
    for one in choices:
        if get_origin(one) in (tuple, Sequence) and isinstance(value, list | tuple):
            inner = get_args(one)[0]
            return tuple(converted(f"{name}[{place}]", part, inner) for place, part in enumerate(value))
    return value


def _nested(name: str, value: Mapping[str, Any], nested: Sequence[type[Options]]) -> Options:
    """Return the options of one of several types: the one of its ``kind``, or the only one with these arguments."""
    given = dict(value)
    kinds = {kind_of(one): one for one in nested}
    if (kind := given.pop("kind", None)) is not None and kind not in list(kinds):
        raise ConfigError(f"{name}.kind must be {' or '.join(map(repr, kinds))}, got {kind!r}")
    if kind is not None:
        return kinds[kind].of(given, f"{name}.")
    fit = [one for one in nested if given.keys() <= option_types(one).keys()]
    return (fit or nested)[0].of(given, f"{name}.")


def kind_of(options: type[Options]) -> str:
    """Return the value of ``kind`` that tells options of this type from others.

    >>> kind_of(PrioritizedTasks)
    'prioritized_tasks'
    """
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", options.__name__).lower()


def stored(name: str, value: Any) -> Any:
    """Return a value as a file holds it.

    >>> stored("observe", lambda observation, info: "")
    Traceback (most recent call last):
        ...
    gym_trl.errors.ConfigError: observe must be a function with a name, module:function, ...

    Raises:
        ConfigError: It cannot be stored whole.
    """
    if isinstance(value, Options):
        kind = {"kind": kind_of(type(value))} if isinstance(value, Curriculum | PrioritizedTasks) else {}
        return {**kind, **{key: stored(f"{name}.{key}", getattr(value, key)) for key in option_types(type(value))}}
    if isinstance(value, Mapping):
        return {_key(name, key): stored(f"{name}.{key}", one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [stored(f"{name}[{place}]", one) for place, one in enumerate(value)]
    if callable(value):
        try:
            return name_of(value)
        except ConfigError as error:
            raise ConfigError(
                f"{name} must be a function with a name, module:function, to be written to a file, got {error}"
            ) from error
    try:
        same = json.loads(json.dumps(value, allow_nan=False)) == value
    except (TypeError, ValueError, RecursionError):
        same = False
    if not same:
        raise ConfigError(f"{name} must be a value that JSON has, to be written to a file, got {value!r:.100}")
    return value


def _key(name: str, key: Any) -> str:
    if isinstance(key, str):
        return key
    if callable(key):
        return name_of(key)
    raise ConfigError(f"{name} must have texts as names, to be written to a file, got {key!r:.100}")


def nested_in(kind: Any) -> list[type[Options]]:
    """Return the types of options that a value of a type may be.

    >>> nested_in(Cutoff | None)
    [<class 'gym_trl.options.Cutoff'>]
    """
    return [one for one in types_in(kind) if isinstance(one, type) and issubclass(one, Options)]


# Options that have options of their own


@dataclass(frozen=True)
class Cutoff(Options):
    """Conditions for stopping a rollout's slowest episodes, and how these are scored.

    >>> Cutoff(stragglers=1.5)
    Traceback (most recent call last):
        ...
    gym_trl.errors.ConfigError: stragglers must be a number above 0 and below 1, got 1.5

    An episode that is cut off is cancelled at the engine and releases its environment. Slow episodes are not a random
    sample: long games are slow, for example. ``on_cutoff`` therefore chooses if they are scored.
    """

    episode_s: Seconds | None = option(
        None, "Maximum seconds of an episode, including all waiting for the engine and the environment.", "no limit"
    )
    rollout_s: Seconds | None = option(
        None, "Maximum seconds of a rollout; episodes that have not started by then are cut off, too.", "no limit"
    )
    stragglers: Annotated[float, Range(above=0, below=1)] | None = option(
        None,
        "Share of a rollout's episodes after which the others are cut off: 0.95 cuts off the last 5%.",
        "none are",
    )
    on_cutoff: Literal["unscored", "truncated"] = option(
        "unscored",
        "How an episode that is cut off is scored: not at all (unscored, it ends with timeout or straggler), or with "
        "the rewards so far (truncated, it ends with time_limit).",
    )

    @property
    def timed(self) -> bool:
        """True if the cutoff depends on time."""
        return self.episode_s is not None or self.rollout_s is not None


WAIT = Cutoff()
"""Cutoff that waits for every episode."""


@dataclass(frozen=True, kw_only=True)
class History(Options):
    """Part of an episode's conversation that the model sees.

    >>> History(last=8)  # with more than 16 turns the history is cut to the last 8
    History(last=8, most=16, summary=None, ask=None, template=False)
    >>> History(summary="model")  # when the context is full, the model writes what it needs to go on
    History(last=0, most=None, summary='model', ask=None, template=False)
    >>> History(most=4)
    Traceback (most recent call last):
        ...
    gym_trl.errors.ConfigError: most=4 needs last=..., the number of turns that are kept

    Without it a conversation only grows, and an episode ends with ``context_overflow`` when the context is full. With
    it the oldest turns are left out, or replaced by a summary, when there are more than ``most`` of them or when the
    next turn has no room. The episode goes on in a new segment: the system prompt, the instructions, the summary, and
    the kept turns with the observation before the first of them. With ``template`` a segment ends where the rendered
    text no longer continues what the model saw; if it always does, there is only one. Each sampled token is trained in
    the segment in which it was sampled, after exactly the ids that the model saw there.

    Every segment is a row of the trainer, and computes its prompt anew. ``most`` larger than ``last`` therefore makes
    episodes cheaper to sample and to train: with the default, a segment is ``last`` turns longer than its prompt.

    Raises:
        ConfigError: An argument is out of range, or nothing would ever change.
    """

    last: Whole | None = option(
        None, "Number of turns that are kept, fewer if they have no room.", "0 with a summary, otherwise all"
    )
    most: Count | None = option(
        None, "Largest number of turns that is not cut.", "twice last; if that is 0, as many as have room"
    )
    summary: Literal["model"] | Function | None = option(
        None,
        "Replacement of the turns that are left out: a text that the model writes (model), which is sampled and "
        "trained like a response, or that a function makes of their messages and of the summary before them.",
        "a line with their number",
    )
    ask: str | None = option(None, "Message that asks the model for a summary.", "a sentence of this library")
    template: bool = option(
        False,
        "Render the whole conversation anew with the chat template before every turn, as inference servers do: a "
        "template that drops earlier thinking (Qwen3, DeepSeek) then drops it here, too.",
    )

    def __post_init__(self) -> None:
        """Check the arguments together, and fill in those that follow from others."""
        super().__post_init__()
        cuts = self.last is not None or self.summary is not None
        if self.last is None and self.most is not None:
            raise ConfigError(f"most={self.most} needs last=..., the number of turns that are kept")
        if not cuts and not self.template:
            raise ConfigError("last must be given, or summary, or template=True; got none of them")
        if self.ask is not None and (self.summary != "model" or not self.ask.strip()):
            raise ConfigError(f'ask is the message before summary="model", got ask={self.ask!r}')
        if not cuts:
            return
        last = self.last or 0
        object.__setattr__(self, "last", last)
        if self.most is None:
            object.__setattr__(self, "most", 2 * last or None)
        elif self.most < last:
            raise ConfigError(f"most must be at least last={last}, got {self.most}")

    @property
    def cuts(self) -> bool:
        """True if turns are left out."""
        return self.last is not None


@dataclass(frozen=True)
class Curriculum(Options):
    """Difficulty levels: one level up if most episodes succeed, one level down if hardly any does.

    >>> Curriculum([{"high": 10}, {"high": 50}], rise=0.8).levels
    ({'high': 10}, {'high': 50})

    ``GymSpec("TrlEnv/GuessNumber-v0", curriculum=curriculum)`` plays every task of a rollout on the level at the start
    of the rollout, and reports the episodes of all processes at its end. The level is therefore the same for all
    members of a group, even if the group is split between two processes. Evaluations play the last level, so their
    numbers are comparable. The current level, ``spec.curriculum.level``, and the counts are saved with the trainer's
    checkpoints and restored on resume.

    Raises:
        ConfigError: ``levels`` is empty, ``fall`` is not below ``rise``, or a number is out of range; in training, the
            environment declares no success.
    """

    levels: Sequence[Arguments] = option(
        MISSING, "Arguments of the environment by level, from easy to hard, in addition to env_kwargs."
    )
    _: KW_ONLY
    rise: float = option(0.75, "Success rate at or above which the level rises by one.")
    fall: float = option(0.1, "Success rate at or below which the level falls by one; a negative number never falls.")
    episodes: Count = option(128, "Number of episodes counted before the level may change.")
    level: Whole = option(0, "Initial level.")

    def __post_init__(self) -> None:
        """Check the arguments together."""
        super().__post_init__()
        if not self.levels:
            raise ConfigError("levels must be a list of at least one level, got none")
        if not 0 <= self.level < len(self.levels):
            raise ConfigError(
                f"level must be the index of one of the levels, got {self.level} of {len(self.levels)} levels"
            )
        if not self.fall < self.rise <= 1:
            raise ConfigError(f"fall must be below rise, and rise at most 1; got fall={self.fall} and rise={self.rise}")


@dataclass(frozen=True)
class PrioritizedTasks(Options):
    """Training tasks drawn by the model's success rate, most often those that it solves about half of the time.

    >>> PrioritizedTasks(explore=0.2).decay
    0.5

    ``GymSpec(..., curriculum=PrioritizedTasks())`` plays each group of a training on a task that is drawn from
    ``train_dataset``, in place of the prompt's. A task is an instance of an environment (its seed where the environment
    does not count instances), on each of the ``levels`` if there are any. With the estimated success rate p_i of task
    *i* of *N*, it is drawn with probability

        P_i = (1 - explore) * w_i / sum_j w_j + explore / N,    w_i = p_i (1 - p_i)

    w_i is the variance of a group's success, which GRPO's gradient grows with ("learnability": Tzannetos et al. 2023,
    arXiv:2304.12877; Rutherford et al. 2024, arXiv:2408.15099). That a priority is mixed with another
    distribution, so that no task starves, is prioritized level replay (Jiang et al. 2021, arXiv:2010.03934, section 3),
    whose second part prefers tasks that were not played for long, where this one is uniform.

    With s_i successes in n_i episodes, p_i = (s_i + 2 q) / (n_i + 2), where q = (S + 1) / (N' + 2) is the rate of all
    tasks of the same environment and level, with S successes in N' episodes. Where a task is played again its earlier
    counts are multiplied by ``decay``, because the model has changed.

    The draws depend on the seed, the step and the group, and on the episodes of all processes until then: they are the
    same on every process and in a resumed training. The counts are saved with the trainer's checkpoints. Evaluations
    play their own tasks, on the last level.

    Raises:
        ConfigError: A number is out of range; in training, the environment declares no success, or ``train_dataset``
            is streamed, has only one task, or has prompts without tasks.
    """

    levels: Sequence[Arguments] = option(
        (), "Arguments of the environment by level, in addition to env_kwargs; none are the tasks as they are."
    )
    _: KW_ONLY
    explore: Annotated[float, Range(above=0, most=1)] = option(
        0.1, "Share of the groups whose task is drawn uniformly, above 0 so that no task starves."
    )
    decay: Annotated[float, Range(least=0, below=1)] = option(
        0.5, "Weight of the earlier counts of a task when it is played again."
    )


@dataclass(frozen=True)
class League(Options):
    """Opponents of the model in a game of several seats: its own past, and other policies.

    >>> League(["random", "solver"], every=25, schedule="prioritized").opponents
    ('random', 'solver')

    ``GymSpec(seats=League(...))`` trains as ``seats="self"`` does in the share ``self_play`` of the groups. In the
    others the model has the same rows, and each is its seat in a game of its own against the group's opponent, which
    has all other seats: the model is in each seat equally often. What the opponent samples is in no row. A group has
    one opponent, because the opponent is a part of the task that the group's episodes are compared on.

    Every ``every`` steps a snapshot of the model joins, called ``step-N``. It is saved in ``league/step-N`` of the
    trainer's ``output_dir``, as its adapter alone where the trainer trains one. In a rollout at most ``at_once``
    different opponents are drawn, with replacement, and each group plays one of these: every group draws from the
    schedule's distribution, and no more models are in memory.

    * ``"uniform"``: all opponents alike, with the last ``most`` snapshots (fictitious self-play with a window).
    * ``"latest"``: the same with the last ``latest`` snapshots only.
    * ``"prioritized"``: with the model's win rate p against an opponent, in proportion to (1 - p)² (``prefer="hard"``)
      or to p (1 - p) (``prefer="even"``); prioritized fictitious self-play, Vinyals et al. 2019 ("Grandmaster level in
      StarCraft II using multi-agent reinforcement learning", Nature 575, Methods).

    p = (W + D/2 + 1) / (N + 2) with W wins and D draws in N games, in which each game weighs 0.99 times as much as the
    next. A game is won if the model succeeds and no other seat does, or if an opponent forfeits, and lost in the
    opposite case; otherwise it is a draw.

    Draws depend on the seed, the step, the group and the state, which is the same on all processes and is saved with
    the trainer's checkpoints: a resumed training plays the same pairings. ``spec.league`` has the state.

    Raises:
        ConfigError: An argument is out of range, or there never are any opponents; in ``GymSpec``, an opponent does not
            exist, or two have one name.
    """

    opponents: Annotated[Sequence[Any], "a list of policies or their names"] = option(
        (),
        "Policies that the environment provides (random, solver, ...), model folders or adapters, hub ids, functions "
        "(held as module:function) that make a policy from an environment, and servers "
        "(http://localhost:8000/v1#MODEL, or gym_trl.policies.server(...)).",
    )
    _: KW_ONLY
    every: Count | None = option(None, "Number of steps after which a snapshot of the model joins.", "none ever does")
    most: Count = option(20, "Largest number of snapshots; the oldest leaves.")
    schedule: Literal["uniform", "latest", "prioritized"] = option(
        "uniform", "Choice of opponents: all alike, the latest snapshots, or by the win rate."
    )
    latest: Count | None = option(
        None, "Number of snapshots that the schedule latest plays.", "5, or most if that is less"
    )
    prefer: Literal["hard", "even"] | None = option(None, "Opponents that the schedule prioritized prefers.", "hard")
    self_play: Annotated[float, Range(least=0, below=1)] = option(
        0.5, "Share of the groups in which the model plays all seats; 1 while there are no opponents."
    )
    at_once: Count = option(
        2, "Largest number of different opponents in a rollout, and so of models in memory besides the trained one."
    )

    def __post_init__(self) -> None:
        """Check the arguments together."""
        if isinstance(self.opponents, str):
            object.__setattr__(self, "opponents", (self.opponents,))
        super().__post_init__()
        object.__setattr__(self, "opponents", tuple(map(_by_name, self.opponents)))
        if self.latest is not None and (self.schedule != "latest" or self.latest > self.most):
            raise ConfigError(
                f'latest needs schedule="latest" and is at most most={self.most}; got latest={self.latest}'
            )
        if self.prefer is not None and self.schedule != "prioritized":
            raise ConfigError(f'prefer={self.prefer!r} needs schedule="prioritized", got schedule={self.schedule!r}')
        if not self.opponents and self.every is None:
            raise ConfigError("opponents must have at least one policy, or every=N add snapshots; got none")


def _by_name(opponent: Any) -> Any:
    """Return the name of a function that has one, under which a resumed training finds the results against it."""
    try:
        return name_of(opponent) if callable(opponent) else opponent
    except ConfigError:
        return opponent


# Groups


@dataclass(frozen=True, kw_only=True)
class Task(Options):
    """Environments and tasks."""

    env: Envs = option(
        MISSING,
        "Environment: a registered id, my_game.py:MyGame, package.module:MyGame, a class or a function that makes one; "
        "several, or several with weights.",
        flag=False,
    )
    env_kwargs: Arguments = option({}, "Arguments of the environment; of several environments, by their ids.")
    seed: Seed = option(0, "Seed of the tasks and of the sampling.")
    system_prompt: str | None = option(
        None, "Text of a system message at the start of every conversation.", "the chat template's own, if any"
    )
    balance_instances: bool = option(
        True,
        "Cycle through all instances in shuffled order, where an environment counts them, instead of sampling them. "
        "With grpo's shuffle_dataset=false every step covers them evenly.",
    )
    curriculum: Curriculum | PrioritizedTasks | Literal["prioritized"] | None = option(
        None,
        "Choice of the training tasks by the success rate: levels of difficulty, or tasks that are solved about half "
        "of the time more often (prioritized).",
        "all tasks alike",
    )


_FORMATS = re.compile(r"tag|boxed|plain|json:.+|regex:.+", re.DOTALL)


@dataclass(frozen=True, kw_only=True)
class Text(Options):
    """Conversion of an environment to text, and of responses to actions."""

    wrappers: tuple[Function, ...] = option(
        (), "Functions env -> env, applied in order before the conversion to text and the parsing of actions."
    )
    observe: Literal["render"] | Function | None = option(
        None,
        "Function (observation, info) -> text, or render for the environment's rendering as text.",
        "the conversion of TextObservation",
    )
    act: Function | None = option(
        None,
        "Function text -> action, which raises ValueError with a hint for a text that is no action.",
        "the conversion of TextAction",
    )
    action_format: str | None = option(
        "tag",
        "Mark-up of the action in a response: tag, boxed, json:FIELD, plain, regex:PATTERN, or none.",
        role="marks",
    )
    strict: bool = option(False, "Require the response to consist of the marked action only.", role="marks")
    invalid_penalty: Penalty = option(0.0, "Reward subtracted for an unreadable or invalid action.", role="limit")
    end_after_invalid: Count | None = option(
        None,
        "Number of consecutive invalid actions that end an episode.",
        "3 with a history and without turn_limit, otherwise none does",
        role="limit",
    )
    cut_actions: CutActions = option(
        "reject",
        "Treatment of an action that max_tokens_per_turn cut off: reject it as invalid, or accept it, for actions that "
        "may end there. A marked action that was complete before the cut counts as whole.",
        role="marks",
    )
    turn_limit: Count | None = option(
        None, "Maximum turns of an episode, after which it is truncated.", "the environment's own limit", role="limit"
    )
    cutoff_return: float | None = option(
        None,
        "Upper bound on the return of an episode that is cut off, by turns, tokens, context, time, unreadable actions "
        "or a crash: the return of the worst loss, for environments with negative rewards that declare no settlement.",
        "the sum of the rewards so far, plus the settlement if there is one",
        role="limit",
    )
    instructions: str | None = option(
        None,
        'Replacement of the environment\'s instructions; the sentence on the action format follows. "" removes both.',
        "the environment's own",
    )
    success: float | Literal["info"] | Function | None = option(
        None,
        "Definition of success: a minimum return, info (the environment declares it), or a function of the last info "
        "and the return.",
        "the reward threshold of Gymnasium's registry if there is one, otherwise what the environment declares in info",
        role="limit",
    )
    images: bool | Literal["only"] = option(
        False,
        "Show images of observations to a vision-language model, beside their text or in place of it (only). The "
        "trainer needs a processor, and cannot generate with vLLM.",
    )
    state_key: Literal["auto"] | Function | None = option(
        None,
        "Function of the unwrapped environment that returns the key of its state, for credit per turn, or auto for the "
        "key that it declares.",
        "auto with credit per turn, otherwise no keys",
    )

    def __post_init__(self) -> None:
        """Check the options together."""
        super().__post_init__()
        if self.strict and self.action_format is None:
            raise ConfigError("strict needs an action_format")
        if self.action_format is not None:
            if not _FORMATS.fullmatch(self.action_format):
                raise ConfigError(
                    'action_format must be "tag", "boxed", "json:FIELD", "plain" or "regex:PATTERN", '
                    f"got {self.action_format!r}"
                )
            if self.action_format.startswith("regex:"):
                try:
                    re.compile(self.action_format.removeprefix("regex:"))
                except re.error as error:
                    raise ConfigError(
                        "action_format must have a regular expression after regex:, "
                        f"got {self.action_format!r}: {error}"
                    ) from error


@dataclass(frozen=True, kw_only=True)
class Rollout(Options):
    """Sampling of episodes."""

    max_tokens_per_turn: Count | None = option(None, "Maximum tokens sampled in a turn.", "those left in the episode")
    max_observation: Count | None = option(
        None,
        "Maximum characters of an observation; of a longer one the model sees the beginning and the end. The metric "
        "env/cut_observations counts them.",
        "no limit",
        role="limit",
    )
    max_action: Count | None = option(
        None, "Maximum characters of a response; a longer one is an invalid action.", "no limit", role="limit"
    )
    history: History | None = option(
        None, "Part of the conversation that the model sees.", "all of it, in one row of the trainer"
    )
    chat_template_kwargs: Arguments = option({}, "Arguments for the chat template, such as enable_thinking=false.")
    max_alive: Count | None = option(None, "Maximum number of concurrent environments per process.", "no limit")
    cutoff: Cutoff = option(WAIT, "Conditions for stopping the slowest episodes, and how these are scored.")
    deterministic: bool = option(
        False,
        "Make threads and processes reproduce inline to the last bit; every turn then waits for the slowest step, and "
        "vLLM samples row by row.",
    )

    def __post_init__(self) -> None:
        """Check the options together."""
        super().__post_init__()
        if self.deterministic and self.cutoff.timed:
            raise ConfigError(
                "deterministic=True cannot be combined with a cutoff by the clock, which is not reproducible: "
                "leave out the cutoff's episode_s and rollout_s, or use step_timeout"
            )
        if self.history is not None and self.history.cuts and self.max_tokens_per_turn is None:
            raise ConfigError("history needs max_tokens_per_turn, for which room is kept; got None")


@dataclass(frozen=True, kw_only=True)
class Stepping(Options):
    """Stepping of environments."""

    executor: ExecutorName | Function | None = option(
        None,
        "Where environments are stepped: inline; thread if they wait for something outside Python; process if they "
        "compute, hang, leak or crash; ray for the machines of a cluster; auto moves to threads once steps are found "
        "to wait; or a function that makes a pool.",
        "the environment's own choice, or the result of a short measurement",
    )
    workers: Count | None = option(None, "Number of threads or processes.", "1,024 threads, or one process per core")
    reset_timeout: Seconds | None = option(
        None, "Maximum seconds for making and resetting an environment in a thread or a process.", "no limit"
    )
    step_timeout: Seconds | None = option(
        None,
        "Maximum seconds of a step there. A longer step ends the episode as crashed, which is scored, because the "
        "action may have caused it.",
        "no limit",
    )

    def __post_init__(self) -> None:
        """Check the options together."""
        super().__post_init__()
        given = [name for name in ("workers", "reset_timeout", "step_timeout") if getattr(self, name) is not None]
        if not given or self.executor is None:
            return
        if callable(self.executor):
            raise ConfigError(f"{given[0]} is an option of named executors: one that makes its pool takes it itself")
        if self.executor in ("inline", "auto"):
            raise ConfigError(
                f"{given[0]} needs executor 'thread', 'process' or 'ray': {self.executor!r} steps environments in the "
                "calling thread"
            )


@dataclass(frozen=True, kw_only=True)
class Learning(Options):
    """Learning from the episodes."""

    credit: CreditName | Function = option(
        "episode",
        "Advantages of turns: episode, one for all turns of an episode; pool, return_to_go or gigpo, one per turn; "
        "rae, compared with a running mean of the seat; or a function.",
    )
    resample_dead_groups: Whole = option(
        0,
        "Rounds of a rollout in which groups whose episodes all have the same return are replaced by groups with other "
        "tasks. Replaced episodes count in all metrics, but are not trained on.",
    )
    max_unscored: Share = option(
        0.5,
        "Maximum share of unscored episodes in a rollout; three rollouts in a row above it stop the training.",
    )
    seats: Literal["self"] | League | None = option(
        None,
        "Seats of a game of several that the model plays: all of them (self), or against other opponents and its own "
        "past in a part of the groups. Each seat is a row of the trainer, so num_generations must be a multiple of "
        "them.",
        "one, against the environment's opponent",
    )


@dataclass(frozen=True, kw_only=True)
class EpisodeOptions(Learning, Stepping, Rollout, Text, Task):
    """Options of tasks and episodes, which a specification and a training share."""

    def __post_init__(self) -> None:
        """Check the options together."""
        super().__post_init__()
        if self.curriculum == "prioritized":
            object.__setattr__(self, "curriculum", PrioritizedTasks())
        if self.seats is not None and self.curriculum is not None:
            raise ConfigError(
                "curriculum chooses tasks by their success rate, which self-play leaves at about one half: leave out "
                "curriculum or seats"
            )
        check_seats(self.seats, self)
        summarised = self.history is not None and self.history.summary == "model"
        if summarised and self.credit in ("pool", "gigpo"):
            raise ConfigError(
                f"credit={self.credit!r} compares states of the environment, which say nothing of a summary: "
                'with history.summary="model" use "episode" or "return_to_go"'
            )


PLAYED = (*option_types(Text), *option_types(Rollout), *option_types(Stepping), "system_prompt")
"""Options of episodes of any tasks, whether or not something is learned from them."""


def with_role(role: Role) -> set[str]:
    """Return the names of the options with a role.

    >>> sorted(with_role("marks"))
    ['action_format', 'cut_actions', 'strict']
    """
    return {name for name, one in declared(EpisodeOptions).items() if one.metadata["role"] == role}


def check_chat(history: History | None, chat: object) -> None:
    """Check that a history that renders the chat template has the tokenizer's own.

    Raises:
        ConfigError: It has another one.
    """
    if history is not None and history.template and chat is not None:
        raise ConfigError("history.template needs the tokenizer's chat template: leave out chat")


def check_seats(seats: object, text: Text) -> None:
    """Check that no option defines the success or the return of one seat where the model plays several.

    Raises:
        ConfigError: One does.
    """
    given = {"success": text.success, "cutoff_return": text.cutoff_return}
    for name, value in given.items():
        if seats is not None and value is not None:
            raise ConfigError(
                f"{name} is computed from the rewards of one agent, and seats has several: leave it out; a seat "
                "succeeds if its payoffs add up to more than 0, or by info['successes']"
            )


@dataclass(frozen=True, kw_only=True)
class SpecOptions(EpisodeOptions):
    """Options of ``GymSpec``.

    >>> options = SpecOptions(env="FrozenLake-v1", turn_limit=8, cutoff={"episode_s": 60})
    >>> options.cutoff.episode_s, SpecOptions.of(options.as_dict()) == options
    (60, True)
    """

    num_tasks: Count = option(1_000, "Number of rows of train_dataset.")
    num_eval_tasks: Whole = option(
        100, "Number of rows of eval_dataset; their seeds differ from those of the training tasks."
    )
    chat: Any = option(
        None, "Object that converts messages to tokens.", "the tokenizer's own chat template", flag=False
    )
    on_rollout: Function | None = option(
        None, "Function that receives every finished rollout.", "none does", flag=False
    )

    def __post_init__(self) -> None:
        """Check the options together."""
        super().__post_init__()
        check_chat(self.history, self.chat)
        draws = {"resample_dead_groups": self.resample_dead_groups, "curriculum": self.curriculum}
        draws["curriculum"] = isinstance(self.curriculum, PrioritizedTasks)
        if self.num_tasks < 2 and (drawing := [name for name, given in draws.items() if given]):
            raise ConfigError(
                f"num_tasks must be at least 2 for {drawing[0]}, which plays other tasks; got {self.num_tasks}"
            )


@dataclass(frozen=True, kw_only=True)
class Model(Options):
    """The model that is trained, and how it is held in memory."""

    model: str | None = option(
        None,
        "Model to train: a hub id, a folder, an adapter or a run.",
        "a tiny model with 100,000 random weights, whose tokens are characters",
    )
    dtype: DType | None = option(None, "Type of the weights; bfloat16 and float16 need lora.", "float32")
    lora: Count | None = option(
        None, "Rank of a LoRA adapter that is trained.", "all weights are trained, or the adapter that model names"
    )
    lora_alpha: Positive | None = option(None, "Numerator of the adapter's scale alpha / rank.", "32")
    lora_targets: tuple[str, ...] = option(
        (), "Layers that the adapter changes; none are all linear layers but the head."
    )
    width: Count = option(64, "Width of the tiny model.")
    layers: Count = option(2, "Layers of the tiny model.")
    vllm: VLLMMode | None = option(
        None,
        "Generate with vLLM in the trainer's process (colocate) or on a server of the same model.",
        "with Transformers",
    )


@dataclass(frozen=True, kw_only=True)
class Run(Options):
    """Steps, batches and records of a training."""

    steps: Count = option(200, "Total steps, also of a run that is resumed.")
    episodes_per_step: Count = option(64, "Episodes per step, over all processes.")
    num_generations: Annotated[int, Range(least=2)] = option(8, "Episodes per task, which form a group.")
    learning_rate: Annotated[float, Range(least=0)] = option(1e-6, "Learning rate.")
    max_completion_length: Count = option(
        2048, "Maximum tokens of an episode, with observations; with a history, of a segment."
    )
    overlong_cache: Count | None = option(
        None, "Last tokens of an episode's maximum in which a growing penalty of up to 1 is paid.", "no penalty"
    )
    eval_episodes: Whole = option(64, "Evaluation episodes before and after the training.")
    records_per_step: Whole = option(16, "Episodes per step that are recorded in rollouts.jsonl.")
    grpo: Arguments = option({}, "Fields of TRL's GRPOConfig.")


@dataclass(frozen=True, kw_only=True)
class TrainOptions(Run, Model, EpisodeOptions):
    """Options of a training, as stored in its ``config.json``.

    >>> TrainOptions(env="TrlEnv/Echo-v0", steps=10).steps
    10
    """

    env: str = option(
        DEFAULT_ENV,
        "Environment: a registered id, module:id, package.module:Class, file.py, or file.py:Class.",
        flag=False,
    )

    def __post_init__(self) -> None:
        """Check the options together; fields of ``GRPOConfig`` that are options of their own are moved to these."""
        object.__setattr__(self, "grpo", converted("grpo", self.grpo, Arguments))
        super().__post_init__()
        for name in ("env_kwargs", "grpo", "chat_template_kwargs"):  # as they are read from a file
            object.__setattr__(self, name, stored(name, getattr(self, name)))
        for name, own in SAME_IN_GRPO.items():
            if name in self.grpo:
                raise ConfigError(f"grpo.{name} is the option {own}: give that one")
        if self.episodes_per_step % self.num_generations:
            raise ConfigError(
                f"episodes_per_step must be a multiple of num_generations={self.num_generations}, "
                f"got {self.episodes_per_step}"
            )
        if self.overlong_cache is not None and self.overlong_cache > self.max_completion_length:
            raise ConfigError(
                f"overlong_cache must be at most max_completion_length={self.max_completion_length}, "
                f"got {self.overlong_cache}"
            )
        weights = ("dtype", "lora", "lora_alpha", "lora_targets")
        if self.model is None and (given := [name for name in weights if getattr(self, name)]):
            raise ConfigError(f"{given[0]} needs a model: the tiny model trains all of its weights")
        if self.model is None and self.vllm == "server":
            raise ConfigError('vllm="server" needs the model that the server was started with')
        if self.lora is None and (given := [name for name in weights[2:] if getattr(self, name)]):
            raise ConfigError(f"{given[0]} requires lora, the rank of a new adapter")
        if self.grpo.get("model_init_kwargs") and (given := [name for name in weights if getattr(self, name)]):
            raise ConfigError(f"model_init_kwargs cannot be combined with {given[0]}")


SAME_IN_GRPO = {
    "num_generations": "num_generations",
    "learning_rate": "learning_rate",
    "max_completion_length": "max_completion_length",
    "max_steps": "steps",
    "seed": "seed",
    "use_vllm": "vllm",
    "vllm_mode": "vllm",
}
"""Fields of ``GRPOConfig`` that are options of a training, by the options' names."""


def moved(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return options of a training with those that stand in ``grpo`` under their own names.

    >>> moved({"grpo": {"learning_rate": 1e-5, "beta": 0.1}})
    {'grpo': {'beta': 0.1}, 'learning_rate': 1e-05}

    Raises:
        ConfigError: An option is given twice, with different values.
    """
    if not isinstance(given.get("grpo"), Mapping):
        return dict(given)
    grpo, found = dict(given["grpo"]), dict(given)
    if "use_vllm" in grpo or "vllm_mode" in grpo:
        mode = grpo.pop("vllm_mode", "colocate")
        grpo["vllm"] = mode if grpo.pop("use_vllm", True) else None
    for name in [name for name in (*SAME_IN_GRPO, "vllm") if name in grpo]:
        own, value = SAME_IN_GRPO.get(name, name), grpo.pop(name)
        if own in given and given[own] != value:
            raise ConfigError(f"{own} is given twice: {given[own]!r}, and {value!r} in grpo")
        found[own] = value
    return {**found, "grpo": grpo}


def values_of(options: Options, group: type[Options]) -> dict[str, Any]:
    """Return the values of a group's options, by name.

    >>> values_of(SpecOptions(env="TrlEnv/Echo-v0", workers=2), Stepping)["workers"]
    2
    """
    return {name: vars(options)[name] for name in option_types(group)}


def defaults(group: type[Options]) -> dict[str, Any]:
    """Return the defaults of a group's options, by name.

    >>> defaults(Stepping)["workers"] is None
    True
    """
    return {
        name: one.default_factory() if one.default_factory is not MISSING else one.default
        for name, one in declared(group).items()
        if (one.default, one.default_factory) != (MISSING, MISSING)
    }


def described(one: Field[Any], value: Any) -> str:
    """Return an option's value as words for the help and the docs; empty if there is nothing to say.

    >>> described(declared(Run)["learning_rate"], 1e-6), described(declared(Text)["turn_limit"], None)
    ('1e-06', "the environment's own limit")
    >>> described(declared(Task)["env_kwargs"], {"high": 8, "turns": 4}), described(declared(Text)["strict"], True)
    ('high=8, turns=4', 'true')
    """
    if value is MISSING or isinstance(value, Options):
        return ""
    if value is None:
        return str(one.metadata["unset"])
    if value in ({}, (), []):
        return "none"
    if isinstance(value, Mapping):
        return ", ".join(
            f"{name}={str(part).lower() if isinstance(part, bool) else part}" for name, part in value.items()
        )
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value) or '""'


def default_of(one: Field[Any]) -> Any:
    """Return the default of an option; ``MISSING`` if it must be given."""
    return one.default if one.default_factory is MISSING else one.default_factory()


def chosen(given: Mapping[str, Any], *, by: str) -> dict[str, Any]:
    """Return some of ``PLAYED`` as they are held, after checking them.

    >>> chosen({"history": {"last": 4}, "max_tokens_per_turn": 16}, by="evaluate")["history"].most
    8

    Args:
        given: The options, by name.
        by: What takes the options, for the message about one that it does not have.

    Raises:
        ConfigError: One is unknown, chooses tasks or learns from the episodes, or has a wrong value.
    """
    EpisodeOptions.check_names(given)
    for name in given:
        if name not in PLAYED:
            raise ConfigError(f"{name} is not an option of {by}: leave it out")
    options = EpisodeOptions.of({"env": DEFAULT_ENV, "max_tokens_per_turn": 1, **given})
    return {name: vars(options)[name] for name in given}


def group_of(name: str, options: type[Options]) -> type[Options]:
    """Return the group that declares an option.

    >>> group_of("turn_limit", SpecOptions).__name__
    'Text'
    """
    return next(one for one in reversed(options.__mro__) if name in vars(one).get("__annotations__", {}))


def declared(options: type[Options]) -> Mapping[str, Field[Any]]:
    """Return the declarations of the options of a type, by name, in the order of the groups."""
    return {one.name: one for one in fields(options) if one.init}
