"""Specification that turns environments into the arguments of ``GRPOTrainer``."""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import Any, Literal, Self

from gym_trl.chat.protocol import Chat
from gym_trl.engines.protocol import Engine
from gym_trl.envs.question_answer import Column, QAEnv
from gym_trl.envs.rubric import Verifier
from gym_trl.envspec import END_AFTER_INVALID, SELF_PLAY, EnvSpec, EnvWrapper, TaskPlan, check_spec_options
from gym_trl.errors import ConfigError
from gym_trl.executors.guards import GuardedPool, OrderedPool
from gym_trl.executors.make import Executor, ExecutorConfig, make_pool
from gym_trl.executors.protocol import TextEnvironment
from gym_trl.grpo.credit.estimators import EPISODE, ESTIMATORS, Estimator
from gym_trl.grpo.credit.turn_credit import TurnCredit, find_estimator
from gym_trl.grpo.curriculum import PRIORITIZED, LevelCurriculum, make_curriculum
from gym_trl.grpo.dataset import make_dataset
from gym_trl.grpo.environment_factory import EnvironmentFactory
from gym_trl.grpo.league import LeagueState
from gym_trl.grpo.league_games import LeagueGames
from gym_trl.grpo.rewards import CriterionReward, RestReward, env_reward
from gym_trl.grpo.rollout_func import ATTACH, Rollout, RolloutFunc, make_rollout_func
from gym_trl.grpo.rollout_worker import RolloutWorker
from gym_trl.grpo.training_tasks import at_level
from gym_trl.grpo.unscored import UnscoredBound
from gym_trl.kinds import Arguments, Count, Penalty, Seconds, Share, Whole, check_options, option_types, part_of
from gym_trl.options import WAIT, Curriculum, Cutoff, History, League, PrioritizedTasks, converted
from gym_trl.registration import EnvSource
from gym_trl.rollout.config import RolloutConfig
from gym_trl.text.parsing import ActionFormat
from gym_trl.types import Task
from gym_trl.wrappers.declare_success import Success
from gym_trl.wrappers.parse_action import CutActions
from gym_trl.wrappers.state_key import KeyFunction
from gym_trl.wrappers.text_action import Act
from gym_trl.wrappers.text_observation import Observe

_BY_STATE = (ESTIMATORS["pool"], ESTIMATORS["gigpo"])
"""Estimators that compare turns of different episodes by their states."""


class GymSpec:
    """Arguments of ``GRPOTrainer`` for training on text environments, under the trainer's own argument names.

    >>> spec = GymSpec("TrlEnv/GuessNumber-v0", num_tasks=16, env_kwargs={"high": 8, "turns": 4})
    >>> sorted(task.options["instance"] for task in spec.tasks("train"))
    [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7]
    >>> spec.reward_funcs[0].__name__
    'env_reward'

    ``GRPOTrainer(..., train_dataset=spec.train_dataset, rollout_func=spec.rollout_func,
    reward_funcs=spec.reward_funcs)`` then plays one episode per completion; all members of a group play the same task.
    Use ``environment_factory`` instead of ``rollout_func`` for models that call tools, and ``rollout_worker`` for
    ``AsyncGRPOTrainer``.

    Args:
        env: Environment id, ``"my_game.py:MyGame"``, ``"package.module:MyGame"``, the class itself, or a function that
            makes an environment; several of these, or a mapping from these to weights
            (``{"TrlEnv/Echo-v0": 1, "TrlEnv/GuessNumber-v0": 3}``). In tasks, records and metrics a class or function
            is called ``module:name``.
        num_tasks: Number of rows of ``train_dataset``.
        num_eval_tasks: Number of rows of ``eval_dataset``. Their seeds differ from those of the training tasks.
        seed: Seed of the tasks and of the sampling.
        env_kwargs: Arguments for making the environment; with several environments, ``{id: kwargs}``.
        wrappers: Functions ``env -> env``, applied in order before text conversion and action parsing.
        observe: Function ``(observation, info) -> str``, or ``"render"`` for the environment's rendering as text.
            Default: see ``TextObservation``.
        act: Function ``str -> action``. Raise ``ValueError`` with a hint if the text is not a valid action.
        action_format: Mark-up of the action in a response: ``"tag"``, ``"boxed"``, ``"json:FIELD"``, ``"plain"``,
            ``"regex:PATTERN"`` (see ``ParseAction``), or ``None`` to pass responses on unchanged.
        strict: Require the response to consist of the marked action only.
        invalid_penalty: Reward subtracted for an unreadable or invalid action.
        end_after_invalid: End the episode after this many consecutive invalid actions. Default: 3 with a ``history``
            and without ``turn_limit``, because neither turns nor the context would end it; otherwise never.
        cut_actions: Treatment of an action that ``max_tokens_per_turn`` cut off: ``"reject"`` makes it an invalid
            action that is not passed to the environment; ``"accept"`` passes it on, for actions that may end there.
            A marked action that was complete before the cut counts as whole; with ``"plain"`` or ``None`` no cut
            action does.
        turn_limit: Truncate episodes after this many turns. Default: the environment's own limit.
        cutoff_return: Upper bound on the return of an episode that is cut off (by turns, tokens, context, time,
            unreadable actions or a crash); set it to the return of the worst loss. For environments with negative
            rewards that do not declare a ``settlement``. Default: the sum of the rewards so far, plus the
            ``settlement`` if there is one.
        instructions: Replaces the environment's instructions before the first observation; the sentence that
            ``action_format`` adds follows. ``""`` removes both.
        success: Definition of success, for environments that do not declare it in ``info["success"]``: a threshold on
            the sum of the environment's own rewards, ``"info"`` (the environment does declare it, at the end), or a
            function of the last ``info`` and the return; see ``DeclareSuccess``. Default: the ``reward_threshold`` of
            Gymnasium's registry if there is one; otherwise success is undeclared and only returns are reported.
        images: Show images of observations to a vision-language model: ``True`` beside their text, ``"only"`` in place
            of it (texts in the observation, such as a mission, are kept). An environment that can render to arrays is
            made with ``render_mode="rgb_array"``; otherwise the image is the one in the observation. See
            ``ImageObservation``. Needs a processor as the trainer's ``processing_class``, and ``use_vllm=False``.
            Applies to ``rollout_func``. Default: text only.
        state_key: Function of the unwrapped environment that returns the key of its current state, for credit per turn
            (or its name ``"package.module:function"``); it replaces the key that the environment declares. ``"auto"``
            records the declared key, or the history where none is declared. See ``StateKey``. Default: ``"auto"`` with
            credit per turn, otherwise no keys are computed.
        curriculum: Choice of the training tasks by the success rate: ``Curriculum`` raises the difficulty of all, and
            ``PrioritizedTasks``, or ``"prioritized"``, draws those more often that are solved about half of the time.
            The arguments of one are taken as well, such as ``{"levels": [{"high": 8}, {"high": 50}]}``.
        resample_dead_groups: Number of rounds in a rollout in which training groups whose scored episodes all have the
            same return (with credit per turn, none of whose turns has an advantage), and so no gradient, are replaced
            by groups with other tasks of ``train_dataset``. What is left after the last round is kept. Replaced
            episodes count in all metrics and for the curriculum, but are not trained on. Applies to
            ``rollout_func``. Default: none is replaced.
        credit: Advantages of the turns of an episode: ``"episode"``, the trainer's own, the same for all of its turns;
            ``"pool"``, ``"return_to_go"`` or ``"gigpo"``, one per turn; ``"rae"``, compared with a running mean of the
            seat; or a function (see ``TurnCredit`` and ``gym_trl.grpo.credit.estimators``). Applies to
            ``rollout_func``. Default: ``"episode"``; with ``seats`` the mean of a group is then that of a seat.
        seats: ``"self"``: the model plays all seats of an environment of several (``gym_trl.wrappers.seats``), also of
            this library's games for two. Each seat is a row of the trainer with its own observations and rewards, so
            ``num_generations`` must be a multiple of the seats. A ``League``, or its arguments, such as
            ``{"opponents": ["random"], "every": 25}``: the same, with other opponents and the model's past in a part of
            the groups. Applies to ``rollout_func``. Default: one seat.
        system_prompt: First message of every prompt.
        max_tokens_per_turn: Maximum number of tokens sampled in a turn; ``max_completion_length`` bounds the episode.
        history: Part of the conversation that the model sees (``History``, or its arguments, such as
            ``{"last": 8}``), for episodes that are longer than its context, and for templates that drop thinking. An
            episode then has several segments, each of which is a row of the trainer, and ``max_completion_length``
            bounds a segment. Applies to ``rollout_func`` and ``rollout_worker``. Default: all of it, in one row.
        chat: Converts messages to tokens. Default: the tokenizer's own chat template.
        chat_template_kwargs: Arguments for the chat template, such as ``{"enable_thinking": False}``.
        balance_instances: Cycle through all instances in shuffled order instead of sampling them (if the environment
            has ``num_instances``). Together with ``GRPOConfig(shuffle_dataset=False)`` every step covers them evenly,
            which halves the steps that a small game needs.
        executor: Where environments are stepped: ``"inline"``; ``"thread"`` if they wait for something outside Python;
            ``"process"`` if they compute, hang, leak or crash; ``"ray"`` for processes on the machines of a Ray
            cluster; or a function that makes a pool, such as ``partial(ProcessPool, recycle_after=100)``. Default: the
            environment's ``preferred_executor``; without one, the result of a short measurement (``choose_executor``),
            or processes if any of the next three arguments is given. If no step can be measured, for example because
            actions are text, the choice is ``"auto"``: environments are stepped inline, and move to threads once steps
            are found to wait (``AdaptivePool``). The attribute ``executor`` holds the choice.
        workers: Number of threads or processes. Default: 1,024 threads, or one process per core (of the cluster).
        reset_timeout: Maximum seconds for making and resetting an environment in a thread or a process.
        step_timeout: Maximum seconds for a step there. A longer one ends the episode as ``crashed``, which is scored,
            because the model's action may have caused it (``gym_trl.errors``).
        deterministic: Make threads and processes reproduce ``"inline"`` to the last bit: the model is asked for all
            episodes in the same order, so every turn waits for the slowest step, and a colocated vLLM on a GPU
            or a vLLM server samples each response from a seed of its own, row by row.
        max_alive: Maximum number of concurrent environments per process. Default: no limit.
        max_observation: Maximum characters of an observation; of a longer one the model sees the beginning and the
            end. The logs count them (``env/cut_observations``). Default: only the token limits apply.
        max_action: Maximum characters of a response; a longer one is an invalid action that is not passed to the
            environment.
        cutoff: When to stop waiting for the slowest episodes, and whether these count (``on_cutoff=``):
            ``Cutoff(episode_s=60)``, ``Cutoff(rollout_s=600)``, ``Cutoff(stragglers=0.95)``, or the arguments of one,
            such as ``{"episode_s": 60}``. Default: never.
        max_unscored: Maximum share of unscored episodes in a rollout, over all processes; three rollouts in a row
            above it stop the training with a ``PoolError`` that names the most common errors. Applies to
            ``rollout_func``.
        on_rollout: Callback that receives every finished rollout.
        spread: Deprecated name of ``balance_instances``.

    Raises:
        ConfigError: An id is unknown, an environment cannot be made, a ``History`` rewrites what was shown, or an
            argument is invalid.
        NotTextError: Observations or actions cannot be converted to text, and ``observe`` or ``act`` is missing.
    """

    def __init__(
        self,
        env: EnvSource | Sequence[EnvSource] | Mapping[EnvSource, float],
        *,
        num_tasks: Count = 1_000,
        num_eval_tasks: Whole = 100,
        seed: int = 0,
        env_kwargs: Arguments | None = None,
        wrappers: Sequence[EnvWrapper] = (),
        observe: Observe | None = None,
        act: Act | None = None,
        action_format: str | None = "tag",
        strict: bool = False,
        invalid_penalty: Penalty = 0.0,
        end_after_invalid: Count | None = None,
        cut_actions: CutActions = "reject",
        turn_limit: Count | None = None,
        cutoff_return: float | None = None,
        instructions: str | None = None,
        success: Success | None = None,
        images: bool | Literal["only"] = False,
        state_key: KeyFunction | str | None = None,
        curriculum: Curriculum | PrioritizedTasks | Literal["prioritized"] | None = None,
        resample_dead_groups: Whole = 0,
        credit: str | Estimator | None = None,
        seats: Literal["self"] | League | None = None,
        system_prompt: str | None = None,
        max_tokens_per_turn: Count | None = None,
        history: History | None = None,
        chat: Chat | None = None,
        chat_template_kwargs: Arguments | None = None,
        balance_instances: bool = True,
        executor: Executor | None = None,
        workers: Count | None = None,
        reset_timeout: Seconds | None = None,
        step_timeout: Seconds | None = None,
        deterministic: bool = False,
        max_alive: Count | None = None,
        max_observation: Count | None = None,
        max_action: Count | None = None,
        cutoff: Cutoff | None = None,
        max_unscored: Share = 0.5,
        on_rollout: Callable[[Rollout], None] | None = None,
        spread: bool | None = None,
    ) -> None:
        check_arguments({name: value for name, value in locals().items() if name != "self"})
        credit = EPISODE if credit is None else credit
        league = converted("seats", seats, League)
        self.league = LeagueState(league) if isinstance(league, League) else None
        """Opponents in a part of the groups; ``None`` without a league."""
        seats = None if seats is None else SELF_PLAY
        self.curriculum = make_curriculum(converted("curriculum", curriculum, Curriculum | PrioritizedTasks))
        """Choice of the training tasks by the success rate, with its state; ``None`` without a curriculum."""
        if seats is not None and self.curriculum is not None:
            raise ConfigError(
                "a curriculum chooses tasks by their success rate, which self-play leaves at about one half: leave out "
                f"curriculum or seats={seats!r}"
            )
        levels = () if self.curriculum is None else self.curriculum.levels
        shown = converted("history", history, History)
        if shown is not None and shown.cuts and turn_limit is None and end_after_invalid is None:
            end_after_invalid = END_AFTER_INVALID  # the context no longer ends an episode
        self.env_spec = EnvSpec(
            env,
            env_kwargs=env_kwargs,
            wrappers=tuple(wrappers),
            observe=observe,
            act=act,
            action_format=action_format,
            strict=strict,
            invalid_penalty=invalid_penalty,
            end_after_invalid=end_after_invalid,
            cut_actions=cut_actions,
            turn_limit=turn_limit,
            cutoff_return=cutoff_return,
            instructions=instructions,
            success=success,
            images=images,
            state_key="auto" if state_key is None and (credit != EPISODE or seats is not None) else state_key,
            seats=None if seats is None else SELF_PLAY,
            levels=levels,
        )
        """Environments, as they are made for training."""
        self.seed = seed
        self.system_prompt = system_prompt
        drawing = {"resample_dead_groups": resample_dead_groups > 0, PRIORITIZED: self._draws}
        if num_tasks < 2 and (options := [name for name, given in drawing.items() if given]):
            raise ConfigError(
                f"num_tasks must be at least 2 for {options[0]}, which plays other tasks; got {num_tasks}"
            )
        self._rounds = resample_dead_groups
        self._rollout = RolloutConfig(
            max_tokens_per_turn=max_tokens_per_turn,
            max_observation=max_observation,
            max_action=max_action,
            max_alive=max_alive,
            cutoff=WAIT if cutoff is None else converted("cutoff", cutoff, Cutoff),
            deterministic=deterministic,
            history=shown,
            chat=chat,
            chat_template_kwargs=chat_template_kwargs or {},
        )
        if shown is not None and shown.summary == "model" and find_estimator(credit) in _BY_STATE:
            raise ConfigError(
                f"credit={credit!r} compares states of the environment, which say nothing of what a summary keeps: "
                'with history=History(summary="model") use "episode" or "return_to_go"'
            )
        self._on_rollout = on_rollout
        # The trainer's own mean of a group would compare the seats of a game with each other.
        self.turn_credit = None if credit == EPISODE and seats is None else TurnCredit(credit)
        """Credit per turn, which the first call of ``rollout_func`` attaches to the trainer; ``None`` without it."""
        self._bound = UnscoredBound(max_unscored)
        if spread is not None:
            message = "GymSpec(spread=...) is deprecated: use balance_instances=..."
            warnings.warn(message, DeprecationWarning, stacklevel=2)
            balance_instances = spread
        self._probed = self.env_spec.probe(ExecutorConfig(executor, workers, reset_timeout, step_timeout))
        self.executor = self._probed.executor.executor
        self._league_games = None if self.league is None else self._games_of(self.league, seed)
        self._plan = TaskPlan(
            self.weights,
            # Each level of a curriculum has its own instances, so sample them by seed.
            self._probed.num_instances if balance_instances and not levels else {},
            {"train": num_tasks, "eval": num_eval_tasks},
            seed,
        )

    def _games_of(self, league: LeagueState, seed: int) -> LeagueGames:
        """Return the games of a league, after checking that the environments have its opponents."""
        style = self.env_spec.action_format
        write = str if style is None else ActionFormat(style, strict=self.env_spec.strict).write
        try:
            return LeagueGames(league, make=self.env_spec.make, env_ids=list(self.weights), write=write, seed=seed)
        except ConfigError as error:
            raise ConfigError(f"seats must be {SELF_PLAY!r} or a league of opponents that exist: {error}") from error

    @classmethod
    def from_dataset(
        cls,
        dataset: Any,
        *,
        prompt: Column,
        answer: Column | None = None,
        verify: Verifier | str = "exact",
        turns: int = 1,
        hints: Column | None = None,
        retry_cost: float | None = None,
        split: str = "train",
        subset: str | None = None,
        reward: str | None = None,
        **options: Any,
    ) -> Self:
        """Return a specification for the questions of a data set, each row of which is a task (``QAEnv``).

        >>> rows = [{"question": f"{n} + 1?", "answer": n + 1} for n in range(20)]
        >>> spec = GymSpec.from_dataset(rows, prompt="question", answer="answer", verify="numeric")
        >>> len(list(spec.tasks("train"))), len(list(spec.tasks("eval")))
        (18, 2)

        Args:
            dataset: See ``QAEnv``, as for the next nine arguments. Arguments that a command line can give too make it
                the environment ``TrlEnv/QA-v0``.
            prompt: Column with the question.
            answer: Column with the answer.
            verify: Verifier.
            turns: Number of tries.
            hints: Column with hints.
            retry_cost: Cost of each try after the first one.
            split: Split of a data set on the hub.
            subset: Its subset.
            reward: Mode of the reward.
            options: Arguments of ``GymSpec``. Default of ``num_eval_tasks``: a tenth of the rows, at most 100; of
                ``num_tasks``: all other rows, so that no row is in both splits.

        Raises:
            ConfigError: See ``QAEnv`` and ``GymSpec``.
        """
        check_arguments(options)
        columns: dict[str, Any] = {"prompt": prompt, "answer": answer, "verify": verify, "hints": hints}
        others: dict[str, Any] = {"turns": turns, "retry_cost": retry_cost, "split": split, "subset": subset}
        others["reward"] = reward
        rows = QAEnv(dataset, **columns, **others).num_instances
        for_eval = options.pop("num_eval_tasks", min(rows // 10, 100))
        sizes = {"num_eval_tasks": for_eval, "num_tasks": options.pop("num_tasks", max(1, rows - for_eval))}
        if all(one is None or isinstance(one, str) for one in (dataset, *columns.values())):
            return cls("TrlEnv/QA-v0", env_kwargs={"dataset": dataset, **columns, **others}, **sizes, **options)
        return cls(partial(QAEnv, dataset, **columns, **others), **sizes, **options)

    @property
    def weights(self) -> Mapping[str, float]:
        """Share of each environment in the tasks, by id."""
        return self.env_spec.weights

    @property
    def instructions(self) -> str | None:
        """The argument ``instructions``."""
        return self.env_spec.instructions

    @property
    def rollout_config(self) -> RolloutConfig:
        """Options of the rollouts."""
        return self._rollout

    def make(self, env_id: str) -> TextEnvironment:
        """Make one of the environments, wrapped as in training."""
        return self.env_spec.make(env_id)

    def make_pool(self) -> GuardedPool | OrderedPool:
        """Return a pool of the environments, with the executor and the timeouts used in training."""
        return make_pool(self.env_spec.make, self._probed.executor)

    def tasks(self, split: str) -> Iterator[Task]:
        """Generate the tasks of ``"train"`` or ``"eval"``; no two of them have the same seed."""
        return (self._placed(task, split) for task in self._plan.tasks(split))

    def assign(self, split: str, number: int) -> Task:
        """Return the task of group ``number`` of a split, for prompts that carry none."""
        return self._placed(self._plan.assign(split, number), split)

    def _placed(self, task: Task, split: str) -> Task:
        """Return the task on its level: the curriculum's in training, the last one in evaluations."""
        if self.curriculum is None or not self.curriculum.levels:
            return task
        return at_level(task, self.curriculum.level if split == "train" else len(self.curriculum.levels) - 1)

    @cached_property
    def train_dataset(self) -> Any:
        """``datasets.Dataset`` with one training task per row."""
        return self._dataset("train")

    @cached_property
    def eval_dataset(self) -> Any:
        """``datasets.Dataset`` with one evaluation task per row; training never uses their seeds.

        If an environment has ``num_instances`` and enough of them, the two splits share no instance either.
        """
        return self._dataset("eval")

    def attach(self, trainer: Any) -> None:
        """Attach to a trainer before its first batch.

        ``rollout_func`` does it by itself, unless a ``history`` is given and it is called by a function of your own, or
        before the training.

        Raises:
            ConfigError: The trainer's settings do not go with the history or the credit per turn.
        """
        attach: Callable[[Any], None] = getattr(self.rollout_func, ATTACH)
        attach(trainer)

    @cached_property
    def rollout_func(self) -> RolloutFunc:
        """Function for ``GRPOTrainer(rollout_func=...)`` that plays a batch of prompts with the trainer's model."""
        return make_rollout_func(
            self.env_spec.make,
            assign=self.assign,
            seed=self.seed,
            config=self._rollout,
            stepping=self._probed.executor,
            on_rollout=self._on_rollout,
            on_totals=self._bound,
            curriculum=self.curriculum,
            resample_dead_groups=self._rounds,
            credit=self.turn_credit,
            seats=None if self.env_spec.seats is None else self._probed.seats,
            league=self._league_games,
            images=self._probed.images,
        )

    @cached_property
    def environment_factory(self) -> Any:
        """Factory of the objects whose methods a tool-calling model calls in TRL's own loop.

        With several ids it is a dict with one factory per id, and the datasets have the column ``environment`` by which
        TRL chooses. Calls need no ``action_format``. ``invalid_penalty`` is also subtracted if the model leaves an
        episode before its end. With ``executor`` ``"thread"`` or ``"process"`` each object has a worker of its own,
        which the timeouts need.

        Raises:
            ConfigError: The spec has an option that TRL's loop does not support.
        """
        if self.curriculum is not None:
            raise ConfigError("a curriculum needs rollout_func or rollout_worker: TRL's own loop does not report to it")
        self._refuse_draws("environment_factory")
        if self._probed.images:
            raise ConfigError("images need rollout_func, not environment_factory, whose tools return text")
        self._refuse_credit("environment_factory", "TRL's own loop does not say which tokens are a turn")
        unset = RolloutConfig()
        given = [name for name, value in vars(self._rollout).items() if value != getattr(unset, name)]
        if given or self._on_rollout is not None:
            names = ", ".join([*given, *(["on_rollout"] if self._on_rollout is not None else [])])
            raise ConfigError(
                f"TRL's own loop, which environment_factory uses, does not support {names}: leave it out, or give the "
                "trainer spec.rollout_func"
            )
        stepping = self._probed.executor
        if stepping.executor == "auto":  # TRL's loop waits for each object's one environment anyway
            stepping = ExecutorConfig("inline")
        elif stepping.kind and stepping.kind.workers:
            stepping = replace(stepping, workers=1)  # an object has one environment
        pool = partial(make_pool, config=stepping)
        tools = replace(self.env_spec, action_format="plain")  # actions of tool calls carry no mark
        factories = {
            env_id: EnvironmentFactory(tools.make, env_id, make_pool=pool, on_totals=self._bound)
            for env_id in self.weights
        }
        return factories if len(factories) > 1 else next(iter(factories.values()))

    def rollout_worker(
        self, args: Any, processing_class: Any, *, engine: Callable[[], Engine] | None = None
    ) -> RolloutWorker:
        """Return a worker that plays the training tasks for ``AsyncGRPOTrainer`` while it trains.

        Args:
            args: The trainer's ``AsyncGRPOConfig``.
            processing_class: The model's tokenizer; pass the same one to the trainer.
            engine: Function that makes the engine. Default: the vLLM server named in ``args``.

        Raises:
            ConfigError: The spec has credit per turn, or an option that draws tasks within a rollout.
        """
        self._refuse_draws("rollout_worker")
        self._refuse_credit("rollout_worker", "AsyncGRPOTrainer gives every sample one number")
        curriculum = self.curriculum if isinstance(self.curriculum, LevelCurriculum) else None
        return RolloutWorker(
            self.env_spec.make,
            partial(self.tasks, "train"),
            args,
            processing_class,
            engine=engine,
            seed=self.seed,
            system_prompt=self.system_prompt,
            curriculum=curriculum,
            config=self._rollout,
            stepping=self._probed.executor,
            on_rollout=self._on_rollout,
            on_totals=self._bound,
        )

    @property
    def reward_funcs(self) -> list[Callable[..., list[float | None]]]:
        """Reward functions for the trainer: the environment's return.

        For an environment with several ``criteria`` (``gym_trl.envs.rubric.Rubric``) it is one function per criterion,
        and one for the rest, which add up to the return; the trainer logs each. With credit per turn it is one
        function.
        """
        if not self._probed.criteria or self.turn_credit is not None:
            return [env_reward]
        criteria = tuple(CriterionReward(name, weight) for name, weight in self._probed.criteria.items())
        return [*criteria, RestReward(criteria)]

    @property
    def _draws(self) -> bool:
        return self.curriculum is not None and self.curriculum.draws

    def _refuse_draws(self, name: str) -> None:
        options = ["resample_dead_groups"] * bool(self._rounds) + ["PrioritizedTasks"] * self._draws
        if options:
            raise ConfigError(
                f"{options[0]} needs rollout_func, not {name}: it draws tasks within a rollout; leave it out"
            )

    def _refuse_credit(self, name: str, reason: str) -> None:
        if self.env_spec.seats is not None:
            raise ConfigError(f"seats={self.env_spec.seats!r} needs rollout_func, not {name}: leave out seats")
        if self.turn_credit is not None:
            raise ConfigError(f"credit per turn needs rollout_func, not {name}: {reason}; leave out credit")

    def _dataset(self, split: str) -> Any:
        tasks = list(self.tasks(split))
        dataset = make_dataset(tasks, system_prompt=self.system_prompt, instructions=self._probed.instructions)
        return dataset.add_column("environment", [task.env_id for task in tasks]) if len(self.weights) > 1 else dataset

    def __getstate__(self) -> dict[str, Any]:
        # Without cached properties, which are made again after unpickling: pools and environments cannot be pickled.
        made = {name for name, value in vars(type(self)).items() if isinstance(value, cached_property)}
        return {name: value for name, value in self.__dict__.items() if name not in made}


def check_arguments(given: Mapping[str, Any]) -> None:
    """Check arguments of ``GymSpec`` by themselves, before an environment is made.

    >>> check_arguments({"turn_limit": 0})
    Traceback (most recent call last):
        ...
    gym_trl.errors.ConfigError: turn_limit must be an integer of at least 1, got 0

    Raises:
        ConfigError: One is invalid; the message begins with its name.
    """
    kinds = {name: kind for name, kind in option_types(GymSpec).items() if name != "env"}
    nested = ("curriculum", "seats", "history", "cutoff")
    given = {**given, **{name: converted(name, given[name], kinds[name]) for name in nested if name in given}}
    check_options(given, kinds)
    check_spec_options({name: value for name, value in given.items() if name != "seats"})
    find_estimator(EPISODE if given.get("credit") is None else given["credit"])
    if isinstance(league := given.get("seats"), League):
        with part_of("seats"):
            LeagueState(league)
