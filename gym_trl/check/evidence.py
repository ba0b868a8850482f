"""Evidence for the checks: an environment as a training steps it, and games of a few policies, each played once."""

import math
import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import cycle, islice, product
from typing import Any, TypeVar

import gymnasium as gym

from gym_trl.envspec import END_AFTER_INVALID, EnvSpec
from gym_trl.errors import ConfigError, GymTRLError, NotTextError
from gym_trl.executors.inline import close_env
from gym_trl.players import Game, TextPlayer, TextPolicy, play_all
from gym_trl.random_play import Act, random_play, solve
from gym_trl.registration import make_env
from gym_trl.seeding import task_seed
from gym_trl.setting import Setting
from gym_trl.types import EnvFailure, ModelStopped, StepResult, StopReason, Task
from gym_trl.wrappers.base import attribute_of
from gym_trl.wrappers.seats import plays_all_seats

CONSTANTS = ("", "xyzzy", *map(str, range(10)), "nan", "inf", "-inf", "1e999", "{}", "[]", "null", "true", "x " * 4000)
"""Actions that are played in every turn: what a careless scorer may pay for."""
T = TypeVar("T")
MOST_TURNS = 1000
"""Turns after which an episode is taken to have no end."""
NEAR = 0.8
"""Share of the way from random play to the best score from which on a policy is near the best."""
_STEPS, _QUICK = 10_000, 1e-3  # steps of a check; seconds of a step, up to which it may take all of them
_SIGMAS = 3.0  # so many policies are compared with random play that two would be exceeded by chance
_HALVING = (6, 24, 96)  # training tasks of each candidate of a blind search, of which a sixth goes on each time
_CHANGED_TURNS = 8  # of longer games there is no time to change a turn after the other


class NotPlayedError(GymTRLError):
    """There is nothing for a check to look at; the message says what has to be mended first."""


class Evidence:
    """An environment, and the games that policies have played in it; a policy plays when its games are first asked for.

    Args:
        setting: The environment, and how it is played.
        episodes: Number of games of a policy.
        seed: Seed of the tasks.
        model: Model that plays as well, if there is one.
        on_play: Called with the name of a policy that begins to play.
        hung: Names of policies whose games hang, which are not played.
    """

    def __init__(
        self,
        setting: Setting,
        *,
        episodes: int = 60,
        seed: int = 0,
        model: Any = None,
        on_play: Callable[[str], None] = lambda name: None,
        hung: Sequence[str] = (),
    ) -> None:
        self._setting, self.seed, self.model = setting, seed, model
        self.seeds = [task_seed(seed, "eval", number) for number in range(episodes)]
        self.games: dict[str, list[Game]] = {}
        """Games of each policy that has played."""
        self.broken: set[str] = set()
        """Checks that have found an error, which others would find again by another name."""
        self.blind = ""
        """Actions of the policy that is called ``blind``, when it has played."""
        self.numbers: dict[str, Any] = {}
        """Scores of who has played, and sizes."""
        self.prompt = ""
        """First prompt of the model."""
        self.steps_taken = 0
        self.on_play, self._hung, self._playing, self._said = on_play, hung, "", time.monotonic()

    def bare(self) -> gym.Env[Any, Any]:
        """Make the environment as its author wrote it.

        Raises:
            NotPlayedError: It cannot be made; the cause says why.
        """
        try:
            return make_env(self._setting.env, **self._setting.env_kwargs)
        except Exception as error:
            raise NotPlayedError("mend 'interface' first: it cannot be made") from error

    def make(self) -> gym.Env[str, str]:
        """Make the environment as it is trained on, without marks of actions.

        Raises:
            NotPlayedError: It cannot be made, or not be converted to text; the cause says why.
        """
        name = self.setting.name
        try:
            return self._spec.make(name)
        except Exception as error:
            no_text = isinstance(error, NotTextError)
            reason = "'text' first: it cannot be shown as text" if no_text else "'interface' first: it cannot be made"
            raise NotPlayedError(f"mend {reason}") from error

    @cached_property
    def _spec(self) -> EnvSpec:
        limit = self.setting.turn_limit
        options = self.setting.text | {"action_format": None, "turn_limit": limit or MOST_TURNS}
        options["end_after_invalid"] = END_AFTER_INVALID if limit is None else None
        return EnvSpec(self.setting.env, **options)

    def make_keyed(self) -> gym.Env[str, str]:
        """Make the environment with names of its states, in which only its own turns count."""
        spec = replace(self._spec, state_keys=True, turn_limit=self.setting.turn_limit)
        return spec.make(self.setting.name)

    @cached_property
    def setting(self) -> Setting:
        """Setting of the games: all seats are played, if there are several that nothing else plays."""
        env = self.bare()
        try:
            return replace(self._setting, seats="self") if plays_all_seats(env) else self._setting
        finally:
            close_env(env, broken=True)

    @cached_property
    def seats(self) -> int:
        """Number of seats that whoever steps the environment plays."""
        return int(attribute_of(self.env, "num_seats", 1)) if self.setting.seats == "self" else 1

    @cached_property
    def env(self) -> gym.Env[str, str]:
        """An environment to read attributes of."""
        return self.make()

    def needs(self, *checks: str, ends: bool = False) -> None:
        """Go on only if these checks have found no error, and if some game of random play ``ends``.

        Raises:
            NotPlayedError: One of them has, or none does.
        """
        if broken := [name for name in checks if name in self.broken]:
            raise NotPlayedError(f"mend {broken[0]!r} first")
        if ends and all(len(game.trajectory.actions) >= MOST_TURNS for game in self.random):
            raise NotPlayedError("mend 'end' first: no episode ends")

    @cached_property
    def steps(self) -> int:
        """Steps that a check may take: a tenth for each power of ten by which a step takes longer than a millisecond.

        Resets are shared among the steps, but not the first one, which may load something. They are counted, and the
        quickest game decides, so that a busy machine finds what an idle one does.
        """
        games = [game.trajectory for game in self.play(random_play, self.seeds[:4])]
        longer = min(sum(one.seconds) / max(1, len(one.actions)) for one in games[1:] or games) / _QUICK
        return int(_STEPS / 10 ** max(0, math.ceil(math.log10(longer or 1))))

    def affordable(self, several: Iterable[T]) -> Iterator[T]:
        """Yield one after the other, as long as a check has steps left to play with it."""
        end = self.steps_taken + self.steps
        for one in several:
            yield one
            if self.steps_taken >= end:
                return

    def play(
        self,
        policy: TextPolicy,
        seeds: Sequence[int],
        *,
        make: Any = None,
        steps: int | None = None,
        in_all_seats: bool = False,
    ) -> list[Game]:
        """Play tasks with a policy, the first ``steps`` of them about; the other seats of a game play at random."""
        self.env  # noqa: B018 -- or the reason why it cannot be made
        mine = TextPlayer(self._with_heartbeat(policy))
        others = [mine if in_all_seats else TextPlayer(random_play)] * (self.seats - 1)
        tasks = [Task(self.setting.name, seed) for seed in seeds]
        games = play_all(make or self.make, tasks, [mine, *others], most_alive=1, most_steps=steps)
        self.steps_taken += sum(len(game.trajectory.actions) for game in games)
        return games

    def follow(self, actions: Sequence[str], seed: int, *, make: Any = None) -> Game:
        """Play given actions in a task, by whichever seat is to move, as far as they go."""
        script = iter(actions)

        def act(observation: str, info: Mapping[str, Any]) -> str:
            if (action := next(script, None)) is None:
                raise ModelStopped(StopReason.CANCELLED, "the script is over")
            return action

        return self.play(lambda env, seed: act, [seed], make=make, in_all_seats=True)[0]

    def replay(self, game: Game, actions: Sequence[str] | None = None, *, make: Any = None) -> Game:
        """Play the actions of a game again, or other ones."""
        return self.follow(game.trajectory.actions if actions is None else actions, game.task.seed, make=make)

    def _with_heartbeat(self, policy: TextPolicy) -> TextPolicy:
        """Return a policy that says each second that it still plays."""

        def begin(env: Any, seed: int) -> Act:
            own = policy(env, seed)

            def act(observation: str, info: Mapping[str, Any]) -> str:
                if time.monotonic() > self._said + 1:
                    self._say(self._playing)
                return own(observation, info)

            return act

        return begin

    def _say(self, name: str) -> None:
        self._playing, self._said = name, time.monotonic()
        self.on_play(name)

    def of(self, name: str, policy: TextPolicy, *, episodes: int | None = None) -> list[Game]:
        """Return the games of a policy on the held-out tasks.

        Raises:
            NotPlayedError: They hang.
        """
        if name in self._hung:
            raise NotPlayedError("mend what hangs first")
        if name not in self.games:
            self._say(name)
            share = 2 if name in ("random", "solver", "blind") else 10
            self.games[name] = self.play(policy, self.seeds[:episodes], steps=self.steps // share)
            self._say("")
        return self.games[name]

    def always(self, action: str) -> list[Game]:
        """Return the games of one action in every turn."""
        return self.of(f"always {action[:12]!r}", repeating([action]))

    @property
    def attempts(self) -> list[Game]:
        """Games of random play, also those that ended with an exception.

        Raises:
            NotPlayedError: A mistake in the environment stops them all; the cause says which.
        """
        try:
            return self.of("random", random_play)
        except ConfigError as error:
            raise NotPlayedError("mend what stops random play first") from error

    @property
    def random(self) -> list[Game]:
        """Games of random play.

        Raises:
            NotPlayedError: All have ended with an exception.
        """
        if all(map(error_of, self.attempts)):
            raised = error_of(self.attempts[0])
            raise NotPlayedError(f"mend what ends every game of random play first: {raised:.120}")
        return self.attempts

    @property
    def solved(self) -> list[Game]:
        """Games of the environment's solver; none if it has none."""
        return self.of("solver", solve) if attribute_of(self.env, "solver") else []

    # ------------------------------------------------------------------------------------------------------- scores

    @cached_property
    def declares(self) -> bool:
        """True if the environment says what success is."""
        return any(game.episodes[0].success is not None for game in [*self.random, *self.solved])

    def values(self, games: Sequence[Game], *, paid: bool = False) -> list[float]:
        """Return what each scored game is worth: its success, or its return."""
        scored = [game.episodes[0] for game in games if game.episodes[0].scored]
        return [one.paid if paid or not self.declares else float(one.success is True) for one in scored]

    def score(self, games: Sequence[Game], *, paid: bool = False) -> float:
        """Return the mean worth of games."""
        return statistics.fmean(self.values(games, paid=paid) or [0.0])

    def best(self, *, paid: bool = False) -> float | None:
        """Return the best score there is; ``None`` if nothing says what it is."""
        name = "optimal_return" if paid or not self.declares else "optimal_success"
        known: float | None = attribute_of(self.env, name)
        if known is not None and self.seats == 1:
            return known
        if self.solved:
            return self.score(self.solved, paid=paid)
        return 1.0 if self.declares and not paid else None

    def near(self, games: Sequence[Game], *, paid: bool = False) -> bool:
        """Return whether games are near the best score, and better than random play."""
        best, chance = self.best(paid=paid), self.score(self.random, paid=paid)
        if best is None or best <= chance:
            return False
        return self.score(games, paid=paid) - chance >= NEAR * (best - chance) and self.better(games, paid=paid)

    def better(self, games: Sequence[Game], *, than: Sequence[Game] | None = None, paid: bool = True) -> bool:
        """Return whether games are worth more, beyond chance, than others of the same tasks."""
        pairs = zip(games, self.random if than is None else than, strict=False)
        scored = [pair for pair in pairs if all(game.episodes[0].scored for game in pair)]
        deltas = [self.values([one], paid=paid)[0] - self.values([other], paid=paid)[0] for one, other in scored]
        if len(deltas) < 6:
            return False
        return statistics.fmean(deltas) - _SIGMAS * statistics.stdev(deltas) / math.sqrt(len(deltas)) > 1e-9

    def around(self, games: Sequence[Game], *, paid: bool = False) -> str:
        """Return a score, and those of random play and the best that is known."""
        best = self.best(paid=paid)
        known = "" if best is None else f", best {best:.3f}"
        chance = self.score(self.random, paid=paid)
        return f"{self.score(games, paid=paid):.3f} (random play {chance:.3f}{known})"


def repeating(actions: Sequence[str]) -> TextPolicy:
    """Return the policy that plays actions one after the other, again and again, without reading anything."""

    def begin(env: Any, seed: int) -> Act:
        script = cycle(actions)
        return lambda observation, info: next(script)

    return begin


def error_of(game: Game) -> str:
    """Return the exception that ended a game, or an empty string."""
    return next((one.error or "" for one in game.episodes if one.stop_reason in _FAILED), "")


_FAILED = (StopReason.CRASHED, StopReason.ENV_ERROR)


def step_seconds(games: Sequence[Game]) -> float:
    """Return the median seconds of a step."""
    return statistics.median([seconds for game in games for seconds in game.trajectory.seconds[1:]] or [0.0])


def steps_of(game: Game) -> list[StepResult]:
    """Return what the reset and the steps of a game have returned, without one that failed."""
    return [one for one in game.trajectory.results if isinstance(one, StepResult)]


def shown(game: Game) -> list[tuple[Any, ...]]:
    """Return what can be compared of a game: a row for each turn."""
    rows: list[tuple[Any, ...]] = []
    for action, one in zip([None, *game.trajectory.actions], game.trajectory.results, strict=False):
        if isinstance(one, EnvFailure):
            rows.append((action, one.error))
        else:
            said = (one.info.get("action_valid"), one.info.get("success"), one.state.key)
            rows.append((action, one.observation, one.reward, one.terminated, one.truncated, *said))
    return rows


COLUMNS = ("action", "observation", "reward", "terminated", "truncated", "action_valid", "success", "state key")


@dataclass(frozen=True)
class Blind:
    """Best policy that was found among those that never read an observation."""

    actions: tuple[str, ...]
    """Its actions, one after the other, again and again."""
    games: Sequence[Game]
    """Its games on held-out tasks."""

    @property
    def policy(self) -> TextPolicy:
        """The policy, as ``evaluate`` plays it."""
        return repeating(self.actions)

    def __str__(self) -> str:
        words = " ".join(self.actions[:6])
        return f"{'always ' * (len(self.actions) == 1)}{words[:60]!r}{' ...' * (len(self.actions) > 6)}"


def best_blind(setting: Setting, *, episodes: int = 60, seed: int = 0) -> Blind:
    """Return the best policy that does not read, found on training tasks and played on held-out ones.

    >>> found = best_blind(Setting("TrlEnv/GuessNumber-v0", env_kwargs={"high": 4, "turns": 2}), episodes=20)
    >>> len(found.actions), len(found.games)
    (2, 20)

    What a model reaches beyond it, it has reached by reading.

    Args:
        setting: The environment, and how it is played.
        episodes: Number of held-out tasks.
        seed: Seed of the tasks.
    """
    return blind_of(Evidence(setting, episodes=episodes, seed=seed))


def blind_of(it: Evidence) -> Blind:
    """Search the actions that were played for the best one, two in turn, or a whole game's; then change its turns."""
    games = [*it.random, *it.solved]
    often = Counter(action for game in games for action in game.trajectory.actions)
    top = [action for action, _ in often.most_common(60)]
    won = sorted(games, key=lambda game: -game.episodes[0].paid)[:20]
    singles = ((one,) for one in dict.fromkeys([*top, *CONSTANTS[:12]]))
    candidates = [*singles, *product(top[:6], repeat=2), *(tuple(game.trajectory.actions) for game in won)]
    tasks = [task_seed(it.seed, "train", number) for number in range(_HALVING[-1])]
    played: defaultdict[tuple[str, ...], list[Game]] = defaultdict(list)
    end = it.steps_taken + it.steps

    def best_of(candidates: Iterable[tuple[str, ...]]) -> tuple[str, ...]:
        runners = list(dict.fromkeys(candidates))
        for count in _HALVING:
            for one in runners:
                if it.steps_taken < end:
                    played[one] += it.play(repeating(one), tasks[len(played[one]) : count])
            runners = sorted((one for one in runners if played[one]), key=lambda one: -it.score(played[one]))
            runners = runners[: max(1, len(runners) // 6)]
        return runners[0] if runners else ("",)

    best = best_of(filter(None, candidates))
    turns = max(len(game.trajectory.actions) for game in games)
    for turn in [*range(turns)] * 2 if turns <= _CHANGED_TURNS else ():
        whole = tuple(islice(cycle(best), turns))
        changed = best_of((*whole[:turn], one, *whole[turn + 1 :]) for one in top)
        if it.better(played[changed], than=played[best], paid=False):
            best = changed
    found = Blind(best, it.of("blind", repeating(best)))
    it.blind = str(found)
    return found
