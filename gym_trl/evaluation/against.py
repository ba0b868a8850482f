"""Games against another policy: an evaluation of each seat, in which the other policy plays all others."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import partial
from threading import Lock
from typing import Any

from gym_trl.errors import ConfigError
from gym_trl.evaluation.estimates import mean_estimate, share_estimate
from gym_trl.evaluation.evaluation import evaluate
from gym_trl.executors.step import close_env
from gym_trl.options import EvalOptions
from gym_trl.policies.functions import NamedPolicy, as_policy
from gym_trl.policies.model import Model
from gym_trl.policies.protocol import PolicyMaker
from gym_trl.records.schema import Record
from gym_trl.registration import EnvSource, make_env
from gym_trl.wrappers.base import attribute_of
from gym_trl.wrappers.opponent import Opponent
from gym_trl.wrappers.parse_action import ParseAction


def play_against(
    env: EnvSource,
    policy: str | NamedPolicy,
    against: str | NamedPolicy,
    *,
    episodes: int = 100,
    env_kwargs: Mapping[str, Any] | None = None,
    **options: Any,
) -> list[dict[str, Any]]:
    """Return the scores of a policy in each seat of a game and in all (``None``), against another in all other seats.

    >>> scores = play_against("TrlEnv/TicTacToe-v0", "random", "solver", episodes=40)
    >>> [(score["seat"], score["games"], score["wins"], str(score["win_rate"])) for score in scores[1:]]
    [(1, 20, 0, '0.000 [0.000, 0.187]'), (None, 40, 0, '0.000 [0.000, 0.187]')]

    Each task is played from every seat: the luck of the deal and of the first move is the same for both policies. A
    game is won if it pays ``policy`` more than 0 (``payoff``), lost if it pays less, and otherwise drawn. ``episodes``
    is the number of games, rounded up to a multiple of the seats; ``options`` are others of ``evaluate``. What a model
    in the other seats answers without an action is an invalid action.

    Raises:
        ConfigError: The environment has one seat, and as ``evaluate`` raises it.
    """
    scored, other, kwargs = as_policy(policy), as_policy(against), dict(env_kwargs or {})
    EvalOptions.of({"against": other.name, "episodes": episodes, **options})
    made = make_env(env, **kwargs)
    close_env(made)
    if (seats := attribute_of(made, "num_seats", 1)) < 2:
        raise ConfigError(f"{made} has one seat, and games against {other.name!r} need two: leave out against")
    if not isinstance(other, Model):
        other.check(made)
    begin = other.load().policy if isinstance(other, Model) else other.make
    games: list[list[Record]] = [[] for _ in range(seats)]
    for seat, found in enumerate(games):
        seated = partial(_seated, policy=other, begin=begin, seat=seat)
        own = {**options, "wrappers": [*options.get("wrappers", ()), seated], "episodes": -(-episodes // seats)}
        evaluate(env, scored, env_kwargs=kwargs, on_episode=partial(_keep, found), **own)
    scores = [_score(scored.name, seat, found) for seat, found in enumerate(games)]
    return [*scores, _score(scored.name, None, [record for found in games for record in found])]


def _keep(found: list[Record], record: Record, board: object) -> None:
    found.append(record)


def _seated(env: Any, *, policy: NamedPolicy, begin: PolicyMaker, seat: int) -> Opponent:
    """Return a game in which a policy plays all seats but one."""
    if not policy.marks:
        return Opponent(env, partial(begin, env), seat)
    options = policy.options if isinstance(policy, Model) else {}
    seen, lock = ParseAction(env, format=options.get("action_format", "tag")), Lock()

    def respond(act: Any, observation: str) -> str:
        with lock:  # games may be stepped in several threads
            return seen.find_action(act(observation)) or ""

    return Opponent(env, lambda seed: partial(respond, begin(seen, seed)), seat)


def _score(policy: str, seat: int | None, records: Sequence[Record]) -> dict[str, Any]:
    paid = defaultdict[str, list[float]](list)
    for record in records:
        if record["return"] is not None:
            paid[record["task"]["id"]].append(record["return"])
    signs = [(value > 0) - (value < 0) for values in paid.values() for value in values]
    numbers = {"games": len(signs), "unscored": len(records) - len(signs)}
    numbers |= {"wins": signs.count(1), "draws": signs.count(0), "losses": signs.count(-1)}
    win_rate = share_estimate([[value > 0 for value in values] for values in paid.values()])
    return {"policy": policy, "seat": seat, **numbers, "win_rate": win_rate, "payoff": mean_estimate([*paid.values()])}
