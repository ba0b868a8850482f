"""The terminal: lines about long work, an environment that a person plays, and the episodes of a run."""

import logging
import random
import re
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from gym_trl.errors import ConfigError

_ACTED_UPON = re.compile(
    r"\r(?!\n)|\x1b(?!\[[0-9;]*m)|[\x00-\x08\x0b\x0c\x0e-\x1a\x1c-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]"
)
"""Control characters but those of styles, and those that change the direction of a text."""


def say(text: str) -> None:
    """Print text of environments, files and models."""
    sys.stdout.write(printable(f"{text}\n"))
    sys.stdout.flush()


def printable(text: str) -> str:
    r"""Return text in which characters are escaped that a terminal would act upon, or cannot show.

    >>> printable("\x1b]0;a title\x07")
    '\\u001b]0;a title\\u0007'
    """
    text = _ACTED_UPON.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
    encoding = sys.stdout.encoding or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)


class Progress:
    """Lines about long work in the log, at most one in ten seconds, and none at its beginning."""

    seconds = 10.0

    def __init__(self) -> None:
        self._said = time.monotonic()

    def say(self, line: str) -> None:
        """Log a line if it is time for one."""
        if time.monotonic() - self._said > self.seconds:
            self._said = time.monotonic()
            logging.getLogger(__name__).info("%s", line)


def play(
    env: str, *, env_kwargs: dict[str, Any] | None = None, seed: int | None = None, against: str = "random"
) -> None:
    """Play an environment in the terminal.

    ? asks the environment's solver for an action, which costs no turn; quit, Ctrl-C or Ctrl-D ends the episode.

    Args:
        env: Environment: a registered id, file.py, file.py:Class or package.module:Class.
        env_kwargs: Arguments of the environment, such as high=8.
        seed: Seed of the episode. Default: another one each time.
        against: Who plays the other seats of a game: random, solver or package.module:function.
    """
    from gym_trl.registration import make_env
    from gym_trl.wrappers import Opponent
    from gym_trl.wrappers.as_text import as_text
    from gym_trl.wrappers.base import attribute_of, instructions_of
    from gym_trl.wrappers.declare_success import declare_success

    made = as_text(declare_success(make_env(env, **(env_kwargs or {}))))
    if attribute_of(made, "num_seats", 1) > 1:
        made = Opponent(made, against, seat=None)
    with suppress(ImportError):
        import readline  # noqa: F401 -- arrow keys, on systems that have it
    try:
        observation, info = made.reset(seed=random.randrange(2**31) if seed is None else seed)
        seen, total, over = [observation], 0.0, False
        say(f"{instructions_of(made)}\n\n{observation}")
        while not over:
            action = input("> ")
            if action.strip().lower() in ("quit", "exit"):
                break
            if action.strip() == "?":
                say(f"(the solver: {_hint(made, seen)})")
                continue
            observation, reward, terminated, truncated, info = made.step(action)
            over, total = terminated or truncated, total + float(reward)
            seen.append(observation)
            others = "".join(f"(the other: {one})\n" for one in info.get("opponent_actions", ()))
            say(f"{others}{observation}" + (f"\n(reward {reward:g})" if reward else ""))
    except (EOFError, KeyboardInterrupt):
        over = False
    finally:
        made.close()
    solved = {True: "solved", False: "not solved", None: "over"}[info.get("success")] if over else "left"
    say(f"\n{solved.capitalize()} after {len(seen) - 1} turns, return {total:g}.")


def _hint(env: Any, seen: list[str]) -> str:
    """Return the solver's action after these observations; it may not know how to go on from what it did not play."""
    from gym_trl.wrappers.base import attribute_of

    if (make := attribute_of(env, "solver")) is None:
        return "there is none"
    for observations in (seen, seen[-1:]):
        with suppress(Exception):
            policy = make()
            return str([policy(observation) for observation in observations][-1])
    return "it cannot go on from here"


def show_episode(run: Path, number: int) -> None:
    """Print an episode of a run; a negative number counts from the last one.

    Raises:
        ConfigError: The run has no such episode.
    """
    from gym_trl.records import read_records

    records = (
        list(read_records(run)) if number < 0 else [one for at, one in enumerate(read_records(run)) if at <= number]
    )
    if not -len(records) <= number < len(records):
        raise ConfigError(f"{run} has {len(records)} episodes, and none with the number {number}")
    say("\n".join(_lines(records[number])))


def _lines(record: Mapping[str, Any]) -> Iterator[str]:
    names = ("policy", "split", "step", "group", "attempt", "seat")
    yield " · ".join([record["task"]["id"], *(f"{name} {record[name]}" for name in names if record[name] is not None)])
    for message in record["opening"]:
        yield f"--- {message['role']}\n{message['content']}"
    advantages = record["advantages"] or [None] * len(record["turns"])
    for place, (turn, advantage) in enumerate(zip(record["turns"], advantages, strict=False)):
        facts = ["" if advantage is None else f"advantage {advantage:+.3g}", "" if turn["action_valid"] else "invalid"]
        yield f"--- turn {place + 1}, reward {turn['reward']:g}" + "".join(f", {one}" for one in facts if one)
        if place:  # the first observation ends the opening
            yield turn["observation"]
        if turn["thinking"]:
            yield f"({turn['thinking']})"
        yield f"> {turn['answer']}"
    yield f"--- {record['stop_reason']}"
    yield record["last_observation"] or record["error"] or ""
    scored = "unscored" if record["return"] is None else f"return {record['return']:g}"
    yield f"{scored}, success {record['success']}, {record['num_turns']} turns"
