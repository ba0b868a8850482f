"""A model and a tokenizer made on the spot: no download, a few seconds to train, a real chat template."""

import string
from os import PathLike
from typing import Any

from gym_trl.errors import MissingDependencyError

# The markup of Phi-3, without its line breaks: what surrounds a message costs three tokens.
_TEMPLATE = (
    "{% for message in messages %}{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
_PAD, _END, _UNKNOWN = "<|endoftext|>", "<|end|>", "<|unknown|>"
_SPECIAL = [_PAD, _END, _UNKNOWN, "<|system|>", "<|user|>", "<|assistant|>"]


def tiny_tokenizer() -> Any:
    """A character-level tokenizer with a chat template; bytes outside printable ASCII become ``<|unknown|>``.

    It is written as byte-level BPE without merges, because Transformers 5 reads whatever lies beside a Qwen2 as that.
    """
    try:
        from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
        from transformers import PreTrainedTokenizerFast
    except ImportError as error:
        raise MissingDependencyError("the tiny model", extra="train") from error

    # How byte-level BPE writes the two that are not visible.
    characters = ["\u010a", *(char.replace(" ", "\u0120") for char in string.printable if char.isprintable())]
    vocabulary = {token: index for index, token in enumerate([*_SPECIAL, *characters])}
    tokenizer = Tokenizer(models.BPE(vocabulary, [], unk_token=_UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in _SPECIAL])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=_END,
        pad_token=_PAD,
        unk_token=_UNKNOWN,
        chat_template=_TEMPLATE,
        clean_up_tokenization_spaces=False,
        model_max_length=2048,
    )


def tiny_model(tokenizer: Any, *, seed: int = 0, width: int = 64, layers: int = 2, head_width: int = 16) -> Any:
    """A Qwen2-style model with random weights, about a tenth of a million parameters.

    Args:
        tokenizer: What it will read; only the size of the vocabulary and the special ids are used.
        seed: Of the random weights.
        width: Of the hidden states.
        layers: How many.
        head_width: Of the attention's heads; vLLM has kernels for 32 and more.
    """
    try:
        import torch
        from transformers import Qwen2Config, Qwen2ForCausalLM
    except ImportError as error:
        raise MissingDependencyError("the tiny model", extra="train") from error

    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=layers,
        num_attention_heads=width // head_width,
        num_key_value_heads=width // head_width,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        # The usual 0.02 suits models that are far wider: at this width attention begins all but uniform, and the games
        # took twice as many steps.
        initializer_range=0.06,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Qwen2ForCausalLM(config)


def save_tiny(folder: str | PathLike[str], *, seed: int = 0, width: int = 64, layers: int = 2) -> None:
    """Write the tiny model and its tokenizer to ``folder``, as vLLM can read and run them.

    ::

        $ python -c "from gym_trl.tiny import save_tiny; save_tiny('tiny')"
    """
    tokenizer = tiny_tokenizer()
    tiny_model(tokenizer, seed=seed, width=width, layers=layers, head_width=32).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
