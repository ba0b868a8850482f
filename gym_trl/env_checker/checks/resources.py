"""Checks of resources: info, size, speed, threads, processes, closing, and Gymnasium's own checker."""

import os
import pickle
import re
import statistics
import threading
import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

from gymnasium.utils.env_checker import check_env

from gym_trl.env_checker.checks.contract import SLOW_START_S
from gym_trl.env_checker.checks.episodes import differ
from gym_trl.env_checker.play import SHORT, describe_error, duration, play_one, shortened
from gym_trl.env_checker.subject import Subject, check
from gym_trl.env_checker.survey import skip
from gym_trl.errors import raise_interrupt, safe_str
from gym_trl.random_play import random_play
from gym_trl.report import Finding, ok, problem, skipped, warning
from gym_trl.text import counted

SLOW_STEP_S = 0.1
"""Seconds from which on a step is slow."""
_LONG_EPISODE = 16_000  # characters, about 4,000 tokens
_FOR_NETWORKS = ("recommend using a symmetric and normalized space", "infinity. This is probably too")
"""Parts of Gymnasium's warnings that concern networks which read and write numbers."""


@check("info", "It is sent between processes and written to records.")
def _info(subject: Subject) -> Finding:
    issues = subject.issues("info", "")
    if issues.fix:
        return issues
    info = subject.survey.info
    if info is None:
        skip("no step returned")
    try:
        size = len(pickle.dumps(info))
        pickle.loads(pickle.dumps(info))  # noqa: S301 -- our own bytes
    except BaseException as error:
        raise_interrupt(error)
        fix = "put plain values into info: strings, numbers, lists, dicts"
        return problem(f"does not pickle: {shortened(safe_str(error), 80)}", fix)
    if size > 100_000:
        return warning(f"{size / 1000:,.0f} kB a step", "remove entries that nothing reads")
    return ok(f"pickles in {size:,} bytes: {', '.join(map(str, info)) or 'empty'}"[:SHORT])


@check("size", "Observations fill the context.")
def _size(subject: Subject) -> Finding:
    games = subject.many
    longest = max(len(text) for game in games for text in game.observations)
    whole = max(sum(map(len, game.observations)) for game in games)
    got = f"at most {longest:,} characters an observation, {whole:,} an episode"
    if any(_repeats(game.observations) for game in games):
        fix = "return only what is new; the transcript keeps the rest"
        return warning(f"{got}; each repeats the previous one", fix)
    if whole > _LONG_EPISODE:
        fix = "shorten it, or train with a max_completion_length that holds it (about 4 characters per token)"
        return warning(got, fix)
    return ok(got)


def _repeats(observations: Sequence[str]) -> bool:
    pairs = list(pairwise(observations))
    return len(pairs) >= 3 and all(len(one) >= 10 and len(two) > len(one) and one in two for one, two in pairs)


@check("speed", "Slow steps delay the model.")
def _speed(subject: Subject) -> Finding:
    steps = [seconds for game in subject.many for seconds in game.seconds[1:]] or [0.0]
    resets = [game.seconds[0] for game in subject.many]
    step, reset = statistics.median(steps), statistics.median(resets)
    got = (
        f"a step {duration(step)} (at most {duration(max(steps))}), "
        f"a reset {duration(reset)} (at most {duration(max(resets))})"
    )
    if step > SLOW_STEP_S or reset > SLOW_START_S:
        fix = "use GymSpec(executor='thread') if it waits, executor='process' if it computes, and a step_timeout"
        return warning(got, fix)
    return ok(got)


@check("threads", "executor='thread' steps instances concurrently.")
def _threads(subject: Subject) -> Finding:
    games = [game for game in subject.some for _ in range(2)]
    with ThreadPoolExecutor(4) as threads:
        replayed = list(threads.map(subject.replayed, games))
    where = differ(games, replayed)
    if where is None:
        return ok(f"{counted(len(games), 'episode')} in four threads")
    if broken := next((game for game in replayed if game.error), None):
        where = f"raised {broken.error}"
    fix = "share no mutable state between instances, or use GymSpec(executor='inline') or executor='process'"
    return warning(where, fix)


@check("processes", "executor='process', other ranks and resumed runs must play the same episodes.")
def _processes(subject: Subject) -> Finding:
    return skipped("inspect_env compares two processes")


@check("closing", "Training opens and closes thousands of instances.")
def _closing(subject: Subject) -> Finding:
    subject.play(0, most=5)
    before = _open_resources()
    for seed in range(5):
        env = subject.text_env()
        play_one(env, seed, random_play(env, seed), most=5)
        try:
            env.close()
            env.close()
        except BaseException as error:
            raise_interrupt(error)
            return problem(f"raised {describe_error(error)}", "close() must work at any time, and twice")
    more = {name: number - before[name] for name, number in _open_resources().items()}
    leaks = [counted(number, name) for name, number in more.items() if number >= 5]
    if leaks:
        fix = "release in close() everything that __init__() or reset() opened"
        return warning(f"five closed instances left {' and '.join(leaks)}", fix)
    return ok("five closed instances left nothing")


def _open_resources() -> dict[str, int]:
    """Return the numbers of open files, threads and child processes of this process."""
    files = len(os.listdir("/proc/self/fd")) if Path("/proc/self/fd").is_dir() else 0  # noqa: PTH208 -- numbers only
    children = 0
    for file in Path("/proc/self/task").glob("*/children"):
        with suppress(FileNotFoundError):  # of a thread that has ended
            children += len(file.read_text().split())
    return {"file": files, "thread": threading.active_count(), "process": children}


@check("gymnasium", "Gymnasium's own checker must pass.")
def _gymnasium(subject: Subject) -> Finding:
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        try:
            check_env(subject.make().unwrapped, skip_render_check=True)
        except BaseException as error:
            raise_interrupt(error)
            fix = "see Gymnasium's documentation on creating environments"
            return problem(f"check_env raised {describe_error(error)}", fix)
    texts = [re.sub(r"\x1b\[[0-9;]*m", "", str(one.message)) for one in heard]
    texts = [text for text in texts if not any(part in text for part in _FOR_NETWORKS)]
    if texts:
        return warning(f"check_env: {shortened(texts[0])}", "follow the warning; training works without")
    return ok("check_env passes without warnings")
