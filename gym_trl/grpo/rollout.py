"""TRL's ``rollout_func``: from prompts to whole episodes, with the exact tokens that the model sampled."""

import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import takewhile
from typing import Any, TypeAlias

import gymnasium as gym

from gym_trl.chat import ChatLike
from gym_trl.engines.protocol import checked_engine
from gym_trl.errors import ConfigError
from gym_trl.executors.make import ExecutorConfig, make_pool
from gym_trl.executors.protocol import EnvFactory, EnvPool
from gym_trl.grpo.adopt import attach
from gym_trl.grpo.attach import CUT_OFF, Attachment, OnTotals
from gym_trl.grpo.credit.columns import turn_columns
from gym_trl.grpo.dataset import DATASET_ROW
from gym_trl.grpo.parts.checked import checked_columns, checked_list
from gym_trl.grpo.parts.history import Segments
from gym_trl.grpo.parts.part import Call, Part, Play, ReplacedEpisode, Rollout
from gym_trl.grpo.planned_rows import Assign, Planned, read_rows
from gym_trl.grpo.saved_state import SavedState, state_name
from gym_trl.grpo.totals import Replaced, outcomes, rows_of
from gym_trl.grpo.trainer import trainer_parts
from gym_trl.grpo.trainer_engine import context_length, trainer_engine
from gym_trl.grpo.trl_versions import chat_options, end_ids
from gym_trl.kinds import option_types
from gym_trl.options import Stepping
from gym_trl.rollout.config import RolloutConfig
from gym_trl.rollout.loop import run_episodes
from gym_trl.seeding import derive_seed
from gym_trl.types import EpisodeResult, StopReason

_FIRST = 3
"""Number of rollouts whose groups are compared: a global generator in an environment shows itself at once."""
RolloutFunc: TypeAlias = Callable[[list[Any], Any], dict[str, list[Any]]]


def make_rollout_func(
    make: EnvFactory,
    *,
    assign: Assign,
    seed: int = 0,
    config: RolloutConfig | None = None,
    stepping: ExecutorConfig | None = None,
    on_rollout: Callable[[Rollout], None] | None = None,
    on_totals: OnTotals | None = None,
    seats: Mapping[str, int] | None = None,
    parts: Iterable[Part | None] = (),
    **options: Any,
) -> "Core":
    """Return a function for ``GRPOTrainer(rollout_func=...)`` that plays one episode per prompt.

    The function has TRL's signature ``(prompts, trainer)`` and returns one row per prompt, in order: ``prompt_ids``,
    ``completion_ids``, ``logprobs``, ``env_mask``, and for reward functions ``episode_return``, ``success``,
    ``stop_reason``, ``num_turns``, ``invalid_actions``, ``cut_actions``, ``step_rewards``, ``messages``, ``task``,
    ``seat`` and ``error``. ``success`` is ``None`` if it is not declared. For credit per turn there are
    ``turn_rewards`` (as ``step_rewards``), ``turn_spans``, ``turn_keys``, ``markov_keys``, ``turns_left``,
    ``turn_places``, ``task_key``, ``turn_penalties``, ``unplayed_costs`` and ``role``. ``parts`` add their own, such as
    ``segments`` with a history: where in ``completion_ids`` the prompt of each further segment starts and stops.

    If a prompt has a task, that task is played, unless a part draws another row of ``train_dataset``; the column
    ``dataset_row`` then has its index instead of ``None``, and reward functions get that row's prompt and columns in
    place of the original's. For any other prompt ``assign`` makes a task, which is the same for all members of a GRPO
    group, on every process. An unscored episode has no return and no trained token.

    Args:
        make: Function that makes an environment from its id.
        assign: Function that makes a task from a split and the number of a group, for prompts without a task.
        seed: Seed of the sampling and of the assigned tasks.
        config: Options of the rollout.
        stepping: Executor and its options. Default: inline.
        on_rollout: Callback that receives every finished rollout.
        on_totals: Called on every process with the ``StepTotals`` of all processes, once per batch that the trainer
            scores; an exception that it raises ends the training on all processes.
        seats: Number of seats of each environment by its id, if the model plays all of them, for the part ``Games``.
        parts: Features, in the order in which their hooks are called; see ``Part``. A ``history`` among the options
            brings its own.
        options: Fields of ``RolloutConfig`` and ``ExecutorConfig``, instead of these objects.

    Raises:
        ConfigError: An argument is invalid, or two parts have one name.
    """
    options_given = {name: value for name, value in options.items() if value is not None}
    chosen = {name: options_given.pop(name) for name in option_types(Stepping) if name in options_given}
    stepping = replace(stepping or ExecutorConfig(), **chosen)
    config = replace(config or RolloutConfig(), **options_given)
    return Core(
        make=make,
        pool=make_pool(make, stepping),
        assign=assign,
        seed=seed,
        config=config,
        parts=in_order(parts, config),
        seats=seats or {},
        on_rollout=on_rollout,
        on_totals=on_totals,
    )


def in_order(parts: Iterable[Part | None], config: RolloutConfig) -> tuple[Part, ...]:
    """Return the parts that there are, that of a history first.

    Raises:
        ConfigError: Two parts have one name.
    """
    ordered = [part for part in parts if part is not None and not isinstance(part, Segments)]
    if config.history is not None:
        ordered.insert(0, Segments())
    names = [part.name for part in ordered]
    if twice := [name for name in names if names.count(name) > 1]:
        raise ConfigError(f"two parts are called {twice[0]!r}: give the class of one of them another name")
    return tuple(ordered)


@dataclass(eq=False, kw_only=True)
class Core:
    """Core of a ``rollout_func``: plans the rows of prompts, plays them, and returns their columns.

    A trainer calls it in the middle of a batch, with the prompts of this process. Each becomes a row, and the parts may
    give rows other tasks, which every process must decide alike, because a group may be on two of them. Only then is
    the engine made, around the trainer's model as it is now, and all rows are played at once: no episode waits for
    another. When all have ended, parts may have some of them played again; the engine is gone after that, and the
    trainer has its memory back. The episodes become columns, one value for each row: first those of TRL and of reward
    functions, then those that parts add. The counts of all processes are logged when the trainer has calculated the
    rewards, so they are only noted here. Last of all the parts are told what was played, and their state is saved, so
    that a checkpoint has counted this rollout.
    """

    make: EnvFactory
    pool: EnvPool
    assign: Assign
    seed: int
    config: RolloutConfig
    parts: tuple[Part, ...]
    """Features, in the order in which their hooks are called."""
    seats: Mapping[str, int]
    on_rollout: Callable[[Rollout], None] | None = None
    on_totals: OnTotals | None = None

    def __post_init__(self) -> None:
        weakref.finalize(self, self.pool.close)
        self._chats: list[tuple[Any, Any, ChatLike]] = []  # by tokenizer and options
        self._needed = trainer_parts(self.parts)  # of a trainer, which has its own
        self._saved = [SavedState(part, state_name(part.name)) for part in self.parts if part.state is not None]

    def __call__(self, prompts: list[Any], trainer: Any) -> dict[str, list[Any]]:
        """Return the columns of one episode per prompt."""
        try:
            return self._rollout(prompts, trainer)
        except BaseException:
            for state in self._saved if trainer.model.training else ():
                state.undo(trainer)
            raise

    def _rollout(self, prompts: list[Any], trainer: Any) -> dict[str, list[Any]]:
        attachment = attach(trainer, self._needed)
        call, parts = self._begin(prompts, trainer, attachment)
        rows = read_rows(prompts, call.place, call.group_size, assign=self.assign, seed=self.seed)
        for part in parts:
            rows = checked_list(part, "plan", part.plan(rows, call), Planned, len(prompts))
        with self._engine(parts, call) as call:
            play = partial(_play, call=call)
            for part in parts:
                play = partial(_played_by, part, play=play, call=call)
            episodes = play(rows)
            replaced = []
            for part in parts:
                replaced += checked_list(part, "again", part.again(rows, episodes, play, call), ReplacedEpisode)
        if call.training and call.place.generation < _FIRST:
            check_openings(rows, episodes)
        rollout = Rollout(call.place.split, call.place.step, episodes, replaced, self.seats)
        if self.on_rollout:
            self.on_rollout(rollout)
        columns = _columns(episodes, end_ids(trainer)[0], CUT_OFF if attachment.masks_cut_off else ())
        columns[DATASET_ROW] = [row.dataset_row for row in rows]
        for part in parts:
            columns |= checked_columns(part, part.columns(rows, episodes, call), len(rows), columns)
        attachment.note(columns, self.on_totals, replaced=_count(replaced, rows) if call.replaces else None)
        for part in parts:
            part.end(rollout, call)
        for state in self._saved if call.training else ():
            state.save(trainer)
        return columns

    def _begin(self, prompts: Sequence[Any], trainer: Any, attachment: Attachment) -> tuple[Call, list[Part]]:
        """Return a call and its parts, which have begun it."""
        place, config = attachment.place(len(prompts)), self.config
        parts = [part for part in self.parts if place.split == "train" or part.in_evaluations]
        call = Call(
            trainer=trainer,
            place=place,
            seed=self.seed,
            chat=config.chat or self._trainer_chat(trainer),
            limits=config.limits(trainer.args.max_completion_length, context=context_length(trainer)),
            config=config,
            pool=self.pool,
            make=self.make,
            rows=len(prompts),
            group_size=trainer.num_generations if place.split == "train" else trainer.num_generations_eval,
            seats=self.seats,
            declaring=attachment.declaring,
            replaces=any(part.replaces for part in parts),
        )
        for state in self._saved if call.training else ():
            state.restore(trainer)
        for part in parts:
            part.begin(call)
        return call, parts

    @contextmanager
    def _engine(self, parts: Sequence[Part], call: Call) -> Iterator[Call]:
        """Provide the call with its engine."""
        trainer, place = call.trainer, call.place
        # The same on all processes; in an evaluation, another for each of its batches.
        begins = place.first - trainer.accelerator.process_index * call.rows
        words = "generator", place.split, place.step, place.call, begins
        seed = derive_seed(self.seed, *words)
        with ExitStack() as stack:
            engine = stack.enter_context(trainer_engine(trainer, call.chat, self.config.sampling, seed=seed))
            for part in parts:
                engine = checked_engine(stack.enter_context(part.engine(engine, call)))
            yield replace(call, made_engine=engine)

    def _trainer_chat(self, trainer: Any) -> ChatLike:
        """Return the chat of this trainer's tokenizer and options, which is made once."""
        tokenizer, (template, options) = trainer.processing_class, chat_options(trainer)
        settings = template, options
        for chat_tokenizer, chat_settings, chat in self._chats:
            if chat_tokenizer is tokenizer and chat_settings == settings:
                return chat
        chat = self.config.template_chat(tokenizer, options, chat_template=template)
        self._chats.append((tokenizer, settings, chat))
        return chat


def _played_by(part: Part, rows: Sequence[Planned], play: Play, call: Call) -> list[EpisodeResult]:
    return checked_list(part, "play", part.play(rows, play=play, call=call), EpisodeResult, len(rows))


def _play(rows: Sequence[Planned], call: Call) -> list[EpisodeResult]:
    return run_episodes([call.episode(row) for row in rows], **call.run)


def check_openings(rows: Sequence[Planned], episodes: Sequence[EpisodeResult]) -> None:
    """Check that the members of a group begin alike, as far as the model has not acted before.

    Raises:
        ConfigError: They do not, and the environment is not registered as nondeterministic.
    """
    openings: dict[Any, list[str]] = {}
    for row, episode in zip(rows, episodes, strict=True):
        spec = gym.registry.get(row.task.env_id)
        after_others = bool(episode.order and episode.order[0])
        if not episode.turns or after_others or (spec is not None and spec.nondeterministic):
            continue
        shown = takewhile(lambda message: message.role != "assistant", episode.messages)
        opening = [message.content for message in shown]
        if openings.setdefault((row.group, row.task.to_json(), episode.seat), opening) != opening:
            raise ConfigError(
                f"the episodes of a group of {row.task.env_id} do not begin alike, although they have one seed "
                f"({row.task.seed}), so that they cannot be compared: draw from self.np_random after "
                "super().reset(seed=seed), and from no other generator. See what differs: "
                f"gym-trl validate {row.task.env_id}"
            )


def _count(replaced: Sequence[ReplacedEpisode], rows: Sequence[Planned]) -> Replaced:
    """Return what is counted of the episodes that were replaced; a group is counted where its first row is."""
    began = [one for one in replaced if rows[one.place].first_of_group]
    episodes = [one.episode for one in replaced]
    return Replaced(rows_of(outcomes(episodes)), sum(sum(episode.trace.mask) for episode in episodes), len(began))


def _trained(episode: EpisodeResult, filler: int, masked: Collection[StopReason]) -> dict[str, list[Any]]:
    """Return the ids of an episode; one masked ``filler`` token if it is unscored.

    An episode with a stop reason in ``masked`` keeps its ids and its score, and all its tokens are masked.

    If nothing was sampled, the prompt is one ``filler`` token too: a first observation that exceeds the context would
    otherwise pad the whole batch to its length.
    """
    trace = episode.trace
    prompt = trace.prompt_ids if trace.completion_ids else [filler]
    if not episode.scored:
        return {"prompt_ids": prompt, "completion_ids": [filler], "logprobs": [0.0], "env_mask": [0]}
    mask = [0] * len(trace.mask) if episode.stop_reason in masked else trace.mask
    return {
        "prompt_ids": prompt,
        "completion_ids": trace.completion_ids,
        "logprobs": trace.logprobs,
        "env_mask": mask,
    }


def _columns(episodes: Sequence[EpisodeResult], filler: int, masked: Collection[StopReason]) -> dict[str, list[Any]]:
    """Return the columns that TRL expects, and those that reward functions read."""
    ids = [_trained(episode, filler, masked) for episode in episodes]
    return {
        **{name: [row[name] for row in ids] for name in ("prompt_ids", "completion_ids", "logprobs", "env_mask")},
        **outcomes(episodes),
        **(turns := turn_columns(episodes)),
        "step_rewards": turns["turn_rewards"],
        "messages": [[message.as_dict() for message in episode.messages] for episode in episodes],
        "error": [episode.error for episode in episodes],
    }
