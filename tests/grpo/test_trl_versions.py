import re
from pathlib import Path

import pytest
import trl
from trl import GRPOTrainer

import gym_trl
from gym_trl import GymGRPOTrainer
from gym_trl.errors import ConfigError
from gym_trl.grpo import trl_versions


def test_private_names_of_trl_stand_in_the_trainer_and_beside_it() -> None:
    root = Path(gym_trl.__file__).parent
    found = {
        str(path.relative_to(root)): names
        for path in root.rglob("*.py")
        if (names := re.findall(r"(?:trainer|generation)\._[a-z]\w*", path.read_text(encoding="utf-8")))
    }
    assert found.keys() <= {"grpo/speed.py", "grpo/trainer.py", "grpo/trl_versions.py"}, found


def test_the_methods_that_the_trainer_overrides_are_those_that_a_newer_trl_is_asked_for() -> None:
    own = {name for name in vars(GymGRPOTrainer) if hasattr(GRPOTrainer, name) and callable(getattr(GRPOTrainer, name))}
    assert {name for name in own if not name.startswith("__")} == set(trl_versions.OVERRIDDEN)


@pytest.mark.parametrize(("version", "ends"), [("1.15.0", ConfigError), ("1.99.0", RuntimeWarning)])
def test_an_older_trl_is_refused_and_a_newer_one_is_warned_of(
    version: str, ends: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trl, "__version__", version)
    with pytest.raises(ends) if ends is ConfigError else pytest.warns(RuntimeWarning, match=re.escape(version)):
        trl_versions.check_trl.__wrapped__()
