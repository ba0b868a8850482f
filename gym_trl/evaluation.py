"""Evaluation on held-out tasks: who plays how well, how sure that is, and who plays better than whom."""

import json
import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Unpack

from gym_trl.check.evidence import NotPlayedError, best_blind
from gym_trl.errors import ConfigError, check_counts
from gym_trl.intervals import Interval, interval
from gym_trl.models import find_model
from gym_trl.players import Game, Player, TextPlayer, play_all, player, text_policy
from gym_trl.records import ROLLOUTS, Record, append, read_records, record_of, to_json
from gym_trl.registration import EnvSource
from gym_trl.seeding import derive_seed
from gym_trl.setting import Options, Setting
from gym_trl.terminal import Progress
from gym_trl.text.keys import without_password
from gym_trl.types import Task

__all__ = ["Evaluation", "Interval", "Score", "evaluate", "interval"]
_OF_THE_TASK = ("env", "env_kwargs", "turn_limit", "success", "invalid_penalty", "seats", "executor")


@dataclass(frozen=True)
class Score:
    """Score of a policy on the tasks of an evaluation.

    Args:
        name: Name of the policy.
        records: Its episodes.
        declares: The environment is known to declare success, by other episodes.
    """

    name: str
    records: Sequence[Record] = field(repr=False)
    declares: bool = False

    @property
    def declares_success(self) -> bool:
        """True if the environment declares success; a scored episode without it has then failed."""
        return self.declares or any(one["success"] is not None for one in self.records)

    def values(self, key: str = "success") -> dict[str, list[float]]:
        """Return a field of the scored episodes by task.

        Tasks with other seeds are others, also where their instance of the environment is the same: an instance comes
        again only after all have been played, so that these are not a sample of more instances.
        """
        tasks: defaultdict[str, list[float]] = defaultdict(list)
        if key != "success" or self.declares_success:
            for one in self.records:
                if one["return"] is not None:
                    tasks[one["task"]["id"]].append(float(one[key] or 0))
        return dict(tasks)

    def mean(self, key: str = "success") -> Interval:
        """Return the mean of ``success``, ``return`` or another field over the scored episodes."""
        values, successes = self.values(key), self.values()
        return interval(list(values.values()), share=key == "success" or values == successes)

    def pass_at(self, k: int) -> Interval:
        """Return the probability that at least one of ``k`` attempts at a task succeeds (Chen et al. 2021).

        Tasks with fewer attempts are left out.
        """
        tasks = [row for row in self.values().values() if len(row) >= k]
        missed = [math.comb(len(row) - int(sum(row)), k) / math.comb(len(row), k) for row in tasks]
        return interval([[1.0 - one] for one in missed])

    def less(self, other: "Score", key: str = "success") -> Interval:
        """Return the mean difference to another policy, in pairs of the tasks that both have played."""
        mine, theirs = self.values(key), other.values(key)
        both = sorted(mine.keys() & theirs.keys())
        return interval([[statistics.fmean(mine[task]) - statistics.fmean(theirs[task])] for task in both])

    def __str__(self) -> str:
        """Return the numbers in a line."""
        scored = [one for one in self.records if one["return"] is not None]
        turns = sum(one["num_turns"] for one in scored)
        success = f"success {self.mean()}" if self.declares_success else "success not declared"
        parts = [success, f"return {self.mean('return')}", f"{len(scored)} episodes"]
        if turns:
            parts.append(f"{turns / len(scored):.1f} turns")
        if invalid := sum(one["invalid_actions"] for one in scored):
            parts.append(f"{invalid / turns:.0%} invalid")
        if failed := [one for one in self.records if one["return"] is None]:
            parts.append(f"{len(failed)} unscored ({failed[0]['stop_reason']}: {failed[0]['error'] or ''!s:.200})")
        return f"{self.name}: {', '.join(parts)}"

    def as_dict(self) -> dict[str, Any]:
        """Return the numbers as plain values; ``None`` for a mean of nothing."""
        means = {key: self.mean(key) for key in ("success", "return")}
        return {
            "policy": self.name,
            "episodes": sum(one["return"] is not None for one in self.records),
            "unscored": sum(one["return"] is None for one in self.records),
            **{key: None if math.isnan(value.mean) else value._asdict() for key, value in means.items()},
        }


@dataclass(frozen=True)
class Evaluation:
    """Scores on the same tasks: of the models, and then of the references."""

    scores: Sequence[Score]
    against: str | None = None
    """Name of the policy in the other seats."""
    folder: Path | None = None
    """Folder of the records, for ``gym_trl.show``."""

    def compared(self) -> list[tuple[Score, str, Interval]]:
        """Return each score but the first, what was compared, and how much more the first one reaches."""
        first, *others = self.scores
        key = "success" if first.declares_success else "return"
        return [(other, key, first.less(other, key)) for other in others]

    def __str__(self) -> str:
        first = self.scores[0]
        lines = [f"{one}{f' against {self.against}' if self.against else ''}" for one in self.scores]
        attempts = min(map(len, first.values().values()), default=0)  # that every task has
        if attempts > 1 and self.against is None:
            lines.append(f"{first.name}: pass@{attempts} {first.pass_at(attempts)}")
        for other, key, apart in self.compared():
            shown = "better" if apart.low > 0 else "worse" if apart.high < 0 else "no difference shown"
            shown = "too few tasks to tell" if math.isnan(apart.low) else shown
            lines.append(f"{first.name} less {other.name}: {key} {apart}, {shown}")
        return "\n".join(lines)


def evaluate(
    env: EnvSource | None = None,
    *,
    model: Any = None,
    against: Any = None,
    episodes: int = 100,
    attempts: int = 1,
    temperature: float = 1.0,
    references: Sequence[Any] = ("random", "blind"),
    base_url: str | None = None,
    vllm: bool = False,
    seed: int = 0,
    out: str | Path | None = None,
    **options: Unpack[Options],
) -> Evaluation:
    """Play held-out tasks and say how well, how sure that is, and whether it is better than others.

    >>> found = evaluate("TrlEnv/GuessNumber-v0", model="solver", episodes=40, references=("random",))
    >>> print(found.scores[0])
    solver: success 1.000 [0.912, 1.000], return 1.000 [0.912, 1.000], 40 episodes, 4.8 turns
    >>> found.scores[0].less(found.scores[1]).low > 0
    True

    All play the same tasks, which no training with the same seed has, and a model as it was trained. A task's several
    attempts count as alike in the intervals, and policies are compared in pairs of tasks.

    Args:
        env: Registered id, ``file.py:Class``, ``module:Class``, class or function. Default: that on which the model was
            trained, if it is registered.
        model: Who plays, or several: the folder of a run, a model or an adapter, a hub id, ``tiny``, a model with its
            tokenizer, ``random``, ``solver``, ``always:ACTION``, ``module:function``, or a function
            ``policy(env, seed) -> act(observation, info)``. With ``base_url`` names on the server. Each further one is
            compared with the first.
        against: Who plays the other seats of a game. Each task is played once in each seat.
        episodes: Number of episodes of each policy.
        attempts: Number of these that play the same task.
        temperature: Temperature of the sampling; 0 takes the most probable token.
        references: Who else plays the same tasks: a policy, or ``blind``, the best that plays without reading.
        base_url: Server with OpenAI's interface, with ``/v1``; its key is ``$OPENAI_API_KEY``.
        vllm: Run the models with vLLM.
        seed: Seed of the tasks and the sampling.
        out: Folder of the records. What is there is not played again.
        options: How the environment is played; see ``Options``.

    Raises:
        ConfigError: An option has a wrong value, there is no such policy, or ``out`` has records of other settings.
    """
    check_counts(attempts=attempts, episodes=episodes)
    models = list(model) if isinstance(model, list) else [model]
    models = ["random" if one is None and base_url is None else one for one in models]
    given: dict[str, Any] = {**options, **({} if against is None else {"seats": "self"})}
    base = Setting.beside(models[0], env=env, **given)
    seats = base.num_seats
    if against is not None and seats == 1:
        raise ConfigError(f"against={_name(against)!r} needs a game of several seats, and {base.name} has one")
    others = [] if against is not None else [one for one in references if one not in models]
    others = [one for one in others if one != "blind" or seats == 1]
    names = [*(_name(who, base_url) for who in models), *map(_name, others)]
    if len(set(names)) < len(names):
        raise ConfigError(f"policies must have different names, got {', '.join(names)}")
    for who in [*(models if base_url is None else []), *others, *([] if against is None else [against])]:
        if not isinstance(who, tuple) and who not in ("blind", "tiny") and text_policy(who) is None:
            find_model(who)  # refuses what is none, before anything is played

    tasks = base.tasks(max(1, episodes // attempts), seed=seed)
    places = [None] if against is None else range(seats)
    plan = [
        _Planned(group, number, seat) for group in range(len(tasks)) for number in range(attempts) for seat in places
    ]
    where: dict[str, Any] = {"base_url": base_url, "vllm": vllm, "temperature": temperature}
    address = None if base_url is None else without_password(base_url)
    about = {"seed": seed, "against": against and _name(against), **where, "base_url": address}
    opponent = None if against is None else partial(player, against, _like(base, against, given))
    entries = []
    for who in models:
        setting = base if who is models[0] else _like(base, who, given)
        entries.append(_Entry(_name(who, base_url), setting, about, partial(player, who, setting, **where), opponent))
    for who in others:
        provide = partial(_blind_player, base, seed) if who == "blind" else partial(player, who, base)
        entries.append(_Entry(_name(who), base, {"seed": seed}, provide))
    file = None if out is None else Path(out).absolute() / ROLLOUTS  # an environment may change the folder
    known = list(read_records(file)) if file is not None and file.is_file() else []
    scores = []
    for entry in entries:
        with suppress(NotPlayedError):  # no blind policy can be searched for: every game ends with an exception
            scores.append(Score(entry.name, entry.play(plan, tasks, known, file)))
    declares = any(one.declares_success for one in scores)
    scores = [replace(one, declares=declares) for one in scores]
    return Evaluation(scores, against and _name(against), None if out is None else Path(out))


class _Planned(NamedTuple):
    """Game that is to be played, by the fields of its records."""

    group: int
    """Index of the task."""
    attempt: int
    against_from: int | None
    """Seat of the policy, if another one has the others."""

    @classmethod
    def of(cls, record: Record) -> "_Planned":
        """Return the game of a record."""
        return cls(record["group"], record["attempt"], record.get("against_from"))


@dataclass
class _Entry:
    """A policy that is evaluated, and how it plays."""

    name: str
    setting: Setting
    options: dict[str, Any]
    """Options of the evaluation that its records have in common, beside the setting."""
    provide: Callable[[], AbstractContextManager[Player]]
    provide_opponent: Callable[[], AbstractContextManager[Player]] | None = None

    def play(
        self, plan: Sequence[_Planned], tasks: Sequence[Task], known: Sequence[Record], file: Path | None
    ) -> list[Record]:
        """Play the games of a plan that have no scored records, and return the records of all, in the plan's order.

        Raises:
            ConfigError: The records that are known are of other settings.
        """
        spec: dict[str, Any] = json.loads(to_json(self.setting.as_dict() | self.options))  # as it is read from a file
        own = [one for one in known if one["policy"] == self.name]
        names = sorted({*spec, *(name for one in own for name in one["spec"])})
        if changed := [name for one in own for name in names if one["spec"].get(name) != spec.get(name)]:
            raise ConfigError(f"{file} has episodes of {self.name} with another {changed[0]}: use another folder")
        wanted = {*plan}
        scored = [one for one in own if one["return"] is not None and _Planned.of(one) in wanted]
        records = list({(_Planned.of(one), one["seat"]): one for one in scored}.values())  # a file may repeat a line
        done = {_Planned.of(one) for one in records}
        if left := [one for one in plan if one not in done]:
            with ExitStack() as stack:
                mine = stack.enter_context(self.provide())
                other = mine if self.provide_opponent is None else stack.enter_context(self.provide_opponent())
                for seat in dict.fromkeys(one.against_from for one in left):
                    players = [mine if seat in (None, place) else other for place in range(self.setting.num_seats)]
                    part = [one for one in left if one.against_from == seat]
                    records += self._play(part, tasks, players, file, spec)
        return sorted(records, key=lambda one: (one["group"], one["attempt"], one["seat"] or 0))

    def _play(
        self,
        plan: Sequence[_Planned],
        tasks: Sequence[Task],
        players: Sequence[Player],
        file: Path | None,
        spec: Mapping[str, Any],
    ) -> list[Record]:
        """Play games and return their records, which are also written as soon as a game is over."""
        records, progress = list[Record](), Progress()

        def note(game: Game) -> None:
            planned, new = plan[game.number], []
            about = {"policy": self.name, "split": "eval", "spec": spec, **planned._asdict()}
            for episode, who in zip(game.episodes, players, strict=True):
                if planned.against_from in (None, episode.seat):
                    kwargs, texts = self.setting.env_kwargs, who.texts(episode)
                    new.append(record_of(episode, env_kwargs=kwargs, tokens=True, **texts, **about))
            records.extend(new)
            progress.say(f"{self.name}: {len(records)} of {len(plan)} episodes")
            if file is not None:
                append(file, new)

        seed, setting = self.options["seed"], self.setting
        play_all(
            setting.make,
            [tasks[one.group] for one in plan],
            players,
            seeds=[derive_seed(seed, "sampling", tasks[one.group].seed, one.attempt) for one in plan],
            preamble=setting.preamble,
            history=setting.shorten,
            executor=setting.probed.executor,
            on_game=note,
        )
        return records


def _like(base: Setting, who: Any, given: Mapping[str, Any]) -> Setting:
    """Return how another policy plays the same environment: the tasks are the same, the conversation is its own."""
    own = Setting.beside(who, env=base.env, **given)
    return replace(own, **{name: getattr(base, name) for name in _OF_THE_TASK})


def _name(who: Any, base_url: str | None = None) -> str:
    """Return the name of a policy in tables and records."""
    if base_url is not None:
        return str(who or without_password(base_url))
    if isinstance(who, tuple):
        return getattr(who[0], "name_or_path", "") or "model"
    return str(who) if isinstance(who, str | Path) else getattr(who, "__name__", type(who).__name__)


@contextmanager
def _blind_player(setting: Setting, seed: int) -> Iterator[Player]:
    yield TextPlayer(best_blind(setting, seed=seed).policy)
