"""Checks of outcomes: seats, success, rewards, the blind baseline, the solver and state keys."""

import math
import statistics
from collections.abc import Sequence
from functools import partial

from gym_trl.env_checker.play import MOST_TURNS, PlayedEpisode
from gym_trl.env_checker.state_keys import search_keys
from gym_trl.env_checker.subject import Subject, check
from gym_trl.errors import ConfigError
from gym_trl.evaluation.blind import describe, is_near, search_blind
from gym_trl.evaluation.estimates import Estimate, exceed, settled
from gym_trl.evaluation.play import optimum
from gym_trl.random_play import RANDOM_PLAY, random_play, solver_play
from gym_trl.report import Finding, ok, problem, skipped, warning
from gym_trl.text import counted

_MANY_EPISODES = 100  # from which on an interval is narrow enough to be compared
_FEW = 20  # up to which equal returns may be chance


@check("seats", "Each seat of a game is an episode: it is asked for its own actions, and paid for them.")
def _seats(subject: Subject) -> Finding:
    seats = subject.num_seats
    if seats < 2:
        return ok("one")
    games = subject.seat_games
    if games[-1].error:
        got = f"{seats} seats; {games[-1].error}, in the game with seed {games[-1].seed}"
        return problem(got, "follow the protocol of gym_trl.wrappers.seats")
    got = f"{seats} seats, {counted(len(games), 'game')} of {subject.random_policy}"
    asked = {seat for game in games for seat, _ in game.shown}
    if idle := [seat for seat in range(seats) if seat not in asked]:
        finding = problem if subject.random_policy == RANDOM_PLAY else warning
        fix = "pass the turn with info['to_move'], or declare fewer seats in num_seats"
        return finding(f"{got}: seat {idle[0]} is never to move", fix)
    if not any(game.ended for game in games):
        return warning(f"{got}: none ended, so no payoffs were checked", "end every game")
    return ok(got)


@check("success", "Evaluations report the success rate.")
def _success(subject: Subject) -> Finding:
    fix = "set info['success'] to True or False in the last step"
    if issues := subject.survey.issues.get("success"):
        return problem(*issues[0])
    if subject.num_seats > 1:
        by_seat = zip(*(game.successes for game in subject.ended_seat_games), strict=True)
        shares = ", ".join(f"{statistics.fmean(map(bool, successes)):.2f}" for successes in by_seat)
        return ok(f"by seat, in random play {shares}")
    games = subject.scored
    if not subject.shows_success:
        return warning(
            "not declared: evaluations report returns only", f"{fix}, or define it with GymSpec(success=...)"
        )
    ended = [game for game in games if game.ended]
    if undeclared := sum(game.seen[-1][6] is None for game in ended):
        return warning(f"{undeclared} of {len(ended)} episodes did not declare it in their last step", fix)
    if early := next((game for game in games for seen in game.seen[1:-1] if seen[6]), None):
        return warning(f"the episode with seed {early.seed} continued after success", "end it with terminated=True")
    return ok(f"declared in info; {sum(game.solved for game in games)} of {len(games)} solved by random play")


@check("reward", "GRPO learns from differences within a group.")
def _reward(subject: Subject) -> Finding:
    if subject.num_seats > 1:
        return _payoffs(subject)
    return judge_returns(subject.scored, subject.random_policy)


def judge_returns(games: Sequence[PlayedEpisode], policy: str) -> Finding:
    """Return the finding on the returns of episodes; it is a warning if they are all alike.

    Args:
        games: The episodes, at least one, all of them scored.
        policy: Name of the random policy that played them.
    """
    returns = [game.total for game in games]
    got = f"{_mean(returns)} in {counted(len(games), 'episode')} of {policy}"
    if endless := sum(not game.ended and game.error is None for game in games):
        got += f", {endless} of them cut after {MOST_TURNS:,} turns"
    if len(set(returns)) == 1:
        fix = "reward something that random play reaches sometimes; GRPO learns from differences within a group"
        solved = " and always solved" if all(game.solved for game in games) else ""
        return warning(f"{got}, always the same{solved}", fix)
    return ok(got)


def _payoffs(subject: Subject) -> Finding:
    payoffs = [game.payoffs for game in subject.ended_seat_games]
    means = ", ".join(_mean(seat) for seat in zip(*payoffs, strict=True))
    got = f"by seat {means} in {counted(len(payoffs), 'game')} of {subject.random_policy}"
    if len(set(payoffs)) == 1:
        fix = "pay something that differs between games; GRPO learns from differences within a group"
        return warning(f"{got}, always the same", fix)
    return ok(got)


@check("blind baseline", "A score shows that a model reads only if it is above this.")
def _blind_baseline(subject: Subject) -> Finding:
    if not subject.search_steps:
        return skipped("search_steps is 0")
    if subject.num_seats > 1:
        return skipped("what a sequence of actions is worth depends on the other seats")
    _ = subject.some  # raises NotCheckedError if nothing can be played
    blind = search_blind(
        subject.make_played, steps=subject.search_steps, seconds=subject.search_seconds, seed=subject.seed
    )
    solves = blind.objective == "success"
    chance = _mean_score(subject.many, solves=solves)
    solved = _mean_score(subject.solved_many, solves=solves) if subject.has_solver else None
    with subject.open() as env:
        best = optimum(env).success if solves else optimum(env).mean_return
    references = {"random": chance, "solver": solved, "optimum": best}
    names = {"random": "random play"}
    beside = ", ".join(f"{names.get(name, name)} {Estimate(value)}" for name, value in references.items())
    got, numbers = f"{describe(blind)}; {beside}", {**blind.as_dict(), **references}
    reached, level = blind.score.mean, solved if best is None else best
    level = 1.0 if level is None and solves else level
    if reached is None or chance is None:
        return ok(got, numbers)
    close = level is not None and blind.episodes >= _MANY_EPISODES and (blind.score.high or reached) >= level
    if close or (level is not None and is_near(reached, chance, level)):
        fix = "most of the score is reached without observations: draw more of the start from the seed"
        return warning(got, fix, numbers)
    low = settled(blind.score, blind.episodes).low
    if level is None and low is not None and low > max(0.0, chance):
        return warning(got, "a fixed sequence of actions beats random play: compare models with it", numbers)
    return ok(got, numbers)


def _mean_score(games: Sequence[PlayedEpisode], *, solves: bool) -> float | None:
    values = [float(game.solved) if solves else game.total for game in games if game.episode.scored]
    return statistics.fmean(values) if values else None


@check("solver", "A solver shows that the environment can be solved, and how well.")
def _solver(subject: Subject) -> Finding:
    if not subject.has_solver:
        return ok("none; a method solver() that returns a policy would show that it can be solved")
    with subject.open() as env:
        declared = optimum(env)
    games, fix = subject.solved_many, "correct the solver, or optimal_success and optimal_return"
    if _missed(games, declared) is not None and not any(game.error for game in games):
        # Chance explains it sometimes, and not again in many more episodes.
        games = subject.solved(range(len(games), len(games) + subject.affordable(20 * len(games))))
    if broken := next((game for game in games if game.error), None):
        got = f"the episode with seed {broken.seed} raised {broken.error}"
        return problem(got, "the solver must handle every task")
    if subject.num_seats > 1:
        return ok(f"plays all seats in {len(games)} games; what it is worth depends on the other seats")
    returns, solved = [game.total for game in games], [float(game.solved) for game in games]
    solves = f" and solves {statistics.fmean(solved):.3f}" if subject.shows_success else ""
    got = f"returns {Estimate(statistics.fmean(returns))}{solves} of {len(games)} episodes"
    if (best := _missed(games, declared)) is not None:
        return problem(f"{got}, but the declared optimum is {Estimate(best)}", fix)
    chance = _mean_score(subject.many, solves=False)
    if chance is not None and chance > statistics.fmean(returns) and _loses_to_chance(subject):
        return problem(f"{got}, less than random play", fix)
    return ok(got)


def _loses_to_chance(subject: Subject) -> bool:
    """Return whether the solver returns less than random play in many more episodes, beyond chance."""
    seeds = range(1_000, 1_000 + subject.affordable(200))
    solved = subject.solved(seeds)
    pairs = [(subject.play(game.seed), game) for game in solved]
    return exceed(
        [chance.total - game.total for chance, game in pairs if game.episode.scored and chance.episode.scored]
    )


def _missed(games: Sequence[PlayedEpisode], declared: tuple[float | None, float | None]) -> float | None:
    """Return the declared optimum that episodes of the solver miss by more than chance explains, if any."""
    values = [float(game.solved) for game in games], [game.total for game in games]
    for best, reached in zip(declared, values, strict=True):
        if best is None:
            continue
        # If all values are equal, their spread is that of the expected share; a few equal returns prove nothing.
        spread = statistics.pstdev(reached) or (math.sqrt(best * (1 - best)) if 0 < best < 1 else 0.0)
        if not spread and best > 1 and len(reached) < _FEW:
            continue
        if abs(best - statistics.fmean(reached)) > 4 * spread / math.sqrt(len(reached)) + 1e-6:
            return best
    return None


def _mean(values: Sequence[float]) -> str:
    mean = f"{statistics.fmean(values):.3g}"
    return mean if len(set(values)) < 2 else f"{mean} ± {statistics.stdev(values) / math.sqrt(len(values)):.2g}"


@check("state key", "Credit per turn takes what followed from one state for another with its key.")
def _state_key(subject: Subject) -> Finding:
    _ = subject.some  # raises NotCheckedError if nothing can be played
    players = [partial(random_play, seed=seed) for seed in range(subject.affordable(40))]
    if subject.has_solver:
        players.append(partial(solver_play, seed=0))
    try:
        search = search_keys(subject.text_env, players, range(3), key=subject.state_key)
    except ConfigError as error:
        return problem(str(error), "make it of strings, numbers and tuples of these")
    if not search.declared:
        return ok('none; info["state_key"] would let credit per turn compare states, not histories')
    histories = counted(search.histories, "step")
    if not search.markov:
        return ok(f"declared, and not as Markov, in {histories}: it serves baselines only")
    if search.counterexample is not None:
        fix = "put all that later observations, rewards and ends depend on into it, or do not declare it Markov"
        return problem(search.counterexample, fix)
    return ok(f"Markov in {histories}")
