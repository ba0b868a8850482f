"""Files and folders that a stranger could hand over, for the tests of everything that reads or writes them.

``values`` are values of JSON and what looks like them, ``spoilt`` changes valid ones, ``documents`` and ``lines`` are
the bytes of files with them, ``tables`` are Parquet. ``VALID`` has the files of a run, ``ENTRIES`` puts something that
is no file in the place of one, and ``bounded`` ends what hangs or reads without end.
"""

import copy
import json
import os
import resource
import signal
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import current_thread, main_thread
from typing import Any, Final

from hypothesis import strategies as st

from gym_trl.records.schema import as_record
from gym_trl.types import Answer, EpisodeResult, Message, StopReason, Task, TokenTrace, Turn

# ---------------------------------------------------------------------------------------------------------------------
# Valid files
# ---------------------------------------------------------------------------------------------------------------------


def record(seed: int = 1, env_id: str = "TrlEnv/Echo-v0", **about: Any) -> dict[str, Any]:
    """Return the record of an episode in which all fields have values."""
    turns = (
        Turn("Say ox.", Answer("Hm.", "ox"), 0.0, True, 0, 2, "ox"),
        Turn("Say elk.", Answer("", "elk"), 1.0, True, 3, 5, "elk"),
    )
    said = [("user", "Say ox."), ("assistant", "ox"), ("user", "Say elk."), ("assistant", "elk"), ("user", "Over.")]
    episode = EpisodeResult(
        Task(env_id, seed, {"instance": 3}),
        StopReason.SUCCESS,
        turns,
        tuple(Message(role, text) for role, text in said),
        TokenTrace([1, 2, 3], [4, 5, 6, 7, 8], [1, 1, 0, 1, 1], [-0.5, -0.25, 0.0, -1.0, -0.125]),
        terminated=True,
        declared=True,
        scores={"correct": 1.0},
        model_seconds=0.5,
        env_seconds=0.25,
    )
    given: dict[str, Any] = {"step": 1, "split": "train", "group": 0, "attempt": 0, "policy": "tiny", "greedy": False}
    written = as_record(episode, env_kwargs={"word_length": 3}, spec={"action_format": "plain"}, tokens=True)
    return {**written, **given, **about}


def failure(seed: int = 2, **about: Any) -> dict[str, Any]:
    """Return the record of an unscored episode."""
    failed = EpisodeResult(Task("TrlEnv/Echo-v0", seed), StopReason.ENV_ERROR, (), (), error="it broke")
    return {**as_record(failed, env_kwargs={"word_length": 3}, policy="tiny", split="train", step=1, group=1), **about}


OPTIONS: Final[dict[str, Any]] = {
    "env": "TrlEnv/Echo-v0",
    "env_kwargs": {"word_length": 3},
    "model": None,
    "seed": 0,
    "steps": 4,
    "episodes_per_step": 8,
    "num_generations": 4,
    "max_tokens_per_turn": 3,
    "eval_episodes": 4,
    "action_format": "plain",
    "instructions": "",
    "invalid_penalty": 0.2,
    "end_after_invalid": None,
    "width": 64,
    "layers": 2,
    "records_per_step": 16,
    "learning_rate": 0.002,
    "turn_limit": 5,
    "grpo": {"use_cpu": True, "temperature": 1.0},
}
CONFIG: Final[dict[str, Any]] = {"version": 1, "options": OPTIONS, "processes": 1, "versions": {"trl": "1.16.0"}}
WARM_START: Final[dict[str, Any]] = {
    **CONFIG,
    "warm_start": {"policy": "solver", "keep": None, "episodes": 8, "batch_size": 4, "eval_episodes": 0},
}
EVALUATION: Final[dict[str, Any]] = {
    "version": 1,
    "evaluation": {"policies": {"solver": {"env_id": "TrlEnv/Echo-v0", "seed": 0, "spec": {}}}},
}
TOURNAMENT: Final[dict[str, Any]] = {
    "version": 1,
    "tournament": {
        "seed": 0,
        "env_id": "TrlEnv/TicTacToe-v0",
        "env_kwargs": {},
        "players": {"solver": {"spec": {}}, "random": {"spec": {}}},
    },
}
GAME: Final[dict[str, Any]] = {
    "players": ["solver", "random"],
    "seed": 7,
    "payoffs": [1.0, -1.0],
    "forfeit": None,
    "stop_reasons": ["success", "failure"],
    "moves": [[0, "1 1"], [1, "1 2"]],
    "error": None,
}
SUMMARY: Final[dict[str, Any]] = {"steps": 4, "seconds": 8.0, "success_before": 0.1, "success_after": 0.9}
METRICS: Final[dict[str, Any]] = {"step": 1, "seconds": 2.0, "env/return": 0.5, "env/success": 0.5, "loss": 0.1}
CREDIT: Final[dict[str, Any]] = {
    "step": 1,
    "split": "train",
    "group": 0,
    "attempt": 0,
    "advantages": [0.5, -0.5],
    "state_keys": ["a", "b", "c"],
}
ADAPTER: Final[dict[str, Any]] = {"peft_type": "LORA", "base_model_name_or_path": "base", "r": 8}
STATE: Final[dict[str, Any]] = {"global_step": 1, "stateful_callbacks": {}, "log_history": []}
TOKENIZER: Final[dict[str, Any]] = {
    "version": "1.0",
    "truncation": None,
    "padding": None,
    "added_tokens": [],
    "normalizer": None,
    "pre_tokenizer": None,
    "post_processor": None,
    "decoder": None,
    "model": {"type": "WordLevel", "vocab": {"ox": 4, "elk": 5}, "unk_token": "ox"},
}
VALID: Final[dict[str, list[dict[str, Any]]]] = {
    "rollouts.jsonl": [record(1), record(2, step=2), record(3, step=2, group=1)],
    "failures.jsonl": [failure()],
    "metrics.jsonl": [METRICS, {**METRICS, "step": 2}],
    "credit.jsonl": [CREDIT],
    "config.json": [CONFIG],
    "summary.json": [SUMMARY],
    "tokenizer/tokenizer.json": [TOKENIZER],
    "model/config.json": [{"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"]}],
    "checkpoints/checkpoint-1/trainer_state.json": [STATE],
}
"""Objects in the files of a run, by their names: one, or one a line."""


def as_file(values: Sequence[Any]) -> bytes:
    """Return the bytes of a file with these values, one a line."""
    return b"".join(f"{written(value)}\n".encode("utf-8", "surrogatepass") for value in values)


def write_run(folder: Path, **files: bytes) -> Path:
    """Write the folder of a run; ``files`` replaces the content of some by their names."""
    contents = {name: as_file(values) for name, values in VALID.items()} | {"model/model.safetensors": b""} | files
    for name, content in contents.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


# ---------------------------------------------------------------------------------------------------------------------
# Values
# ---------------------------------------------------------------------------------------------------------------------


class Raw:
    """Text in the place of a value in JSON, also of what Python would not write."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return f"Raw({self.text[:80]!r})"


def written(value: Any) -> str:
    """Return JSON with the text of each ``Raw`` in its place."""
    if isinstance(value, Raw):
        return value.text
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{json.dumps(str(name))}:{written(held)}" for name, held in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(written, value)) + "]"
    return json.dumps(value)


DEEP: Final = 100_000
NUMBERS: Final = st.sampled_from(
    [
        *("1e308", "-1e308", "1e400", "-1e400", "NaN", "Infinity", "-Infinity", "1" + "0" * 400, "-1" + "0" * 400),
        *("9" * 5000, "1e-400", "-0.0", "-1", "0.5", "1e300", "9223372036854775808", "18446744073709551616"),
        *("9007199254740993", "1e16", "2147483648"),
    ]
).map(Raw)
NESTED: Final = st.sampled_from(
    [
        "[" * depth + close * depth
        for depth in (50, 990, DEEP)
        for close in ("]", "")  # without the end
    ]
    + ['{"a":' * depth + "1" + "}" * depth for depth in (50, 990)]
).map(Raw)
CONTROL: Final = "\x1b]0;owned\x07\x1b[2J\x1b[31mred\x9b1m\r\n\b\x00\u202eevil\u2028\u2029\x7f"
TEXTS: Final = st.sampled_from(
    [
        *(CONTROL, "\ud800", "\udfff\ud800", "", " ", "\n", "../../etc/passwd", "/dev/zero", "os:system", "%s%n{0}{x}"),
        *("<script>alert(1)</script>", "</script>", "[link=file:///]x[/link]", "[bold]", "\x1b[?1049h", "é" * 70_000),
        *("a" * 300_000, "nan", "1e999", "__class__", "constructor", "__proto__", "TrlEnv/TicTacToe-v0", "NoSuch-v0"),
    ]
) | st.text(st.characters(exclude_categories=()), max_size=20)
LEAVES: Final = st.none() | st.booleans() | st.integers() | st.floats() | NUMBERS | TEXTS | NESTED


values: Final[st.SearchStrategy[Any]] = st.recursive(
    LEAVES, lambda held: st.lists(held, max_size=3) | st.dictionaries(TEXTS, held, max_size=3), max_leaves=6
)
"""Values of JSON of every type, and what a lenient parser reads as one."""


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the paths to all values in a value, at any depth."""
    yield path
    if isinstance(value, Mapping):
        for name, held in value.items():
            yield from places(held, (*path, name))
    elif isinstance(value, list):
        for index, held in enumerate(value):
            yield from places(held, (*path, index))


@st.composite
def spoilt(draw: st.DrawFn, valid: Any, most: int = 2) -> Any:
    """Draw a valid value of which some parts, at any depth, are replaced, removed, written twice or added."""
    value = copy.deepcopy(valid)
    for _ in range(draw(st.integers(1, most))):
        path = draw(st.sampled_from(list(places(value))))
        if not path:
            if draw(st.integers(0, 9)) == 0:
                return draw(values)
            if isinstance(value, dict):
                value[draw(TEXTS)] = draw(values)
            continue
        held = value
        for step in path[:-1]:
            held = held[step]
        name = path[-1]
        match draw(st.sampled_from(["replace", "replace", "replace", "remove", "twice", "cast"])):
            case "replace":
                held[name] = draw(values)
            case "remove":
                del held[name]
            case "cast":
                held[name] = draw(st.sampled_from([[held[name]], {"value": held[name]}, str(held[name])]))
            case "twice" if isinstance(held, dict):
                text = written(held[name])
                held[name] = Raw(f"{text},{json.dumps(str(name))}:{written(draw(values))}")
            case _:
                held.insert(name, draw(values))
    return value


# ---------------------------------------------------------------------------------------------------------------------
# Bytes
# ---------------------------------------------------------------------------------------------------------------------


@st.composite
def damaged(draw: st.DrawFn, content: bytes) -> bytes:
    """Draw the bytes of a file that something has happened to."""
    if draw(st.booleans()):
        return content
    place = draw(st.integers(0, len(content)))
    ways: list[Callable[[], bytes]] = [
        lambda: b"\xef\xbb\xbf" + content,
        lambda: content.replace(b"\n", b"\r\n"),
        lambda: content[:place],
        lambda: content[:place] + draw(st.binary(min_size=1, max_size=4)) + content[place:],
        lambda: content.decode("utf-8", "replace").encode("utf-16"),
        lambda: content + b"\0" * 5000,  # as a crash of the machine leaves it
        lambda: b"\n\n \n" + content + b"\n\n",
        lambda: content.rstrip() + b",\n",
        lambda: b"",
    ]
    return draw(st.sampled_from(ways))()


@st.composite
def documents(draw: st.DrawFn, valid: Any) -> bytes:
    """Draw the bytes of a file with one value."""
    return draw(damaged(as_file([draw(spoilt(valid))])))


@st.composite
def lines(draw: st.DrawFn, valid: Sequence[Any]) -> bytes:
    """Draw the bytes of a file of JSON lines, some of them spoilt and some as they were."""
    kept = [draw(spoilt(one)) if draw(st.booleans()) else one for one in valid]
    return draw(damaged(as_file(kept)))


@st.composite
def runs(draw: st.DrawFn, names: Sequence[str] = tuple(VALID)) -> dict[str, bytes]:
    """Draw the contents of some files of a run."""
    chosen = draw(st.lists(st.sampled_from(list(names)), min_size=1, max_size=2, unique=True))
    return {name: draw(documents(held[0]) if len(held := VALID[name]) == 1 else lines(held)) for name in chosen}


@st.composite
def tomls(draw: st.DrawFn) -> bytes:
    """Draw the bytes of a file with options of an evaluation."""
    lines_ = {"env": '["TrlEnv/Echo-v0"]', "policy": '["solver"]', "episodes": "2"}
    lines_["env_kwargs"] = "{word_length = 3}"
    held = [
        "1e400",
        "nan",
        "-1",
        '"x"',
        "[]",
        "{}",
        "[[1]]",
        "true",
        "10" + "0" * 400,
        '"\\u0000\\u001b[2J"',
        "[" * 999,
    ]
    for name in draw(st.lists(st.sampled_from([*lines_, "seed", "out", "max-tokens-per-turn", "\\u001b"]), max_size=2)):
        lines_[name] = draw(st.sampled_from(held))
    return draw(damaged("\n".join(f"{name} = {value}" for name, value in lines_.items()).encode()))


RUN_FILE: Final[dict[str, Any]] = {
    "env": "TrlEnv/Echo-v0",
    "env_kwargs": {"word_length": 3},
    "turn-limit": 5,
    "history": {"last": 2, "summary": "model", "ask": "Go on."},
    "cutoff": {"episode-s": 60.0, "stragglers": 0.9},
    "curriculum": {"kind": "curriculum", "levels": [{"word_length": 1}, {"word_length": 2}], "rise": 0.5},
    "wrappers": [],
    "success": 0.5,
    "grpo": {"beta": 0.1, "model_init_kwargs": {"dtype": "bfloat16"}},
}


@st.composite
def run_files(draw: st.DrawFn) -> bytes:
    """Draw the bytes of a file with options of a training, in JSON, which is YAML, or as lines."""
    options = draw(spoilt(draw(spoilt(RUN_FILE))))
    if draw(st.booleans()) or not isinstance(options, dict):
        return draw(damaged(as_file([options])))
    values = st.sampled_from(["1e400", ".nan", "nan", "2020-01-01", "&a [*a]", "!!set {x}", "!!float x", "? x", "1:30"])
    equals = draw(st.sampled_from([b": ", b" = "]))
    lines_ = [name.encode("utf-8", "replace") + equals + as_file([value]).strip() for name, value in options.items()]
    lines_ += [f"{draw(st.sampled_from(['seed', 'env', '<<', 'steps', 'model']))}: {draw(values)}".encode()]
    return draw(damaged(b"\n".join(lines_)))


# ---------------------------------------------------------------------------------------------------------------------
# Folders
# ---------------------------------------------------------------------------------------------------------------------

SPARSE: Final = 2**42
"""Bytes of a file with one long line of zeros, which take no space."""


def _sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(SPARSE)


def _socket(path: Path) -> None:
    here = Path.cwd()  # a socket's address has at most 107 bytes
    os.chdir(path.parent)
    try:
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(path.name)
    finally:
        os.chdir(here)


def _link_to_pipe(path: Path) -> None:
    os.mkfifo(path.with_name(f".{path.name}.pipe"))
    path.symlink_to(f".{path.name}.pipe")


def _unreadable(path: Path) -> None:
    path.write_bytes(b"{}")
    path.chmod(0)


ENTRIES: Final[Mapping[str, Callable[[Path], None]]] = {
    "pipe": os.mkfifo,
    "socket": _socket,
    "folder": Path.mkdir,
    "link to itself": lambda path: path.symlink_to(path.name),
    "link to nowhere": lambda path: path.symlink_to("nowhere"),
    "link to a folder": lambda path: path.symlink_to(path.parent),
    "link to a pipe": _link_to_pipe,
    "endless device": lambda path: path.symlink_to("/dev/zero"),
    "empty device": lambda path: path.symlink_to("/dev/null"),
    "terminal": lambda path: path.symlink_to("/dev/tty"),
    "huge": _sparse,
    "unreadable": _unreadable,
    "empty": Path.touch,
}
"""Functions that make something else in the place of a file, by a name."""
NAMES: Final = (
    "new\nline",
    "\x1b[31mred\x1b]0;owned\x07",
    "\udcff\udcfe",
    "-rf",
    "\u202egnp.exe",
    "a" * 200,
    "it's %s {}",
)
"""Names that a file or folder may have."""


def put(entry: str, path: Path) -> None:
    """Replace a file by an entry of ``ENTRIES``."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    ENTRIES[entry](path)


# ---------------------------------------------------------------------------------------------------------------------
# Bounds
# ---------------------------------------------------------------------------------------------------------------------

SECONDS: Final = 20.0
MEMORY: Final = 3 * 2**30
"""Bytes of addresses that a reader may take besides those that the process has."""


class TooSlow(BaseException):
    """A reader did not end in time; no reader can take this for an error of a file."""


@contextmanager
def bounded(seconds: float = SECONDS, memory: int = MEMORY) -> Iterator[None]:
    """Raise ``TooSlow`` in a block that takes long, and ``MemoryError`` where it takes much memory."""
    assert current_thread() is main_thread()

    def stop(number: int, frame: Any) -> None:
        raise TooSlow(f"it did not end within {seconds} s")

    has = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    limits, before = resource.getrlimit(resource.RLIMIT_AS), signal.signal(signal.SIGALRM, stop)
    resource.setrlimit(resource.RLIMIT_AS, (has + memory, limits[1]))
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        resource.setrlimit(resource.RLIMIT_AS, limits)
