"""Options that have options of their own: cutoff, history, curriculum."""

from collections.abc import Sequence
from dataclasses import KW_ONLY, MISSING, dataclass
from typing import Annotated, Literal

from gym_trl.errors import ConfigError
from gym_trl.kinds import Arguments, Count, Range, Seconds, Whole
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
