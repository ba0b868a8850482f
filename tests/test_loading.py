from collections.abc import Callable
from pathlib import Path
from threading import Lock
from typing import Any

import gymnasium as gym
import pytest

from gym_trl.bases import run
from gym_trl.envs.echo import Echo
from gym_trl.errors import ConfigError
from gym_trl.evaluation import evaluate
from gym_trl.grpo.spec import GymSpec
from gym_trl.registration import env_name, find_maker, make_env

MODULE = """
import gymnasium as gym
class First(gym.Env):
    observation_space = action_space = gym.spaces.Discrete(2)
    def __init__(self, size=1):
        self.size = size
class Second(First):
    pass
class _Hidden(First):
    pass
def make(size):
    return First(size)
gym.register("Loading{name}/Third-v0", First)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def write(folder: Path, name: str, text: str = MODULE) -> None:
    (folder / f"{name}.py").write_text(text.replace("{name}", name), encoding="utf-8")


@pytest.mark.parametrize("name", ["{}:First", "{}:make", "{}.py:First", "{}:Loading{}/Third-v0", "{}.py"])
def test_a_name_may_be_of_a_class_a_function_or_an_id_in_a_module_or_file(folder: Path, name: str) -> None:
    module = f"loaded_{abs(hash(name)) % 10**6}"
    write(folder, module)
    maker = find_maker(name.replace("{}", module))
    assert maker(size=3).unwrapped.size == 3  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("nothing_here.py", "there is no file nothing_here.py"),
        ("nothing_here:First", "there is no module 'nothing_here', in"),
        ("several:Fourth", "several has nothing called 'Fourth' that makes an environment; its classes: First, Second"),
        ("empty.py", "empty.py has no subclass of gymnasium.Env"),
        ("broken:First", "importing broken raised ZeroDivisionError: division by zero"),
        ("wanting:First", "importing wanting raised ModuleNotFoundError: No module named 'not_to_be_had'"),
        ("json.py", "cannot be imported: another module is called 'json'"),
        ("two.py", "two.py has several environments; name one: two.py:First or two.py:Second"),
        ("Nobody/Has-v0", "there is no environment 'Nobody/Has-v0'"),
        ("json:Nobody/Has-v0", "there is no environment 'json:Nobody/Has-v0'"),
    ],
)
def test_what_makes_no_environment_is_refused_with_what_there_is(folder: Path, name: str, said: str) -> None:
    write(folder, "several")
    write(folder, "two", MODULE.split("gym.register", maxsplit=1)[0])
    for module, text in (("empty", ""), ("json", ""), ("broken", "1 / 0"), ("wanting", "import not_to_be_had")):
        write(folder, module, text)
    with pytest.raises(ConfigError) as caught:
        find_maker(name)
    assert said in str(caught.value)


# ---------------------------------------------------------------------------------------------------------------------
# Classes, functions and files wherever an id is taken
# ---------------------------------------------------------------------------------------------------------------------


class Shout(Echo):
    """An environment of somebody who registers nothing."""


def make_shout(turns: int = 1) -> gym.Env[str, str]:
    return Shout(turns=turns)


def first_observation(spec: GymSpec) -> str:
    task = next(spec.tasks("train"))
    with spec.make_pool() as pool:
        reply = run(pool.execute("a", task))
    return str(getattr(reply, "observation", reply))


@pytest.mark.parametrize("executor", ["inline", "thread", "process"])
@pytest.mark.parametrize(
    "env", [Shout, make_shout, lambda turns: Shout(turns=turns)], ids=["class", "function", "lambda"]
)
def test_a_class_or_a_function_is_played_wherever_an_id_is(env: Callable[..., Any], executor: str) -> None:
    spec = GymSpec(env, num_tasks=4, env_kwargs={"turns": 3}, executor=executor)
    assert list(spec.weights) == [env_name(env)]
    assert next(spec.tasks("train")).env_id == env_name(env)
    assert first_observation(spec) == first_observation(GymSpec("TrlEnv/Echo-v0", num_tasks=4, env_kwargs={"turns": 3}))


@pytest.mark.parametrize("weight", [0, -1, float("inf"), float("nan"), "2", None])
def test_a_weight_that_is_no_share_is_refused(weight: Any) -> None:
    """Law 22."""
    with pytest.raises(ConfigError, match="weight"):
        GymSpec({"TrlEnv/Echo-v0": weight, "TrlEnv/Wordle-v0": 1}, num_tasks=4)


@pytest.mark.parametrize("executor", ["inline", "process"])
def test_a_class_in_a_file_is_played_wherever_an_id_is(folder: Path, executor: str) -> None:
    write(folder, f"filed_{executor}", "from gym_trl.envs.echo import Echo\nclass Filed(Echo): pass\n")
    spec = GymSpec(f"filed_{executor}.py:Filed", num_tasks=4, executor=executor)
    assert first_observation(spec) == first_observation(GymSpec("TrlEnv/Echo-v0", num_tasks=4))


def test_classes_can_be_mixed_by_weight_with_ids() -> None:
    spec = GymSpec({Shout: 1, "TrlEnv/GuessNumber-v0": 3}, num_tasks=8)
    assert [task.env_id for task in spec.tasks("train")].count(env_name(Shout)) == 2


def test_the_name_of_a_class_is_the_same_in_every_record() -> None:
    [row] = evaluate(Shout, model="solver", episodes=2, references=()).scores
    assert {record["task"]["env_id"] for record in row.records} == {env_name(Shout)} == {f"{__name__}:Shout"}


def test_two_environments_of_one_name_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"two environments are called .*<lambda>"):
        GymSpec([lambda: Shout(turns=1), lambda: Shout(turns=2)])


def test_what_cannot_travel_to_another_process_is_refused_at_construction() -> None:
    lock = Lock()
    GymSpec(lambda: Shout() if lock else None, executor="thread", num_tasks=1)
    with pytest.raises(ConfigError):
        GymSpec(lambda: Shout() if lock else None, executor="process")


@pytest.mark.parametrize(
    ("env", "kwargs", "said"),
    [
        ("TrlEnv/GuessNumber-v0", {"hihg": 3}, "TrlEnv/GuessNumber-v0 has no argument 'hihg'; did you mean 'high'?"),
        ("CartPole-v1", {"rendr_mode": 1}, "CartPole-v1 has no argument 'rendr_mode'; did you mean 'render_mode'?"),
        ("External/GEM-v0", {}, "External/GEM-v0 needs an argument in env_kwargs: game"),
        (Shout, {"trns": 1}, f"{__name__}:Shout has no argument 'trns'; did you mean 'turns'?"),
        (make_shout, {"xyz": 1}, f"{__name__}:make_shout has no argument 'xyz'; it has turns"),
        ("TrlEnv/Echoo-v0", {}, "there is no environment 'TrlEnv/Echoo-v0'; did you mean TrlEnv/Echo-v0?"),
        (lambda: 3, {}, f"{__name__}:<lambda> makes no gymnasium.Env: int"),
        (3, {}, "env must be an id, file.py:Class, a class or a function that makes one, got 3"),
    ],
)
def test_what_is_misspelt_is_answered_with_the_nearest_right_name(env: Any, kwargs: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as raised:
        make_env(env, **kwargs)
    assert str(raised.value) == said
    with pytest.raises(ConfigError) as raised:
        GymSpec(env, env_kwargs=kwargs)
    assert str(raised.value) == said
