"""Options that have options of their own: cutoff, history, curriculum, league."""

from collections.abc import Sequence
from dataclasses import KW_ONLY, MISSING, dataclass
from typing import Annotated, Any, Literal

from gym_trl.errors import ConfigError
from gym_trl.kinds import Arguments, Count, Range, Seconds, Whole, name_of
from gym_trl.options.base import Function, Options, option


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
