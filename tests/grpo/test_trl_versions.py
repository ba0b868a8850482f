import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import gym_trl


def test_private_names_of_trl_stand_in_one_module() -> None:
    root = Path(gym_trl.__file__).parent
    found = {
        str(path.relative_to(root)): names
        for path in root.rglob("*.py")
        if (names := re.findall(r"(?:trainer|generation)\._[a-z]\w*", path.read_text(encoding="utf-8")))
    }
    assert found.keys() == {"grpo/trl_versions.py"}, found


ALONE = """
import sys
from gym_trl.grpo.trl_versions import import_trainer_alone

import_trainer_alone()
from trl.trainer.grpo_trainer import VLLMGeneration as made_before

assert "vllm" not in sys.modules
names = made_before.__init__.__globals__
assert names["is_vllm_available"](), "TRL asks before it generates"
from trl.generation.vllm_client import VLLMClient
from vllm import LLM

assert names["LLM"] is LLM and names["VLLMClient"] is VLLMClient
"""


@pytest.mark.vllm
@pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed: make test-full does it on Linux")
def test_vllm_is_imported_when_a_trainer_asks_for_it_and_not_before() -> None:
    ran = subprocess.run([sys.executable, "-c", ALONE], capture_output=True, text=True, timeout=300, check=False)
    assert ran.returncode == 0, ran.stderr
