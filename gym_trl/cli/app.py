"""The command ``gym-trl``: only the command that is asked for is imported."""

import os
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from inspect import signature

import gym_trl
from gym_trl.cli.errors import one_line
from gym_trl.cli.terminal import encodable, only_results, say
from gym_trl.errors import ConfigError, GymTRLError
from gym_trl.leaves import LEAVES, load, offered
from gym_trl.registration import did_you_mean

_LONGEST = 2_500
"""Characters of an error that are printed; texts of files and environments in it can be of any length."""


def main(words: Sequence[str] | None = None) -> int:
    """Run a command, and return its exit status; what the user can mend is said in a line.

    Args:
        words: Words of the command line. Default: those of this process.
    """
    words = sys.argv[1:] if words is None else list(words)
    if words[:1] == ["--version"]:
        say(f"gym-trl {gym_trl.__version__}")
        return 0
    if not words or words[0] in ("-h", "--help"):
        say(_overview())
        return 0 if words else 2
    try:
        _run(words[0], words[1:])
    except BrokenPipeError:  # the reader has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (GymTRLError, OSError) as error:
        if "--debug" in words:
            raise
        text = one_line(error)
        sys.stderr.write(encodable(f"Error: {text[:_LONGEST]}{'...' * (len(text) > _LONGEST)}\n", sys.stderr))
        return 2
    except (KeyboardInterrupt, SystemExit) as stop:
        return int(stop.code or 0) if isinstance(stop, SystemExit) else 130
    return 0


def _run(name: str, words: Sequence[str]) -> None:
    from gym_trl.cli.flags import Command

    if name not in offered("commands"):
        raise ConfigError(f"there is no command {name}{did_you_mean(name, offered('commands'))}")
    command = Command(name, load("commands", name))
    given = command.read(words)
    if given.pop("help", False):
        say(command.help())
        return
    if given.pop("debug", False) and "debug" in signature(command.function).parameters:
        given["debug"] = True
    with only_results() if given.get("json_") else nullcontext():
        command.run(given)


def _overview() -> str:
    abouts = {name: about for leaf in LEAVES.values() for name, about in leaf.abouts.items()}
    width = max(map(len, abouts))
    lines = [f"  {name:<{width}}  {about}" for name, about in abouts.items()]
    return "\n".join(["Usage: gym-trl COMMAND [FLAGS]", "", *lines, "", "gym-trl COMMAND --help lists its flags."])
