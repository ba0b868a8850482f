"""Evaluation of any policy: plays tasks and computes scores."""

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Event, Thread
from time import perf_counter
from typing import Any, Self, TypeAlias, Unpack

from gym_trl.envspec import END_AFTER_INVALID, EnvSpec, kwargs_by_id
from gym_trl.errors import (
    ConfigError,
    EngineError,
    InfrastructureError,
    ModelFaultError,
    PolicyError,
    described,
    is_connection,
    place_of,
    raise_interrupt,
)
from gym_trl.evaluation.output_folder import OutputFolder
from gym_trl.evaluation.play import Instances, PlayedTurn
from gym_trl.evaluation.scores import Row, Scoreboard
from gym_trl.executors.guards import GuardedPool, OrderedPool
from gym_trl.executors.make import ExecutorConfig, make_pool
from gym_trl.executors.protocol import TextEnvironment
from gym_trl.executors.step import read_declares_success
from gym_trl.kinds import Arguments, Count, Seed, check_options, option_types
from gym_trl.option_args import PlayArgs
from gym_trl.options import Stepping, Text, chosen, with_role
from gym_trl.policies.functions import NamedPolicy, as_policy
from gym_trl.policies.model import Model
from gym_trl.policies.protocol import Attempt, TextPolicy
from gym_trl.policies.server import Conversation
from gym_trl.records.files import RecordWriter, read_records
from gym_trl.records.json_lines import keep_json_lines, to_json
from gym_trl.records.schema import FAILURES, Record, as_record, task_id
from gym_trl.registration import EnvSource, env_name
from gym_trl.rollout.episode import as_response, cut_observation
from gym_trl.seeding import task_seed
from gym_trl.text.chat_client import ModelStopped
from gym_trl.types import (
    Answer,
    EpisodeResult,
    Message,
    PicturedText,
    Policy,
    StepResult,
    StopReason,
    Task,
    TokenIds,
    as_turn,
    declared_success,
    images_with,
    reason_to_stop,
    scores_in,
)
from gym_trl.wrappers.inner import instructions_of


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Result of an evaluation."""

    rows: list[Row]
    """One row for each policy on each environment."""
    folder: Path | None
    """Folder of the records."""
    played: int
    """Number of episodes played by this call, not by earlier ones."""

    def as_dict(self) -> dict[str, Any]:
        """Return the result as plain JSON values."""
        rows = [row.as_dict() for row in self.rows]
        return {"version": 1, "rows": rows, "folder": None if self.folder is None else str(self.folder)}


def evaluate(
    env: EnvSource | Sequence[EnvSource],
    policy: "str | Callable[[TextEnvironment], Policy] | NamedPolicy | Sequence[str | NamedPolicy]",
    *,
    episodes: Count = 100,
    attempts: Count = 1,
    seed: Seed = 0,
    env_kwargs: Arguments | None = None,
    out: Path | str | None = None,
    tokens: bool = False,
    retry: bool = False,
    on_begin: Callable[[int, int], None] | None = None,
    on_episode: Callable[[Record, Scoreboard], None] | None = None,
    **options: Unpack[PlayArgs],
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
        episodes: Number of episodes for each policy on each environment.
        attempts: Number of episodes per task, for pass@k; ``episodes`` must be a multiple.
        seed: Seed of the tasks and of random policies.
        env_kwargs: Arguments for ``gym.make``; with several ids, ``{id: kwargs}``.
        out: Folder for the records.
        tokens: Record the ids, mask and logprobs of models that run in this process.
        retry: Play unscored episodes of earlier calls again.
        on_begin: Called with the number of episodes, and the number of those that were played before.
        on_episode: Called with the record of every episode that is played now, and the score so far.
        options: Options of ``GymSpec`` on the text, the rollout and the stepping, such as ``turn_limit=8``, and
            ``system_prompt``. Those about environments and limits apply to all policies, ``action_format`` and other
            marks of actions to language models, and others such as ``history`` or ``executor`` to models that run in
            this process; they override a ``Model``'s own. Limits of a ``Model`` are those of all policies, too. An
            episode ends after ``END_AFTER_INVALID`` invalid actions in sequence unless ``end_after_invalid`` says
            otherwise.

    Raises:
        ConfigError: an invalid argument, a folder of another evaluation, or raised by an environment.
        EngineError: a server rejects requests, or generation failed for every episode.
        PolicyError: a policy raised, or returned no action; a failed connection leaves its episode unscored instead.
        OSError: the folder cannot be written, and something is left to play.
    """
    own = {name: value for name, value in locals().items() if name not in ("policy", "options")}
    check_options(own, option_types(evaluate))
    given_options = chosen(options, by="evaluate")
    envs = list(env) if isinstance(env, Sequence) and not isinstance(env, str) else [env]
    sources = {env_name(one): one for one in envs}
    given = list(policy) if isinstance(policy, Sequence) and not isinstance(policy, str) else [policy]
    policies = [as_policy(one) for one in given]
    if not (envs and policies):
        raise ConfigError(f"{'policy' if envs else 'env'} must have at least one element, got none")
    _check_use(given_options, policies)
    given_options |= _limits_of(policies, given_options)
    policies = [one.changed(**given_options) if isinstance(one, Model) else one for one in policies]
    if episodes % attempts:
        raise ConfigError(f"episodes must be a multiple of attempts={attempts}, got {episodes}")
    if len({policy.name for policy in policies}) < len(policies):
        raise ConfigError(f"policies must have different names, got {[policy.name for policy in policies]}")
    plans = [
        _Plan.of(policy, env_id, sources[env_id], kwargs, _wrapping(policy, given_options))
        for policy in policies
        for env_id, kwargs in kwargs_by_id(sources, env_kwargs).items()
    ]
    for plan in plans:
        plan.check()
    board, done = Scoreboard(), set[_Key]()
    with _Folder(Path(out) if out is not None else None) as folder:
        folder.agree({policy.name: _settings(policy, seed, attempts, plans) for policy in policies})
        if retry:
            folder.forget_failures({policy.name for policy in policies})
        for record in folder.records():
            done.add(_key(record))
            board.add(record)
        todo = [(plan, plan.attempts(seed, episodes, attempts, done)) for plan in plans]
        missing = sum(len(left) for _, left in todo)
        folder.begin(missing)
        if on_begin:
            on_begin(len(plans) * episodes, len(plans) * episodes - missing)
        for current in policies:
            loaded = None
            for plan, left in todo:
                if plan.policy is not current or not left:
                    continue

                def write(
                    one: Attempt,
                    played: EpisodeResult,
                    decode: Callable[[TokenIds], str] | None = None,
                    plan: _Plan = plan,
                    more: Mapping[str, Any] | None = None,
                ) -> None:
                    record = plan.record(one, played, decode, tokens=tokens)
                    record |= more or {}  # type: ignore[typeddict-item]  # counts of the server's own
                    folder.write(record)
                    board.add(record)
                    if on_episode:
                        on_episode(record, board)

                if isinstance(current, Model):
                    loaded = loaded or current.load()
                    loaded.play(plan.make_pool(), left, seed, write)
                else:
                    _play_text(current, plan, left, seed, write)
    return Evaluation(board.rows(), folder.path, missing)


_OF_MARKS, _LIMITS = with_role("marks"), with_role("limit")
_OF_EVERY_POLICY = option_types(Text).keys() | _LIMITS


def _check_use(options: Mapping[str, Any], policies: Sequence[NamedPolicy]) -> None:
    """Check that each option applies to the policies that are compared.

    Raises:
        ConfigError: One does not.
    """
    if not any(one.marks for one in policies) and (unused := sorted(options.keys() & _OF_MARKS)):
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
    """Return the limits that models of a table have of their own, such as those that a run was trained with, for all.

    Raises:
        ConfigError: Models have different ones, and there are policies without any.
    """
    limits: dict[str, Any] = {}
    named = [one for one in policies if isinstance(one, Model) and not _LIMITS.isdisjoint(one.options)]
    for name in sorted(_LIMITS - options.keys()):
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
    given = {"action_format": "tag", "end_after_invalid": END_AFTER_INVALID}
    given |= policy.options if isinstance(policy, Model) else options
    names = given.keys() & _OF_EVERY_POLICY
    if isinstance(policy, Model):
        names = given.keys() - option_types(Stepping).keys()
    wrapping = {name: it for name, it in given.items() if name in names}
    if policy.marks:
        return wrapping
    return {**{name: it for name, it in wrapping.items() if name not in _OF_MARKS}, "action_format": None}


def _stepping(policy: NamedPolicy) -> ExecutorConfig:
    """Return the executor for a model's environments; other policies step theirs in their own threads."""
    if not isinstance(policy, Model):
        return ExecutorConfig()
    own = {name: value for name, value in policy.options.items() if name in option_types(Stepping)}
    return ExecutorConfig(**{"executor": None, **own})


def _settings(policy: NamedPolicy, seed: int, attempts: int, plans: "Sequence[_Plan]") -> dict[str, Any]:
    """Return the settings that a policy's episodes must share to be counted together."""
    wrapping = next(plan.wrapping for plan in plans if plan.policy is policy)
    settings = {**policy.settings, "seed": seed, "attempts": attempts, "spec": wrapping}
    read: dict[str, Any] = json.loads(to_json(settings))
    return read


def _plain_part(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments that can be read back; ``replay(make=...)`` needs the others, such as custom wrappers."""
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

    @classmethod
    def of(
        cls,
        policy: NamedPolicy,
        env_id: str,
        env: EnvSource,
        env_kwargs: Mapping[str, Any],
        wrapping: Mapping[str, Any],
    ) -> Self:
        spec = EnvSpec.of_options(env, wrapping, env_kwargs=env_kwargs)
        return cls(policy, env_id, env_kwargs, wrapping, spec)

    def check(self) -> None:
        """Check the arguments before anything is played."""
        stepping = _stepping(self.policy)
        self.spec.probe(stepping if stepping.executor or stepping.options else ExecutorConfig())
        if isinstance(self.policy, TextPolicy):
            with self.spec.checked(self.env_id) as env:
                self.policy.check(env)

    def make_pool(self) -> GuardedPool | OrderedPool:
        """Return the pool of a model's environments."""
        return make_pool(self.spec.make, self.spec.probe(_stepping(self.policy)).executor)

    def attempts(self, seed: int, episodes: int, attempts: int, done: set[_Key]) -> list[Attempt]:
        """Return the episodes that remain to be played."""
        # Tasks are drawn by seed, so that a longer evaluation begins with the tasks of a shorter one.
        tasks = [Task(self.env_id, task_seed(seed, "eval", index)) for index in range(episodes // attempts)]
        every = (Attempt(task, group, number) for group, task in enumerate(tasks) for number in range(attempts))
        return [one for one in every if (self.policy.name, self._task_id(one.task), one.number) not in done]

    def record(
        self, one: Attempt, played: EpisodeResult, decode: Callable[[TokenIds], str] | None, *, tokens: bool
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

    noun, key, doing = "an evaluation", "evaluation", "evaluating into"

    def __init__(self, path: Path | None) -> None:
        super().__init__(path)
        self._writer: RecordWriter | None = None

    def close(self) -> None:
        if self._writer:
            self._writer.close()
        super().close()

    def agree(self, policies: Mapping[str, Any]) -> None:
        """Check that the folder's episodes of these policies were played with the same settings, and save the settings.

        Raises:
            ConfigError: they were not.
        """
        if self.path is None:
            return
        before = self.read_settings()
        known = self.settings_of(before, "policies")
        for name in policies.keys() & known.keys():
            for what in policies[name].keys() | known[name].keys():
                now, then = policies[name].get(what), known[name].get(what)
                if now != then:
                    differs = f"{what:.40}={then!r:.200}, not {now!r:.200}"
                    raise ConfigError(f"{self.path} has episodes of {name!r} with {differs}")
        self.save_settings({"policies": {**known, **policies}}, before)

    def begin(self, missing: int) -> None:
        """Prepare for so many episodes, before the first is played.

        Raises:
            OSError: the folder cannot be written.
        """
        if self.path is not None and missing:
            self.check_writable()
            self._writer = RecordWriter(self.path)

    def forget_failures(self, policies: Collection[str]) -> None:
        """Drop the unscored episodes of these policies."""
        if self.path is not None and (self.path / FAILURES).exists():
            keep_json_lines(self.path / FAILURES, lambda record: record.get("policy") not in [*policies])

    def records(self) -> Iterator[Record]:
        if self.path is not None and any(self.path.glob("*.jsonl")):
            yield from read_records(self.path)

    def write(self, record: Record) -> None:
        if self._writer:
            self._writer.write(record)


_OnEpisode: TypeAlias = Callable[..., None]


def _play_text(policy: TextPolicy, plan: _Plan, attempts: Sequence[Attempt], seed: int, on_played: _OnEpisode) -> None:
    """Play ``attempts`` in as many threads as the policy allows, and report each in the calling thread."""
    make, limits = plan.spec.make, (plan.wrapping.get("max_observation"), plan.wrapping.get("max_action"))
    if policy.concurrency == 1:  # in this thread, because an environment may need it
        with Instances(make) as instances:
            for one in attempts:
                played, more = _play_attempt(instances, one, policy, seed, limits)
                on_played(one, played, more=more)
        return
    left, done, stop = SimpleQueue[Attempt](), SimpleQueue[Any](), Event()
    for one in attempts:
        left.put(one)

    def work() -> None:
        try:
            with Instances(make) as instances, suppress(Empty):
                while not stop.is_set():
                    one = left.get_nowait()
                    done.put((one, *_play_attempt(instances, one, policy, seed, limits)))
        except BaseException as error:  # raised in the calling thread
            done.put(error)

    for _ in range(min(policy.concurrency, len(attempts))):
        Thread(target=work, daemon=True).start()
    try:
        for _ in attempts:
            answer = done.get()
            if isinstance(answer, BaseException):
                raise answer
            one, played, more = answer
            on_played(one, played, more=more)
    finally:
        stop.set()


def _play_attempt(
    instances: Instances, one: Attempt, policy: TextPolicy, seed: int, limits: tuple[int | None, int | None]
) -> tuple[EpisodeResult, dict[str, Any]]:
    """Play one episode of a text policy; a failure of the environment or a connection becomes its result.

    Raises:
        ConfigError: The environment raised it.
        EngineError: A server rejects requests.
        PolicyError: The policy is at fault.
    """
    watched = _Watched(policy.name, *limits)

    def policy_for(env: TextEnvironment) -> Policy:
        watched.begin(env, lambda: policy.make(env, one.seed(seed)))
        return watched

    began = perf_counter()
    turns = instances.play(one.task, policy_for)
    seconds = perf_counter() - began
    failure = turns[-1] if isinstance(turns[-1], Exception) else None
    if isinstance(failure, EngineError | PolicyError):
        raise failure
    if failure is not None and not isinstance(failure, ModelStopped):
        instances.give_up(one.task)
    results = [turn.result for turn in turns if isinstance(turn, PlayedTurn)]
    played = watched.result(one.task, results, failure)
    timed = replace(played, model_seconds=watched.seconds, env_seconds=seconds - watched.seconds)
    if not isinstance(watched.policy, Conversation):
        return timed, {}
    counts = watched.policy
    return timed, {"prompt_tokens": counts.prompt_tokens, "sampled_tokens": counts.sampled_tokens}


class _Watched:
    """Policy of one episode that records its observations, its actions and its time."""

    def __init__(self, name: str, longest_observation: int | None, longest_action: int | None) -> None:
        self.policy: Policy | None = None
        self.instructions = ""
        self.declares = False  # success
        self.seconds = 0.0
        self._name = name
        self._longest_observation, self._longest_action = longest_observation, longest_action
        self._said: list[tuple[str, str]] = []

    def begin(self, env: TextEnvironment, make: Callable[[], Policy]) -> None:
        """Make the policy of the episode, whose environment has been reset."""
        self.instructions, self.declares = instructions_of(env), read_declares_success(env)
        policy: Any = self._of_policy(make)
        if not callable(policy):
            raise PolicyError(
                f"the policy {self._name!r} must return a function from observation to action when it is called with "
                f"the environment, got {policy!r:.80} of type {type(policy).__name__}"
            )
        self.policy = policy

    def __call__(self, observation: str) -> str:
        assert self.policy is not None
        policy = self.policy
        text = cut_observation(observation, self._longest_observation)
        shown = text if text is observation else PicturedText.of(text, images_with(observation))
        began = perf_counter()
        try:
            action: Any = self._of_policy(lambda: policy(shown))
        finally:
            self.seconds += perf_counter() - began
        if not isinstance(action, str):
            raise PolicyError(
                f"the policy {self._name!r} must return an action as text, got {action!r:.80} of type "
                f"{type(action).__name__}"
            )
        self._said.append((shown, action))
        if self._longest_action is not None and len(action) > self._longest_action:
            return as_response(action, cut=False, longest=self._longest_action)
        return action

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
            said = f"the policy {self._name!r} raised {described(error)}"
            if is_connection(error):
                raise ModelStopped(StopReason.CANCELLED, said) from error
            place = place_of(error)
            where = place and f" ({place.filename}, line {place.lineno}, in {place.name}: {place.line})"
            raise PolicyError(f"{said}{where or ''}") from error

    def result(self, task: Task, results: Sequence[StepResult], failure: Exception | None) -> EpisodeResult:
        """Return the result of an episode that has texts but no tokens."""
        answers = self._answers()
        turns = tuple(
            as_turn(observation, answer, result)
            for (observation, _), answer, result in zip(self._said, answers, results, strict=False)
        )
        if failure is None:
            reason, error = reason_to_stop(results[-1]), None
        elif isinstance(failure, ModelStopped):
            reason, error = failure.reason, str(failure)
            if turns and reason.scored:
                last = turns[-1]
                turns = (*turns[:-1], replace(last, reward=last.reward + results[-1].settlement))
        elif isinstance(failure, ModelFaultError):
            reason, error = StopReason.CRASHED, str(failure)
        elif isinstance(failure, InfrastructureError):
            reason, error = StopReason.ENV_ERROR, str(failure)
        else:
            reason, error = StopReason.ENV_ERROR, described(failure)
        ended = failure is None and results[-1].terminated
        declared = declared_success([StepResult("", declares_success=self.declares), *results], reason)
        said = tuple(self._messages(results if reason is not StopReason.CRASHED else results[:-1]))
        scores = scores_in(results[-1].info) if ended else {}
        told: dict[str, Any] = {"error": error, "terminated": ended, "declared": declared, "scores": scores}
        return EpisodeResult(task, reason, turns, said, **told)

    def _answers(self) -> list[Answer]:
        thinking = self.policy.thinking if isinstance(self.policy, Conversation) else [""] * len(self._said)
        return [Answer(thought, action) for thought, (_, action) in zip(thinking, self._said, strict=True)]

    def _messages(self, results: Sequence[StepResult]) -> Iterator[Message]:
        if isinstance(self.policy, Conversation) and self.policy.system_prompt is not None:
            yield Message("system", self.policy.system_prompt)
        answers = self._answers()
        for index, (observation, _) in enumerate(self._said):
            rules = "" if index else self.instructions
            text = "\n\n".join(part for part in (rules, observation) if part)
            yield Message("user", text, images_with(observation))
            yield answers[index].as_message()
        if results and len(results) == len(self._said):
            text = cut_observation(results[-1].observation, self._longest_observation)
            yield Message("user", text, results[-1].images)
