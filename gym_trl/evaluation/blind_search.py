"""Search for the best open-loop sequence of actions: races of many sequences, and hill climbing with the best."""

import math
import random
import re
import statistics
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count, product
from typing import Literal, TypeAlias

from gym_trl.evaluation.blind_actions import MANY, collected
from gym_trl.evaluation.blind_play import LONGEST, Actions, Arena, Outcome, Spent
from gym_trl.random_play import solver_play

Objective: TypeAlias = Literal["success", "return"]

_TRIED = 16  # number of the best of many offered actions that are put into the pool
_EXPLORED = 3  # training episodes that are explored if there is no solver
_STAYS = 4  # one of so many sequences stays in a race after each round
_RACED = 128  # maximum number of training episodes of a race
_CLIMBERS = 8
_CLIMBS = ((0.42, 8), (0.53, 6), (0.64, 4), (0.75, 3))
"""Stages of hill climbing: share of the steps that are used at its end, and number of sequences."""
_SINGLE = 0.7  # share of the steps that are used at the end of the race of single actions, which are not improved
_EPISODES = 512  # maximum number of training episodes on which a sequence is improved
_COMPARISONS = 40  # minimum number that a stage has steps for
_ENOUGH = 8  # changed episodes before a sequence may be rejected early
_AGAIN = 200  # consecutive proposals without a new sequence that end a stage
_CYCLE = 4  # maximum length of the cycles that enter the final
_FRESH = 10**6  # number of the first training episode of the final
_FINAL_EPISODES = 32  # minimum number of episodes that the final's first round has steps for
_UNSCORED = Outcome(False, -1e30, 0)  # worse than any other; not infinite, so that differences are numbers
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")


@dataclass
class Candidate:
    """Sequence of actions, and its outcomes in consecutive training episodes."""

    actions: Actions
    first: int = 0
    """Number of its first training episode."""
    outcomes: list[Outcome] = field(default_factory=list)
    turns: int = 0
    """Maximum number of turns in one of its episodes."""
    successes: int = 0
    total: float = 0.0
    """Sum of the returns."""

    def add(self, outcome: Outcome) -> None:
        """Add the outcome of the next episode."""
        self.outcomes.append(outcome)
        self.turns = max(self.turns, outcome.turns)
        self.successes += bool(outcome.success)
        self.total += outcome.total

    def unrolled(self, length: int) -> list[str]:
        """Return the first actions of the sequence, which is repeated at its end."""
        return [self.actions[turn % len(self.actions)] for turn in range(length)]

    def shortened(self) -> Actions:
        """Return the sequence without actions that are never played, and shortened to a cycle if it repeats."""
        actions = self.actions[: max(self.turns, 1)]
        for length in range(1, len(actions)):
            if all(actions[place] == actions[place % length] for place in range(length, len(actions))):
                # The end of the sequence may have been played as the start of its next cycle.
                return actions[:length] if len(actions) >= self.turns or not len(actions) % length else actions
        return actions


@dataclass
class _Place:
    """Observation of a training episode, and the best known sequence of actions that leads to it."""

    actions: Actions
    total: float
    visits: int = 0


class Search:
    """Search for the best sequence.

    Args:
        arena: Environment and budget.
        rng: Generator of the search.
        longest: Maximum length of a sequence.
    """

    def __init__(self, arena: Arena, rng: random.Random, longest: int) -> None:
        self.objective: Objective = "return"
        """Value that is maximized."""
        self.tried = 0
        """Number of sequences that were tried."""
        self._arena, self._rng, self._longest = arena, rng, longest

    def run(self, final_deadline: float = math.inf) -> Actions:
        """Return the best sequence; ``final_deadline`` limits the final."""
        arena, steps = self._arena, self._arena.steps
        self._pool = collected(arena, self._longest)
        if self._pool.episodes and all(one.turns <= 1 for one in self._pool.episodes):
            self._longest = 1  # no second action is ever played
        if arena.declares:
            self.objective = "success"
        screened = 0.1 if len(self._pool.offered) > MANY else 0.0
        if screened:
            arena.limit = steps * 0.23
            self._screen()
        if not self._pool.solvable and self._longest > 1:
            arena.limit = steps * (0.2 + screened)
            with suppress(Spent):
                self._explore()
        candidates = [Candidate(one) for one in self._first_sequences() if len(one) <= self._longest]
        arena.limit = steps * (0.3 + screened if self._longest > 1 else _SINGLE)
        climbers = self._best_of(candidates, _CLIMBERS)
        for share, number in _CLIMBS if self._longest > 1 else ():
            climbers = self._sorted(climbers)[:number]
            arena.limit = steps * share
            with suppress(Spent):
                self._play_more(climbers)
                climbers = self._sorted(climbers)
                if climbers[0].outcomes:
                    self._climb(climbers)
        arena.limit, arena.deadline = steps, final_deadline
        return self._final(self._sorted(climbers), self._sorted(candidates))

    # --- candidates ---

    def _screen(self) -> None:
        """Try each of many actions alone, move the numbers in the best ones, and put these into the pool."""
        arena = self._arena
        best = self._best_of([Candidate((action,)) for action in self._pool.offered], _TRIED)
        arena.limit = arena.used + arena.steps * (0.02 if self._longest > 1 else 0.1)
        refined = [self._refined(one) for one in best[:3]]
        front = [one.actions[0] for one in self._sorted(refined)]
        near = self._near(front[0]) if front else []  # which of neighbours is best only the final can tell
        self._pool.prefer(list(dict.fromkeys([*front, *near, *(one.actions[0] for one in best)])))

    def _near(self, action: str) -> list[str]:
        """Return the actions with an integer that differs by 1 or 2."""
        places = range(min(4, len(_NUMBER.findall(action))))
        moved = (_number_moved(action, place, by, integer=True) for place in places for by in (-1, 1, -2, 2))
        return [near for one in moved if one is not None and (near := self._arena.readable(one)) is not None]

    def _refined(self, best: Candidate) -> Candidate:
        """Return the action after moves of single numbers in it, by steps that become smaller, as far as they help.

        Numbers stay in the range of the offered ones: beyond it lies what the environment does not understand, which
        may pay more than most of what it does, and from which no small move leads back.
        """
        offered = map(_NUMBER.findall, self._pool.offered)
        places = len(_NUMBER.findall(best.actions[0]))
        columns = list(zip(*(one for one in offered if len(one) == places), strict=True))
        ranges = [(min(map(float, column)), max(map(float, column))) for column in columns]
        integers = [all(map(_is_integer, column)) for column in columns]  # 1 may be a float, beside 0.5
        scale, episodes = 0.25, max(8, len(best.outcomes))
        with suppress(Spent):
            self._play_to(best, episodes)
            while scale > 2**-24:
                moved = False
                for place, (low, high) in enumerate(ranges):
                    for size in (scale * (high - low), scale * (low - high)):
                        action = _number_moved(best.actions[0], place, size, integer=integers[place])
                        if action is None or not low <= float(_NUMBER.findall(action)[place]) <= high:
                            continue
                        if (written := self._arena.readable(action)) in (None, best.actions[0]):
                            continue
                        other = Candidate((str(written),))
                        self._play_to(other, episodes)
                        if self._mean(other) > self._mean(best):
                            best, moved = other, True
                scale /= 1 if moved else 2
        return best

    def _explore(self) -> None:
        """Continue at random from rarely visited observations of a few training episodes; keep the best episodes."""
        atlas: list[dict[str, _Place]] = [{} for _ in range(_EXPLORED)]
        best = [-math.inf] * _EXPLORED
        for attempt in count():
            number = attempt % _EXPLORED
            places = atlas[number]
            some = self._rng.sample(list(places.values()), min(4, len(places)))
            start = min(some, key=lambda place: place.visits, default=_Place((), 0.0))
            start.visits += 1
            policy, most = self._pool.explorer(self._rng.getrandbits(32)), len(start.actions) + 8
            episode = self._arena.follow(policy, self._arena.training(number), start.actions, most)
            if episode is None:
                continue
            total = 0.0
            for turn, (observation, reward) in enumerate(zip(episode.observations[1:], episode.rewards, strict=True)):
                total += reward
                place = places.get(observation)
                if place is None or (total, -turn - 1) > (place.total, -len(place.actions)):
                    places[observation] = _Place(episode.actions[: turn + 1], total, place.visits if place else 0)
            if episode.outcome is not None and (total > best[number] or episode.outcome.success):
                best[number] = max(best[number], total)
                self._pool.episodes.append(episode)

    def _first_sequences(self) -> list[Actions]:
        """Return single actions, cycles, orders of all actions, and what was played, the most promising first."""
        pool, arena = self._pool, self._arena
        ended = [(one.outcome, one.actions) for one in pool.episodes if one.outcome and one.actions]
        ended.sort(key=lambda one: (bool(one[0].success), one[0].total), reverse=True)
        played = [tuple(filter(None, map(pool.usable, actions))) for _, actions in ended[:40]]
        top, everything = pool.actions[:8], tuple(pool.actions)
        cycles: list[Actions] = [*product(top, repeat=2), *(tuple(self._rng.sample(top, len(top))) for _ in range(4))]
        longer = [*product(top[:4], repeat=3), *product(top[:4], repeat=4)]
        self._rng.shuffle(longer)
        for length in (3, 4, 5, 8, 16):
            cycles += [pool.draw(self._rng, length) for _ in range(8)]
        orders = [everything, everything[::-1], everything[:12], everything[:26]]
        constants: list[Actions] = [(action,) for action in everything]
        nothing: list[Actions] = [("",)] if arena.readable("") is not None else []
        mixed = [*constants[:30], *nothing, *played, *orders, *cycles, *constants[30:], *longer]
        return [one for one in dict.fromkeys(mixed) if one]

    # --- playing and comparing ---

    def _best_of(self, candidates: Sequence[Candidate], number: int, *, episodes: float = _RACED) -> list[Candidate]:
        """Return the best candidates, the best first, by a race within the limit of steps.

        All that remain play the same episodes; each round has equally many steps, after which the best quarter stays.
        """
        arena, end, runners = self._arena, self._arena.limit, list(candidates)
        for rounds in range(max(1, math.ceil(math.log(max(1, len(runners) / number), _STAYS))), 0, -1):
            arena.limit, played = arena.used + (end - arena.used) / rounds, 0
            with suppress(Spent):
                while played < episodes:
                    played += 1
                    for runner in runners:
                        self._play_to(runner, played)
            runners = self._sorted(runners)[: max(number, math.ceil(len(runners) / _STAYS))]
        return runners[:number]

    def _sorted(self, candidates: Iterable[Candidate]) -> list[Candidate]:
        """Return the candidates that were played, the best first."""
        played = [one for one in candidates if one.outcomes]
        return sorted(played, key=self._mean, reverse=True) or [Candidate((self._pool.actions[0],))]

    def _play_to(self, candidate: Candidate, episodes: int) -> None:
        self.tried += not candidate.outcomes and not candidate.first
        while len(candidate.outcomes) < episodes:
            candidate.add(self._play(candidate.actions, candidate.first + len(candidate.outcomes)))

    def _play(self, actions: Actions, number: int) -> Outcome:
        return self._arena.play(actions, self._arena.training(number)) or _UNSCORED

    def _worth(self, outcome: Outcome) -> float:
        return outcome.total if self.objective == "return" else float(bool(outcome.success))

    def _sum(self, candidate: Candidate) -> tuple[float, float]:
        """Return the sum of the objective, and of the returns as a tie-breaker."""
        return (candidate.total if self.objective == "return" else candidate.successes), candidate.total

    def _mean(self, candidate: Candidate) -> tuple[float, float]:
        (first, second), number = self._sum(candidate), len(candidate.outcomes)
        return (first / number, second / number) if number else (-math.inf, 0.0)

    def _final(self, climbers: list[Candidate], candidates: list[Candidate]) -> Actions:
        """Return the best of the climbers, and of simple sequences, by a race in fresh episodes.

        A climber's mean over the episodes in which it was improved is too high. The shorter one wins a tie.
        """
        constants = [one for one in candidates if len(one.actions) == 1][:_CLIMBERS]
        cycles = [one for one in candidates if 1 < len(one.actions) <= _CYCLE][: _CLIMBERS // 2]
        mixed = [*climbers[:1], *constants[:1], *cycles[:1], *climbers[1:], *constants[1:], *cycles[1:]]
        best, *others = (one.shortened() for one in mixed)
        chosen = list(dict.fromkeys([best, *others]))
        cost = (1 + statistics.fmean(one.turns for one in mixed)) * _FINAL_EPISODES
        while len(chosen) > 2 and len(chosen) * len(chosen).bit_length() * cost > self._arena.left:
            chosen.pop()
        chosen.sort(key=len)
        [winner] = self._best_of([Candidate(actions, _FRESH) for actions in chosen], 1, episodes=math.inf)
        return winner.actions if winner.outcomes else best

    # --- hill climbing ---

    def _play_more(self, climbers: list[Candidate]) -> None:
        """Play all sequences in the same larger number of episodes, as long as steps remain for many comparisons."""
        played, turns = max(len(one.outcomes) for one in climbers), max(one.turns for one in climbers)
        allowed = self._arena.left / (1 + turns) / max(_COMPARISONS, 2 * len(climbers))
        for climber in climbers:
            self._play_to(climber, max(played, min(_EPISODES, int(allowed))))

    def _climb(self, climbers: list[Candidate]) -> None:
        """Change the sequences, the best one most often, until the steps of the stage are used up."""
        operators = [self._exchanged, self._spliced, self._moved, self._continued]
        tried, again = set[tuple[Actions, int]](), 0
        while again < _AGAIN:
            place = 0 if self._rng.random() < 0.5 else self._rng.randrange(len(climbers))
            parent = climbers[place]
            changed = self._rng.choice(operators)(parent, climbers)[:LONGEST]
            again += 1
            if not changed or (changed, len(parent.outcomes)) in tried:
                continue
            same = _first_difference(changed, parent)
            if same >= parent.turns:
                continue  # only actions that are never played have changed
            tried.add((changed, len(parent.outcomes)))
            self.tried, again = self.tried + 1, 0
            climbers[place] = self._better(Candidate(changed), parent, same)

    def _better(self, child: Candidate, parent: Candidate, same: int) -> Candidate:
        """Return the child, whose first ``same`` turns are the parent's, if it is no worse in the parent's episodes."""
        gained, squares, changes = [0.0, 0.0], [0.0, 0.0], 0
        for number, before in enumerate(parent.outcomes):
            after = before if before.turns <= same else self._play(child.actions, number)
            child.add(after)
            changes += after != before
            for place, gain in enumerate((self._worth(after) - self._worth(before), after.total - before.total)):
                gained[place] += gain
                squares[place] += gain**2
            place = 0 if squares[0] else 1  # returns decide if the objective is the same so far
            if changes >= _ENOUGH and gained[place] < -2 * math.sqrt(squares[place]) - 1e-9:
                return parent
        return child if self._sum(child) >= self._sum(parent) else parent

    def _exchanged(self, parent: Candidate, _: Sequence[Candidate]) -> Actions:
        """Exchange one action: any, or one shortly before the end of an episode in which the sequence failed."""
        if self._rng.random() < 0.5:
            actions = self._unrolled(parent)
            place = self._rng.randrange(len(actions))
        else:
            turns = parent.outcomes[self._failed(parent)].turns
            actions = parent.unrolled(max(turns, len(parent.actions)))
            place = max(0, turns - self._rng.choice((1, 1, 2, 3)))
        actions[place : place + 1] = self._pool.draw(self._rng, 1)
        return tuple(actions)

    def _spliced(self, parent: Candidate, climbers: Sequence[Candidate]) -> Actions:
        """Replace up to three actions by another action, by a part of another sequence, or by nothing."""
        actions, part = self._unrolled(parent), Actions()
        match self._rng.randrange(4):
            case 0:
                part = self._pool.draw(self._rng, 1)
            case 1 | 2:
                episodes = [one.actions for one in self._pool.episodes if one.actions]
                sources = [
                    tuple(actions),
                    self._rng.choice(climbers).actions,
                    *self._rng.sample(episodes, 1 if episodes else 0),
                ]
                source = self._rng.choice(sources)
                start = self._rng.randrange(len(source))
                part = source[start : start + self._rng.randint(1, 8)]
        at, gap = self._rng.randint(0, len(actions)), self._rng.choice((0, 1, 2, 3, len(part)))
        return (*actions[:at], *part, *actions[at + gap :])

    def _moved(self, parent: Candidate, _: Sequence[Candidate]) -> Actions:
        """Move an action to another place, or let two of them change places."""
        actions = self._unrolled(parent)
        if len(actions) < 2:
            return ()
        one, other = self._rng.sample(range(len(actions)), 2)
        if self._rng.random() < 0.5:
            actions[one], actions[other] = actions[other], actions[one]
        else:
            actions.insert(other, actions.pop(one))
        return tuple(actions)

    def _continued(self, parent: Candidate, climbers: Sequence[Candidate]) -> Actions:
        """Continue from some turn like the solver or random play, in an episode in which the sequence failed."""
        number = self._failed(parent)
        before = parent.outcomes[number]
        at = min(self._rng.choice((0, before.turns, self._rng.randint(0, before.turns))), LONGEST)
        policy = self._pool.explorer(self._rng.getrandbits(32))
        if self._pool.solvable and self._rng.random() < 0.8:
            policy = solver_play
        episode = self._arena.follow(policy, self._arena.training(number), tuple(parent.unrolled(at)))
        if episode is None or episode.outcome is None or self._worth(episode.outcome) < self._worth(before):
            return ()
        return (*episode.actions, *parent.actions[at : at + LONGEST])

    def _failed(self, parent: Candidate) -> int:
        """Draw a training episode in which the sequence failed; if there is none, any."""
        failed = [place for place, one in enumerate(parent.outcomes) if not one.success]
        return self._rng.choice(failed or range(len(parent.outcomes)))

    def _unrolled(self, parent: Candidate) -> list[str]:
        """Return the actions as far as they are played, or sometimes the cycle itself."""
        turns, length = parent.turns, len(parent.actions)
        as_cycle = 1 < length < turns and self._rng.random() < 0.5
        return parent.unrolled(length if as_cycle or not turns else min(turns, LONGEST))


def _first_difference(actions: Actions, parent: Candidate) -> int:
    """Return the number of turns after which two repeated sequences differ; at most those that are played.

    >>> _first_difference(("a", "b", "a", "c"), Candidate(("a", "b"), turns=9))
    3
    """
    before, own, other = parent.actions, len(actions), len(parent.actions)
    return next((turn for turn in range(parent.turns) if actions[turn % own] != before[turn % other]), parent.turns)


def _is_integer(text: str) -> bool:
    return text.lstrip("-").isdigit()


def _number_moved(action: str, place: int, size: float, *, integer: bool) -> str | None:
    """Return an action with one of its numbers changed; an integer by at least 1, or ``None`` if that is too much.

    >>> _number_moved("0.5 3", 1, -1.6, integer=True), _number_moved("7", 0, 0.2, integer=True)
    ('0.5 1', None)
    >>> _number_moved("0.5 3", 1, -1.6, integer=False)
    '0.5 1.4'
    """
    number = list(_NUMBER.finditer(action))[place]
    if not integer:
        text = repr(float(number[0]) + size)
    elif not _is_integer(number[0]) or not (change := round(size)):
        return None
    else:
        text = str(int(number[0]) + change).zfill(len(number[0]) if number[0].startswith("0") else 0)
    return action[: number.start()] + text + action[number.end() :]
