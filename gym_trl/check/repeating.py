"""Check that episodes can be played again: by another instance, in threads, and in another process."""

import os
import pickle
import random
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import numpy as np

from gym_trl.check.contract import Finding, error, warning
from gym_trl.check.evidence import COLUMNS, Evidence, shown
from gym_trl.errors import ConfigError
from gym_trl.players import Game

_PLAIN = COLUMNS.index("action_valid")  # the columns before are texts and numbers, which any process can read


def repeats(it: Evidence) -> Iterator[Finding]:
    """Play games again: in one process, with other states of the global generators, in threads, in another process.

    Where they differ, only the first reason is told.
    """
    begun = [game for game in it.attempts if game.trajectory.actions] or it.random  # which says what ends them all
    games = sorted(begun, key=lambda game: -len(game.trajectory.actions))[:6]
    again, changed = "", False
    for number in it.affordable(range(8)):  # a coin of a global generator often falls alike
        before = _seed_generators(number)
        again = again or _difference(games, [shown(it.replay(game)) for game in games[:3]])
        changed = changed or _states() != before
    if again:
        spec = it.bare().spec
        if spec is None or not spec.nondeterministic:
            yield _reason(it, games, again, changed=changed)
        return
    if changed:
        yield warning("changes a global generator", "use self.np_random; never call random.seed or numpy.random.seed")
    for game in games:
        used = it.make()
        used.reset(seed=game.task.seed + 1)  # left at its beginning, and in its middle
        with suppress(Exception):
            used.step(game.trajectory.actions[0])
        if where := _difference([game], [shown(it.replay(game, make=lambda used=used: used))]):
            yield error(f"an instance left in the middle of an episode differs: {where}", "set all state in reset()")
            return
    with ThreadPoolExecutor(4) as threads:
        try:
            where = _difference([*games, *games], list(map(shown, threads.map(it.replay, [*games, *games]))))
        except ConfigError as raised:
            where = str(raised)
    if where:
        fix = "" if "main thread" in where else "share no state between instances, or "
        yield warning(f"in threads: {where}", f"{fix}preferred_executor = 'process'")
    if where := _elsewhere(it, games[:2]):
        yield error(f"in another process: {where}", "sort what comes from a set before it is shown or drawn from")


def _seed_generators(number: int) -> bytes:
    random.seed(number)
    np.random.seed(number)
    return _states()


def _states() -> bytes:
    return pickle.dumps((random.getstate(), np.random.get_state()))


def _reason(it: Evidence, games: Sequence[Game], where: str, *, changed: bool) -> Finding:
    """Return why games are not the same again."""

    def is_same(*, seeded: bool) -> bool:
        for game in games:
            pair = []
            for _ in range(2):
                if seeded:
                    _seed_generators(1)
                pair.append(it.replay(game))
            if _difference(pair[:1], [shown(pair[1])]):
                return False
        return True

    if changed and is_same(seeded=True):
        return error(f"draws from a global generator: {where}", "draw from self.np_random instead")
    if is_same(seeded=False):
        return error(f"a used instance differs from a new one: {where}", "set all state in reset()")
    return error(where, "derive all of it from the seed: no clock, and nothing that instances share")


def _difference(games: Sequence[Game], others: Sequence[Sequence[tuple[Any, ...]]]) -> str:
    """Return the first difference between games and the rows of others; an empty text if there is none."""
    for one, rows in zip(games, others, strict=False):
        for turn, (this, that) in enumerate(zip(shown(one), rows, strict=False)):
            for name, a, b in zip(COLUMNS, this, that, strict=False):
                if repr(a) != repr(b):
                    return f"seed {one.task.seed}, turn {turn}: {name} {repr(a)[-70:]}, then {repr(b)[-70:]}"
    return ""


def _elsewhere(it: Evidence, games: Sequence[Game]) -> str:
    """Return what differs in a process whose sets have another order; nothing if it cannot be made there."""
    scripts = [(game.trajectory.actions[:20], game.task.seed) for game in games]
    try:
        given = pickle.dumps((it.setting, scripts))
    except Exception:  # a local class or a lambda
        return ""
    code = "from gym_trl.check.repeating import follow; follow()"
    environ = {**os.environ, "PYTHONHASHSEED": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    words = [sys.executable, "-W", "ignore", "-c", code]
    done = subprocess.run(words, input=given, capture_output=True, env=environ, check=False)  # noqa: S603 -- our own
    return "" if done.returncode else _difference(games, pickle.loads(done.stdout))  # noqa: S301 -- our own bytes


def follow() -> None:
    """Write what is shown when the actions on the standard input are played."""
    answer = os.dup(1)
    os.dup2(2, 1)  # environments print
    setting, scripts = pickle.load(sys.stdin.buffer)  # noqa: S301 -- our own bytes
    it = Evidence(setting)
    rows = [[row[:_PLAIN] for row in shown(it.follow(actions, seed))] for actions, seed in scripts]
    with os.fdopen(answer, "wb") as file:
        pickle.dump(rows, file)
