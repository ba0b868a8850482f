"""Sources of demonstrations for a warm start: policies and records, and the choice of the episodes to train on."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TypeAlias

from gym_trl.chat import Chat
from gym_trl.envspec import EnvSpec, kwargs_by_id
from gym_trl.episode import Episode
from gym_trl.errors import ConfigError
from gym_trl.executors.protocol import TextEnvironment
from gym_trl.grpo.spec import GymSpec
from gym_trl.history import make_history
from gym_trl.options import DEMONSTRATIONS, Keep
from gym_trl.policies.demonstrations import Respond, Script, demonstrate
from gym_trl.policies.functions import as_policy
from gym_trl.policies.protocol import Attempt, TextPolicy
from gym_trl.records.files import read_records
from gym_trl.records.json_lines import to_json
from gym_trl.records.schema import ROLLOUTS, Record, TurnRecord
from gym_trl.rollout import Limits
from gym_trl.success import successes_in
from gym_trl.text import counted
from gym_trl.text.parsing import ActionFormat
from gym_trl.types import Answer, Message, StopReason, Task, TokenIds

Source: TypeAlias = TextPolicy | Path
"""Source of demonstrations: a policy that plays the training tasks, or records."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Demonstrations:
    """Demonstrations of one source."""

    kept: tuple[Episode, ...]
    """Episodes to train on."""
    played: int
    """Number of all episodes."""
    dropped: Mapping[str, int]
    """Numbers of episodes that are not trained on, by reason."""
    undeclared: int
    """Number of kept episodes that neither succeeded nor failed, because success is not declared."""
    evaluated: int
    """Number of kept episodes that were recorded in evaluation tasks, as those of ``gym-trl eval`` are."""
    error: str | None
    """First error of an episode, if any."""

    def account(self) -> str:
        """Return a sentence on the episodes that are trained on and the others.

        >>> dropped = {"without success": 3}
        >>> Demonstrations(kept=(), played=3, dropped=dropped, undeclared=0, evaluated=0, error=None).account()
        '0 of 3 episodes can be trained on: 3 without success'
        """
        why = ", ".join(f"{count} {reason}" for reason, count in self.dropped.items())
        sentence = f"{len(self.kept)} of {counted(self.played, 'episode')} can be trained on" + (
            f": {why}" if why else ""
        )
        return f"{sentence} ({self.error})" if self.error else sentence


def find_source(name: str) -> Source:
    """Return the source that ``--policy`` names: ``solver``, ``random``, ``package.module:function``, or records.

    >>> find_source("solver").name
    'solver'
    >>> find_source("evals/gone")
    Traceback (most recent call last):
        ...
    gym_trl.errors.ConfigError: there are no records 'evals/gone'; a policy is solver, random, ... or module:function

    Raises:
        ConfigError: there are no such records, or the policy is a model.
    """
    path = Path(name).expanduser()
    if path.is_dir() and not (path / ROLLOUTS).exists():
        raise ConfigError(
            f"{name} has no records: no file {ROLLOUTS}. A model's episodes are recorded by "
            f"gym-trl eval ID --model {name} --out FOLDER"
        )
    if path.exists() and not name.endswith(".py"):
        return path
    if path.suffix in (".jsonl",) or "/" in name:
        raise ConfigError(f"there are no records {name!r}; a policy is solver, random, ... or module:function")
    policy = as_policy(name)
    assert isinstance(policy, TextPolicy)  # a model has a path
    return policy


def default_keep(source: Source) -> Keep:
    """Return the choice that suits a source: all legal random episodes, the successful ones of any other.

    Choosing the successes of random play would teach the game by selection, so that the effect of reinforcement
    learning could not be told apart from it.
    """
    return "all" if isinstance(source, TextPolicy) and source.name == "random" else "successful"


def collect(
    source: Source,
    spec: GymSpec,
    chat: Chat,
    limits: Limits,
    *,
    keep: Keep | None = None,
    min_return: float | None = None,
    episodes: int | None = None,
    on_finish: Callable[[int, Episode], None] | None = None,
) -> Demonstrations:
    """Play demonstrations with the environments, prompts and limits of a training, and choose among them.

    A policy plays the training tasks of ``spec``, in order and again from the first if ``episodes`` are more. Records
    are replayed in their own tasks: responses with token ids that this model's tokenizer reads as the recorded text are
    used unchanged, others are tokenized; an episode in another ``action_format`` keeps its actions only.

    Args:
        source: Policy or records.
        spec: Environments and tasks.
        chat: Chat of the model to train.
        limits: Limits on an episode.
        keep: Episodes to keep. Default: ``default_keep``.
        min_return: Lowest return of an episode to keep. Default: none. Where success is not declared, it is the only
            criterion; without it, all such episodes are kept.
        episodes: Number of episodes. Default: ``DEMONSTRATIONS`` of a policy, all records.
        on_finish: Called with the index of each episode and the episode.

    Raises:
        ConfigError: the environment has no such policy, no record is of this environment, records are of the seats of
            games, or no episode is left; or the history asks a model for notes, which no demonstration has.
    """
    if spec.options.history == "notes":
        raise ConfigError(
            "history must be a number of turns or 'rendered' for a warm start, got 'notes': demonstrations have no "
            "notes of a model"
        )
    if spec.env_spec.seats is not None:
        raise ConfigError(
            f"a warm start plays one seat of a game, against others: leave out seats={spec.env_spec.seats!r}, or train "
            "on recorded conversations of all seats with TRL's SFTTrainer (gym_trl.records.sft_rows)"
        )
    records = [*islice(_recorded(source, spec), episodes)] if isinstance(source, Path) else []
    scripts = [Script(_task_of(record), _responses_in(record, spec, chat)) for record in records]
    if isinstance(source, TextPolicy):
        scripts = [*_played(source, spec, chat, episodes or DEMONSTRATIONS)]
    options = {"limits": limits, "preamble": preamble_of(spec), "history": make_history(spec.options.history)}
    results = demonstrate(spec.make, scripts, chat=chat, on_finish=on_finish, **options)
    keep = keep or default_keep(source)
    successes = successes_in(results)
    objections = [
        _objection(result, success, keep, min_return) for result, success in zip(results, successes, strict=True)
    ]
    kept = [index for index, objection in enumerate(objections) if objection is None]
    demonstrations = Demonstrations(
        kept=tuple(results[index] for index in kept),
        played=len(results),
        dropped=dict(Counter(filter(None, objections))),
        undeclared=sum(successes[index] is None for index in kept),
        evaluated=sum(records[index]["split"] == "eval" for index in kept) if records else 0,
        error=next((result.error for result in results if result.error), None),
    )
    if not kept:
        raise ConfigError(f"{demonstrations.account()}; choose another policy, wider limits, or keep=all")
    return demonstrations


def _objection(result: Episode, success: bool | None, keep: Keep, min_return: float | None) -> str | None:
    """Return the reason why an episode is not trained on, if there is one."""
    if not result.scored:
        return "not played to the end"
    if result.stop_reason is StopReason.TOKEN_LIMIT:
        return "cut off by a limit on tokens"
    if result.invalid_actions:
        return "with an invalid action"
    if keep == "successful" and success is False:
        return "without success"
    if min_return is not None and (result.episode_return or 0.0) < min_return:
        return f"with a return below {min_return:g}"
    return None


# ---------------------------------------------------------------------------------------------------------------------
# Policies
# ---------------------------------------------------------------------------------------------------------------------


def _played(policy: TextPolicy, spec: GymSpec, chat: Chat, episodes: int) -> Iterator[Script]:
    for env_id in spec.weights:
        with spec.env_spec.checked(env_id) as env:
            _check_policy(policy, env)
    action_format = _format_of(spec)
    tasks = list(spec.tasks("train"))
    for index in range(episodes):
        again, place = divmod(index, len(tasks))
        task = tasks[place]
        seed = Attempt(task, place, again).seed(spec.options.seed)
        yield Script(task, _response_of(policy, seed, chat, action_format))


def _check_policy(policy: TextPolicy, env: TextEnvironment) -> None:
    try:
        policy.check(env)
    except ConfigError as error:
        raise ConfigError(
            f"{error}. A warm start also accepts --policy random, which teaches the action format alone, and "
            "recorded episodes of any policy or model: --policy FOLDER of gym-trl eval ... --out FOLDER"
        ) from error


def _response_of(
    policy: TextPolicy, seed: int, chat: Chat, action_format: ActionFormat | None
) -> Callable[[TextEnvironment], Respond]:
    def start(env: TextEnvironment) -> Respond:
        act = policy.make(env, seed)
        return lambda observation: chat.say(_written(act(observation), action_format))

    return start


def _written(action: str, action_format: ActionFormat | None) -> str:
    return action if action_format is None else action_format.write(action)


def _format_of(spec: GymSpec) -> ActionFormat | None:
    env: EnvSpec = spec.env_spec
    return None if env.action_format is None else ActionFormat(env.action_format)


def _task_of(record: Record) -> Task:
    task = record["task"]
    assert task["env_id"] is not None  # ``_recorded`` has checked both
    assert task["seed"] is not None
    return Task(task["env_id"], task["seed"], task["options"])


def preamble_of(spec: GymSpec) -> list[Message]:
    """Return the messages before the first observation of an episode."""
    return [] if spec.options.system_prompt is None else [Message("system", spec.options.system_prompt)]


# ---------------------------------------------------------------------------------------------------------------------
# Records
# ---------------------------------------------------------------------------------------------------------------------


def _recorded(path: Path, spec: GymSpec) -> Iterator[Record]:
    """Yield the scored records of the environments of ``spec``."""
    env_kwargs = kwargs_by_id(spec.weights, spec.env_spec.env_kwargs)
    environments = Counter[str]()
    used = False
    for record in read_records(path):
        task = record["task"]
        environments[f"{task['env_id']} with {to_json(task['env_kwargs'])}"] += 1
        if task["env_id"] not in env_kwargs or to_json(task["env_kwargs"]) != to_json(env_kwargs[task["env_id"]]):
            continue
        if record["return"] is not None and task["seed"] is not None:
            if record["seat"] is not None:
                raise ConfigError(
                    f"{path} has episodes of single seats of games, which cannot be played again one by one: train on "
                    "the conversations with TRL's SFTTrainer (gym_trl.records.sft_rows), or on another policy"
                )
            used = True
            yield record
    if not used:
        wanted = " or ".join(f"{env_id} with {to_json(kwargs)}" for env_id, kwargs in env_kwargs.items())
        there = ", ".join(f"{count} of {env_id}" for env_id, count in environments.items()) or "none"
        raise ConfigError(f"{path} has no scored episode of {wanted}; it has {there}")


def _responses_in(record: Record, spec: GymSpec, chat: Chat) -> Callable[[TextEnvironment], Respond]:
    same_format = record["spec"].get("action_format") == spec.env_spec.action_format
    action_format = _format_of(spec)

    def start(env: TextEnvironment) -> Respond:
        turns = iter(record["turns"])

        def respond(observation: str) -> TokenIds:
            turn = next(turns, None)
            if turn is None:
                raise ConfigError("the recorded episode ended here, and the environment goes on")
            if turn["observation"] != observation:
                raise ConfigError(
                    f"the environment shows {observation!r:.80}, and {turn['observation']!r:.80} when it was recorded"
                )
            if same_format:
                return _ids_in(turn, record, chat) or chat.say(turn["answer"])
            return chat.say(_written(turn["answer"] if turn["action"] is None else turn["action"], action_format))

        return respond

    return start


def _ids_in(turn: TurnRecord, record: Record, chat: Chat) -> TokenIds | None:
    """Return the recorded ids of a response if this tokenizer reads them as the recorded text."""
    ids = record.get("completion_ids")
    if not ids or turn["start"] is None:
        return None
    sampled: TokenIds = list(ids[turn["start"] : turn["stop"]])
    return sampled if chat.text(sampled) == Answer(turn["thinking"], turn["answer"]) else None
