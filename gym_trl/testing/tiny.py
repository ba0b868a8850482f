"""Tiny model and tokenizer made on the spot, without download; it trains in seconds with a real chat template."""

import string
from os import PathLike
from typing import Any

from gym_trl.errors import needs

# The markup of Phi-3 without its line breaks, so that the marks of a message are three tokens.
_TEMPLATE = (
    "{% for message in messages %}{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
_PAD, _END, _UNKNOWN = "<|endoftext|>", "<|end|>", "<|unknown|>"
_SPECIAL = [_PAD, _END, _UNKNOWN, "<|system|>", "<|user|>", "<|assistant|>"]


def tiny_tokenizer() -> Any:
    """Return a character-level tokenizer with a chat template; bytes outside printable ASCII become ``<|unknown|>``.

    It is a byte-level BPE without merges, because Transformers 5 reads any tokenizer in the folder of a Qwen2 as that.
    """
    with needs("train", "the tiny model"):
        from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
        from transformers import PreTrainedTokenizerFast

    # Byte-level BPE's characters for the line break and the space.
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
    """Return a Qwen2-style model with random weights, about 100,000 parameters.

    Args:
        tokenizer: Its tokenizer; only the size of the vocabulary and the special ids are used.
        seed: Seed of the random weights.
        width: Size of the hidden states.
        layers: Number of layers.
        head_width: Size of the attention heads; vLLM has kernels for 32 and more.
    """
    with needs("train", "the tiny model"):
        import torch
        from transformers import Qwen2Config, Qwen2ForCausalLM

    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=layers,
        num_attention_heads=width // head_width,
        num_key_value_heads=width // head_width,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        # The usual 0.02 suits much wider models: at this width, attention would start nearly uniform, and training took
        # twice as many steps.
        initializer_range=0.06,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Qwen2ForCausalLM(config)


def save_tiny(folder: str | PathLike[str], *, seed: int = 0, width: int = 64, layers: int = 2) -> None:
    """Write the tiny model and its tokenizer to ``folder``, in a form that vLLM can load and run.

    ::

        $ python -c "from gym_trl.testing.tiny import save_tiny; save_tiny('tiny')"
    """
    tokenizer = tiny_tokenizer()
    tiny_model(tokenizer, seed=seed, width=width, layers=layers, head_width=32).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
