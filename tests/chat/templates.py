"""Chat templates that TRL ships, and a small tokenizer that knows their marks."""

import importlib.util
import re
from functools import cache
from pathlib import Path
from typing import Any

from gym_trl.types import TokenIds


def _templates() -> dict[str, str]:
    # Importing TRL takes seconds; its templates are files.
    spec = importlib.util.find_spec("trl")
    assert spec is not None
    folder = Path(str(spec.origin)).parent / "chat_templates"
    return {path.stem: path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.jinja"))}


TEMPLATES = _templates()


WANTS_PARTS = {"idefics3", "idefics3_training", "llava_next", "llava_next_training", "smolvlm", "smolvlm_training"}


CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


# What real tokenizers call special, and what they keep whole without calling it so.
SPECIAL = re.compile(r"<[|\uff5c][^<>{}\s]+>|<[a-z]+\|>|</?s>|\[/?INST\]|\[gMASK\]|<(?:sop|\w+_of_\w+)>")


ADDED = re.compile(r"</?(?:think|tool_call|tool_response|tools)>")


_PIECES = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@cache
def make_tokenizer(template: str | None, *, sentencepiece: bool = False) -> Any:
    """A tokenizer with a few merges that knows the marks in ``template``, and cuts text up as Qwen's does."""
    import tokenizers
    import transformers

    before, known = tokenizers.pre_tokenizers, f"{template}<|im_start|><|im_end|>"
    base = tokenizers.Tokenizer(tokenizers.models.BPE())
    if sentencepiece:
        base.pre_tokenizer = before.Metaspace(prepend_scheme="first")
        base.decoder = tokenizers.decoders.Metaspace(prepend_scheme="first")
        alphabet = [chr(code) for code in (10, *range(32, 127), 0x2581)]
    else:
        whole_words = before.Split(tokenizers.Regex(_PIECES), "isolated")
        base.pre_tokenizer = before.Sequence([whole_words, before.ByteLevel(add_prefix_space=False, use_regex=False)])
        base.decoder = tokenizers.decoders.ByteLevel()
        alphabet = before.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False)
    base.train_from_iterator([known, "!\n" * 9], trainer)
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=base, bos_token="<bos>", eos_token="<eos>", chat_template=template, name_or_path="tiny"
    )
    special = sorted(set(SPECIAL.findall(known)))
    tokenizer.add_tokens([tokenizers.AddedToken(mark, special=True, normalized=False) for mark in special])
    tokenizer.add_tokens([tokenizers.AddedToken(tag, normalized=False) for tag in sorted(set(ADDED.findall(known)))])
    return tokenizer


def encode(tokenizer: Any, text: str) -> TokenIds:
    return list(tokenizer.encode(text, add_special_tokens=False))
