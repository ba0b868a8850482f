import os
import re
import subprocess
import sys
from pathlib import Path

import gym_trl


def test_private_names_of_trl_stand_in_the_trainer_and_beside_it() -> None:
    root = Path(gym_trl.__file__).parent
    found = {
        str(path.relative_to(root)): names
        for path in root.rglob("*.py")
        if (names := re.findall(r"(?:trainer|generation)\._[a-z]\w*", path.read_text(encoding="utf-8")))
    }
    assert found.keys() <= {"grpo/speed.py", "grpo/trainer.py", "grpo/trl_versions.py"}, found


ALONE = """
import sys
from gym_trl.grpo.trl_versions import import_trainer_alone

import_trainer_alone()
assert "trl.trainer.grpo_trainer" in sys.modules
assert "vllm" not in sys.modules
from trl.trainer.grpo_trainer import VLLMGeneration

assert "LLM" not in VLLMGeneration.__init__.__globals__
import vllm

assert vllm.LLM is not None
"""


def test_a_command_without_vllm_does_not_wait_for_its_import(tmp_path: Path) -> None:
    (tmp_path / "vllm.py").write_text("LLM = object()")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    ran = subprocess.run(
        [sys.executable, "-c", ALONE], env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert ran.returncode == 0, ran.stderr
