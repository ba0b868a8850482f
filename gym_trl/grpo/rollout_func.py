"""TRL's ``rollout_func``: from the tasks of prompts to whole episodes, with the exact tokens that the model sampled.

A rollout is what one call on one process plays: ``RolloutFunc`` is the function, ``rollout`` plays the episodes, and
``Rollout`` holds them.
"""

import weakref
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gym_trl.chat import ChatLike
from gym_trl.episode import Episode
from gym_trl.errors import ConfigError
from gym_trl.executors.inline import EnvPool
from gym_trl.grpo import curriculum
from gym_trl.grpo.alarms import IN_A_ROW, FailureAlarm, check_openings
from gym_trl.grpo.credit import ESTIMATORS, Estimator
from gym_trl.grpo.dataset import read_prompt
from gym_trl.grpo.resampling import other_task, replace_dead_groups
from gym_trl.grpo.rewards import Outcome
from gym_trl.grpo.segments import untrained
from gym_trl.grpo.trainer_engine import check_generation, context_length, trainer_engine
from gym_trl.grpo.trl_versions import check_trl, warn_if_resumed_within_a_generation
from gym_trl.history import chat_for
from gym_trl.play import History, Limits
from gym_trl.rollout import rollout, run
from gym_trl.seeding import derive_seed
from gym_trl.types import Message, StopReason, Task

STATE = "gym_trl"
"""Name in the trainer's ``stateful_callbacks`` of what checkpoints hold."""


@dataclass(frozen=True)
class Rollout:
    """Episodes of one call of a ``rollout_func``, on one process."""

    split: str
    """``"train"`` or ``"eval"``."""
    step: int
    """The trainer's global step."""
    episodes: Sequence[Episode]
    """In the order of the prompts; neighbours are the seats of a game."""
    replaced: Sequence[Episode] = ()
    """Episodes of groups that were played again with other tasks."""


@dataclass
class Training:
    """State of one training, or of an evaluation by itself."""

    chat: ChatLike
    state: Any = None
    """The trainer's state, of which each training makes a new one."""
    dataloader: Any = None
    """Rows of the evaluation."""
    calls: Counter[Any] = field(default_factory=Counter)
    """Number of rollouts, by split and step, and by split."""
    alarm: FailureAlarm = field(default_factory=FailureAlarm)


@dataclass(eq=False, repr=False, kw_only=True)
class RolloutFunc:
    """Function for ``GRPOTrainer(rollout_func=...)`` that plays one episode per prompt.

    It has TRL's signature ``(prompts, trainer)``, and returns ``prompt_ids``, ``completion_ids``, ``logprobs``,
    ``env_mask``, ``episode`` for reward functions and ``outcomes`` for metrics. An unscored episode is a row of one
    token that is not trained. A prompt's last message names its task (``GymSpec.train_dataset``).
    """

    pool: EnvPool = field(kw_only=False)
    """Steps the environments."""
    assign: Callable[[str, int], Task] | None = None
    """Makes the task of a group whose prompts have none, from the split and a number, the same on every process."""
    seed: int = 0
    """Seed of the sampling."""
    chat: ChatLike | None = None
    """Converts messages to ids. Default: the chat template of the trainer's tokenizer."""
    max_tokens_per_turn: int | None = None
    """Maximum number of tokens that are sampled in a turn."""
    max_context: int | None = None
    """Maximum number of tokens of prompt and completion. Default: the model's."""
    sampling: Mapping[str, Any] = field(default_factory=dict)
    """Sampling options that override the trainer's, by vLLM's names."""
    history: History | None = None
    """Changes what the model is shown; needs ``GymGRPOTrainer``."""
    estimator: Estimator = ESTIMATORS["episode"]
    """Advantages of turns; all but that of ``"episode"`` need ``GymGRPOTrainer``."""
    seats: int = 1
    """Number of seats of a game that the model plays, each in a row of its own; needs ``GymGRPOTrainer``."""
    levels: int = 0
    """Number of levels of a curriculum."""
    resample: int = 0
    """Number of times that groups without an advantage are replaced by groups with other tasks."""
    max_alive: int | None = None
    """Maximum number of concurrent environments."""
    episode_timeout: float | None = None
    """Maximum seconds of an episode."""
    on_rollout: Callable[[Rollout], None] | None = None
    """Called with each finished rollout."""
    _trainings: weakref.WeakKeyDictionary[Any, Training] = field(default_factory=weakref.WeakKeyDictionary, init=False)

    @property
    def by_turn(self) -> bool:
        """True if turns have advantages of their own, or seats are compared apart; TRL compares all rows of a group."""
        return self.estimator is not ESTIMATORS["episode"] or self.seats > 1

    def __call__(self, prompts: list[Any], trainer: Any) -> dict[str, Any]:
        """Play the tasks of prompts with the trainer's model."""
        training = self._training(trainer)
        split, step = "train" if trainer.model.training else "eval", trainer.state.global_step
        call = training.calls[split, step]
        training.calls.update([(split, step), split])
        kept = trainer.state.stateful_callbacks.setdefault(STATE, {})
        size = (trainer.num_generations if split == "train" else trainer.num_generations_eval) // self.seats
        games = prompts[:: self.seats]  # neighbours are the seats of a game
        first = trainer.accelerator.process_index * len(games)
        groups = [place // size for place in range(first, first + len(games))]  # among those of all processes
        preambles, tasks = [], []
        for group, prompt in zip(groups, games, strict=True):
            preamble, task = read_prompt(prompt)
            if task is None:
                if self.assign is None:
                    raise ConfigError(f"a prompt has no task: give the trainer spec.train_dataset; got {prompt!r:.200}")
                task = self.assign(split, derive_seed(self.seed, step if split == "train" else 0, call, group))
            preambles.append(preamble)
            tasks.append(task)
        level = kept.get("level", 0) if split == "train" else self.levels - 1

        def play_games(places: Sequence[int], attempt: int = 0) -> list[list[Episode]]:
            of_call = "sampling", split, step, call
            seeds = [derive_seed(self.seed, *of_call, *divmod(first + place, size), attempt) for place in places]
            chosen = [curriculum.at_level(tasks[place], level) if self.levels else tasks[place] for place in places]
            return self._play(trainer, training.chat, chosen, [preambles[place] for place in places], seeds)

        def play_again(places: Sequence[int], attempt: int) -> list[list[Episode]]:
            for place in places:
                seed = derive_seed(self.seed, "drawn", step, call, groups[place], attempt)  # the same on every process
                preambles[place], tasks[place] = other_task(trainer.train_dataset, tasks[place], seed)
            return play_games(places, attempt)

        number = len(games) if split == "train" else self._not_repeated(trainer, len(games), call)
        unplayed = [Episode(task, stop_reason=StopReason.UNPLAYED) for task in tasks[number:]]
        played = play_games(range(number)) + [[one] * self.seats for one in unplayed]
        replaced: list[Episode] = []
        if split == "train" and self.resample:
            replaced = replace_dead_groups(groups, played, self.estimator, play_again, self.resample)
        episodes = [episode for seats in played for episode in seats]
        outcomes = self._count(trainer, training, kept, episodes, replaced)
        if split == "train" and training.calls[split] <= IN_A_ROW:
            check_openings(groups, played)
        if self.on_rollout is not None:
            self.on_rollout(Rollout(split, step, episodes, replaced))
        return columns(episodes, trainer.eos_token_ids[0]) | {"outcomes": tuple(outcomes)}  # a list would be a column

    def check(self, trainer: Any) -> None:
        """Check that a trainer can train on these episodes, before its first rollout.

        Raises:
            ConfigError: It cannot, or its generations have no whole games.
            ChatTemplateError: The chat template does not continue turn by turn.
        """
        check_trl()
        check_generation(trainer.args)
        if (self.history is not None or self.by_turn) and getattr(trainer, "gym_rollout_func", None) is not self:
            raise ConfigError(
                "history, seats and credit per turn change the rows of a batch: use GymGRPOTrainer(..., spec=spec) in "
                f"place of {type(trainer).__name__}, and functools.wraps for a function around spec.rollout_func"
            )
        sizes = {"num_generations": trainer.num_generations, "num_generations_eval": trainer.num_generations_eval}
        sizes["the rows of a process"] = trainer.args.generation_batch_size // trainer.accelerator.num_processes
        for name, size in sizes.items():
            if size % self.seats:
                raise ConfigError(f"{name} must be a multiple of the {self.seats} seats of a game, got {size}")
        options = {"chat_template": trainer.chat_template, **trainer.chat_template_kwargs}
        chat = self.chat or chat_for(trainer.processing_class, self.history, **options)
        self._trainings[trainer] = Training(chat)

    def _training(self, trainer: Any) -> Training:
        """Return what is known of the training or evaluation that is running."""
        if trainer not in self._trainings:
            self.check(trainer)
        known = self._trainings[trainer]
        if known.state is not trainer.state:
            known = self._trainings[trainer] = Training(known.chat, trainer.state)
        if trainer.model.training and not known.calls["train"]:
            warn_if_resumed_within_a_generation(trainer)
        dataloader = trainer.callback_handler.eval_dataloader
        if not trainer.model.training and dataloader is not known.dataloader:  # another evaluation
            known.dataloader = dataloader
            known.calls["eval", trainer.state.global_step] = 0
        return known

    def _not_repeated(self, trainer: Any, games: int, call: int) -> int:
        """Return the number of games of a process that do not repeat others to fill the last batch of an evaluation."""
        rows = len(getattr(trainer.callback_handler.eval_dataloader, "dataset", ())) * trainer.num_generations_eval
        processes, mine = trainer.accelerator.num_processes, trainer.accelerator.process_index
        first = (call * processes + mine) * trainer.args.per_device_eval_batch_size // self.seats
        return max(0, min(games, rows // self.seats - first)) if rows else games

    def _play(
        self,
        trainer: Any,
        chat: ChatLike,
        tasks: Sequence[Task],
        preambles: Sequence[Sequence[Message]],
        seeds: Sequence[int],
    ) -> list[list[Episode]]:
        """Return the episodes of the seats of each game, with an engine around the trainer's model as it is now."""
        with trainer_engine(trainer, chat, self.sampling, seeded=False) as engine:
            contexts = [length for length in (self.max_context, context_length(trainer)) if length]
            limits = Limits(self.max_tokens_per_turn, trainer.args.max_completion_length, min(contexts, default=None))
            return run(
                rollout(
                    tasks,
                    pool=self.pool,
                    engine=engine,
                    chat=chat,
                    seeds=seeds,
                    preambles=preambles,
                    max_alive=self.max_alive,
                    limits=limits,
                    history=self.history,
                    seats=self.seats,
                    timeout=self.episode_timeout,
                )
            )

    def _count(
        self,
        trainer: Any,
        training: Training,
        kept: dict[str, Any],
        episodes: Sequence[Episode],
        replaced: Sequence[Episode],
    ) -> list[Outcome]:
        """Return the outcomes of all processes, after counting what was won and what has failed.

        Where some episodes of an environment declare success, the others have not succeeded.
        """
        from accelerate.utils import gather_object

        played = [*episodes, *replaced]
        declaring = gather_object([one.task.env_id for one in played if one.success is not None])
        kept["declaring"] = sorted({*kept.get("declaring", ()), *declaring})
        for one in played:
            if one.scored and one.success is None and one.task.env_id in kept["declaring"]:
                one.success = False
        mine = [Outcome.of(one) for one in episodes] + [Outcome.of(one, replaced=True) for one in replaced]
        outcomes: list[Outcome] = [one for one in gather_object(mine) if one.stop_reason is not StopReason.UNPLAYED]
        if trainer.model.training:
            training.alarm.count(outcomes)
            if self.levels:
                scored = [one for one in outcomes if one.episode_return is not None]
                curriculum.count(kept, self.levels, [(int(one.counts["level"]), one.success) for one in scored])
        return outcomes


def columns(episodes: Sequence[Episode], filler: int) -> dict[str, list[Any]]:
    """Return the columns of episodes; an unscored one is not trained."""
    rows = [one.row if one.scored else untrained(filler) for one in episodes]
    return {
        "prompt_ids": [row.prompt_ids for row in rows],
        "completion_ids": [row.completion_ids for row in rows],
        "logprobs": [row.logprobs for row in rows],
        "env_mask": [row.mask for row in rows],
        "episode": list(episodes),
    }
