"""Part of a rollout: a feature as one object, and the call that its hooks are given."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol, TypeAlias, TypeVar, runtime_checkable

from gym_trl.chat import ChatLike
from gym_trl.engines.protocol import Engine
from gym_trl.executors.protocol import EnvFactory, EnvPool
from gym_trl.grpo.attach import Place
from gym_trl.grpo.planned_rows import Planned
from gym_trl.grpo.trainer_parts import TrainerPart
from gym_trl.grpo.trl_versions import pending_metrics
from gym_trl.rollout.config import RolloutConfig
from gym_trl.rollout.episode import Episode
from gym_trl.rollout.limits import Limits
from gym_trl.types import EpisodeResult

_Value = TypeVar("_Value")
Play: TypeAlias = Callable[[Sequence[Planned]], list[EpisodeResult]]
"""Function that plays rows and returns their episodes, in order."""


class ReplacedEpisode(NamedTuple):
    """Episode of a group that was replaced, so that it is not trained on."""

    place: int
    """Index in ``Rollout.episodes`` of the episode that was played in its place."""
    attempt: int
    """Number of its group's replacements before it; 0 for the group that was played first."""
    episode: EpisodeResult


class Rollout(NamedTuple):
    """Episodes of one call of a ``rollout_func`` on this process."""

    split: str
    """``"train"`` or ``"eval"``."""
    step: int
    """The trainer's global step."""
    episodes: list[EpisodeResult]
    replaced: Sequence[ReplacedEpisode] = ()
    """Episodes of groups that were replaced (``resample_dead_groups``), in the order in which they were played."""
    seats: Mapping[str, int] = {}
    """Number of seats of each environment by its id, if the model plays all of them (``GymSpec(seats="self")``)."""


@dataclass(frozen=True, kw_only=True)
class Call:
    """One call of a ``rollout_func`` on this process: its position in the training, and what its episodes share."""

    trainer: Any
    """Trainer that called."""
    place: Place
    """Position in the training or evaluation."""
    seed: int
    """Seed of the specification."""
    chat: ChatLike
    limits: Limits
    config: RolloutConfig
    pool: EnvPool
    make: EnvFactory
    """Function that makes an environment from its id, as the rows are played in."""
    rows: int
    """Number of prompts on this process."""
    group_size: int
    """Number of members of a group."""
    seats: Mapping[str, int]
    """Number of seats of each environment by its id, if the model plays all of them; empty otherwise."""
    declaring: frozenset[str] = frozenset()
    """Environments that are known to declare success, the same on all processes."""
    replaces: bool = False
    """True if a part may play groups of this call again with other tasks."""
    made_engine: Engine | None = None

    @property
    def engine(self) -> Engine:
        """Engine of the call, in ``Part.play`` and ``Part.again``."""
        assert self.made_engine is not None, "there is an engine only while rows are played"
        return self.made_engine

    @property
    def training(self) -> bool:
        """True in a training, False in an evaluation."""
        return self.place.split == "train"

    @property
    def run(self) -> dict[str, Any]:
        """Arguments of ``run_episodes`` and ``run_games``."""
        config = self.config
        return {"pool": self.pool, "engine": self.engine, "max_alive": config.max_alive, "cutoff": config.cutoff}

    def gather(self, here: Sequence[_Value]) -> list[_Value]:
        """Return the values of all processes, in their order; every process must call it."""
        from accelerate.utils import gather_object

        return list(gather_object(list(here)))

    def log(self, metrics: Mapping[str, float]) -> None:
        """Log metrics of the call's training or evaluation, which must be the same on all processes."""
        pending = pending_metrics(self.trainer, self.place.split)
        for name, value in metrics.items():
            pending[name] = [value]

    def episode(self, row: Planned, **other: Any) -> Episode:
        """Return a new episode of a row; ``other`` are arguments of ``Episode`` in place of the call's own."""
        usual = {"chat": self.chat, "limits": self.limits, "seed": row.sampling_seed(self.seed, self.place)}
        usual |= {"preamble": row.preamble, "history": self.config.history}
        return Episode(row.task, **{**usual, **other})


class Part:
    """Feature of a rollout. Each hook leaves things as they are, so a part has only those that it needs.

    A rollout begins with rows, one for each prompt of this process, and calls the hooks of its parts in their order:
    ``begin``, ``plan``, ``engine``, ``play``, ``again``, ``columns``, ``end``. No hook may rely on another part.
    Whatever ``plan`` and ``again`` decide must be the same on all processes, because members of a group, which play the
    same task, may be on two of them: it depends on ``call.place``, ``call.seed``, the row's group and ``state`` only,
    and ``state`` on what all processes know (``call.gather``). The guide "Write a part" has the rules and an example.

    A part that counts the episodes that succeed, and gives reward functions a column with the number of turns:

    >>> class Counted(Part):
    ...     name = "counted"
    ...     def __init__(self) -> None:
    ...         self.state = {"won": 0}
    ...     def columns(self, rows, episodes, call):
    ...         return {"length": [len(episode.turns) for episode in episodes]}
    ...     def end(self, rollout, call):
    ...         self.state["won"] += sum(call.gather([episode.success is True for episode in rollout.episodes]))

    ``GymSpec(env, parts=[Counted()])`` then plays with it, after the library's own parts.
    """

    name: ClassVar[str] = ""
    """Name in error messages and checkpoints. Default: the name of the class."""
    state: Any = None
    """State that checkpoints hold, if JSON can: restored before the first rollout of a training, and saved after each.

    A training that is not resumed begins with the state before the first one. ``None`` is not saved.
    """
    in_evaluations: ClassVar[bool] = False
    """Evaluations have it too, not only trainings."""
    replaces: bool = False
    """``again`` may replace episodes."""

    def __init_subclass__(cls) -> None:
        if "name" not in vars(cls):
            cls.name = cls.__name__

    def trainer_part(self) -> TrainerPart | None:
        """Return a new object with what the part changes in the batches of a trainer; ``None`` for nothing.

        A trainer must know it before its first batch: ``GymGRPOTrainer(..., spec=spec)`` or ``adopt(trainer, spec)``.
        """

    def begin(self, call: Call) -> None:
        """Check and prepare a call.

        Raises:
            ConfigError: Something does not go with the part.
        """

    def plan(self, rows: list[Planned], call: Call) -> list[Planned]:
        """Return the rows that are played, one for each of ``rows``."""
        return rows

    @contextmanager
    def engine(self, engine: Engine, call: Call) -> Iterator[Engine]:
        """Provide the engine that is used while rows are played."""
        yield engine

    def play(self, rows: Sequence[Planned], play: Play, call: Call) -> list[EpisodeResult]:
        """Return the episodes of rows, in order; ``play`` plays them without this part."""
        return play(rows)

    def again(
        self, rows: list[Planned], episodes: list[EpisodeResult], play: Play, call: Call
    ) -> list[ReplacedEpisode]:
        """Play some rows again and put them and their episodes in place, and return the episodes that were there."""
        return []

    def columns(self, rows: Sequence[Planned], episodes: Sequence[EpisodeResult], call: Call) -> dict[str, list[Any]]:
        """Return columns for the trainer and its reward functions, each with a value for each row."""
        return {}

    def end(self, rollout: Rollout, call: Call) -> None:
        """Take note of what was played."""


@runtime_checkable
class HasParts(Protocol):
    """``rollout_func`` of a specification, or a function that has taken over its attributes (``functools.wraps``)."""

    parts: tuple[Part, ...]


def parts_of(rollout_func: object) -> tuple[Part, ...]:
    """Return the parts of a ``rollout_func``; a user's own function has none."""
    return rollout_func.parts if isinstance(rollout_func, HasParts) else ()
