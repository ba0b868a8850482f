"""The examples run from first to last line; the one for a server in ``engines/test_server_with_vllm.py``."""

import re
import runpy
from pathlib import Path

import pytest
from support import vllm_run

from gym_trl.testing import save_tiny

EXAMPLES = Path(__file__).parent.parent / "examples"
SMALL = [
    *("--max_steps=2", "--per_device_train_batch_size=4", "--gradient_accumulation_steps=2", "--num_generations=4"),
    *("--max_completion_length=64", "--use_cpu=true", "--bf16=false", "--disable_tqdm=true"),
]

pytestmark = pytest.mark.slow


@pytest.fixture
def options(tmp_path):
    save_tiny(tmp_path / "tiny")
    return [f"--model={tmp_path / 'tiny'}", f"--output_dir={tmp_path / 'out'}", *SMALL]


def logged(printed, name):
    return [float(value) for value in re.findall(rf"'{name}': '?([^',]+)", printed)]


@pytest.mark.needs(package="vllm")
def test_with_vllm_colocated(options, tmp_path):
    printed = vllm_run.run(EXAMPLES / "train_vllm_colocate.py", *options, "--vllm_max_model_length=512")
    assert logged(printed, "env/unscored") == [0, 0]
    assert logged(printed, "sampling/importance_sampling_ratio/mean") == pytest.approx([1, 1], abs=1e-3)
    assert (tmp_path / "out" / "model.safetensors").exists()


@pytest.mark.parametrize("script", sorted(EXAMPLES.glob("*.py")), ids=lambda script: script.stem)
def test_a_file_of_yaml_sets_the_arguments_of_each_example(tmp_path, script):
    (tmp_path / "own.yaml").write_text(
        "model: some/model\nlearning_rate: 3e-6\nuse_cpu: true\nbf16: false\nbeta: 0.5\n"
    )
    parser = runpy.run_path(str(script))["parser"]
    usual, _ = parser.parse_args_and_config(["--use_cpu=true", "--bf16=false"])
    own, args = parser.parse_args_and_config(["--config", str(tmp_path / "own.yaml"), "--beta=0.25"])
    assert usual.model.startswith("Qwen/")
    assert (own.model, args.learning_rate, args.beta) == ("some/model", 3e-6, 0.25)
