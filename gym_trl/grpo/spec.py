"""Specification of a training on text environments."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property, partial
from typing import Any, Self, Unpack

from gym_trl.envs.question_answer import Column, QAEnv
from gym_trl.envs.verifiers import Verifier
from gym_trl.envspec import EnvSpec, TaskPlan, limit_of_invalid
from gym_trl.errors import ConfigError
from gym_trl.executors.make import ExecutorConfig, make_pool
from gym_trl.executors.protocol import EnvPool, TextEnvironment
from gym_trl.grpo.credit.estimators import EPISODE, ESTIMATORS
from gym_trl.grpo.credit.turn_credit import TurnCredit
from gym_trl.grpo.dataset import make_dataset
from gym_trl.grpo.environment_factory import EnvironmentFactory
from gym_trl.grpo.parts.checked import make_part
from gym_trl.grpo.parts.curriculum import make_curriculum
from gym_trl.grpo.parts.dead_groups import DeadGroups
from gym_trl.grpo.parts.games import Games
from gym_trl.grpo.parts.part import Part
from gym_trl.grpo.rewards import env_reward
from gym_trl.grpo.rollout import Core, in_order, make_rollout_func
from gym_trl.grpo.training_tasks import Draws, at_level
from gym_trl.grpo.unscored import UnscoredBound
from gym_trl.kinds import option_types
from gym_trl.option_args import SpecArgs
from gym_trl.options import Envs, Rollout, SpecOptions, Stepping, Text, has_workers, signed, values_of
from gym_trl.rollout.config import RolloutConfig
from gym_trl.types import Task


class GymSpec:
    """Specification of a training on text environments, for ``GymGRPOTrainer(..., spec=spec)``.

    >>> spec = GymSpec("TrlEnv/GuessNumber-v0", num_tasks=16, env_kwargs={"high": 8, "turns": 4})
    >>> sorted(task.options["instance"] for task in spec.tasks("train"))
    [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7]
    >>> spec.reward_funcs[0].__name__
    'env_reward'

    The trainer plays one episode per completion; all members of a group play the same task. The stock class takes its
    arguments under their own names: ``GRPOTrainer(..., train_dataset=spec.train_dataset,
    rollout_func=spec.rollout_func, reward_funcs=spec.reward_funcs)``. Use ``environment_factory`` instead of
    ``rollout_func`` for models that call tools.

    Args:
        env: Environment id, ``"my_game.py:MyGame"``, ``"package.module:MyGame"``, the class itself, or a function that
            makes an environment; several of these, or a mapping from these to weights
            (``{"TrlEnv/Echo-v0": 1, "TrlEnv/GuessNumber-v0": 3}``). In tasks, records and metrics a class or function
            is called ``module:name``.
        config: All options in one object, in place of ``env`` and the next ones.
        options: Options by name, such as ``turn_limit=8``: see ``SpecOptions`` and the page "Options" of the docs.

    Raises:
        ConfigError: An id is unknown, an environment cannot be made, a ``History`` rewrites what was shown, or an
            argument is invalid.
        NotTextError: Observations or actions cannot be converted to text, and ``observe`` or ``act`` is missing.
    """

    def __init__(
        self, env: Envs | None = None, *, config: SpecOptions | None = None, **options: Unpack[SpecArgs]
    ) -> None:
        arguments = {**({} if env is None else {"env": env}), **options}
        if config is not None and arguments:
            raise ConfigError(f"config has all options of a specification: leave out {next(iter(arguments))}")
        self.options = config or SpecOptions.of(arguments)
        """Options, all of which are checked."""
        chosen = self.options
        given_parts = list(map(make_part, chosen.parts))
        self.curriculum = make_curriculum(chosen.curriculum)
        """Choice of the training tasks by the success rate, with its state; ``None`` without a curriculum."""
        derived: dict[str, Any] = {"end_after_invalid": limit_of_invalid(chosen)}
        by_turn = chosen.credit != EPISODE or chosen.seats is not None
        if chosen.state_key is None and by_turn:
            derived["state_key"] = "auto"
        levels = () if self.curriculum is None else self.curriculum.levels
        text = {**values_of(chosen, Text), **derived}
        self.env_spec = EnvSpec(chosen.env, env_kwargs=chosen.env_kwargs, seats=chosen.seats, levels=levels, **text)
        """Environments, as they are made for training."""
        self.rollout_config = RolloutConfig(**values_of(chosen, Rollout))
        """Options of the rollouts."""
        # The trainer's own mean of a group would compare the seats of a game with each other.
        self.turn_credit = TurnCredit(chosen.credit) if by_turn else None
        """Credit per turn, which ``GymGRPOTrainer`` has; ``None`` without it."""
        self._bound = UnscoredBound(chosen.max_unscored)
        self._probed = self.env_spec.probe(ExecutorConfig(**values_of(chosen, Stepping)))
        self.executor = self._probed.executor.executor
        self.parts = self._in_order(given_parts)
        """Features of the rollouts, in their order: those of the options, then ``parts``."""
        self._plan = TaskPlan(
            self.weights,
            # Each level of a curriculum has its own instances, so sample them by seed.
            {} if levels else self._probed.num_instances,
            {"train": chosen.num_tasks, "eval": chosen.num_eval_tasks},
            chosen.seed,
        )

    def _in_order(self, others: Iterable[Part]) -> tuple[Part, ...]:
        chosen, curriculum, credit = self.options, self.curriculum, self.turn_credit
        draws = Draws(self.assign, chosen.seed, None if curriculum is None else curriculum.choose)
        estimator = ESTIMATORS[EPISODE] if credit is None else credit.estimator
        rounds = chosen.resample_dead_groups
        own = (
            None if self.env_spec.seats is None else Games(),
            credit,
            curriculum,
            DeadGroups(rounds, draws, estimator) if rounds else None,
        )
        return in_order([*own, *others], self.rollout_config)

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
        retry_cost: float = 1.0,
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
        config = SpecOptions.of({"env": "TrlEnv/QA-v0", **options})  # before the data set is read
        columns: dict[str, Any] = {"prompt": prompt, "answer": answer, "verify": verify, "hints": hints}
        others: dict[str, Any] = {"turns": turns, "retry_cost": retry_cost, "split": split, "subset": subset}
        others["reward"] = reward
        rows = QAEnv(dataset, **columns, **others).num_instances
        for_eval = options.get("num_eval_tasks", min(rows // 10, 100))
        sizes = {"num_eval_tasks": for_eval, "num_tasks": options.get("num_tasks", max(1, rows - for_eval))}
        if all(one is None or isinstance(one, str) for one in (dataset, *columns.values())):
            env_kwargs = {"dataset": dataset, **columns, **others}
            return cls(config=replace(config, env_kwargs=env_kwargs, **sizes))
        return cls(config=replace(config, env=partial(QAEnv, dataset, **columns, **others), **sizes))

    def __repr__(self) -> str:
        return signed("GymSpec", self.options)

    @property
    def instructions(self) -> Mapping[str, str]:
        """Instructions of each environment, by id, without the sentence on the action format."""
        return self._probed.instructions

    @property
    def weights(self) -> Mapping[str, float]:
        """Share of each environment in the tasks, by id."""
        return self.env_spec.weights

    def make(self, env_id: str) -> TextEnvironment:
        """Make one of the environments, wrapped as in training."""
        return self.env_spec.make(env_id)

    def make_pool(self) -> EnvPool:
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
        if self.curriculum is None:
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

    @cached_property
    def rollout_func(self) -> Core:
        """Function for ``GRPOTrainer(rollout_func=...)`` that plays a batch of prompts with the trainer's model."""
        return make_rollout_func(
            self.env_spec.make,
            assign=self.assign,
            seed=self.options.seed,
            config=self.rollout_config,
            stepping=self._probed.executor,
            on_rollout=self.options.on_rollout,
            on_totals=self._bound,
            seats=None if self.env_spec.seats is None else self._probed.seats,
            parts=self.parts,
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
        for part in self.parts:
            if part.name not in option_types(Rollout):  # which are named below
                raise ConfigError(
                    f"{part.name} needs rollout_func, not environment_factory: TRL's own loop has no rollouts; "
                    "leave it out"
                )
        chosen = values_of(self.options, Rollout) | {"on_rollout": self.options.on_rollout}
        usual = values_of(SpecOptions(env=self.options.env), SpecOptions)
        if unsupported := [name for name, value in chosen.items() if value != usual[name]]:
            names = ", ".join(unsupported)
            raise ConfigError(
                f"TRL's own loop, which environment_factory uses, does not support {names}: leave it out, or give the "
                "trainer spec.rollout_func"
            )
        stepping = self._probed.executor
        if has_workers(stepping.executor):
            stepping = replace(stepping, workers=1)  # an object has one environment
        pool = partial(make_pool, config=stepping)
        tools = replace(self.env_spec, action_format="plain")  # actions of tool calls carry no mark
        factories = {
            env_id: EnvironmentFactory(tools.make, env_id, make_pool=pool, on_totals=self._bound)
            for env_id in self.weights
        }
        return factories if len(factories) > 1 else next(iter(factories.values()))

    @property
    def reward_funcs(self) -> list[Callable[..., list[float | None]]]:
        """Reward functions for the trainer: the environment's return."""
        return [env_reward]

    def _dataset(self, split: str) -> Any:
        tasks = list(self.tasks(split))
        dataset = make_dataset(tasks, system_prompt=self.options.system_prompt, instructions=self._probed.instructions)
        return dataset.add_column("environment", [task.env_id for task in tasks]) if len(self.weights) > 1 else dataset

    def __getstate__(self) -> dict[str, Any]:
        # Without cached properties, which are made again after unpickling: pools and environments cannot be pickled.
        made = {name for name, value in vars(type(self)).items() if isinstance(value, cached_property)}
        return {name: value for name, value in self.__dict__.items() if name not in made}
