# mypy: allow-untyped-defs, allow-untyped-calls, allow-untyped-decorators
"""The examples run from first to last line; the one for a server in ``engines/test_server_with_vllm.py``."""

import re
from importlib.util import find_spec
from pathlib import Path

import pytest
import vllm_run
import warm

from gym_trl.testing import save_tiny

EXAMPLES = Path(__file__).parent.parent / "examples"
SMALL = [
    *("--max_steps=2", "--per_device_train_batch_size=4", "--gradient_accumulation_steps=2", "--num_generations=4"),
    *("--max_completion_length=64", "--use_cpu=true", "--bf16=false", "--disable_tqdm=true"),
]

pytestmark = [pytest.mark.trl, pytest.mark.processes, pytest.mark.full]


@pytest.fixture
def options(tmp_path):
    save_tiny(tmp_path / "tiny")
    return [f"--model={tmp_path / 'tiny'}", f"--output_dir={tmp_path / 'out'}", *SMALL]


def logged(printed, name):
    return [float(value) for value in re.findall(rf"'{name}': '?([^',]+)", printed)]


def test_with_transformers(options, tmp_path):
    done = warm.run(EXAMPLES / "train_transformers.py", *options)
    assert done.returncode == 0, done.stderr
    assert logged(done.stdout, "env/unscored") == [0, 0]
    assert (tmp_path / "out" / "model.safetensors").exists()


@pytest.mark.parametrize(
    ("data", "package"), [("arithmetic", "reasoning_gym"), ("crosswords", "textarena"), ("languages", "datasets")]
)
def test_with_the_questions_of_a_package(options, tmp_path, data, package):
    if find_spec(package) is None:
        pytest.skip(f"{package} is not installed: make test-full does it on Linux")
    done = warm.run(EXAMPLES / "train_questions.py", *options, f"--data={data}")
    assert done.returncode == 0, done.stderr
    assert logged(done.stdout, "env/unscored") == [0, 0]
    assert len(logged(done.stdout, "env/return")) == 2


@pytest.mark.vllm
@pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed: make test-full does it on Linux")
def test_with_vllm_colocated(options, tmp_path):
    printed = vllm_run.run(EXAMPLES / "train_vllm_colocate.py", *options, "--vllm_max_model_length=512")
    assert logged(printed, "env/unscored") == [0, 0]
    assert logged(printed, "sampling/importance_sampling_ratio/mean") == pytest.approx([1, 1], abs=1e-3)
    assert (tmp_path / "out" / "model.safetensors").exists()


def test_none_is_longer_than_a_screen():
    scripts = sorted(EXAMPLES.glob("*.py"))
    assert len(scripts) >= 3
    assert all(len(script.read_text().splitlines()) < 60 for script in scripts)
