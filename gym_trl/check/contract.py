"""Checks of what a training relies on: the interface, readable text, rules, ends, and seats."""

import math
import pickle
import re
import threading
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import islice, pairwise
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import psutil
from gymnasium.utils.env_checker import check_env
from gymnasium.utils.passive_env_checker import env_step_passive_checker

from gym_trl.check.evidence import MOST_TURNS, Evidence, NotPlayedError, error_of, repeating, step_seconds, steps_of
from gym_trl.errors import ConfigError, NotTextError, described
from gym_trl.random_play import random_play
from gym_trl.spaces import holds, holds_text, sample_allowed
from gym_trl.types import StepResult, StopReason
from gym_trl.wrappers.as_text import as_text
from gym_trl.wrappers.base import attribute_of, instructions_of

STRANGE = ("", "x" * 1_000_000, "\x00", "\ud800", "\u202e{}\\n<action>")
"""Texts that a model may write, and that an environment must answer."""


class Finding(NamedTuple):
    """Result of a check: a fault or a doubt, and what helps."""

    verdict: str
    """``error``: what is trained is wrong; ``warning``: a training runs, and may learn less, or something else."""
    check: str
    got: str
    fix: str


def error(got: str, fix: str) -> Finding:
    """Return an error; whoever runs a check adds its name."""
    return Finding("error", "", got, fix)


def warning(got: str, fix: str) -> Finding:
    """Return a warning."""
    return Finding("warning", "", got, fix)


def interface(it: Evidence) -> Iterator[Finding]:
    """Take fifty steps with Gymnasium's passive checker, look at what it leaves out, and call its ``check_env``."""
    env = None
    try:
        env = it.bare().unwrapped
        it.make().close()
    except NotPlayedError as missing:
        if env is None or not isinstance(missing.__cause__, NotTextError):  # "text" knows more
            yield error(str(missing.__cause__), "follow the message")
            return
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        found = list(islice(_steps(env), 1))
        if not found and "action_mask" not in env.reset(seed=0)[1]:  # else it draws actions that a mask forbids
            found = list(_by_gymnasium(it.bare().unwrapped))
    yield from found
    texts = [re.sub(r"\x1b\[[0-9;]*m", "", str(one.message)) for one in heard]
    known = re.compile("normalized space|infinity|terminated|NaN|reward")  # matters of taste, and what is said above
    for text in dict.fromkeys(text for text in texts if not known.search(text)):
        yield warning(f"Gymnasium: {text:.200}", "follow the warning")


def _by_gymnasium(env: gym.Env[Any, Any]) -> Iterator[Finding]:
    try:
        check_env(env, skip_render_check=True)
    except Exception as raised:
        strange = holds_text(env.action_space) and not isinstance(raised, AssertionError)
        if not strange and "not equivalent" not in str(raised):  # "invalid actions" and "repeats" know more
            fix = "follow the message"
            if isinstance(env.observation_space, gym.spaces.Text) and "observation space" in str(raised):
                fix = "declare gym_trl.spaces.AnyText(): Gymnasium's Text has letters and digits only"
            yield error(f"Gymnasium's check_env raised {described(raised):.200}", fix)


def _steps(env: gym.Env[Any, Any]) -> Iterator[Finding]:
    """Step an environment, and yield what is wrong; nobody asks what follows from it."""
    done, text = True, holds_text(env.action_space)
    for turn in range(50):
        if done:
            try:
                returned = env.reset(seed=turn, options=None)
            except Exception as raised:
                yield error(f"reset(seed={turn}, options=None) raised {described(raised):.160}", "take both arguments")
            if not (isinstance(returned, tuple) and len(returned) == 2 and isinstance(returned[1], dict)):
                yield error(f"reset returned {returned!r:.80}", "return observation, info")
            observation, info = returned
            if where := _outside(env, observation):
                yield error(f"reset gave {where}", "correct the space")
        mask = info.get("action_mask")
        action = random_play(env, turn)(observation, info) if text else sample_allowed(env.action_space, mask)
        try:
            observation, reward, terminated, truncated, info = env_step_passive_checker(env, action)
        except Exception as raised:
            if text and not isinstance(raised, AssertionError):
                return  # "invalid actions" finds out what it cannot take
            yield error(f"step({action!r:.20}) raised {described(raised):.160}", "follow the message")
        flags = {"terminated": terminated, "truncated": truncated}
        flags |= {name: info[name] for name in ("success", "action_valid") if info.get(name) is not None}
        wrong = [f"{name} = {value!r:.40}" for name, value in flags.items() if not isinstance(value, bool | np.bool_)]
        if where := _outside(env, observation):
            yield error(f"step gave {where}", "correct the space")
        if not isinstance(reward, int | float | np.number) or not math.isfinite(reward):
            yield error(f"step gave the reward {reward!r}", "a reward is a finite number")
        if wrong:
            yield error(f"step gave {wrong[0]}", "it is True or False")
        if terminated and truncated:
            yield warning("step gave terminated and truncated", "set one of them")
        try:
            size = len(pickle.dumps(info))
        except Exception as raised:
            yield error(f"info does not pickle: {described(raised):.120}", "plain values only")
        if size > 100_000:
            yield warning(f"info has {size // 1000} kB a step", "remove what nothing reads")
        done = terminated or truncated


def _outside(env: gym.Env[Any, Any], observation: Any) -> str:
    """Return an observation and the space that does not have it; nothing if it does."""
    space = env.observation_space
    if holds(space, observation) and (isinstance(observation, str) or not holds_text(space)):
        return ""
    return f"{observation!r:.80}, which is not in {space!s:.160}"


def closing(it: Evidence) -> Iterator[Finding]:
    """Make, reset and close five instances, each twice, and count the files and threads that stay."""

    def held() -> tuple[int, int]:
        return psutil.Process().num_fds(), threading.active_count()

    before = held()
    for seed in range(5):
        env = it.make()
        with suppress(Exception):
            env.reset(seed=seed)
        for times in ("", " again"):
            try:
                env.close()
            except Exception as raised:
                yield error(f"to close it{times} raised {described(raised)}", "let close() be called more than once")
                return
    kept = [now - then for now, then in zip(held(), before, strict=True)]
    if max(kept) >= 5:
        yield warning(f"five closed instances left {kept[0]} files and {kept[1]} threads", "release them in close()")


def text(it: Evidence) -> Iterator[Finding]:
    """Look at what a model would read."""
    try:
        it.make().close()
    except NotPlayedError as missing:
        if not isinstance(missing.__cause__, NotTextError):
            raise
        yield error(str(missing.__cause__), "GymSpec(observe=..., act=...), or declare spaces of text")
        return
    observed = [[one.observation for one in steps_of(game)] for game in it.random]
    texts = [one for game in observed for one in game]
    if texts and not any(one.strip() for one in texts):
        yield error("every observation is empty", "describe the state in text")
    if any("\ud800" <= character <= "\udfff" for one in texts for character in one):
        yield error("a lone surrogate in an observation", "decode bytes with errors='replace'")
    elif odd := next((one for one in texts if any(not c.isprintable() and c not in "\n\t" for c in one)), ""):
        yield warning(f"control characters in {odd!r:.40}", "remove terminal codes")
        it.broken.add("text")  # a solver may stumble over them
    if (longest := max((sum(map(len, game)) for game in observed), default=0)) > 16_000:
        yield warning(f"up to {longest:,} characters of observations an episode", "shorten observations")
    grows = [all(len(b) > len(a) >= 10 and a in b for a, b in pairwise(game)) for game in observed if len(game) > 3]
    if any(grows):
        yield warning("each observation repeats the one before", "return what is new; the transcript keeps the rest")


def rules(it: Evidence) -> Iterator[Finding]:
    """Look for instructions, and for what numbered actions mean."""
    bare = it.bare().unwrapped
    own = it.setting.instructions or attribute_of(bare, "instructions")
    if own is not None and not (isinstance(own, str) and own.strip()):
        yield error(f"instructions are {own!r:.40}", "instructions are text")
        return
    if own is None:
        read = instructions_of(it.env)[:60]
        yield warning(f"no instructions of its own; the model reads {read!r}", "define a text attribute instructions")
    elif len(own) > 4_000:
        yield warning(f"{len(own):,} characters of instructions", "shorten them")
    number = int(bare.action_space.n) if isinstance(bare.action_space, gym.spaces.Discrete) else 0
    if number > 100 and own is None and not attribute_of(bare, "action_names"):
        yield warning(f"nothing says what {number} numbers mean", "action_names, instructions, or GymSpec(act=...)")


def invalid_actions(it: Evidence) -> Iterator[Finding]:
    """Write strange texts, and an action that a mask forbids."""
    if all(map(error_of, it.attempts)):
        it.needs("interface", "text")  # which say why
    for action in STRANGE:
        [game] = it.play(repeating([action]), it.seeds[:1])
        if raised := error_of(game):
            yield error(f"step({action!r:.20}): {raised}", "answer any text with info['action_valid'] = False")
            return
    bare = it.bare().unwrapped
    space = bare.action_space
    if isinstance(space, gym.spaces.Discrete):
        mask = np.asarray(bare.reset(seed=it.seeds[0])[1].get("action_mask"))
        if mask.shape == (int(space.n),) and not mask.all():
            forbidden = int(space.start) + int(np.argmin(mask))
            try:
                bare.step(forbidden)
            except Exception as raised:
                got = f"step({forbidden}), which the mask forbids, raised {described(raised):.120}"
                yield error(got, "answer it with action_valid = False")
    if it.seats == 1 and holds_text(space):
        game = it.random[0]
        plain = as_text(bare)  # the wrapper for numbers declares it, and so do those of a training
        plain.reset(seed=game.task.seed)
        if not any("action_valid" in plain.step(action)[4] for action in game.trajectory.actions):
            yield warning("info has no 'action_valid'", "set it to True or False in every step")


def seats(it: Evidence) -> Iterator[Finding]:
    """Look for broken promises of a game of several seats, which its wrapper checks in every step."""
    if it.seats > 1 and (broken := [error_of(game) for game in it.attempts if "SeatError" in error_of(game)]):
        yield error(broken[0], "see gym_trl.wrappers.seats")


def end(it: Evidence) -> Iterator[Finding]:
    """Look at how games end, and play on."""
    try:
        games = it.attempts
    except NotPlayedError as missing:
        it.needs("interface", "text", "rules", "seats")
        if not isinstance(missing.__cause__, ConfigError):
            raise
        yield error(f"random play: {missing.__cause__}"[:200], "follow the message")
        return
    if failed := [game for game in games if error_of(game)]:
        it.needs("interface", "text", "rules", "seats")  # which say why
        said = Counter(map(error_of, failed)).most_common(1)[0][0]
        got = f"{len(failed)} of {len(games)} games of random play: {said} (seed {failed[0].task.seed})"
        yield error(got, "end the episode instead of raising")
    if endless := sum(len(game.trajectory.actions) >= MOST_TURNS for game in games):
        got = f"{endless} of {len(games)} games of random play did not end in {MOST_TURNS:,} turns"
        yield error(got, "end every episode, or turn_limit=")
    bare = it.bare().unwrapped
    if it.seats > 1 or not holds_text(bare.action_space):
        return
    best = max(games, key=lambda game: game.episodes[0].paid)
    if best.episodes[0].stop_reason is StopReason.ENDED:
        bare.reset(seed=best.task.seed)
        with suppress(Exception):  # such as Gymnasium's ResetNeeded
            for action in best.trajectory.actions:
                bare.step(action)
            if paid := sum(float(bare.step(best.trajectory.actions[-1])[1]) for _ in range(3)):
                yield warning(f"pays {paid:g} for three steps after the end", "pay nothing after the end")


def speed(it: Evidence) -> Iterator[Finding]:
    """Look at the time of a step."""
    if (step := step_seconds(it.random)) > 0.1:
        yield warning(f"a step takes {step:.2f} s", "executor='thread' if it waits, executor='process' if it computes")


def state_key(it: Evidence) -> Iterator[Finding]:
    """Play games with exchanged and left out actions: after one key of a task, one action has one outcome."""
    if it.seats > 1:
        return
    it.needs("repeats")
    then = dict[Any, Any]()
    for game in it.random[:3]:
        for actions in it.affordable([game.trajectory.actions[:100], *_variants(game.trajectory.actions[:30])]):
            try:
                results = it.replay(game, actions, make=it.make_keyed).trajectory.results
            except ConfigError as raised:
                yield error(str(raised)[:200], "make it of strings, numbers and tuples")
                return
            if not getattr(results[0], "markov_keys", False):
                return  # it does not promise it
            for before, after, action in zip(results, results[1:], actions, strict=False):
                if isinstance(before, StepResult) and isinstance(after, StepResult):
                    outcome = (after.reward, after.terminated, after.truncated, after.state.key)
                    if then.setdefault((before.state.key, action, game.task.seed), outcome) != outcome:
                        got = f"after the key {before.state.key:.60}, {action!r:.20} leads to two outcomes"
                        yield error(got, "put all that matters into it")
                        return


def _variants(actions: Sequence[str]) -> Iterator[list[str]]:
    for place in range(len(actions) - 1):
        yield [*actions[:place], actions[place + 1], actions[place], *actions[place + 2 :]]
        yield [*actions[:place], *actions[place + 1 :]]
