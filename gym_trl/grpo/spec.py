"""Specification of a training on text environments."""

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from inspect import signature
from typing import Any, Literal, Self

from gym_trl.envs.question_answer import Column, QAEnv, Verifier
from gym_trl.envspec import EnvSpec, TaskPlan
from gym_trl.errors import ConfigError
from gym_trl.executors import make_pool
from gym_trl.executors.inline import EnvPool, TextEnvironment
from gym_trl.grpo.credit import ESTIMATORS, Estimator
from gym_trl.grpo.dataset import make_dataset
from gym_trl.grpo.rewards import env_reward
from gym_trl.grpo.rollout_func import Rollout, RolloutFunc
from gym_trl.history import make_history
from gym_trl.options import CreditName, Envs, Function, check_options
from gym_trl.play import History
from gym_trl.types import Task

_NOT_IN_TOOLS = (
    *("max_tokens_per_turn", "history", "max_alive", "episode_timeout", "credit", "resample_dead_groups"),
    *("seats", "curriculum", "on_rollout"),
)
"""Options that TRL's own loop has no place for."""


class GymSpec:
    """Specification of a training on text environments, for ``GymGRPOTrainer(..., spec=spec)``.

    >>> spec = GymSpec("TrlEnv/GuessNumber-v0", num_tasks=16, env_kwargs={"high": 8, "turns": 4})
    >>> sorted(task.options["instance"] for task in spec.tasks("train"))
    [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7]
    >>> spec.reward_funcs[0].__name__
    'env_reward'

    The trainer plays one episode per completion; all members of a group play the same task. The stock class takes its
    arguments under their own names: ``GRPOTrainer(..., train_dataset=spec.train_dataset,
    rollout_func=spec.rollout_func, reward_funcs=spec.reward_funcs)``, or ``GRPOTrainer(..., **spec.arguments())``. Use
    ``environment_factory`` instead of ``rollout_func`` for models that call tools.

    Args:
        env: Environment id, ``"my_game.py:MyGame"``, ``"package.module:MyGame"``, the class itself, or a function that
            makes an environment; several of these, or a mapping from these to weights
            (``{"TrlEnv/Echo-v0": 1, "TrlEnv/GuessNumber-v0": 3}``). In tasks, records and metrics a class or function
            is called ``module:name``.
        env_kwargs: Arguments of the environment; of several environments, by their ids.
        num_tasks: Number of rows of ``train_dataset``.
        num_eval_tasks: Number of rows of ``eval_dataset``; their seeds differ from those of the training tasks.
        seed: Seed of the tasks and of the sampling.
        system_prompt: First message of every conversation. Default: the chat template's own, if any.
        wrappers: Functions ``env -> env``, applied in order before the conversion to text and the parsing of actions.
        observe: Function ``(observation, info) -> text``, or ``"render"`` for the environment's rendering as text.
            Default: the conversion of ``TextObservation``.
        act: Function ``text -> action`` that raises ``ValueError`` with a hint for a text that is no action. Default:
            the conversion of ``TextAction``.
        action_format: Mark-up of the action in a response: ``"tag"``, ``"boxed"``, ``"json:FIELD"``,
            ``"regex:PATTERN"``; ``"plain"`` for the whole response, or ``"open"`` for one that may end where
            ``max_tokens_per_turn`` cuts it off, which otherwise makes an action invalid; ``None`` for an environment
            that reads responses itself.
        invalid_penalty: Reward subtracted for an unreadable or invalid action, three of which in a row end an episode
            without a ``turn_limit``.
        turn_limit: Maximum number of turns, after which an episode is truncated. Default: the environment's own.
        instructions: Replacement of the environment's instructions; the sentence on the action format follows. An
            empty string removes both.
        success: Definition of success: a minimum return, ``"info"`` (the environment declares it), or a function of
            the last ``info`` and the return. Default: the reward threshold of Gymnasium's registry if there is one,
            otherwise what the environment declares.
        max_tokens_per_turn: Maximum number of tokens sampled in a turn. Default: those left in the episode.
        history: What the model sees of a long conversation: the last so many turns, ``"notes"`` of its own,
            ``"rendered"`` for all of it rendered anew before each turn, or a function (``gym_trl.history``). Default:
            all of it, in one row of the trainer.
        max_alive: Maximum number of concurrent environments per process.
        episode_timeout: Maximum seconds of an episode, including all waiting; a longer one is unscored.
        executor: Where environments are stepped: ``"inline"``; ``"thread"`` if they wait for something outside
            Python; ``"process"`` if they compute, hang, leak or crash; ``"ray"`` for the machines of a cluster; or a
            function that makes a pool, such as ``partial(ProcessPool, workers=4, reset_timeout=30)``. Default: what the
            environment declares, or ``"thread"``.
        step_timeout: Maximum seconds of a step there. A longer step ends the episode as crashed, which is scored.
        credit: Advantages of turns: ``"episode"``, one for all turns of an episode; ``"pool"`` or ``"return_to_go"``,
            one per turn; or a function (``gym_trl.grpo.credit``). All but the first need ``GymGRPOTrainer``.
        resample_dead_groups: Rounds of a rollout in which groups whose episodes all have the same return are replaced
            by groups with other tasks. Replaced episodes count in all metrics, but are not trained on.
        seats: ``"self"`` if the model plays all seats of a game. Each seat is a row of the trainer, so that
            ``num_generations`` must be a multiple of them.
        curriculum: Arguments of the environment by level of difficulty, from easy to hard; the level of the training
            tasks follows the success rate.
        on_rollout: Called with each finished ``Rollout``.

    Raises:
        ConfigError: An id is unknown, an environment cannot be made, or an argument is invalid.
        NotTextError: Observations or actions cannot be converted to text, and ``observe`` or ``act`` is missing.
    """

    def __init__(
        self,
        env: Envs,
        *,
        env_kwargs: Mapping[str, Any] | None = None,
        num_tasks: int = 1_000,
        num_eval_tasks: int = 100,
        seed: int = 0,
        system_prompt: str | None = None,
        wrappers: Sequence[Function] = (),
        observe: Literal["render"] | Function | str | None = None,
        act: Function | str | None = None,
        action_format: str | None = "tag",
        invalid_penalty: float = 0.0,
        turn_limit: int | None = None,
        instructions: str | None = None,
        success: float | Literal["info"] | Function | str | None = None,
        max_tokens_per_turn: int | None = None,
        history: int | Literal["notes", "rendered"] | History | str | None = None,
        max_alive: int | None = None,
        episode_timeout: float | None = None,
        executor: Literal["inline", "thread", "process", "ray"] | Function | str | None = None,
        step_timeout: float | None = None,
        credit: CreditName | Estimator | str = "episode",
        resample_dead_groups: int = 0,
        seats: Literal["self"] | None = None,
        curriculum: Sequence[Mapping[str, Any]] = (),
        on_rollout: Callable[[Rollout], None] | None = None,
    ) -> None:
        given = {name: value for name, value in locals().items() if name not in ("self", "env", "__class__")}
        given["env_kwargs"] = env_kwargs or {}
        of_env = {name: given.pop(name) for name in EnvSpec.__dataclass_fields__ if name in given}
        self.env = env
        self.env_spec = EnvSpec(env, state_keys=credit != "episode", **of_env)
        """Environments, as they are made for training."""
        self.options = of_env | check_options(given)
        """Arguments, all of which are checked."""
        self._probed = self.env_spec.probe(self.options["executor"], step_timeout=step_timeout)
        self.executor = self._probed.executor
        if len(set(self._probed.seats.values())) > 1:
            raise ConfigError(f"with seats all environments need the same number of them, got {self._probed.seats}")
        # Each level of a curriculum has its own instances, so sample them by seed.
        instances = {} if curriculum else self._probed.num_instances
        self._plan = TaskPlan(self.weights, instances, {"train": num_tasks, "eval": num_eval_tasks}, seed)

    @classmethod
    def from_dataset(
        cls,
        dataset: Any,
        *,
        prompt: Column,
        answer: Column | None = None,
        verify: Verifier | str = "exact",
        turns: int = 1,
        **options: Any,
    ) -> Self:
        """Return a specification for the questions of a data set, each row of which is a task (``QAEnv``).

        >>> rows = [{"question": f"{n} + 1?", "answer": n + 1} for n in range(20)]
        >>> spec = GymSpec.from_dataset(rows, prompt="question", answer="answer", verify="numeric")
        >>> len(list(spec.tasks("train"))), len(list(spec.tasks("eval")))
        (18, 2)

        Args:
            dataset: See ``QAEnv``, as for the next four arguments. Arguments that a command line can give too make it
                the environment ``TrlEnv/QA-v0``.
            prompt: Column with the question.
            answer: Column with the answer.
            verify: Verifier.
            turns: Number of tries.
            options: Arguments of ``GymSpec``. Default of ``num_eval_tasks``: a tenth of the rows, at most 100; of
                ``num_tasks``: all other rows, so that no row is in both splits.

        Raises:
            ConfigError: See ``QAEnv`` and ``GymSpec``.
        """
        signature(cls).bind("TrlEnv/QA-v0", **check_options(options))  # before the data set is read
        columns: dict[str, Any] = {"prompt": prompt, "answer": answer, "verify": verify}
        rows = len(QAEnv(dataset, **columns, turns=turns).rows)
        for_eval = options.get("num_eval_tasks", min(rows // 10, 100))
        sizes = {"num_eval_tasks": for_eval, "num_tasks": options.get("num_tasks", max(1, rows - for_eval))}
        options |= sizes
        if all(one is None or isinstance(one, str) for one in (dataset, *columns.values())):
            return cls("TrlEnv/QA-v0", **options, env_kwargs={"dataset": dataset, **columns, "turns": turns})
        return cls(partial(QAEnv, dataset, **columns, turns=turns), **options)

    def __repr__(self) -> str:
        usual = {name: one.default for name, one in signature(GymSpec).parameters.items()}
        changed = [f", {name}={one!r:.100}" for name, one in self.options.items() if one != usual[name] and one != {}]
        return f"GymSpec({self.env!r}{''.join(changed)})"

    @property
    def weights(self) -> Mapping[str, float]:
        """Share of each environment in the tasks, by id."""
        return self.env_spec.weights

    def make(self, env_id: str) -> TextEnvironment:
        """Make one of the environments, wrapped as in training."""
        return self.env_spec.make(env_id)

    def make_pool(self) -> EnvPool:
        """Return a pool of the environments, with the executor and the timeouts used in training."""
        return make_pool(self.env_spec.make, self.executor, step_timeout=self.options["step_timeout"])

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of a ``GRPOTrainer``."""
        return {
            "train_dataset": self.train_dataset,
            "eval_dataset": self.eval_dataset,
            "rollout_func": self.rollout_func,
            "reward_funcs": self.reward_funcs,
        }

    def tasks(self, split: str) -> Iterator[Task]:
        """Generate the tasks of ``"train"`` or ``"eval"``; no two of them have the same seed."""
        return self._plan.tasks(split)

    def assign(self, split: str, number: int) -> Task:
        """Return the task of group ``number`` of a split, for prompts that carry none."""
        return self._plan.assign(split, number)

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
    def rollout_func(self) -> RolloutFunc:
        """Function for ``GRPOTrainer(rollout_func=...)`` that plays a batch of prompts with the trainer's model."""
        chosen, pool = self.options, self.make_pool()
        same = "seed max_tokens_per_turn max_alive episode_timeout on_rollout"
        function = RolloutFunc(
            pool,
            assign=self.assign,
            history=make_history(chosen["history"]),
            estimator=ESTIMATORS.get(chosen["credit"], chosen["credit"]),
            seats=max(self._probed.seats.values()),
            levels=len(chosen["curriculum"]),
            resample=chosen["resample_dead_groups"],
            **{name: chosen[name] for name in same.split()},
        )
        weakref.finalize(function, pool.close)
        return function

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
        from gym_trl.grpo.environment_factory import EnvironmentFactory

        chosen = self.options | {"credit": self.options["credit"] != "episode"}
        if given := [name for name in _NOT_IN_TOOLS if chosen[name]]:
            raise ConfigError(
                f"TRL's own loop, which environment_factory uses, does not support {', '.join(given)}: leave it out, "
                "or give the trainer spec.rollout_func"
            )
        workers = 1 if self.executor in ("thread", "process", "ray") else None  # an object has one environment
        pool = partial(make_pool, executor=self.executor, step_timeout=self.options["step_timeout"], workers=workers)
        tools = replace(self.env_spec, action_format="plain")  # actions of tool calls carry no mark
        factories = {env_id: EnvironmentFactory(tools.make, env_id, make_pool=pool) for env_id in self.weights}
        return factories if len(factories) > 1 else next(iter(factories.values()))

    @property
    def reward_funcs(self) -> list[Callable[..., list[float | None]]]:
        """Reward functions for the trainer: the environment's return."""
        return [env_reward]

    def _dataset(self, split: str) -> Any:
        tasks = list(self.tasks(split))
        dataset = make_dataset(
            tasks, system_prompt=self.options["system_prompt"], instructions=self._probed.instructions
        )
        return dataset.add_column("environment", [task.env_id for task in tasks]) if len(self.weights) > 1 else dataset
