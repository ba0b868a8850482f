import pytest
import torch
from support import tiny_trainer

from gym_trl import GymSpec
from gym_trl.engines.attention_backends import no_cudnn_attention
from gym_trl.engines.transformers import TransformersEngine
from gym_trl.testing import tiny_model, tiny_tokenizer
from gym_trl.types import Completion, Request


def chosen():
    return torch.backends.cuda.cudnn_sdp_enabled()


@pytest.fixture(autouse=True)
def _chosen_before():
    before = chosen()
    torch.backends.cuda.enable_cudnn_sdp(True)
    yield
    torch.backends.cuda.enable_cudnn_sdp(before)


def watched(model):
    """Return a list that gets the choice at each forward pass of a layer, also of one that a backward pass repeats."""
    choices = []
    model.model.layers[0].register_forward_pre_hook(lambda *_: choices.append(chosen()))
    return choices


@pytest.mark.parametrize("before", [True, False])
def test_the_choice_before_is_restored_also_after_an_error(before):
    torch.backends.cuda.enable_cudnn_sdp(before)

    @no_cudnn_attention()
    def fail():
        assert not chosen()
        raise ValueError("a mask")

    with pytest.raises(ValueError, match="a mask"), no_cudnn_attention():
        fail()
    assert chosen() is before


@pytest.mark.parametrize("sampling", [{}, {"cache_implementation": "dynamic"}], ids=["kept", "lockstep"])
def test_turns_are_computed_without_kernels_of_cudnn(sampling):
    model = tiny_model(tiny_tokenizer()).eval()
    choices = watched(model)
    engine = TransformersEngine(model, pad_id=0, eos_ids=[], sampling=sampling)
    engine.submit(Request("a", [5, 6, 7], 4, seed=1))
    engine.submit(Request("b", [5, 6], 3, seed=2))
    completed: list[Completion] = []
    while len(completed) < 2:
        completed += engine.collect(block=True)
    assert choices
    assert not any(choices)
    assert chosen()


def test_a_training_step_uses_no_kernel_of_cudnn_nor_does_its_backward_pass(tmp_path):
    spec = GymSpec("TrlEnv/GuessNumber-v0", env_kwargs={"high": 4}, turn_limit=2, max_tokens_per_turn=2)
    grpo = {"max_steps": 1, "per_device_train_batch_size": 4, "gradient_checkpointing": True}
    trainer = tiny_trainer.make(tmp_path, spec, grpo=grpo)
    choices = watched(trainer.model)
    trainer.train()
    assert len(choices) > 2
    assert not any(choices)
    assert chosen()
