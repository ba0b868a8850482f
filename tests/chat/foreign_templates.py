"""Chat templates that this library does not ship: those in the packages that requirements-templates.txt names."""

import json
import re
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import tokenizers
import transformers

FOLDER = Path(sys.prefix) / ".templates"
"""Folder of the packages, as the Makefile downloads them: nothing of them is imported."""


class Suite(NamedTuple):
    """Package with templates, and their folder and ending in it."""

    package: str
    folder: str
    ending: str


SUITES = {
    "axolotl": Suite("axolotl-*.whl", "/utils/chat_templates/", ".jinja"),
    "xinference": Suite("xinference-*.whl", "/model/llm/models/", ".json"),
    "llama.cpp": Suite("llama_cpp_python-*.tar.gz", "/vendor/llama.cpp/models/templates/", ".jinja"),
}


# What these templates write as one token: marks of messages, of thinking, of tools and of images.
_MARKS = re.compile(
    r"<[|\uff5c][^<>{}\s'\"]+?>|<[A-Za-z_]+\|>|</?s>|</?[a-z]+:\w+>|</?(?:think|tool_call|tool_response|tools)>"
    r"|<_\w+>|<SPECIAL_\d+>|\[/?[A-Z_]+\]|\[gMASK\]|<(?:sop|sep|user|assistant)>|<\w*(?:begin|start|end)\w*>|\]~!?b\[?\]?|\[e~\["
)
# Ends of turns, of which a tokenizer's eos_token is the first that its template writes.
_ENDS = (
    *("<|END_OF_TURN_TOKEN|>", "<|role_end|>", "<|im_end|>", "<|eot_id|>", "<|eot|>", "<end_of_turn>", "<turn|>"),
    *("<|return|>", "<|end|>", "<seed:eos>", "[e~[", "<|assistant_end|>", "<|end_of_text|>", "<|endoftext|>"),
    *("<\uff5cend\u2581of\u2581sentence\uff5c>", "<|EOT|>", "<_end>", "[EOS]", "<end_of_sentence>", "<sep>"),
    *("</assistant>", "<SPECIAL_12>"),
)


class Foreign(NamedTuple):
    """A template, and the token with which a model that has it ends its turns."""

    template: str
    eos: str


@cache
def foreign(suite: str) -> dict[str, Foreign]:
    """Return the templates of a suite by name, each of them once; empty if its package is not here."""
    package, folder, ending = SUITES[suite]
    templates: dict[str, Foreign] = {}
    for path in FOLDER.glob(package):
        for name, text in _files(path, folder, ending):
            found = json.loads(text) if ending == ".json" else [{"chat_template": text}]
            for entry in found if isinstance(found, list) else [found]:
                template, stops = entry.get("chat_template"), entry.get("stop") or ()
                if template and template not in {one.template for one in templates.values()}:
                    eos = next((end for end in (*_ENDS, *stops) if end in template and end != "<s>"), "</s>")
                    templates[f"{name} {len(templates)}" if name in templates else name] = Foreign(template, eos)
    return templates


def _files(package: Path, folder: str, ending: str) -> Iterator[tuple[str, str]]:
    if package.suffix == ".whl":
        with zipfile.ZipFile(package) as wheel:
            for name in sorted(wheel.namelist()):
                if folder in f"/{name}" and name.endswith(ending):
                    yield Path(name).stem, wheel.read(name).decode()
        return
    with tarfile.open(package) as source:
        for member in source:
            if folder in f"/{member.name}" and member.name.endswith(ending):
                held = source.extractfile(member)
                assert held is not None
                yield Path(member.name).stem, held.read().decode()


def tokenizer_for(template: str, eos: str) -> Any:
    """Return a tokenizer of bytes for which each mark in the template is one token."""
    before = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    alphabet = {char: index for index, char in enumerate(sorted(before.alphabet()))}
    base = tokenizers.Tokenizer(tokenizers.models.BPE(alphabet, []))
    base.pre_tokenizer, base.decoder = before, tokenizers.decoders.ByteLevel()
    bos = "<s>" if "<s>" in template or eos == "</s>" else "<bos>"
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=base, bos_token=bos, eos_token=eos, chat_template=template, name_or_path="foreign"
    )
    marks = sorted(set(_MARKS.findall(template)) - {bos, eos})
    special = [mark for mark in marks if not re.fullmatch(r"</?\w+>", mark)]
    tokenizer.add_tokens([tokenizers.AddedToken(mark, special=True, normalized=False) for mark in special])
    tags = [mark for mark in marks if mark not in special]
    tokenizer.add_tokens([tokenizers.AddedToken(mark, normalized=False) for mark in tags])
    return tokenizer
