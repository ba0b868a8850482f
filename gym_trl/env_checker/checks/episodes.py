"""Checks of episodes: they repeat, start afresh, differ, and end; invalid actions; instructions."""

import math
import statistics
from collections.abc import Sequence
from contextlib import suppress

import gymnasium as gym
import numpy as np

from gym_trl.env_checker.play import MOST_TURNS, PlayedEpisode, describe_error, difference, kind_of, play_one, shortened
from gym_trl.env_checker.subject import Subject, check
from gym_trl.env_checker.survey import skip
from gym_trl.errors import raise_interrupt
from gym_trl.executors.protocol import TextEnvironment
from gym_trl.executors.step import close_env, read_step
from gym_trl.report import Finding, ok, problem, warning
from gym_trl.seeding import OwnGlobalRandom
from gym_trl.spaces import holds_text
from gym_trl.testing.checks import STRANGE_ACTIONS, scrambled_generators
from gym_trl.text import counted
from gym_trl.text.discovery import description
from gym_trl.wrappers.as_text import as_text
from gym_trl.wrappers.base import attribute_of, instructions_of

_LONG_RULES = 4_000
_READ_IN_FRONT = (
    "read texts in front of the environment with GymSpec(act=...), a function that raises ValueError with a hint for "
    "what is no action, or with a wrapper; or return an observation that explains valid actions"
)


def differ(games: Sequence[PlayedEpisode], replayed: Sequence[PlayedEpisode]) -> str | None:
    """Return a description of the first difference between episodes and their replays."""
    return difference([game.seen for game in games], [game.seen for game in replayed])


@check("determinism", "Members of a group share a task: same seed and same actions, same episode.")
def _determinism(subject: Subject) -> Finding:
    games = subject.some
    where = differ(games, [subject.replayed(game) for game in games])
    if where is None:
        # One coin of a global generator falls alike in three episodes once in eight times: it is tossed more often.
        for _ in range(subject.affordable(10) // 2):
            scrambled = []
            for game in games:
                with suppress(AssertionError), scrambled_generators():
                    scrambled.append(subject.replayed(game))
            if where := differ(games, scrambled):
                where = f"with other global generators: {where}"
                break
        else:
            return ok(f"{counted(len(games), 'episode')} repeated exactly")
    rounds = []
    for _ in range(2):
        with OwnGlobalRandom(0):
            rounds.append([subject.replayed(game) for game in games])
    if differ(*rounds) is None:
        fix = "draw from self.np_random after super().reset(seed=seed), not from random or numpy.random"
    else:
        fix = "derive everything from the seed: no clock, no uuid, no service"
    return problem(where, fix)


@check("own generator", "An environment must not change the trainer's random numbers.")
def _own_generator(subject: Subject) -> Finding:
    for game in subject.some:
        try:
            with scrambled_generators():
                subject.replayed(game)
        except AssertionError:
            fix = "use self.np_random; do not call random.seed(), numpy.random or torch.manual_seed()"
            return warning(f"the episode with seed {game.seed} changed a global generator", fix)
    return ok("global generators are unchanged")


@check("fresh start", "Instances are reused for other tasks.")
def _fresh_start(subject: Subject) -> Finding:
    games = subject.some
    fix = "set all state in reset(), not in __init__() or in the class"
    with subject.open() as env:
        used = [play_one(env, game.seed, game.actions) for game in games]
        if (where := differ(games, used)) is not None:
            return problem(f"a used instance differs from a new one: {where}", fix)
        play_one(env, 0, games[0].actions, most=1)  # left in the middle
        middle = play_one(env, games[-1].seed, games[-1].actions)
    if (where := differ(games[-1:], [middle])) is not None:
        return problem(f"an instance left in the middle of an episode differs from a new one: {where}", fix)
    return ok("a used instance starts like a new one")


@check("variety", "A model that sees one task memorizes it.")
def _variety(subject: Subject) -> Finding:
    # What the seed draws may show at once, or only in what follows some of the actions.
    solved = subject.solved([game.seed for game in subject.some]) if subject.has_solver else []
    games = sorted([*subject.some, *subject.many, *solved], key=lambda game: -len(game.seen))
    sequences = list(dict.fromkeys(tuple(game.actions[:20]) for game in games))
    seeds = range(subject.affordable(10))
    tried = sequences[: max(1, subject.affordable(len(sequences) * len(seeds)) // len(seeds))]
    for actions in tried:
        different = len({repr(subject.play(seed, actions).seen) for seed in seeds})
        if different > 1:
            return ok(f"at least {different} different tasks from {len(seeds)} seeds")
    valid = [seen[5] for game in games for seen in game.seen[1:]]
    if valid and not any(one is not False for one in valid):
        skip("no action that was tried is valid: define random_policy, or list the actions in info")
    fix = "draw the start in reset() from self.np_random; otherwise all tasks are the same"
    after = "one sequence" if len(tried) == 1 else f"each of {len(tried)} sequences"
    return warning(f"{len(seeds)} seeds gave the same task: the same episode after {after} of actions", fix)


@check("end", "An episode that does not end fills the context.")
def _end(subject: Subject) -> Finding:
    games = subject.many
    turns = [len(game.actions) for game in games if game.ended]
    if broken := next((game for game in games if game.error), None):
        got = f"the episode with seed {broken.seed} raised {broken.error} after turn {len(broken.actions)}"
        return problem(got, "end the episode instead of raising, which is a crash of the episode")
    if len(turns) < len(games):
        got = f"{len(games) - len(turns)} of {counted(len(games), 'episode')} did not end in {MOST_TURNS} turns"
        fix = "end every episode, set max_episode_steps in gym.register, or GymSpec(turn_limit=...)"
        return (warning if turns else problem)(f"{got} of {subject.random_policy}", fix)
    if both := subject.survey.issues.get("end"):  # wrappers of training set one of the two
        return warning(*both[0])
    if min(turns) == max(turns):
        return ok(f"after {counted(turns[0], 'turn')}")
    return ok(f"after {min(turns)} to {max(turns)} turns, {statistics.fmean(turns):.1f} on average")


@check("after the end", "Rewards after the end can be farmed.")
def _after_the_end(subject: Subject) -> Finding:
    game = max(subject.ended, key=lambda game: game.total)
    env = subject.make()
    try:
        if not holds_text(env.action_space):
            return ok("handled by the wrapper that converts actions to text")
        played = play_one(as_text(env), game.seed, game.actions)
        try:
            steps = [env.step(played.actions[-1]) for _ in range(3)]
        except BaseException as error:
            raise_interrupt(error)
            return ok(f"refused with {type(error).__name__}")
        paid = math.fsum(float(step[1]) for step in steps)
        if paid or not all(step[2] or step[3] for step in steps):
            got = f"rewarded with another {paid:g}" if paid else "continued"
            return warning(got, "return the last observation and flags and no reward, as ParseAction does in training")
        return ok("no further reward")
    finally:
        close_env(env, broken=True)


@check("invalid actions", "A model can write anything; an episode in which an action raises is over, as a crash.")
def _invalid_actions(subject: Subject) -> Finding:
    refused, declared = 0, False
    with subject.open() as env:
        for action in STRANGE_ACTIONS:
            env.reset(seed=0, options=None)
            try:
                result = read_step(*env.step(action))
            except BaseException as error:
                raise_interrupt(error)
                shown = repr(action) if len(action) < 50 else f"{len(action):,} characters"
                return problem(f"step({shown}) raised {describe_error(error)}", _READ_IN_FRONT)
            refused += result.info.get("action_valid") is False
            declared = declared or "action_valid" in result.info
        if (raised := _raised_at_forbidden(subject, env)) is not None:
            fix = "answer an action that the mask forbids with info['action_valid'] = False instead of raising"
            return problem(raised, fix)
    if not declared:
        fix = "set info['action_valid'] to True or False in every step, so that invalid actions are counted"
        return warning("none raised, but info has no 'action_valid'", fix)
    return ok(f"{refused} of {len(STRANGE_ACTIONS)} strange texts were rejected, none raised")


def _raised_at_forbidden(subject: Subject, env: TextEnvironment) -> str | None:
    """Return what happened at the first action that a mask forbids if the environment raised there."""
    space = env.unwrapped.action_space
    if not isinstance(space, gym.spaces.Discrete):
        return None
    for game in subject.some:
        _, info = env.reset(seed=game.seed, options=None)
        for action in game.actions:
            allowed = np.asarray(info.get("action_mask"))
            if allowed.shape == (int(space.n),) and not allowed.all():
                forbidden = str(int(space.start) + int(np.argmin(allowed)))
                try:
                    env.step(forbidden)
                except BaseException as error:
                    raise_interrupt(error)
                    return f"step({forbidden}), which the mask forbids, raised {describe_error(error)}"
                return None
            info = env.step(action)[4]
    return None


@check("instructions", "The instructions are all that a model knows of the rules.")
def _instructions(subject: Subject) -> Finding:
    with subject.open() as env:
        own = subject.make()
        declared = subject.options.get("instructions") or attribute_of(own, "instructions")
        docstring = description(own)
        close_env(own, broken=True)
        if declared is not None and not (isinstance(declared, str) and declared.strip()):
            return problem(f"they are {kind_of(declared)}", "instructions must be text that is not empty")
        if declared is None and not instructions_of(own):
            begins = f": its docstring begins {docstring!r:.60}" if docstring else ""
            fix = "define a string attribute instructions (rules and answer format), or GymSpec(instructions=...)"
            return warning(f"none{begins}", fix)
        rules = instructions_of(env)
        if len(rules) > _LONG_RULES:
            return warning(f"{len(rules):,} characters", "shorten them; they begin every prompt")
    return ok(f"{len(rules):,} characters: {shortened(repr(rules), 60)}")
