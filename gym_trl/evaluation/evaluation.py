"""Evaluation of any policy: plays tasks and computes scores."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeAlias

from gym_trl.envspec import END_AFTER_INVALID, EnvSpec, kwargs_by_id
from gym_trl.episode import Episode
from gym_trl.errors import (
    ConfigError,
    EngineError,
    PolicyError,
    described,
    is_connection,
    place_of,
    raise_interrupt,
)
from gym_trl.evaluation.output_folder import OutputFolder
from gym_trl.evaluation.play import play_text
from gym_trl.evaluation.scores import Row, Scoreboard
from gym_trl.executors.inline import InlinePool
from gym_trl.executors.make import ExecutorConfig, make_pool
from gym_trl.executors.protocol import EnvPool, TextEnvironment
from gym_trl.kinds import check_options, option_types
from gym_trl.options import LIMITS, MARKS, OF_EVALUATE, PLAYED, EvalOptions, Stepping, Text, chosen
from gym_trl.policies.functions import NamedPolicy, as_policy
from gym_trl.policies.model import LoadedModel, Model
from gym_trl.policies.protocol import Attempt, TextPolicy
from gym_trl.policies.server import Conversation
from gym_trl.records.files import RecordWriter, read_records
from gym_trl.records.json_lines import keep_json_lines, to_json
from gym_trl.records.schema import FAILURES, Record, as_record, task_id
from gym_trl.registration import EnvSource, env_name
from gym_trl.rollout import gather, run
from gym_trl.seeding import task_seed
from gym_trl.text.chat_client import ModelStopped
from gym_trl.types import Answer, Message, Policy, StepResult, StopReason, Task, TokenIds


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Result of an evaluation."""

    rows: list[Row]
    """One row for each policy on each environment."""
    folder: Path | None
    """Folder of the records."""
    played: int
    """Number of episodes played by this call, not by earlier ones."""

    def __repr__(self) -> str:
        lines = (f"{row.policy} on {row.env_id}: {row.score}" for row in self.rows)
        return "\n".join(["Evaluation:", *(f"  {line}" for line in lines)])

    def as_dict(self) -> dict[str, Any]:
        """Return the result as plain JSON values."""
        rows = [row.as_dict() for row in self.rows]
        return {"version": 1, "rows": rows, "folder": None if self.folder is None else str(self.folder)}


def evaluate(
    env: EnvSource | Sequence[EnvSource],
    policy: "str | Callable[[TextEnvironment], Policy] | NamedPolicy | Sequence[str | NamedPolicy]",
    *,
    on_begin: Callable[[int, int], None] | None = None,
    on_episode: Callable[[Record, Scoreboard], None] | None = None,
    **options: Any,
) -> Evaluation:
    """Play held-out tasks with policies, record every episode, and return the scores.

    >>> found = evaluate("TrlEnv/GuessNumber-v0", "solver", episodes=20)
    >>> [(row.policy, row.episodes, str(row.success)) for row in found.rows]
    [('solver', 20, '1.000 [0.813, 1.000]')]
    >>> evaluate("TrlEnv/Echo-v0", lambda env: lambda observation: observation, episodes=4).rows[0].success.mean
    1.0

    All policies play the same tasks, from seeds that training never uses: those of the ``"eval"`` split
    (``task_seed``). With ``out``, each episode is written to the folder before the next is counted, and an interrupted
    evaluation resumes where it stopped: no episode is lost, and none is played twice. Other policies are added to the
    folder.

    Args:
        env: An id, ``"my_game.py:MyGame"``, a class, or a function that makes an environment (see ``GymSpec``); or
            several.
        policy: ``"solver"``, ``"random"`` or another of the environments' ``baselines``; ``"package.module:function"``
            or a function, which makes an episode's policy from its environment; a path or hub id of a model;
            ``Model(...)`` or ``server(...)`` of ``gym_trl.policies.model`` for more options; or several of these.
        on_begin: Called with the number of episodes, and the number of those that were played before.
        on_episode: Called with the record of every episode that is played now, and the score so far.
        options: Options of an evaluation (``EvalOptions``): ``episodes``, ``attempts``, ``seed``, ``env_kwargs`` (with
            several ids, by these), ``out``, ``tokens`` and ``retry``; those of ``GymSpec`` on the text, the rollout and
            the stepping, such as ``turn_limit=8``; and ``system_prompt``. Those about environments and limits apply to
            all policies, ``action_format`` and other marks of actions to language models, and others such as
            ``history`` or ``executor`` to models that run in this process; they override a ``Model``'s own. Limits of a
            ``Model`` are those of all policies, too. An episode ends after ``END_AFTER_INVALID`` invalid actions in
            sequence unless ``end_after_invalid`` says otherwise.

    Raises:
        ConfigError: an invalid argument, a folder of another evaluation, or raised by an environment.
        EngineError: a server rejects requests, or generation failed for every episode.
        PolicyError: a policy raised, or returned no action; a failed connection leaves its episode unscored instead.
        OSError: the folder cannot be written, and something is left to play.
    """
    check_options({"env": env, "on_begin": on_begin, "on_episode": on_episode}, option_types(evaluate))
    shared = chosen(options, by="evaluate", of=EvalOptions, names=OF_EVALUATE)
    own = EvalOptions(**{name: shared.pop(name) for name in [*shared] if name not in PLAYED})
    policies = _policies(policy, shared)
    sources = {env_name(one): one for one in _listed("env", env)}
    plans = _Plan.all(policies, sources, own.env_kwargs, shared)
    with _Folder(own.out) as folder:
        folder.agree({plan.policy.name: plan.settings(own.seed, own.attempts) for plan in plans})
        if own.retry:
            folder.forget_failures({one.name for one in policies})
        table = _Table(folder, own.seed, tokens=own.tokens, on_episode=on_episode)
        todo = [(plan, plan.attempts(own.seed, own.episodes, own.attempts, table.done)) for plan in plans]
        missing = sum(len(left) for _, left in todo)
        folder.begin(missing, RecordWriter)
        if on_begin:
            on_begin(len(plans) * own.episodes, len(plans) * own.episodes - missing)
        for plan, left in todo:
            if left:
                table.play(plan, left)
    return Evaluation(table.board.rows(), folder.path, missing)


def _listed(name: str, value: Any) -> list[Any]:
    """Return a list of an argument that was given alone or in a list."""
    listed = list(value) if isinstance(value, Sequence) and not isinstance(value, str) else [value]
    if not listed:
        raise ConfigError(f"{name} must have at least one element, got none")
    return listed


def _policies(named: Any, options: dict[str, Any]) -> list[NamedPolicy]:
    """Return the policies that are compared, with the options of all, to which the limits of a model are added."""
    policies = [as_policy(one) for one in _listed("policy", named)]
    _check_use(options, policies)
    options |= _limits_of(policies, options)
    policies = [one.changed(**options) if isinstance(one, Model) else one for one in policies]
    if len({policy.name for policy in policies}) < len(policies):
        raise ConfigError(f"policies must have different names, got {[policy.name for policy in policies]}")
    return policies


_OF_EVERY_POLICY = option_types(Text).keys() | LIMITS


def _check_use(options: Mapping[str, Any], policies: Sequence[NamedPolicy]) -> None:
    """Check that each option applies to the policies that are compared."""
    if not any(one.marks for one in policies) and (unused := sorted(options.keys() & MARKS)):
        raise ConfigError(f"{unused[0]} requires a language model: other policies write no marks")
    own = [one.name for one in policies if not isinstance(one, Model)]
    if len(own) == len(policies) and (unused := sorted(options.keys() - _OF_EVERY_POLICY)):
        raise ConfigError(f"{unused[0]} requires a model in this process, and {own[0]!r} is none")
    if own and "step_timeout" in options:
        raise ConfigError(
            f"step_timeout does not limit {own[0]!r}, whose steps are taken in its own thread: evaluate models in this "
            "process apart from it"
        )


def _limits_of(policies: Sequence[NamedPolicy], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the limits that models of a table have of their own, such as those of their training, for all."""
    limits: dict[str, Any] = {}
    named = [one for one in policies if isinstance(one, Model) and not LIMITS.isdisjoint(one.options)]
    for name in sorted(LIMITS - options.keys()):
        values = {one.name: one.options[name] for one in named if name in one.options}
        first = next(iter(values.values()), None)
        if all(value == first for value in values.values()):
            limits |= {name: first} if values else {}
        elif len(values) < len(policies):
            shown = " and ".join(f"{name}={value!r} for {label}" for label, value in values.items())
            raise ConfigError(
                f"no {name} holds for the whole table, because models have their own ({shown}): give one for all, "
                "or evaluate these models without other policies"
            )
    return limits


def _wrapping(policy: NamedPolicy, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the wrapping of a policy's environments and its limits, by the names of ``GymSpec``'s arguments.

    Limits are the same for all policies; the marks of actions, and further arguments of a model, may be its own.
    """
    arguments = {"action_format": "tag", "end_after_invalid": END_AFTER_INVALID}
    arguments |= policy.options if isinstance(policy, Model) else options
    names = arguments.keys() & _OF_EVERY_POLICY
    if isinstance(policy, Model):
        names = arguments.keys() - option_types(Stepping).keys()
    wrapping = {name: it for name, it in arguments.items() if name in names}
    if policy.marks:
        return wrapping
    return {**{name: it for name, it in wrapping.items() if name not in MARKS}, "action_format": None}


def _stepping(policy: NamedPolicy) -> ExecutorConfig:
    """Return the executor for a model's environments; other policies step theirs in their own threads."""
    if not isinstance(policy, Model):
        return ExecutorConfig()
    own = {name: value for name, value in policy.options.items() if name in option_types(Stepping)}
    return ExecutorConfig(**{"executor": None, **own})


def _plain_part(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments that can be read back, which custom wrappers cannot."""
    return {name: value for name, value in spec.items() if json.loads(to_json([value])) == [value]}


_Key: TypeAlias = tuple[str | None, str, int]


def _key(record: Record) -> _Key:
    """Return a key that is unique among the episodes of an evaluation."""
    return record["policy"], record["task"]["id"], record["attempt"]


@dataclass(frozen=True, slots=True, eq=False)
class _Plan:
    """One policy on one environment."""

    policy: NamedPolicy
    env_id: str
    env_kwargs: Mapping[str, Any]
    wrapping: Mapping[str, Any]
    spec: EnvSpec
    executor: ExecutorConfig

    @classmethod
    def all(
        cls,
        policies: Sequence[NamedPolicy],
        sources: Mapping[str, EnvSource],
        env_kwargs: Mapping[str, Any] | None,
        options: Mapping[str, Any],
    ) -> list[Self]:
        """Return the checked plans of an evaluation, those of a policy after each other."""
        plans = []
        for policy in policies:
            wrapping = _wrapping(policy, options)
            for env_id, kwargs in kwargs_by_id(sources, env_kwargs).items():
                spec = EnvSpec.of_options(sources[env_id], wrapping, env_kwargs=kwargs)
                plans.append(cls(policy, env_id, kwargs, wrapping, spec, spec.probe(_stepping(policy)).executor))
        for plan in plans:
            if isinstance(plan.policy, TextPolicy):
                with plan.spec.checked(plan.env_id) as env:
                    plan.policy.check(env)
        return plans

    def settings(self, seed: int, attempts: int) -> dict[str, Any]:
        """Return the settings that a policy's episodes must share to be counted together."""
        return {**self.policy.settings, "seed": seed, "attempts": attempts, "spec": self.wrapping}

    def make_pool(self) -> EnvPool:
        """Return the pool of a model's environments."""
        return make_pool(self.spec.make, self.executor)

    def attempts(self, seed: int, episodes: int, attempts: int, done: set[_Key]) -> list[Attempt]:
        """Return the episodes that remain to be played."""
        # Tasks are drawn by seed, so that a longer evaluation begins with the tasks of a shorter one.
        tasks = [Task(self.env_id, task_seed(seed, "eval", index)) for index in range(episodes // attempts)]
        every = (Attempt(task, group, number) for group, task in enumerate(tasks) for number in range(attempts))
        return [one for one in every if (self.policy.name, self._task_id(one.task), one.number) not in done]

    def record(
        self, one: Attempt, played: Episode, decode: Callable[[TokenIds], str] | None, *, tokens: bool
    ) -> Record:
        return as_record(
            played,
            env_kwargs=self.env_kwargs,
            spec=_plain_part(self.wrapping),
            policy=self.policy.name,
            split="eval",
            greedy=self.policy.greedy if isinstance(self.policy, Model) else None,
            group=one.group,
            attempt=one.number,
            tokens=tokens,
            decode=decode,
        )

    def _task_id(self, task: Task) -> str:
        return task_id(task.env_id, task.seed, env_kwargs=self.env_kwargs, options=task.options)


class _Folder(OutputFolder):
    """Folder of an evaluation's records."""

    noun, key, unit, doing = "an evaluation", "evaluation", "episodes", "evaluating into"

    def agree(self, policies: Mapping[str, Any]) -> None:
        """Check that the folder's episodes of these policies were played with the same settings, and save the settings.

        Raises:
            ConfigError: they were not.
        """
        if self.path is not None:
            before = self.read_settings()
            self.save_settings({"policies": self.joined(before, "policies", policies)}, before)

    def forget_failures(self, policies: Collection[str]) -> None:
        """Drop the unscored episodes of these policies."""
        if self.path is not None and (self.path / FAILURES).exists():
            keep_json_lines(self.path / FAILURES, lambda record: record.get("policy") not in [*policies])

    def records(self) -> Iterator[Record]:
        if self.path is not None and any(self.path.glob("*.jsonl")):
            yield from read_records(self.path)


class _Table:
    """Episodes of an evaluation: those in its folder, and those that are played now."""

    def __init__(
        self, folder: _Folder, seed: int, *, tokens: bool, on_episode: Callable[[Record, Scoreboard], None] | None
    ) -> None:
        self.board, self.done = Scoreboard(), set[_Key]()
        self._folder, self._seed, self._tokens, self._on_episode = folder, seed, tokens, on_episode
        self._loaded: LoadedModel | None = None
        for record in folder.records():
            self.done.add(_key(record))
            self.board.add(record)

    def play(self, plan: _Plan, left: Sequence[Attempt]) -> None:
        """Play the episodes that remain of a plan, and write each."""
        if not isinstance(plan.policy, Model):
            self._play_texts(plan, plan.policy, left)
            return
        if self._loaded is None or self._loaded.model is not plan.policy:
            self._loaded = None  # before the next one takes its memory
            self._loaded = plan.policy.load()

        def on_played(one: Attempt, played: Episode, decode: Callable[[TokenIds], str] | None) -> None:
            self._write(plan.record(one, played, decode, tokens=self._tokens), {})

        self._loaded.play(plan.make_pool(), left, self._seed, on_played)

    def _play_texts(self, plan: _Plan, policy: TextPolicy, left: Sequence[Attempt]) -> None:
        """Play episodes of a text policy; where it plays several at once, each waits for it in a thread."""
        named: dict[int, _Named] = {}
        preamble = [] if policy.system_prompt is None else [Message("system", policy.system_prompt)]
        threads = ThreadPoolExecutor(policy.concurrency) if policy.concurrency > 1 else None

        async def one(number: int) -> Episode:
            attempt, key = left[number], str(number)
            act = named[number] = _Named(policy.name, lambda: policy.make(pool.env(key), attempt.seed(self._seed)))

            def in_thread(result: StepResult) -> Awaitable[str | Answer]:
                return asyncio.get_running_loop().run_in_executor(threads, act, result)

            chosen = act if threads is None else in_thread
            return await play_text(pool, attempt.task, chosen, key=key, preamble=preamble)

        def on_finish(number: int, played: Episode) -> None:
            self._write(plan.record(left[number], played, None, tokens=self._tokens), named.pop(number).counts)

        try:
            with InlinePool(plan.spec.make) as pool:
                run(gather(one, len(left), max_alive=policy.concurrency, on_finish=on_finish))
        finally:
            if threads is not None:
                threads.shutdown(wait=False, cancel_futures=True)

    def _write(self, record: Record, counts: Mapping[str, Any]) -> None:
        record |= counts  # type: ignore[typeddict-item]  # a server's own
        self._folder.write(record)
        self.board.add(record)
        if self._on_episode:
            self._on_episode(record, self.board)


class _Named:
    """Policy of one episode, made at its first call; its errors have its name, and a server's tokens are counted."""

    def __init__(self, name: str, make: Callable[[], Policy]) -> None:
        self.counts: dict[str, Any] = {}
        self._name, self._make = name, make
        self._policy: Policy | None = None

    def __call__(self, result: StepResult) -> str | Answer:
        if self._policy is None:
            self._policy = self._of_policy(self._make)
            if not callable(self._policy):
                raise PolicyError(
                    f"the policy {self._name!r} must return a function from observation to action when it is called "
                    f"with the environment, got {self._policy!r:.80} of type {type(self._policy).__name__}"
                )
        policy = self._policy
        action: Any = self._of_policy(lambda: policy(result.observation))
        if not isinstance(action, str):
            raise PolicyError(
                f"the policy {self._name!r} must return an action as text, got {action!r:.80} of type "
                f"{type(action).__name__}"
            )
        if not isinstance(policy, Conversation):
            return action
        self.counts |= {"prompt_tokens": policy.prompt_tokens, "sampled_tokens": policy.sampled_tokens}
        return Answer(policy.thinking[-1], action)

    def _of_policy(self, call: Callable[[], Any]) -> Any:
        """Return the result of a call of the policy's.

        Raises:
            ModelStopped: A connection failed, for which the episode is unscored.
            PolicyError: Anything else that the call raised.
        """
        try:
            return call()
        except (EngineError, ModelStopped):
            raise
        except BaseException as error:
            raise_interrupt(error)
            problem = f"the policy {self._name!r} raised {described(error)}"
            if is_connection(error):
                raise ModelStopped(StopReason.CANCELLED, problem) from error
            place = place_of(error)
            where = place and f" ({place.filename}, line {place.lineno}, in {place.name}: {place.line})"
            raise PolicyError(f"{problem}{where or ''}") from error
