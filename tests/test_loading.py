from pathlib import Path

import pytest

from gym_trl.errors import ConfigError
from gym_trl.loading import env_maker

MODULE = """
import gymnasium as gym
class First(gym.Env):
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


@pytest.mark.parametrize("name", ["{}:First", "{}:make", "{}.py:First", "{}:Loading{}/Third-v0"])
def test_a_name_may_be_of_a_class_a_function_or_an_id_in_a_module_or_file(folder: Path, name: str) -> None:
    module = f"loaded_{abs(hash(name)) % 10**6}"
    write(folder, module)
    maker = env_maker(name.replace("{}", module))
    assert maker is not None
    assert maker(size=3).unwrapped.size == 3  # type: ignore[attr-defined]


def test_a_file_with_one_environment_needs_no_more(folder: Path) -> None:
    write(folder, "only_class", MODULE.split("class Second", maxsplit=1)[0])
    maker = env_maker("only_class.py")
    assert maker is not None
    assert type(maker()).__name__ == "First"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("nothing_here.py", "there is no file nothing_here.py"),
        ("nothing_here:First", "there is no module 'nothing_here', not in"),
        ("several:Fourth", "several has nothing called 'Fourth' that makes an environment; its classes: First, Second"),
        ("empty.py", "empty.py has none"),
        ("broken:First", "importing broken raised ZeroDivisionError: division by zero"),
        ("wanting:First", "importing wanting raised ModuleNotFoundError: No module named 'not_to_be_had'"),
        ("json.py", "cannot be imported: another module is called 'json'"),
        ("two.py", "two.py has several environments: say two.py:First or two.py:Second"),
    ],
)
def test_what_makes_no_environment_is_refused_with_what_there_is(folder: Path, name: str, said: str) -> None:
    write(folder, "several")
    write(folder, "two", MODULE.split("gym.register", maxsplit=1)[0])
    for module, text in (("empty", ""), ("json", ""), ("broken", "1 / 0"), ("wanting", "import not_to_be_had")):
        write(folder, module, text)
    with pytest.raises(ConfigError) as caught:
        env_maker(name)
    assert said in str(caught.value)


def test_an_id_that_nobody_registered_is_none() -> None:
    assert env_maker("Nobody/Has-v0") is None
    assert env_maker("json:Nobody/Has-v0") is None
