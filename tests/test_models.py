"""Models and adapters: chosen, loaded, saved, merged; an adapter that does not fit is refused."""

import json
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch

from gym_trl.errors import ConfigError
from gym_trl.evaluation.evaluation import evaluate
from gym_trl.policies.model import Model, find_model
from gym_trl.policies.weights import load_config, load_tokenizer, load_weights, read_adapter, whole_model
from gym_trl.testing.tiny import save_tiny
from gym_trl.training.models import LORA_ALPHA, ModelChoice, load_model


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("base")
    save_tiny(folder, width=32, layers=1)
    return folder


@pytest.fixture(scope="module")
def adapter(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of an adapter that changes what its base says."""
    folder = tmp_path_factory.mktemp("adapter")
    model, _ = load_model(ModelChoice(model=str(base), lora=4))
    with torch.no_grad(), torch.random.fork_rng():
        torch.manual_seed(1)
        for name, weight in model.named_parameters():
            if "lora_B" in name:
                weight.normal_(std=0.1)
    model.save_pretrained(folder)
    return folder


def _logits(model: Any) -> Any:
    with torch.no_grad():
        return model(torch.arange(8)[None]).logits


def test_a_new_adapter_changes_nothing_and_is_all_that_is_trained(base: Path) -> None:
    model, tokenizer = load_model(ModelChoice(model=str(base), lora=4))
    assert torch.equal(_logits(model), _logits(load_weights(str(base))))
    trained = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
    assert trained
    assert all("lora_" in name and min(weight.shape) == 4 for name, weight in trained.items())
    config = model.peft_config["default"]
    assert (config.lora_alpha, config.lora_dropout) == (LORA_ALPHA, 0.0)
    targets = {name.rpartition(".")[2] for name in config.target_modules}
    assert targets == {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}
    assert tokenizer.padding_side == "left"


def test_an_adapter_of_a_short_type_has_weights_in_which_small_steps_last(base: Path) -> None:
    model, _ = load_model(ModelChoice(model=str(base), lora=4, dtype="bfloat16"))
    assert {str(weight.dtype) for weight in model.parameters() if weight.requires_grad} == {"torch.float32"}
    assert {str(weight.dtype) for weight in model.parameters() if not weight.requires_grad} == {"torch.bfloat16"}


def test_without_lora_all_weights_are_trained(base: Path) -> None:
    choice = ModelChoice(model=str(base))
    model, _ = load_model(choice)
    assert not choice.trains_adapter
    assert all(weight.requires_grad and weight.dtype == torch.float32 for weight in model.parameters())


def test_a_saved_adapter_names_its_base_by_an_absolute_path(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(base.parent)
    model, _ = load_model(ModelChoice(model=base.name, lora=2, lora_alpha=4, lora_targets=("q_proj",)))
    model.save_pretrained(tmp_path)
    found = read_adapter(str(tmp_path))
    assert found is not None
    assert (found.base, found.rank) == (str(base.resolve()), 2)
    assert not (tmp_path / "config.json").exists()
    assert model.peft_config["default"].target_modules == {"q_proj"}


def test_a_merged_adapter_says_what_the_unmerged_one_says(base: Path, adapter: Path) -> None:
    unmerged, merged = load_weights(str(adapter), trainable=True), load_weights(str(adapter))
    torch.testing.assert_close(_logits(merged), _logits(unmerged))
    assert not torch.allclose(_logits(merged), _logits(load_weights(str(base))), atol=1e-2)
    assert not any("lora" in name for name, _ in merged.named_parameters())


def test_an_adapter_is_trained_further(adapter: Path) -> None:
    choice = ModelChoice(model=str(adapter))
    model, tokenizer = load_model(choice)
    assert choice.trains_adapter
    assert {"lora_" in name for name, weight in model.named_parameters() if weight.requires_grad} == {True}
    assert tokenizer.chat_template


def test_what_loads_whole_weights_only_gets_a_folder_that_is_gone_afterwards(base: Path, adapter: Path) -> None:
    with whole_model(str(base)) as path:
        assert path == str(base)
    with whole_model(str(adapter)) as path:
        assert torch.equal(_logits(load_weights(path)), _logits(load_weights(str(adapter))))
    assert not Path(path).exists()


def test_an_adapter_plays(adapter: Path) -> None:
    with whole_model(str(adapter)) as whole:
        played = [
            evaluate(["TrlEnv/Echo-v0"], [Model(path, max_tokens_per_turn=4, sampling={"temperature": 0})], episodes=4)
            for path in (str(adapter), whole)
        ]
    tokens = [found.rows[0].tokens for found in played]
    assert tokens[0] == tokens[1] != 0


def _changed(adapter: Path, folder: Path, **changes: Any) -> Path:
    """Copy an adapter with changes of its configuration."""
    folder.mkdir()
    for file in adapter.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    config = json.loads((folder / "adapter_config.json").read_text()) | changes
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder


def test_an_adapter_whose_base_is_gone_is_refused_before_anything_is_loaded(adapter: Path, tmp_path: Path) -> None:
    lost = _changed(adapter, tmp_path / "lost", base_model_name_or_path="/nowhere/base")
    with pytest.raises(ConfigError, match=r"'/nowhere/base', which does not exist; set base_model_name_or_path in"):
        find_model(str(lost))
    with pytest.raises(ConfigError, match="which does not exist"):
        ModelChoice(model=str(lost))


def _asks_for_code(base: Path, folder: Path) -> Path:
    """Copy a model whose configuration and tokenizer ask for classes in a file beside them."""
    marker = folder.with_suffix(".ran")
    folder.mkdir()
    for file in base.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    (folder / "theirs.py").write_text(f"open({str(marker)!r}, 'w').close()")
    kinds = {kind: f"theirs.{kind}" for kind in ("AutoConfig", "AutoModelForCausalLM")}
    of_tokenizer = {"AutoTokenizer": ["theirs.Slow", "theirs.Fast"]}
    for name, changes in {
        "config.json": {"model_type": "theirs", "architectures": ["Theirs"], "auto_map": kinds},
        "tokenizer_config.json": {"tokenizer_class": "Theirs", "auto_map": of_tokenizer},
    }.items():
        config = json.loads((folder / name).read_text()) | changes
        (folder / name).write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize("load", [load_config, load_weights, load_tokenizer])
def test_code_of_a_models_own_is_never_run_whatever_is_answered(
    load: Any, base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = StringIO("y\n" * 9)  # the answers to Transformers' question
    monkeypatch.setattr("sys.stdin", asked)
    theirs = _asks_for_code(base, tmp_path / "theirs")
    with pytest.raises(ConfigError, match="needs Python code of its own"):
        load(str(theirs))
    assert (asked.tell(), (tmp_path / "theirs.ran").exists()) == (0, False)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"megatron_config": {"a": 1}, "megatron_core": "os"}, "imports the module that megatron_core names"),
        ({"peft_type": "PROMPT_TUNING"}, "of the kind 'PROMPT_TUNING': only adapters of the kind 'LORA'"),
        ({"peft_type": 7}, "of the kind 7"),
        ({"base_model_name_or_path": None}, "the base of the adapter"),
    ],
)
def test_an_adapter_that_would_load_more_than_weights_is_refused(
    changes: dict[str, Any], message: str, adapter: Path, tmp_path: Path
) -> None:
    theirs = _changed(adapter, tmp_path / "theirs", **changes)
    for read in (read_adapter, find_model, load_weights):
        with pytest.raises(ConfigError, match=message):
            read(str(theirs))


@pytest.mark.parametrize(
    "asked",
    [
        {"attn_implementation": "theirs/kernel"},
        {"attn_implementation": {"": "sdpa", "text_config": "theirs/kernel"}},
        {"text_config": {"_attn_implementation": "theirs/kernel:f"}},
        {"experts_implementation": "theirs/kernel"},
    ],
)
def test_compiled_code_that_a_configuration_names_is_refused(asked: dict[str, Any], base: Path, tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    for file in base.iterdir():
        (theirs / file.name).write_bytes(file.read_bytes())
    content = json.loads((theirs / "config.json").read_text()) | asked
    (theirs / "config.json").write_text(json.dumps(content))
    for load in (load_config, load_weights):
        with pytest.raises(ConfigError, match=r"asks for compiled code from the hub \('theirs/kernel"):
            load(str(theirs))


def test_an_adapter_of_an_adapter_is_refused(adapter: Path, tmp_path: Path) -> None:
    second = _changed(adapter, tmp_path / "second", base_model_name_or_path=str(adapter))
    with pytest.raises(ConfigError, match="an adapter itself; merge that one first"):
        load_weights(str(second))


class _Runs:
    """Pickle that makes a file where it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.marker,)


@pytest.mark.parametrize("of_adapter", [False, True])
def test_weights_that_are_a_pickle_with_code_are_refused(
    base: Path, adapter: Path, tmp_path: Path, of_adapter: bool
) -> None:
    theirs, marker = tmp_path / "theirs", tmp_path / "ran"
    theirs.mkdir()
    for file in (adapter if of_adapter else base).iterdir():
        if file.suffix != ".safetensors":
            (theirs / file.name).write_bytes(file.read_bytes())
    torch.save({"lm_head.weight": _Runs(marker)}, theirs / ("adapter_model.bin" if of_adapter else "pytorch_model.bin"))
    with pytest.raises(ConfigError, match="a pickle that contains more than tensors"):
        load_weights(str(theirs))
    assert not marker.exists()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"dtype": "float8"}, "dtype must be 'float32', 'bfloat16', 'float16' or 'auto', got 'float8'"),
        ({"lora": 0}, "lora must be an integer of at least 1, got 0"),
        ({"lora": 4, "lora_alpha": 0}, "lora_alpha must be a number above 0, got 0"),
        ({"lora_alpha": 8}, "lora_alpha requires lora"),
        ({"lora_targets": ("q_proj",)}, "lora_targets requires lora"),
        ({"dtype": "bfloat16"}, "dtype='bfloat16' requires lora: steps"),
    ],
)
def test_options_that_make_no_sense_are_refused(base: Path, given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ModelChoice(model=str(base), **given)


def test_a_new_adapter_on_an_adapter_is_refused(adapter: Path) -> None:
    with pytest.raises(ConfigError, match=r"is an adapter of rank 4 .* leave lora out, or merge it"):
        ModelChoice(model=str(adapter), lora=8)
