import re
from pathlib import Path

import gym_trl


def test_private_names_of_trl_stand_in_one_module() -> None:
    root = Path(gym_trl.__file__).parent
    found = {
        str(path.relative_to(root)): names
        for path in root.rglob("*.py")
        if (names := re.findall(r"(?:trainer|generation)\._[a-z]\w*", path.read_text(encoding="utf-8")))
    }
    assert found.keys() == {"grpo/trl_versions.py"}, found
