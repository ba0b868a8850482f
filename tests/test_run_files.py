"""Files with the options of a training: equal after any way through a file, or refused in one line."""

import json
import re
import shlex
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
from hypothesis import given, strategies as st
from support.lanes import examples
from support.marks import write_stranger
from test_flags import OF_COMMANDS, flagged, taken, values
from typer.testing import CliRunner, Result

from gym_trl.cli.app import app
from gym_trl.cli.flags import write_flags
from gym_trl.errors import ConfigError
from gym_trl.kinds import option_types
from gym_trl.options import Curriculum, History, League, Options, PrioritizedTasks, TrainOptions, nested_in
from gym_trl.training.options import choose, read_options
from gym_trl.training.run_file import read_run_file, write_run_file
from gym_trl.trust import Trust

ECHO = "TrlEnv/Echo-v0"
EVERY_NESTED = {
    "env": "FrozenLake-v1",
    "env_kwargs": {"is_slippery": False, "map_name": "1e5", "rate": 1e-6, "list": [1, {"a": None}], "on": "no"},
    "curriculum": {"levels": [{"map_name": "4x4"}, {"map_name": "8x8"}], "rise": 0.5, "level": 1},
    "wrappers": ["gymnasium.wrappers:ClipReward"],
    "observe": "json:dumps",
    "act": "json:loads",
    "success": "math:hypot",
    "state_key": "json:dumps",
    "history": {"last": 2, "summary": "json:dumps", "template": True},
    "max_tokens_per_turn": 4,
    "cutoff": {"stragglers": 0.5, "on_cutoff": "truncated", "episode_s": 1e-3},
    "credit": "math:fsum",
    "system_prompt": "2020-01-01\n  two: lines # no comment\n",
    "instructions": "ä😀: 'x' \"y\" \\n {} [] & * ! | > % @ ` null",
    "episodes_per_step": 6,
    "num_generations": 3,
    "learning_rate": 1e-6,
    "grpo": {"beta": 1e5, "temperature": 1e-05},
}
EVERY_OTHER = {
    "env": "TrlEnv/TicTacToe-v0",
    "seats": {"opponents": ["random", "json:loads"], "every": 3, "schedule": "prioritized", "prefer": "even"},
    "history": {"summary": "model", "ask": "1e6", "last": 1, "most": 3},
    "max_tokens_per_turn": 4,
    "executor": "process",
    "workers": 2,
    "step_timeout": 0.5,
    "action_format": r"regex:(?i)\bmove\s+(\d+)",
    "model": "null",
    "lora": 4,
    "lora_targets": ["q_proj", "1e5", "yes"],
    "dtype": "bfloat16",
    "vllm": "colocate",
    "overlong_cache": 100,
}
SMALLEST: Mapping[type[Options], Mapping[str, Any]] = {
    Curriculum: {"levels": [{}, {}]},
    History: {"last": 2},
    League: {"every": 2},
}
FIRST = ("model", "lora", "max_tokens_per_turn", "vllm")
"""Options that others need."""


def accepted(options: type[Options], drawn: Mapping[str, Any], start: Mapping[str, Any]) -> dict[str, Any]:
    """Return those values that are valid together."""
    found = dict(start)
    for name in sorted(drawn, key=lambda one: one not in FIRST):
        nested = nested_in(option_types(options)[name])
        value = drawn[name]
        if nested and isinstance(value, Mapping):
            kind = next((one for one in nested if set(value) - {"kind"} <= set(option_types(one))), nested[0])
            inner = {key: one for key, one in value.items() if key != "kind"}
            value = accepted(kind, inner, SMALLEST.get(kind, {}))
        try:
            options.of({**found, name: value})
        except ConfigError:
            continue
        found[name] = value
    return found


def writable(value: Any) -> Any:
    """Return a value without the characters that no file of options may have."""
    if isinstance(value, str):
        return "".join(one for one in value if one != "\0" and not "\ud800" <= one <= "\udfff")
    if isinstance(value, Mapping):
        return {writable(name): writable(one) for name, one in value.items()}
    return [writable(one) for one in value] if isinstance(value, list) else value


GRPO = st.sampled_from([{}, {"beta": 1e-05, "loss_type": "dapo"}, {"temperature": 1e5, "bf16": None}])


def any_options(options: type[Options]) -> st.SearchStrategy[Options]:
    """Return options of a type, which are valid together."""
    drawn = {name: values(kind) for name, kind in flagged(options).items()}
    drawn |= {"grpo": GRPO} if "grpo" in drawn else {}
    env = st.sampled_from([ECHO, "FrozenLake-v1", "a/b"])
    return env.flatmap(
        lambda env: st.fixed_dictionaries({}, optional=drawn).map(
            lambda given: options.of(accepted(options, writable(given), {"env": env}))
        )
    )


def toml(value: Any) -> str:
    """Return a value in TOML."""
    if isinstance(value, dict):
        return f"{{{', '.join(f'{toml(name)} = {toml(one)}' for name, one in value.items())}}}"
    if isinstance(value, list):
        return f"[{', '.join(toml(one) for one in value)}]"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def without_none(value: Any) -> Any:
    """Return a value without what is ``None``, which TOML does not have: almost always the default of an option."""
    if isinstance(value, dict):
        return {name: without_none(one) for name, one in value.items() if one is not None}
    return [without_none(one) for one in value if one is not None] if isinstance(value, list) else value


def read(path: Path, text: str, options: type[Options] = TrainOptions) -> Options:
    path.write_text(text, encoding="utf-8", newline="")
    return options.of(read_run_file(path, Trust(everything=True), options, lambda given: ()))


def goes_through_files(folder: Path, options: Options) -> None:
    """Check that options are equal after any way through a file, and as flags."""
    kind, written = type(options), options.as_dict()
    stored = json.dumps(written, allow_nan=False)
    assert kind.of(json.loads(stored)) == options
    assert read(folder / "run.json", stored, kind) == options
    assert read(folder / "config.json", json.dumps({"version": 1, "options": written}), kind) == options
    assert read(folder / "run.yaml", write_run_file(options), kind) == options
    assert read(folder / "run.yml", stored, kind) == options  # JSON is YAML
    words = {name: value for name, value in written.items() if name in flagged(kind)}
    assert kind.of({"env": written["env"], **taken(kind, write_flags(words, kind))}) == options
    if isinstance(options, TrainOptions):
        assert read_options(folder, trust=Trust(everything=True)) == options  # as a resumed run does
    if isinstance(options, TrainOptions) and options.model is None:  # of a model it looks for the folder
        assert choose(**written) == options
    said = without_none(written)
    with suppress(ConfigError):  # a list of opponents, for example, that has become empty
        expected = kind.of(said)
        lines = "\n".join(f"{name} = {toml(value)}" for name, value in said.items())
        assert read(folder / "run.toml", lines, kind) == expected


@pytest.mark.parametrize("kind", OF_COMMANDS, ids=lambda kind: kind.__name__)
@examples(50)
@given(data=st.data())
def test_any_options_are_equal_after_any_way_through_a_file(
    tmp_path_factory: pytest.TempPathFactory, kind: type[Options], data: st.DataObject
) -> None:
    goes_through_files(tmp_path_factory.mktemp("run"), data.draw(any_options(kind)))


def test_some_options_are_equal_after_any_way_through_a_file(tmp_path: Path) -> None:
    for given_ in (EVERY_NESTED, EVERY_OTHER, {"curriculum": "prioritized", "history": {"template": True}}):
        goes_through_files(tmp_path, TrainOptions.of(given_))


def test_toml_has_all_options_that_are_set(tmp_path: Path) -> None:
    for number, options in enumerate(map(TrainOptions.of, (EVERY_NESTED | {"env_kwargs": {"a": 1}}, EVERY_OTHER))):
        lines = [f"{name} = {toml(value)}" for name, value in without_none(options.as_dict()).items()]
        assert read(tmp_path / f"{number}.toml", "\n".join(lines)) == options


# Commands


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Working directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def mark(place: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """File that the modules of the working directory make when they are imported."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield write_stranger(place)
    for name in [name for name in sys.modules if name.partition(".")[0] in ("stranger", "inner")]:
        del sys.modules[name]
    gym.registry.pop("Stranger-v0", None)


def train(*words: str) -> Result:
    return CliRunner().invoke(app, ["train", *words])


def shown(*words: str) -> TrainOptions:
    """Return the options that a command would train with."""
    result = train(*words, "--print-config")
    assert result.exit_code == 0, result.stderr
    Path("shown.yaml").write_text(result.stdout, encoding="utf-8")
    return TrainOptions.of(read_run_file(Path("shown.yaml"), Trust(everything=True)))


def refusal(*words: str) -> str:
    """Return the line with which a command is refused."""
    result = train(*words)
    assert result.exit_code == 2, result.output
    assert result.stderr.startswith("Error: "), result.stderr
    assert result.stderr.count("\n") == 1, result.stderr
    return result.stderr.removeprefix("Error: ").strip()


YAML = """
env: TrlEnv/Echo-v0
env_kwargs: {word_length: 2}
learning-rate: 1e-6
turn_limit: 3
cutoff:
  episode-s: 60
  rollout_s: 90
history: {last: 2, most: 6}
grpo: {beta: 0.1}
"""
TOML = """
env = "TrlEnv/Echo-v0"
env_kwargs = {word_length = 2}
learning-rate = 1e-6
turn_limit = 3
history = {last = 2, most = 6}
cutoff.episode-s = 60
cutoff.rollout_s = 90
[grpo]
beta = 0.1
"""
OPTIONS = {
    "env_kwargs": {"word_length": 2},
    "learning_rate": 1e-6,
    "turn_limit": 3,
    "cutoff": {"episode_s": 60, "rollout_s": 90},
    "history": {"last": 2, "most": 6},
    "grpo": {"beta": 0.1},
}
FORMS = {"yaml": YAML, "yml": YAML, "toml": TOML, "json": json.dumps({"env": ECHO, **OPTIONS})}


@pytest.mark.parametrize("suffix", FORMS)
def test_a_file_sets_the_options_of_its_names_and_flags_override_it(place: Path, suffix: str) -> None:
    file = place / f"run.{suffix}"
    file.write_text(FORMS[suffix], encoding="utf-8")
    expected = choose(ECHO, **OPTIONS)  # type: ignore[arg-type]
    assert expected.env_kwargs == {"alphabet": "abcd", "word_length": 2}  # with the preset of the environment
    assert shown(file.name) == expected
    words = (
        "--turn-limit 4 --cutoff.rollout-s 5 --history.most 7 --env-kwargs word_length=1 --grpo beta=0.2 --workers 2"
    )
    changes = {
        "turn_limit": 4,
        "cutoff": {"episode_s": 60, "rollout_s": 5},
        "history": {"last": 2, "most": 7},
        "env_kwargs": {"word_length": 1},
        "grpo": {"beta": 0.2},
        "workers": 2,
    }
    assert shown(file.name, *words.split()) == choose(ECHO, **{**OPTIONS, **changes})  # type: ignore[arg-type]
    assert shown(file.name, "--history", "none", "--cutoff", '{"stragglers": 0.5}').history is None


def test_a_flag_of_another_kind_replaces_the_options_of_a_file(place: Path) -> None:
    Path("run.yaml").write_text(
        "curriculum: {kind: curriculum, levels: [{high: 2}, {high: 4}], rise: 0.5}", encoding="utf-8"
    )
    assert shown("run.yaml", "--curriculum.rise", "0.6").curriculum == Curriculum([{"high": 2}, {"high": 4}], rise=0.6)
    prioritized = shown("run.yaml", "--curriculum.kind", "prioritized_tasks", "--curriculum.explore", "0.2").curriculum
    assert prioritized == PrioritizedTasks(explore=0.2)
    assert shown("run.yaml", "--curriculum", "prioritized").curriculum == PrioritizedTasks()


@pytest.mark.parametrize(
    "words",
    [
        "",
        "TrlEnv/Echo-v0 --env-kwargs word_length=1 --steps 3",
        "FrozenLake-v1 --curriculum prioritized --cutoff.episode-s 1e-3 --success json:loads --grpo beta=1e-5",
        "TrlEnv/TicTacToe-v0 --seats.opponents random --seats.every 25 --seats.schedule prioritized",
        "TrlEnv/GuessNumber-v0 --vllm colocate",
        "TrlEnv/GuessNumber-v0 --model org/name --lora 8 --history.last 8 --no-strict",
    ],
)
def test_a_printed_file_has_the_same_options_with_the_presets(place: Path, words: str) -> None:
    printed = train(*words.split(), "--print-config")
    assert printed.exit_code == 0, printed.stderr
    Path("run.yaml").write_text(printed.stdout, encoding="utf-8")
    again = train("run.yaml", "--trust", "--print-config")
    assert again.stdout == printed.stdout
    assert option_types(TrainOptions).keys() == read_run_file(Path("run.yaml"), Trust(everything=True)).keys()


def test_the_config_of_a_run_gives_its_options_without_presets(place: Path) -> None:
    options = TrainOptions(env=ECHO, steps=3, turn_limit=2)  # not those that the preset of Echo has
    folder = Path("runs/first")
    folder.mkdir(parents=True)
    text = json.dumps({"version": 1, "options": options.as_dict(), "command": "gym-trl train"})
    (folder / "config.json").write_text(text, encoding="utf-8")
    assert shown("runs/first/config.json") == options
    assert shown("runs/first/config.json", "--steps", "400") == replace(options, steps=400)


WRONG = {
    "5": "run.yaml must have options by name, and at most 100 levels of lists and mappings",
    "": "run.yaml is empty: it must have options by name",
    "env_kwargs: {a: " + "[" * 200 + "]" * 200 + "}": "run.yaml cannot be read: line 1 has more than 100 levels",
    "[" * 5000: "run.yaml cannot be read: line 1 has more than 100 levels",
    "a: [": "run.yaml cannot be read: line 1: expected the node content, but found .*",
    "--- {}\n--- {}": "run.yaml cannot be read: line 2: but found another document",
    "? [a]\n: b": "run.yaml cannot be read: line 1: found unhashable key",
    "\nsuccess: !!python/object/apply:os.system [true]": "run.yaml cannot be read: line 2 has .* a tag .*",
    "a: &a [1]\nb: *a": "run.yaml cannot be read: line 1 has an anchor, .*",
    "steps: !!timestamp 5": "run.yaml cannot be read: line 1 has an anchor, .*",
    "turn_limit: 1\nturn_limit: 2": "run.yaml cannot be read: turn_limit is given twice",
    "turn_limit: 1\nturn-limit: 2": "turn_limit is given twice: 1, and 2",
    "steps: 1e3": "steps must be an integer of at least 1, got 1000.0",
    "seed: 2020-01-01": "seed must be .*, got '2020-01-01'",
    "learning_rate: .nan": "learning_rate must be a number of at least 0, got nan",
    "env:": "env must be text, got None",
    "env_kwargs: 5": "env_kwargs must be a mapping with names as keys, got 5",
    "grpo: 5\nvllm: colocate": "grpo must be a mapping with names as keys, got 5",
    "curriculum: {kind: []}": r"curriculum.kind must be .*, got \[\]",
    'system_prompt: "a\\0b"': "run.yaml has a text with a null character, .*",
    "system_prompt: a\0b": "run.yaml cannot be read: unacceptable character .*",
    "# " + "x" * 2**18: "run.yaml must have at most 262144 bytes to be read as options, got 262146",
    "out: runs/here": "there is no option out",
    "trust: true": "there is no option trust",
}


@pytest.mark.parametrize("text", WRONG, ids=lambda text: text[:30])
def test_a_wrong_file_is_refused_in_one_line(place: Path, text: str) -> None:
    Path("run.yaml").write_text(text, encoding="utf-8")
    assert re.fullmatch(WRONG[text], refusal("run.yaml"))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("run.toml", b"steps =", "run.toml cannot be read: Invalid value .*"),
        ("run.toml", b"steps = 1\nsteps = 2", "run.toml cannot be read: Cannot overwrite a value .*"),
        ("run.toml", b"steps = 2020-01-01", "steps must be an integer of at least 1, got '2020-01-01'"),
        ("run.toml", b"seed = 0x" + b"f" * 6000, "run.toml cannot be read: Exceeds the limit .*"),
        ("run.json", b"{", "run.json cannot be read: Expecting property name .*"),
        ("run.json", b"[]", "run.json must have options by name, .*"),
        ("run.json", b'{"steps": NaN}', "steps must be an integer of at least 1, got nan"),
        ("run.json", b'{"version": 1, "options": {"steps": "x"}}', "steps must be an integer of at least 1, got 'x'"),
        ("run.yaml", b"\xff", "run.yaml cannot be read: 'utf-8' codec .*"),
    ],
)
def test_another_wrong_file_is_refused_in_one_line(place: Path, name: str, content: bytes, message: str) -> None:
    Path(name).write_bytes(content)
    assert re.fullmatch(message, refusal(name))


def test_aliases_that_would_fill_the_memory_are_refused(place: Path) -> None:
    lines = ["a0: &a0 [x, x]", *(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]" for n in range(1, 60))]
    Path("run.yaml").write_text("\n".join(lines), encoding="utf-8")
    assert "line 1 has an anchor" in refusal("run.yaml")


def test_what_is_no_file_is_refused_in_one_line(place: Path) -> None:
    Path("folder.yaml").mkdir()
    Path("run.yaml").write_text("steps: 1", encoding="utf-8")
    assert refusal("none.yaml") == "there is no file none.yaml"
    assert refusal("folder.yaml") == "Is a directory: folder.yaml"
    assert refusal("--resume", "run.yaml") == "run.yaml is not a run: it has no config.json"
    assert refusal("--resume", "none", "run.yaml") == "none is not a run: it has no config.json"
    assert refusal("run.yaml", ECHO) == f"expected one file, or environments, got run.yaml {ECHO}"
    assert refusal(ECHO, "run.yaml") == f"expected one file, or environments, got {ECHO} run.yaml"


def test_a_run_is_not_resumed_with_the_options_of_a_file(place: Path) -> None:
    Path("run").mkdir()
    text = json.dumps({"version": 1, "options": choose(ECHO).as_dict()})
    (Path("run") / "config.json").write_text(text, encoding="utf-8")
    Path("run.yaml").write_text("steps: 1", encoding="utf-8")
    assert refusal("--resume", "run", "run.yaml") == (
        f"--resume continues the run in run on {ECHO}, not on run.yaml: leave out the ID"
    )


# Trust

NAMED: dict[str, tuple[dict[str, Any], list[str]]] = {
    "env": ({"env": "stranger.py:Game"}, ["stranger.py:Game"]),
    "success": ({"env": ECHO, "success": "stranger:won"}, ["stranger:won"]),
    "with dashes": ({"env": ECHO, "state-key": "stranger:key"}, ["stranger:key"]),
    "nested": ({"env": ECHO, "history": {"last": 1, "summary": "stranger:won"}}, ["stranger:won"]),
    "wrappers": ({"env": ECHO, "wrappers": ["stranger:make", "stranger:won"]}, ["stranger:make", "stranger:won"]),
    "seats": ({"env": "TrlEnv/TicTacToe-v0", "seats": {"opponents": ["stranger:play"]}}, ["stranger:play"]),
    "env-kwargs": ({"env": "TrlEnv/QA-v0", "env-kwargs": {"verify": "stranger:check"}}, ["stranger:check"]),
    "grpo": ({"env": ECHO, "grpo": {"push_to_hub": True}}, ["push_to_hub"]),
}


@pytest.mark.parametrize("suffix", ["yaml", "toml", "json"])
@pytest.mark.parametrize("case", NAMED)
def test_a_file_names_only_what_is_registered_or_repeated(mark: Path, case: str, suffix: str) -> None:
    options, names = NAMED[case]
    text = "\n".join(f"{name} = {toml(value)}" for name, value in options.items())
    file = Path(f"run.{suffix}")
    file.write_text(text if suffix == "toml" else json.dumps(options), encoding="utf-8")
    refused = train(file.name, "--steps", "3", "--cutoff.episode-s", "9")
    assert refused.exit_code == 2
    assert f"{file} names what is not registered, and nothing of it has been used" in refused.stderr
    assert not mark.exists()
    assert "stranger" not in sys.modules
    advice = re.search(r"repeat the name \((gym-trl .*)\), or give --trust", refused.stderr)
    assert advice is not None, refused.stderr
    words = shlex.split(advice[1])
    assert sorted(words) == sorted(["gym-trl", "train", file.name, "--steps", "3", "--cutoff.episode-s", "9", *names])
    for more in (words[2:], [file.name, "--trust"]):
        used = train(*more, "--max-tokens-per-turn", "4", "--print-config")
        assert "not registered" not in used.stderr
    assert mark.exists() or case in ("env", "seats", "env-kwargs", "grpo")  # which are loaded when they are used


def test_a_text_of_a_file_is_no_name_that_the_user_has_repeated(mark: Path) -> None:
    Path("run.yaml").write_text("system_prompt: stranger:won\nsuccess: stranger:won", encoding="utf-8")
    assert "success = 'stranger:won'" in train("run.yaml").stderr
    assert not mark.exists()
