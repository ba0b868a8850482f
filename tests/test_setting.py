"""Settings: what is derived, what travels with a model, and which tasks everybody plays."""

import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from gym_trl import GymSpec
from gym_trl.envs.echo import Echo
from gym_trl.errors import ConfigError
from gym_trl.executors import make_pool
from gym_trl.setting import LONG_ANSWER, Options, Setting
from gym_trl.testing import tiny_tokenizer
from gym_trl.types import Message, UnfinishedResponse

GUESS, KUHN = "TrlEnv/GuessNumber-v0", "TrlEnv/KuhnPoker-v0"
HAGGLE = """
from gym_trl.envs.echo import Echo
class Haggle(Echo):
    pass
"""


class Shout(Echo):
    """An environment that is registered nowhere."""


def loud(observation: str, info: Any) -> str:
    return observation.upper()


@pytest.fixture
def haggle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the name of a file with a game, in the working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    name = f"haggle_{abs(hash(tmp_path)) % 10**8}.py"
    Path(name).write_text(HAGGLE, encoding="utf-8")
    return name


def test_the_options_are_the_fields_of_a_setting_and_few() -> None:
    names = list(Setting.__dataclass_fields__)
    assert names == ["env", *Options.__annotations__]
    assert len(Options.__annotations__) <= 14, "what few people need is an option of GymSpec alone"


class Unnamed(Echo):
    """An environment that does not promise Markov keys."""

    metadata: dict[str, Any] = {"render_modes": [], "markov_state_key": False}  # noqa: RUF012 -- as gym.Env has it


class Broken(Echo):
    """An environment that cannot be reset."""

    def reset(self, **_: Any) -> Any:
        raise OSError("no route")


@pytest.mark.parametrize(
    ("env", "options", "named"),
    [
        (GUESS, {}, True),
        ("FrozenLake-v1", {"observe": "render"}, True),
        (KUHN, {"seats": "self"}, False),
        (Unnamed, {}, False),
        (Broken, {}, False),
    ],
)
def test_credit_per_turn_is_the_default_where_markov_keys_name_the_states(env: Any, options: Any, named: bool) -> None:
    assert Setting(env, **options).has_markov_keys is named


def test_an_environment_is_made_with_its_options() -> None:
    setting = Setting(GUESS, env_kwargs={"high": 8}, instructions="Guess.", turn_limit=2, invalid_penalty=0.5)
    env = setting.make()
    env.reset(seed=0)
    assert env.step("<action>x</action>")[1] == -0.5
    assert env.get_wrapper_attr("instructions").startswith("Guess.")
    assert Setting(GUESS, system_prompt="Play.").preamble == [Message("system", "Play.")]
    shown = Setting(Echo, observe=loud, action_format="plain").make().reset(seed=0)[0]
    assert shown == Echo().reset(seed=0)[0].upper()


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"turn_limit": 0}, "turn_limit"),
        ({"max_tokens_per_turn": 0}, "max_tokens_per_turn"),
        ({"action_format": "xml"}, "action_format"),
        ({"history": "all"}, "history"),
        ({"success": "info", "seats": "self"}, "success"),
        ({"observe": "no_such_module:f"}, "no_such_module"),
    ],
)
def test_a_wrong_value_is_refused_by_its_name(options: dict[str, Any], name: str) -> None:
    """Law 22."""
    with pytest.raises(ConfigError, match=name):
        Setting(GUESS, **options)


def test_a_wrong_name_is_refused_by_itself() -> None:
    """Law 22."""
    with pytest.raises(TypeError, match="turn_limt"):
        Setting(GUESS, turn_limt=3)  # type: ignore[call-arg]
    with pytest.raises(ConfigError, match="TrlEnv/Echo-v0"):
        Setting("TrlEnv/Echoo-v0")


def test_everybody_plays_the_same_tasks_and_none_of_the_training() -> None:
    one, other = Setting(GUESS, env_kwargs={"high": 40}), Setting(GUESS, env_kwargs={"high": 40}, action_format="plain")
    assert one.tasks(8) == other.tasks(8) == other.tasks(20)[:8]
    assert one.tasks(8, seed=1) != one.tasks(8)
    trained = list(GymSpec(GUESS, num_tasks=30, num_eval_tasks=10, env_kwargs={"high": 40}).tasks("train"))
    held_out = one.tasks(10)
    assert not {task.seed for task in trained} & {task.seed for task in held_out}
    assert not {task.options["instance"] for task in trained} & {task.options["instance"] for task in held_out}


def test_a_model_that_writes_bare_actions_gets_room_for_the_longest_one() -> None:
    tokenizer = tiny_tokenizer()
    derived = Setting(GUESS, env_kwargs={"high": 8}).for_model(tokenizer, plain=True)
    assert (derived.action_format, derived.max_tokens_per_turn) == ("open", 2)
    assert Setting(GUESS).for_model(tokenizer, plain=True).max_tokens_per_turn == 3
    marked = Setting(GUESS).for_model(tokenizer)
    assert (marked.action_format, marked.max_tokens_per_turn) == ("tag", LONG_ANSWER)
    given = Setting(GUESS, action_format="boxed", max_tokens_per_turn=9).for_model(tokenizer, plain=True)
    assert (given.action_format, given.max_tokens_per_turn) == ("boxed", 9)


def test_a_bare_action_may_end_at_the_limit_only_where_the_format_is_open() -> None:
    """Law 19."""
    for format_, valid in [("open", True), ("plain", False)]:
        env = Setting(GUESS, action_format=format_, max_tokens_per_turn=2).make()
        env.reset(seed=0)
        assert env.step(UnfinishedResponse("25"))[4]["action_valid"] is valid


def test_legal_actions_are_those_of_random_play_and_of_the_solver() -> None:
    assert Setting(GUESS, env_kwargs={"high": 4}, action_format="plain").legal_actions() == {"1", "2", "3", "4"}
    assert Setting(KUHN, seats="self").legal_actions() == {"bet", "pass"}


def test_a_setting_says_how_many_seats_are_played() -> None:
    assert (Setting(KUHN, seats="self").num_seats, Setting(GUESS).num_seats) == (2, 1)


def test_a_setting_is_pickled_and_stepped_in_processes() -> None:
    setting = pickle.loads(pickle.dumps(Setting(GUESS, executor="process")))
    assert setting.probed.executor == "process"
    make_pool(setting.spec.make, setting.probed.executor).close()


# ---------------------------------------------------------------------------------------------------------------------
# Beside a model
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["", "model"])
def test_what_was_saved_beside_a_model_is_found_again(tmp_path: Path, place: str) -> None:
    setting = Setting(GUESS, env_kwargs={"high": 8}, action_format="plain", max_tokens_per_turn=2, history=3)
    (tmp_path / place).mkdir(exist_ok=True)
    setting.save(tmp_path / place)
    assert Setting.beside(tmp_path) == Setting.beside(str(tmp_path)) == setting
    assert Setting.beside(tmp_path, env=GUESS) == setting
    changed = Setting.beside(tmp_path, turn_limit=2, invalid_penalty=None, env_kwargs={"high": 9})
    assert (changed.turn_limit, changed.env_kwargs, changed.max_tokens_per_turn) == (2, {"high": 9}, 2)


def test_on_another_environment_a_model_keeps_its_conversation_only(tmp_path: Path) -> None:
    Setting(GUESS, env_kwargs={"high": 8}, action_format="plain", turn_limit=3, system_prompt="Play.").save(tmp_path)
    other = Setting.beside(tmp_path, env="TrlEnv/Echo-v0")
    assert other == Setting("TrlEnv/Echo-v0", action_format="plain", system_prompt="Play.")


def test_a_model_without_a_setting_needs_an_environment(tmp_path: Path) -> None:
    assert Setting.beside(tmp_path, env=GUESS) == Setting.beside("random", env=GUESS) == Setting(GUESS)
    for model in (tmp_path, "random", None):
        with pytest.raises(ConfigError):
            Setting.beside(model)


def test_a_file_with_one_class_is_that_class(haggle: str, tmp_path: Path) -> None:
    """One class, one name, one set of tasks, however its file is named."""
    whole = f"{haggle}:Haggle"
    assert Setting(haggle) == Setting(whole)
    Setting(whole, turn_limit=3).save(tmp_path)
    for env in (haggle, whole, f"./{whole}", str(tmp_path / haggle)):
        assert Setting.beside(tmp_path, env=env).turn_limit == 3


# ---------------------------------------------------------------------------------------------------------------------
# Law 26
# ---------------------------------------------------------------------------------------------------------------------

STRANGER = "from pathlib import Path\nPath(__file__).with_name('mark').touch()\n" + HAGGLE


def _write(folder: Path, **fields: Any) -> None:
    (folder / "gym_trl.json").write_text(json.dumps({"env": GUESS, **fields}), encoding="utf-8")


@pytest.mark.parametrize(
    "fields",
    [
        {"env": "stranger.py"},
        {"env": "stranger.py:Haggle"},
        {"env": "stranger:Haggle"},
        {"env": "stranger:Some/Game-v0"},
        {"env": 7},
        {"observe": "stranger:Haggle"},
        {"act": "stranger:Haggle"},
        {"success": "stranger:Haggle"},
        {"history": "stranger:Haggle"},
        {"executor": "stranger:Haggle"},
        {"env": "TrlEnv/QA-v0", "env_kwargs": {"dataset": "rows.jsonl", "verify": "stranger:Haggle"}},
        {"env": "External/PettingZoo-v0", "env_kwargs": {"game": ["stranger"]}},
    ],
)
def test_a_file_names_registered_environments_only_and_no_functions(
    fields: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Law 26."""
    monkeypatch.chdir(tmp_path)
    Path("stranger.py").write_text(STRANGER, encoding="utf-8")
    _write(tmp_path, **fields)
    with pytest.raises(ConfigError):
        Setting.beside(tmp_path)
    assert not Path("mark").exists()


def test_numbers_and_the_texts_of_this_librarys_games_are_data(tmp_path: Path) -> None:
    """Law 26."""
    _write(tmp_path, env="TrlEnv/Echo-v0", env_kwargs={"alphabet": "a:b.py", "turns": 2}, action_format="json:guess")
    assert Setting.beside(tmp_path).env_kwargs["turns"] == 2
    _write(tmp_path, env="FrozenLake-v1", env_kwargs={"is_slippery": False}, success=0.5, observe="render", history=4)
    assert Setting.beside(tmp_path).history == 4


def test_what_the_user_repeats_is_used(haggle: str, tmp_path: Path) -> None:
    """Law 26."""
    Setting(f"{haggle}:Haggle", turn_limit=3).save(tmp_path)
    with pytest.raises(ConfigError, match=haggle):
        Setting.beside(tmp_path)
    assert Setting.beside(tmp_path, env=haggle).turn_limit == 3


def test_a_function_without_a_name_is_refused_instead_of_being_left_out(tmp_path: Path) -> None:
    Setting(Shout, observe=lambda observation, info: observation).save(tmp_path)
    with pytest.raises(ConfigError):
        Setting.beside(tmp_path, env=Shout)
    assert Setting.beside(tmp_path, env=Shout, observe=loud).observe is loud


@pytest.mark.parametrize("content", ["{", "[]", "[" * 10_000, '"text"', '{"turn_limit": 3}'])
def test_a_broken_file_is_refused(content: str, tmp_path: Path) -> None:
    (tmp_path / "gym_trl.json").write_text(content, encoding="utf-8")
    with pytest.raises(ConfigError):
        Setting.beside(tmp_path)
