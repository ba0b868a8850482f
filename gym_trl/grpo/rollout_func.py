"""TRL's ``rollout_func``: from prompts to whole episodes, with the exact tokens that the model sampled."""

import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple, TypeAlias

from gym_trl.chat.protocol import Chat
from gym_trl.engines.protocol import Engine
from gym_trl.errors import ConfigError, check_counts
from gym_trl.executors.make import ExecutorConfig, make_pool
from gym_trl.executors.protocol import EnvFactory, EnvPool
from gym_trl.grpo import trl_versions
from gym_trl.grpo.attach import CUT_OFF, OnTotals, Place, attach
from gym_trl.grpo.credit.columns import turn_columns
from gym_trl.grpo.credit.estimators import EPISODE, ESTIMATORS
from gym_trl.grpo.credit.turn_credit import TurnCredit
from gym_trl.grpo.curriculum import Follower, TaskCurriculum
from gym_trl.grpo.dead_groups import ReplacedEpisode, dead_groups
from gym_trl.grpo.image_rows import attach_images
from gym_trl.grpo.league import outcome_of
from gym_trl.grpo.league_games import LeagueGames
from gym_trl.grpo.planned_rows import GameSeat, Planned, Planner
from gym_trl.grpo.totals import Replaced, outcomes, rows_of
from gym_trl.grpo.trainer_engine import context_length, trainer_engine
from gym_trl.grpo.training_tasks import DATASET_ROW
from gym_trl.grpo.trl_versions import chat_options, chat_source, end_ids
from gym_trl.kinds import option_types
from gym_trl.options import Stepping
from gym_trl.rollout.config import RolloutConfig
from gym_trl.rollout.episode import Episode
from gym_trl.rollout.game import Game, InThread, SeatPolicy
from gym_trl.rollout.loop import run_episodes, run_games
from gym_trl.seeding import derive_seed
from gym_trl.types import EpisodeResult, StopReason, Task
from gym_trl.wrappers.image_observation import IMAGES

RolloutFunc: TypeAlias = Callable[[list[Any], Any], dict[str, list[Any]]]


ATTACH = "_gym_trl_attach"
"""Method of a ``rollout_func`` that attaches it to a trainer."""
SEGMENTS = "segments"
"""Column with the beginnings of an episode's further segments, if there is a history."""


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

    @property
    def trajectories(self) -> list[EpisodeResult]:
        """Name of ``episodes`` in earlier releases."""
        return self.episodes


def make_rollout_func(
    make: EnvFactory,
    *,
    assign: Callable[[str, int], Task],
    seed: int = 0,
    config: RolloutConfig | None = None,
    stepping: ExecutorConfig | None = None,
    on_rollout: Callable[[Rollout], None] | None = None,
    on_totals: OnTotals | None = None,
    curriculum: TaskCurriculum | None = None,
    resample_dead_groups: int = 0,
    credit: TurnCredit | None = None,
    seats: Mapping[str, int] | None = None,
    league: LeagueGames | None = None,
    images: bool = False,
    **options: Any,
) -> RolloutFunc:
    """Return a function for ``GRPOTrainer(rollout_func=...)`` that plays one episode per prompt.

    The function has TRL's signature ``(prompts, trainer)`` and returns one row per prompt, in order: ``prompt_ids``,
    ``completion_ids``, ``logprobs``, ``env_mask``, and for reward functions ``episode_return``, ``success``,
    ``stop_reason``, ``num_turns``, ``invalid_actions``, ``cut_actions``, ``cut_observations``,
    ``template_differences``, ``scores`` (of criteria), ``step_rewards``, ``messages``, ``task``, ``seat``, ``opponent``
    and ``error``. ``success`` is ``None`` if it is not declared. For credit per turn there are ``turn_rewards`` (the
    same as ``step_rewards``), ``turn_spans``, ``turn_keys``, ``markov_keys``, ``turns_left``, ``turn_places``,
    ``task_key``, ``turn_penalties``, ``unplayed_costs`` and ``role``. With a history there is ``segments``: where in
    ``completion_ids`` the prompt of each further segment starts and stops. Where a model plays all ``seats``, those of
    a game are neighbouring rows of a group.

    If a prompt has a task, that task is played, unless ``curriculum`` or ``resample_dead_groups`` draw another row of
    ``train_dataset``; the column ``dataset_row`` then has its index, and reward functions get that row's prompt and
    columns in place of the original's. For any other prompt ``assign`` makes a task, which is the same for all
    members of a GRPO group, on every process. An unscored episode has no return and no trained token.

    Args:
        make: Function that makes an environment from its id.
        assign: Function that makes a task from a split and the number of a group, for prompts without a task.
        seed: Seed of the sampling and of the assigned tasks.
        config: Options of the rollout.
        stepping: Executor and its options. Default: inline.
        on_rollout: Callback that receives every finished rollout.
        on_totals: Called on every process with the ``StepTotals`` of all processes, once per batch that the trainer
            scores; an exception that it raises ends the training on all processes.
        curriculum: Choice of the training tasks by the success rate.
        resample_dead_groups: Rounds in which training groups without spread are replaced; see ``GymSpec``.
        credit: Credit per turn, which the first call attaches to the trainer. Default: the trainer's own advantages.
        seats: Number of seats of each environment by its id, if the model plays all of them. Default: one.
        league: Opponents in a part of the groups, with ``seats``; see ``League``. Default: none.
        images: Environments show images, which the trainer is given with the episodes' ids; the column ``images`` has
            those of each row.
        options: Fields of ``RolloutConfig`` and ``ExecutorConfig``, instead of these objects.

    Raises:
        ConfigError: An argument is invalid.
    """
    given = {name: value for name, value in options.items() if value is not None}
    chosen = {name: given.pop(name) for name in option_types(Stepping) if name in given}
    stepping = replace(stepping or ExecutorConfig(), **chosen)
    config = replace(config or RolloutConfig(), **given)
    check_counts(0, resample_dead_groups=resample_dead_groups)
    follower = None if curriculum is None else Follower(curriculum)
    pool = make_pool(make, stepping, deterministic=config.deterministic)
    planner = Planner(assign, seed, follower)
    return _RolloutFunc(
        pool,
        planner,
        follower,
        resample_dead_groups,
        seed,
        config,
        on_rollout,
        on_totals,
        credit,
        seats or {},
        league,
        images,
    )


@dataclass(eq=False)
class _RolloutFunc:
    pool: EnvPool
    planner: Planner
    follower: Follower | None
    rounds: int
    seed: int
    config: RolloutConfig
    on_rollout: Callable[[Rollout], None] | None
    on_totals: OnTotals | None
    credit: TurnCredit | None
    seats: Mapping[str, int]
    league: LeagueGames | None = None
    images: bool = False
    chats: list[tuple[Any, str | None, Chat]] = field(default_factory=list)  # by tokenizer and template

    def __post_init__(self) -> None:
        weakref.finalize(self, self.pool.close)

    @property
    def has_history(self) -> bool:
        """True if episodes may have several segments."""
        return self.config.history is not None

    def _gym_trl_segments(self, trainer: Any) -> None:
        """Let a trainer train segments as rows, if there is a history.

        Raises:
            ConfigError: The trainer's settings do not go with it.
        """
        if self.config.history is not None and not trl_versions.has_segments(trainer):
            trl_versions.check_segments(trainer)
            trl_versions.intercept_segments(trainer, SEGMENTS)

    def _gym_trl_attach(self, trainer: Any) -> None:
        """Attach to a trainer, once.

        Raises:
            ConfigError: The trainer's settings do not go with the history or the credit per turn.
        """
        self._gym_trl_segments(trainer)
        attach(trainer)
        if self.images:
            attach_images(trainer)
        if self.credit is not None:
            self.credit.attach(trainer)

    def __call__(self, prompts: list[Any], trainer: Any) -> dict[str, list[Any]]:
        parts = trl_versions.batch_parts(trainer)
        self._check_attached(trainer)
        self._gym_trl_attach(trainer)
        columns = self._rollout(prompts, trainer)
        if trl_versions.batch_parts(trainer) != parts:
            trl_versions.make_batch_again(trainer, columns)
        return columns

    def _rollout(self, prompts: list[Any], trainer: Any) -> dict[str, list[Any]]:
        """Return the columns of one episode per prompt."""
        attachment, config = attach(trainer), self.config
        chat = config.chat or self._trainer_chat(trainer)
        place = attachment.place(len(prompts))
        training, replaced = place.split == "train", None
        shared = self._check_seats(trainer, len(prompts), training=training)
        if training and self.follower is not None:
            self.follower.begin(trainer)
        if training and self.rounds:
            self.planner.tasks(trainer)  # checks the dataset, on all processes alike
        rows = self.planner.rows(prompts, trainer, place)
        league = self.league if training else None
        if league is not None:
            # With resample_dead_groups any opponent of the rollout may play on this process.
            league.begin(trainer)
            league.load(league.opponents(rows, place, all_groups=self.rounds > 0), trainer, chat, config)
        # The same on all processes; in an evaluation, another for each of its batches.
        begins = place.first - trainer.accelerator.process_index * len(prompts)
        parts = "generator", place.split, place.step, place.call, begins
        generator = None if config.deterministic else derive_seed(self.seed, *parts)
        with (
            trainer_engine(trainer, chat, config.sampling, seed=generator) as own,
            nullcontext(own) if league is None else league.engine(own, trainer) as engine,
        ):
            play = partial(
                self._play, engine=engine, trainer=trainer, chat=chat, place=place, shared=shared, league=league
            )
            episodes = play(rows)
            if training and self.rounds:
                others = partial(self.planner.others, trainer=trainer, place=place)
                replaced = self._replace_dead(rows, episodes, play, others, getattr(engine, "meet", _no_meeting))
        if self.on_rollout:
            self.on_rollout(Rollout(place.split, place.step, episodes, replaced or [], self.seats))
        columns = _columns(episodes, end_ids(trainer)[0], CUT_OFF if attachment.masks_cut_off else ())
        if config.history is not None:
            columns[SEGMENTS] = [_borders(episode) for episode in episodes]
        if self.images:
            columns[IMAGES] = [list(row.trace.images) if row.scored else [] for row in episodes]
        if self.rounds or (self.follower is not None and self.follower.curriculum.draws):
            columns[DATASET_ROW] = [row.dataset_row for row in rows]
        attachment.note(columns, self.on_totals, replaced=None if replaced is None else _count(replaced, rows))
        if training and self.follower is not None:
            self.follower.end(trainer, [*episodes, *(one.episode for one in replaced or ())])
        if league is not None:
            league.end(trainer)
        return columns

    def _trainer_chat(self, trainer: Any) -> Chat:
        """Return the chat of this trainer's tokenizer, which is made once."""
        tokenizer, (template, options) = chat_source(trainer), chat_options(trainer)
        for known, known_template, chat in self.chats:
            if known is tokenizer and known_template == template:
                return chat
        chat = self.config.template_chat(tokenizer, options, chat_template=template, end_ids=end_ids(trainer))
        self.chats.append((tokenizer, template, chat))
        return chat

    def _check_attached(self, trainer: Any) -> None:
        if getattr(trainer, "rollout_func", None) is self:
            return
        segmented = self.config.history is None or trl_versions.has_segments(trainer)
        if not segmented or (self.images and not trl_versions.has_images(trainer)):
            raise ConfigError(
                f"with {'images' if segmented else 'history'} a trainer must be attached before its first batch: where "
                "rollout_func is a function of your own, call spec.attach(trainer) before trainer.train()"
            )

    def _check_seats(self, trainer: Any, rows: int, *, training: bool) -> bool:
        """Return whether games may have rows on several processes.

        Raises:
            ConfigError: A group does not have whole games.
        """
        name = "num_generations" if training else "num_generations_eval"
        size, processes = getattr(trainer, name), trainer.accelerator.num_processes
        for env_id, seats in self.seats.items():
            if size % seats:
                raise ConfigError(f"{name} must be a multiple of the {seats} seats of {env_id}, got {size}")
        return processes > 1 and any(rows % seats for seats in self.seats.values())

    def _play(
        self,
        rows: Sequence[Planned],
        *,
        engine: Engine,
        trainer: Any,
        chat: Chat,
        place: Place,
        shared: bool,
        league: LeagueGames | None,
    ) -> list[EpisodeResult]:
        config, history = self.config, self.config.history
        limits = config.limits(trainer.args.max_completion_length, context=context_length(trainer))

        def episode(row: Planned) -> Episode:
            seed = row.sampling_seed(self.seed, place)
            return Episode(row.task, chat=chat, limits=limits, preamble=row.preamble, seed=seed, history=history)

        run: dict[str, Any] = {
            "pool": self.pool,
            "engine": engine,
            "max_alive": config.max_alive,
            "cutoff": config.cutoff,
        }
        if not self.seats:
            return run_episodes([episode(row) for row in rows], **run)
        matches: list[_Match] = []
        for row in rows:
            seats = self.seats[row.task.env_id]
            seat = GameSeat.of(row.member, seats).seat
            opponent = "" if league is None else league.opponent(row, place)
            if opponent or seat == 0:  # otherwise the game of the slot's first row has all of its seats
                matches.append(_Match([row.seat(number, seats) for number in range(seats)], seat, opponent))

        def player(match: _Match, row: Planned) -> Episode | SeatPolicy | InThread:
            if league is None or not match.is_against(row):
                return episode(row)
            seed = derive_seed(row.sampling_seed(self.seed, place), "opponent", match.seat)
            if (model := league.model(match.opponent)) is None:
                return league.policy(match.opponent, row.task, seed)
            about: dict[str, Any] = {"chat": model.chat, "limits": model.limits, "preamble": row.preamble}
            return Episode(row.task, **about, seed=seed, history=history, model=match.opponent)

        results = run_games([Game([player(match, row) for row in match.rows]) for match in matches], **run)
        played: dict[int, EpisodeResult] = {}
        for match, result in zip(matches, results, strict=True):
            mine = [one for row, one in zip(match.rows, result, strict=True) if not match.is_against(row)]
            others = [one for row, one in zip(match.rows, result, strict=True) if match.is_against(row)]
            played |= {match.number(one): replace(one, opponent=match.opponent) for one in mine}
            if league is not None and match.opponent:
                league.note(match.opponent, outcome_of(mine[0], others))
        if shared:
            played |= _exchanged(played, {row.number for row in rows})
        return [played[row.number] for row in rows]

    def _replace_dead(
        self,
        rows: list[Planned],
        episodes: list[EpisodeResult],
        play: Callable[[Sequence[Planned]], list[EpisodeResult]],
        others: Callable[[Sequence[Planned]], list[Planned]],
        meet: Callable[[], None],
    ) -> list[ReplacedEpisode]:
        """Play dead groups again with other tasks, in place, and return the episodes that were replaced.

        Every process joins in every round, also without a row in a dead group, and all of them stop after the same one.
        """
        replaced: list[ReplacedEpisode] = []
        estimator = ESTIMATORS[EPISODE] if self.credit is None else self.credit.estimator
        for _ in range(self.rounds):
            meet()
            played = [(row.group, episode) for row, episode in zip(rows, episodes, strict=True)]
            dead = dead_groups(played, estimator=estimator)
            if not dead:
                break
            judged = [place for place, row in enumerate(rows) if row.group in dead]
            replaced += [ReplacedEpisode(place, rows[place].attempt, episodes[place]) for place in judged]
            again = others([rows[place] for place in judged])
            for place, row, episode in zip(judged, again, play(again), strict=True):
                rows[place], episodes[place] = row, episode
        return replaced


class _Match(NamedTuple):
    """Game of a slot of rows, one for each seat: of the model with itself, or of one row against an opponent."""

    rows: Sequence[Planned]
    """Rows of the slot, by seat; in a game against an opponent only the one at ``seat`` is of this game."""
    seat: int
    opponent: str
    """Name of the opponent; empty if the model plays all seats."""

    def is_against(self, row: Planned) -> bool:
        """Return whether the opponent plays the seat of a row."""
        return bool(self.opponent) and row.number != self.rows[self.seat].number

    def number(self, episode: EpisodeResult) -> int:
        """Return the number of the row of a seat's episode."""
        return self.rows[episode.seat or 0].number


def _exchanged(played: Mapping[int, EpisodeResult], mine: Collection[int]) -> dict[int, EpisodeResult]:
    """Return what other processes have played for rows of this one; every process must call it."""
    from accelerate.utils import gather_object

    sent: list[tuple[int, EpisodeResult]] = gather_object([pair for pair in played.items() if pair[0] not in mine])
    return dict(sent)


def _no_meeting() -> None:
    """Do nothing: the processes' engines do not need each other."""


def _count(replaced: Sequence[ReplacedEpisode], rows: Sequence[Planned]) -> Replaced:
    """Return what is counted of the episodes that were replaced; a group is counted where its first row is."""
    began = [one for one in replaced if rows[one.place].first_of_group]
    episodes = [one.episode for one in replaced]
    return Replaced(rows_of(outcomes(episodes)), sum(sum(episode.trace.mask) for episode in episodes), len(began))


def _borders(episode: EpisodeResult) -> list[tuple[int, int]]:
    """Return where the prompts of an episode's further segments are in its ``completion_ids``."""
    return [(border.start, border.stop) for border in episode.trace.borders] if episode.scored else []


def _columns(episodes: Sequence[EpisodeResult], filler: int, masked: Collection[StopReason]) -> dict[str, list[Any]]:
    """Return the columns that TRL expects; an unscored episode is one masked ``filler`` token.

    An episode with a stop reason in ``masked`` keeps its ids and its score, and all its tokens are masked.

    If nothing was sampled, the prompt is one ``filler`` token too: a first observation that exceeds the context would
    otherwise pad the whole batch to its length. So it is for an unscored episode with images, which are left out.
    """
    kept = [episode.scored for episode in episodes]
    rows = list(zip(kept, episodes, strict=True))
    return {
        "prompt_ids": [
            episode.trace.prompt_ids
            if episode.trace.completion_ids and (scored or not episode.trace.images)
            else [filler]
            for scored, episode in rows
        ],
        "completion_ids": [episode.trace.completion_ids if scored else [filler] for scored, episode in rows],
        "logprobs": [episode.trace.logprobs if scored else [0.0] for scored, episode in rows],
        "env_mask": [
            [0]
            if not scored
            else [0] * len(episode.trace.mask)
            if episode.stop_reason in masked
            else episode.trace.mask
            for scored, episode in rows
        ],
        **outcomes(episodes),
        **(turns := turn_columns(episodes)),
        "step_rewards": turns["turn_rewards"],
        "messages": [[message.as_dict() for message in episode.messages] for episode in episodes],
        "opponent": [episode.opponent for episode in episodes],
        "error": [episode.error for episode in episodes],
    }
