"""Check that episodes can be played again: by another instance, in threads, and in another process."""

import os
import pickle
import random
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress

import numpy as np

from gym_trl.check.contract import Finding, error, warning
from gym_trl.check.evidence import COLUMNS, Evidence, shown, steps_of
from gym_trl.errors import ConfigError
from gym_trl.players import Game


def repeats(it: Evidence) -> Iterator[Finding]:
    """Play games again: in one process, with other states of the global generators, in threads, in another process.

    Where they differ, only the first reason is told.
    """
    games = sorted(it.random, key=lambda game: -len(game.here.actions))[:6]
    with _global_generators():
        again, changed = _played_again(it, games)
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
            used.step(game.here.actions[0])
        if where := _difference([game], [it.replay(game, make=lambda used=used: used)]):
            yield error(f"an instance left in the middle of an episode differs: {where}", "set all state in reset()")
            return
    with ThreadPoolExecutor(4) as threads:
        try:
            where = _difference([*games, *games], list(threads.map(it.replay, [*games, *games])))
        except ConfigError as raised:
            where = str(raised)
    if where:
        fix = "" if "main thread" in where else "share no state between instances, or "
        yield warning(f"in threads: {where}", f"{fix}preferred_executor = 'process'")
    if where := _elsewhere(it, games[:2]):
        yield error(f"in another process: {where}", "sort what comes from a set before it is shown or drawn from")


@contextmanager
def _global_generators() -> Iterator[None]:
    """Put the global generators back at the end."""
    python, numbers = random.getstate(), np.random.get_state()
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numbers)


def _seed_generators(number: int) -> bytes:
    random.seed(number)
    np.random.seed(number)
    return _states()


def _states() -> bytes:
    return pickle.dumps((random.getstate(), np.random.get_state()))


def _played_again(it: Evidence, games: Sequence[Game]) -> tuple[str, bool]:
    """Return how replayed games differ, and whether a global generator has changed.

    A coin of a global generator often falls alike, so they are replayed a few times.
    """
    differ, changed, until = "", False, time.monotonic() + it.seconds / 4
    for number in range(8):
        before = _seed_generators(number)
        differ = differ or _difference(games, [it.replay(game) for game in games[:3]])
        changed = changed or _states() != before
        if time.monotonic() > until:
            break
    return differ, changed


def _reason(it: Evidence, games: Sequence[Game], where: str, *, changed: bool) -> Finding:
    """Return why games are not the same again."""

    def played(*, seeded: bool) -> list[Game]:
        again = []
        for game in games:
            if seeded:
                _seed_generators(1)
            again.append(it.replay(game))
        return again

    if changed and not _difference(played(seeded=True), played(seeded=True)):
        return error(f"draws from a global generator: {where}", "draw from self.np_random instead")
    if not _difference(played(seeded=False), played(seeded=False)):
        return error(f"a used instance differs from a new one: {where}", "set all state in reset()")
    return error(where, "derive all of it from the seed: no clock, and nothing that instances share")


def _difference(games: Sequence[Game], others: Sequence[Game]) -> str:
    """Return the first difference between games; an empty text if there is none."""
    for one, other in zip(games, others, strict=False):
        for turn, (this, that) in enumerate(zip(shown(one), shown(other), strict=False)):
            for name, a, b in zip(COLUMNS, this, that, strict=False):
                if repr(a) != repr(b):
                    return f"seed {one.task.seed}, turn {turn}: {name} {repr(a)[-70:]}, then {repr(b)[-70:]}"
    return ""


def _elsewhere(it: Evidence, games: Sequence[Game]) -> str:
    """Return what differs in a process whose sets have another order; nothing if it cannot be made there."""
    scripts = [(game.here.actions[:20], game.task.seed) for game in games]
    try:
        given = pickle.dumps((it.setting, scripts))
    except Exception:  # a local class or a lambda
        return ""
    code = "from gym_trl.check.repeating import follow; follow()"
    environ = {**os.environ, "PYTHONHASHSEED": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    words = [sys.executable, "-W", "ignore", "-c", code]
    done = subprocess.run(words, input=given, capture_output=True, env=environ, check=False)  # noqa: S603 -- our own
    if done.returncode:
        return ""
    for game, other in zip(games, pickle.loads(done.stdout), strict=True):  # noqa: S301 -- our own bytes
        for turn, (one, text) in enumerate(zip(steps_of(game), other, strict=False)):
            if one.observation != text:
                return f"seed {game.task.seed}, turn {turn}: {one.observation[-60:]!r}, then {text[-60:]!r}"
    return ""


def follow() -> None:
    """Write what is observed when the actions on the standard input are played."""
    setting, scripts = pickle.load(sys.stdin.buffer)  # noqa: S301 -- our own bytes
    it = Evidence(setting)
    games = [it.follow(actions, seed) for actions, seed in scripts]
    texts = [
        [one.observation for one in steps_of(game)[: len(script) + 1]]
        for game, (script, _) in zip(games, scripts, strict=True)
    ]
    sys.stdout.buffer.write(pickle.dumps(texts))
