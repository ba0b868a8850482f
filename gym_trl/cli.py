"""The command ``gym-trl``: functions of the library, whose arguments are the flags.

Only the module of the command that is asked for is imported.
"""

import argparse
import inspect
import json
import keyword
import logging
import os
import re
import sys
import textwrap
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.resources import files
from pathlib import Path
from string import Template
from types import UnionType
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

from gym_trl.errors import ConfigError, GymTRLError
from gym_trl.registration import did_you_mean
from gym_trl.terminal import printable, say, show_episode

_WIDTH, _COLUMN = 110, 32
_LONGEST_ERROR = 1_000  # texts of files and environments in it can be of any length


class Command(NamedTuple):
    """A command, and the place of its function."""

    function: str
    about: str
    examples: str


COMMANDS = {
    "list": Command(
        "gym_trl.cli:list_envs",
        "List the environments, or show one of them.",
        """
        gym-trl list
        gym-trl list TrlEnv/GuessNumber-v0 --env_kwargs high=8
        """,
    ),
    "play": Command(
        "gym_trl.terminal:play",
        "Play an environment in the terminal.",
        """
        gym-trl play TrlEnv/GuessNumber-v0 --env_kwargs high=8 --seed 3
        gym-trl play TrlEnv/TicTacToe-v0 --against solver
        """,
    ),
    "new": Command("gym_trl.cli:new", "Write a game of your own to start from.", "gym-trl new lift"),
    "check": Command(
        "gym_trl.check:check",
        "Say whether environments are fit to train on, and whether a model can begin.",
        """
        gym-trl check lift.py
        gym-trl check lift.py --model HuggingFaceTB/SmolLM2-135M-Instruct
        gym-trl check TrlEnv/Wordle-v0 TrlEnv/Sokoban-v0
        """,
    ),
    "train": Command(
        "gym_trl.training:train",
        "Train a model on an environment, and evaluate it before and after.",
        """
        gym-trl train TrlEnv/GuessNumber-v0 --env_kwargs high=8 --steps 60
        gym-trl train lift.py --model HuggingFaceTB/SmolLM2-135M-Instruct --warm_start random
        gym-trl train TrlEnv/Wordle-v0 --model Qwen/Qwen3-0.6B --grpo beta=0.01 --grpo temperature=0.8
        gym-trl train TrlEnv/Wordle-v0 --print_config > run.yaml
        gym-trl train --config run.yaml
        """,
    ),
    "eval": Command(
        "gym_trl.evaluation:evaluate",
        "Evaluate models and other players on held-out tasks.",
        """
        gym-trl eval --model runs/first
        gym-trl eval TrlEnv/Wordle-v0 --model runs/first --model solver
        """,
    ),
    "view": Command(
        "gym_trl.cli:view",
        "Write a run as an HTML page, or show an episode.",
        """
        gym-trl view runs/first
        gym-trl view runs/first --text -1
        """,
    ),
    "serve": Command(
        "gym_trl.cli:serve",
        "Serve an environment to OpenEnv clients.",
        "gym-trl serve TrlEnv/GuessNumber-v0 --port 8000",
    ),
}


def main(words: Sequence[str] | None = None) -> int:
    """Run a command, and return its exit status; what the user can mend is said in a line.

    Args:
        words: Words of the command line. Default: those of this process.
    """
    words = sys.argv[1:] if words is None else list(words)
    try:
        return _run(words)
    except BrokenPipeError:  # the reader has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (GymTRLError, OSError) as error:
        said = f"{error.strerror}: {error.filename}" if isinstance(error, OSError) and error.filename else str(error)
        text = " ".join(said.split())
        sys.stderr.write(printable(f"Error: {text[:_LONGEST_ERROR]}{'...' * (len(text) > _LONGEST_ERROR)}\n"))
        return 2
    except KeyboardInterrupt:
        return 130


@contextmanager
def _progress() -> Iterator[None]:
    """Show what the library logs of long work."""
    log, handler = logging.getLogger("gym_trl"), logging.StreamHandler()
    level = log.level
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(level)


def _run(words: Sequence[str]) -> int:
    if words[:1] == ["--version"]:
        from gym_trl import __version__

        say(f"gym-trl {__version__}")
        return 0
    if not words or words[0] in ("-h", "--help"):
        abouts = [f"  {name:<7}{command.about}" for name, command in COMMANDS.items()]
        say("\n".join(["Usage: gym-trl COMMAND [FLAGS]", "", *abouts, "", "gym-trl COMMAND --help lists its flags."]))
        return 0 if words else 2
    name, *words = words
    function = function_of(name)
    if {"-h", "--help"} & {*words}:
        say(help_of(name, function))
        return 0
    kept = [word for word in words if word.replace("-", "_") != "__print_config"]
    arguments = read(name, kept)
    if len(kept) < len(words):
        say(file_of(arguments))
        return 0
    with _progress():
        result = function(**arguments)
    if name == "train":
        from gym_trl.grpo.processes import leave_process_group

        leave_process_group()
    if name in ("check", "eval"):
        say(str(result))
    return int(bool(getattr(result, "failed", False)))


def function_of(name: str) -> Callable[..., Any]:
    """Return the function of a command.

    Raises:
        ConfigError: There is no such command.
    """
    if name not in COMMANDS:
        raise ConfigError(f"there is no command {name}{did_you_mean(name, COMMANDS)}")
    module, _, function = COMMANDS[name].function.partition(":")
    command: Callable[..., Any] = getattr(import_module(module), function)
    return command


# ---------------------------------------------------------------------------------------------------------------------
# Flags
# ---------------------------------------------------------------------------------------------------------------------


class Flag(NamedTuple):
    """Argument of a function, or key of the ``TypedDict`` of its ``**options``."""

    name: str
    kind: Any
    default: Any
    sentence: str
    group: str = ""
    """Sentence of the docstring of the ``TypedDict``."""

    @property
    def kinds(self) -> tuple[Any, ...]:
        """Types of a union, or the one type."""
        return get_args(self.kind) if get_origin(self.kind) in (Union, UnionType) else (self.kind,)

    def is_a(self, base: type) -> bool:
        """Return whether a value can be of a type; texts are no sequences."""
        types = [get_origin(one) or one for one in self.kinds if one is not str]
        return any(isinstance(one, type) and issubclass(one, base) for one in types)

    @property
    def expected(self) -> str:
        """Description of its values."""
        listed = [str(one) for kind in self.kinds if get_origin(kind) is Literal for one in get_args(kind)]
        names = {bool: "true|false", int: "INTEGER", float: "NUMBER", Path: "PATH"}
        names |= {Mapping: "NAME=VALUE", Sequence: "LIST"}
        named = [name for base, name in names.items() if self.is_a(base)]
        return "|".join([*listed, *named[:1], *["TEXT"] * (str in self.kinds and not listed)]) or "TEXT"


def flags_of(function: Callable[..., Any]) -> list[Flag]:
    """Return the flags of a command; the first one is its word without a flag."""
    flags: list[Flag] = []
    _, sentences = _documented(function)
    for one in inspect.signature(function, eval_str=True).parameters.values():
        if one.kind is one.VAR_KEYWORD:
            [options] = get_args(one.annotation)
            about, own = _documented(options)
            kinds = get_type_hints(options).items()
            flags += [Flag(name, kind, None, own.get(name, ""), about) for name, kind in kinds]
        else:
            flags.append(Flag(one.name, one.annotation, one.default, sentences.get(one.name, "")))
    return flags


def _documented(code: Any) -> tuple[str, dict[str, str]]:
    """Return what a docstring says, and its sentences on arguments."""
    about, _, rest = inspect.cleandoc(code.__doc__ or "").replace("``", "").partition("\nArgs:\n")
    paragraphs = [one for one in about.strip().split("\n\n") if not one.startswith((">>>", "::", " "))]  # no code
    found = re.findall(r"^    (\w+): (.*(?:\n      +.*)*)", rest, re.MULTILINE)
    return "\n\n".join(paragraphs), {name: " ".join(text.split()) for name, text in found}


def help_of(name: str, function: Callable[..., Any]) -> str:
    """Return the text of ``gym-trl NAME --help``."""
    flags, (about, _) = flags_of(function), _documented(function)
    groups: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for place, one in enumerate(flags):
        is_shown = isinstance(one.default, int | float | str) and not isinstance(one.default, bool)
        default = f" ({one.default})" if is_shown and "Default" not in one.sentence else ""
        value = "" if one.is_a(bool) else f" {one.expected}"
        sentence = f"{one.sentence.removesuffix('.')}{default}."
        groups[one.group].append((f"--{one.name}{value}" if place else one.name.upper(), sentence))
    groups[""] += [("--config FILE", "YAML file with these flags."), ("--print_config", "Print such a file.")]
    lines = [_usage(name, flags), "", about]
    for group, rows in groups.items():
        lines += ["", *([group, ""] if group else [])]
        for flag, sentence in rows:
            own, *others = textwrap.wrap(sentence, _WIDTH - _COLUMN) or [""]
            fits = len(flag) < _COLUMN - 3
            lines += [f"  {flag:<{_COLUMN - 2}}{own}"] if fits else [f"  {flag}", " " * _COLUMN + own]
            lines += [" " * _COLUMN + other for other in others]
    examples = inspect.cleandoc(COMMANDS[name].examples).splitlines()
    return "\n".join([*lines, "", "Examples:", *(f"  {line}" for line in examples)])


def _usage(name: str, flags: Sequence[Flag]) -> str:
    word = flags[0].name.upper() + "..." * flags[0].is_a(Sequence)
    return f"Usage: gym-trl {name} {word if flags[0].default is inspect.Parameter.empty else f'[{word}]'} [FLAGS]"


def read(name: str, words: Sequence[str]) -> dict[str, Any]:
    """Return the arguments that a command line gives a command.

    >>> read("list", ["TrlEnv/GuessNumber-v0", "--env-kwargs", "high=8", "--env_kwargs.turns", "4"])
    {'env': 'TrlEnv/GuessNumber-v0', 'env_kwargs': {'high': 8, 'turns': 4}}

    Flags are written with underscores or dashes. One of a mapping takes ``NAME=VALUE``, one of truth needs no value,
    and one of a list can be repeated. They override what a file has.

    Raises:
        ConfigError: There is no such flag, it has a wrong value, or a necessary one is missing.
    """
    from jsonargparse import ArgumentParser, Namespace

    function = function_of(name)
    flags = flags_of(function)
    places, texts = _sorted(words, flags)
    if len(places) > 1 and not flags[0].is_a(Sequence):
        raise ConfigError(f"there is no place for {places[1]!r}: {_usage(name, flags)}")
    texts |= {flags[0].name: places} if places else {}
    given = _in_file(Path(texts.pop("config")[-1]), flags) if "config" in texts else {}
    # What may be anything is not read once more by the parser, to which the text "5" would be a number.
    apart = {one.name: one for one in flags if one.is_a(Mapping) or one.kind is Any}
    found = {key: given.pop(key) for key in apart if key in given}
    for key in apart.keys() & texts.keys():
        held = texts.pop(key)
        if apart[key].kind is Any:
            found[key] = held[0] if len(held) == 1 else held
        else:
            found[key] = (found.get(key) or {}) | _pairs(apart[key], held)
    parser = ArgumentParser(exit_on_error=False, add_help=False, parser_mode="json")
    parser.add_function_arguments(function, as_group=False, as_positional=False, skip={*apart})
    given = {key: value if isinstance(value, str) else json.dumps(value) for key, value in given.items()}
    for flag in flags:
        if several := texts.get(flag.name):
            only_lists = flag.is_a(Sequence) and str not in flag.kinds and not several[0].startswith("[")
            given[flag.name] = json.dumps(several) if len(several) > 1 or only_lists else several[0]
    try:
        parsed = vars(parser.parse_args([f"--{key}={text}" for key, text in given.items()]))
    except argparse.ArgumentError as error:
        raise ConfigError(_explained(str(error), flags)) from error
    found |= {key: value.as_dict() if isinstance(value, Namespace) else value for key, value in parsed.items()}
    return {one.name: found[one.name] for one in flags if found.get(one.name) is not None}


def _sorted(words: Sequence[str], flags: Sequence[Flag]) -> tuple[list[str], dict[str, list[str]]]:
    """Return the words without a flag, and the texts of each flag.

    Raises:
        ConfigError: There is no such flag, or it has no value.
    """
    known = {one.name: one for one in flags} | {"config": Flag("config", Path, None, "")}
    waiting, places, texts = deque(words), list[str](), defaultdict[str, list[str]](list)
    while waiting:
        word = waiting.popleft()
        if not word.startswith("--"):
            places.append(word)
            continue
        name, equals, value = word[2:].partition("=")
        name, _, key = name.partition(".")
        name = name.replace("-", "_")
        if name not in known:
            raise ConfigError(f"there is no flag --{name}{did_you_mean(name, known) or _within(name, known)}")
        if not equals:
            if known[name].is_a(bool) and (not waiting or waiting[0] not in ("true", "false")):
                waiting.appendleft("true")
            if not waiting:
                raise ConfigError(f"--{name} needs a value, {known[name].expected}")
            value = waiting.popleft()
        texts[name].append(f"{key}={value}" if key else value)
    return places, dict(texts)


def _within(name: str, known: Iterable[str]) -> str:
    """Return which flags take arguments that have no flag of their own, to be appended to a message."""
    takers = {"env_kwargs": "an argument of the environment", "grpo": "a field of GRPOConfig"}
    said = [f"{what} is given by --{flag} {name}=VALUE" for flag, what in takers.items() if flag in known]
    return f"; {', '.join(said)}" if said else ""


def _pairs(flag: Flag, texts: Sequence[str]) -> dict[str, Any]:
    """Return a mapping that is written as ``NAME=VALUE``, or as JSON.

    Raises:
        ConfigError: It is neither.
    """
    pairs: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if isinstance(whole := _value(text), dict):
            pairs |= whole
        elif not equals or not name:
            raise ConfigError(f"--{flag.name} must be {flag.expected}, got {text}")
        else:
            pairs[name] = _value(value)
    return pairs


def _value(text: str) -> Any:
    """Return the value of JSON, and any other text itself."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


# ---------------------------------------------------------------------------------------------------------------------
# Files of flags
# ---------------------------------------------------------------------------------------------------------------------


def _in_file(path: Path, flags: Sequence[Flag]) -> dict[str, Any]:
    """Return the flags in a file of YAML.

    Raises:
        ConfigError: It is none, or there is no such flag.
        OSError: It cannot be read.
    """
    import yaml
    from jsonargparse import get_loader

    try:
        given = get_loader("yaml")(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeError) as error:
        raise ConfigError(f"{path} is no YAML: {error}") from error
    if not isinstance(given, dict):
        raise ConfigError(f"{path} must have a line for each flag, such as steps: 60")
    known = [one.name for one in flags]
    given = {str(name).replace("-", "_"): value for name, value in given.items()}
    for name in given:
        if name not in known:
            raise ConfigError(f"{path}: there is no flag {name}{did_you_mean(name, known)}")
    return given


def file_of(arguments: Mapping[str, Any]) -> str:
    """Return a file of these flags, as ``--print_config`` prints it."""
    import yaml

    class Dumper(yaml.SafeDumper):  # type: ignore[misc]
        pass

    exponent = re.compile(r"[-+]?[0-9.]+[eE][-+]?[0-9]+")  # 1e-5, which is a text in YAML 1.1, and a number in files
    Dumper.add_implicit_resolver("tag:yaml.org,2002:float", exponent, None)
    plain = json.loads(json.dumps(arguments, default=str))
    return str(yaml.dump(plain, Dumper=Dumper, sort_keys=False, allow_unicode=True)).rstrip()


def _explained(said: str, flags: Sequence[Flag]) -> str:
    """Return an error of the parser in a line, with the flag as it is written."""
    if missing := re.search(r"arguments are required: (\w+)", said):
        return f"{missing[1].upper()} must be given"
    key, value = re.search(r'Parser key "(\w+)', said), re.findall(r"(?:Given value|Got value): (.*)", said)
    flag = next((one for one in flags if key and one.name == key[1]), None)
    return f"--{flag.name} must be {flag.expected}, got {value[-1]}" if flag and value else said


# ---------------------------------------------------------------------------------------------------------------------
# Commands of a few lines
# ---------------------------------------------------------------------------------------------------------------------


def list_envs(env: str | None = None, *, env_kwargs: dict[str, Any] | None = None) -> None:
    """List the environments of this library and of installed packages, or show one of them.

    Args:
        env: Environment: a registered id, file.py, file.py:Class or package.module:Class.
        env_kwargs: Arguments of the environment, such as high=8.
    """
    import gymnasium as gym

    from gym_trl.registration import env_parameters, find_maker, is_ours, load_plugins, make_env
    from gym_trl.wrappers.as_text import as_text
    from gym_trl.wrappers.base import attribute_of, instructions_of

    if env is None:
        installed = load_plugins()
        ids = sorted(one for one in gym.registry if is_ours(one) or one in installed)
        for one in ids:
            say(f"{one:<{max(map(len, ids))}}  {_first_sentence(one)}")
        return
    made = as_text(make_env(env, **(env_kwargs or {})))
    tasks = attribute_of(made, "num_instances")
    arguments = env_parameters(find_maker(env)).values()
    shown = [one.name if one.default is one.empty else f"{one.name}={one.default!r}" for one in arguments]
    presets = getattr(made.unwrapped, "presets", {}).items()
    rows = {
        "arguments": ", ".join(shown) or "none",
        **{name: ", ".join(f"{key}={value!r}" for key, value in preset.items()) for name, preset in presets},
        "observations": made.unwrapped.observation_space,
        "actions": made.unwrapped.action_space,
        "seats": attribute_of(made, "num_seats", 1),
        "tasks": "not counted" if tasks is None else tasks,
        "optimum": attribute_of(made, "optimal_success", "unknown"),
        "solver": "yes" if attribute_of(made, "solver") else "no",
    }
    observation, _ = made.reset(seed=0)
    say(f"{_first_sentence(env)}\n\n" + "\n".join(f"{name:<13} {value}" for name, value in rows.items()))
    say(f"\n{instructions_of(made)}\n\n{observation}")
    made.close()


def _first_sentence(env: str) -> str:
    """Return the first sentence of an environment's own docstring."""
    from gym_trl.registration import creator_of, find_maker

    own = vars(creator_of(find_maker(env))).get("__doc__") or ""
    return re.split(r"(?<=\.)\s|\n\n", " ".join(inspect.cleandoc(own).split(" ")))[0].replace("``", "")


def new(name: str, *, out: Path | None = None) -> None:
    """Write a game of your own to start from: one file, with a solver, ready to be checked, trained on and changed.

    Args:
        name: Name of the game, such as lift or unit_prices.
        out: File to write. Default: the name with .py.
    """
    if not _names_a_game(name):
        near = re.sub(r"\W+", "_", name.lower()).strip("_")
        meant = f"; did you mean {near}?" if _names_a_game(near) else ""
        raise ConfigError(f"NAME must be lower-case letters, digits and _, no module of Python's, got {name!r}{meant}")
    file = out or Path(f"{name}.py")
    if file.exists():
        raise ConfigError(f"{file} exists; name another file with --out")
    template = files("gym_trl").joinpath("game.py.template").read_text(encoding="utf-8")
    file.write_text(Template(template).substitute(title=name.title().replace("_", ""), file=file), encoding="utf-8")
    commands = {
        f"gym-trl play {file}": "play it yourself; ? asks its solver",
        f"gym-trl check {file}": "find what stands in the way of a training",
        f"gym-trl train {file}": "train a tiny model on it",
    }
    width = max(map(len, commands))
    say("\n".join([f"{file} has a game. Next:", "", *(f"  {one:<{width}}  # {why}" for one, why in commands.items())]))


def _names_a_game(name: str) -> bool:
    """Return whether a file of this name can be imported as a module, and is none of Python's."""
    right = re.fullmatch(r"[a-z][a-z0-9_]*", name)
    return bool(right) and not keyword.iskeyword(name) and name not in sys.stdlib_module_names


def view(
    run: Path, *, out: Path | None = None, tokenizer: Path | None = None, text: int | None = None, watch: bool = False
) -> None:
    """Write a run as an HTML page with its curves and its episodes, with every token.

    Args:
        run: Folder of a run, or a file of records.
        out: File to write. Default: view.html in the folder of the run.
        tokenizer: Folder of the tokenizer. Default: the run's own.
        text: Show the episode with this number in the terminal instead; -1 is the last one.
        watch: Write the page again every ten seconds, until Ctrl-C; an open page follows.
    """
    if text is not None:
        show_episode(run, text)
        return
    from gym_trl.viewer.page import write_page

    page = out or (run / "view.html" if run.is_dir() else run.with_suffix(".html"))
    while True:
        counts = write_page(run, page, tokenizer=tokenizer, refresh=10 if watch else None)
        skipped = f", without {counts['broken']} lines that are no records" if counts["broken"] else ""
        say(f"Wrote {counts['episodes']} episodes to {page} ({counts['bytes'] / 1e6:.1f} MB){skipped}.")
        if not watch:
            return
        time.sleep(10)


def serve(
    env: str,
    *,
    port: int = 8000,
    host: str = "127.0.0.1",
    token: str | None = None,
    env_kwargs: dict[str, Any] | None = None,
) -> None:
    """Serve an environment to OpenEnv clients; each has an instance of its own.

    gym.make("TrlEnv/OpenEnv-v0", base_url="http://127.0.0.1:8000") is such a client. On a public address, put a proxy
    with TLS in front of it.

    Args:
        env: Environment.
        port: Port to listen on; 0 selects a free one.
        host: Address to listen on; one that others can reach needs a token.
        token: Bearer token that clients must send. Default: $GYM_TRL_TOKEN.
        env_kwargs: Arguments of the environment, such as high=8.
    """
    from gym_trl.integrations.openenv.server import serve as serve_openenv

    serve_openenv(env, env_kwargs=env_kwargs, host=host, port=port, token=token or os.environ.get("GYM_TRL_TOKEN"))
