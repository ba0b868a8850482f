"""Generate the word lists from those of SCOWL: ``apt-get install scowl``, then ``python make_lists.py``.

The source is Debian's package ``scowl`` 2020.12.07-2, whose files grade words by frequency: size 10 has the most common
words, 95 all. The lists use words of lowercase letters a to z only, from ``english-words`` and ``american-words``. The
notices that SCOWL's licence requires are in ``COPYRIGHT``; sizes above 70, whose sources require more, are not used.

* ``guesses.txt``: words of 5 letters, sizes 10 to 70.
* ``answers.txt``: those of sizes 10 to 35 that are not inflected.
* ``common.txt``: words of 5 to 10 letters, sizes 10 and 20, that are not inflected.

A word is called inflected when it looks like a plural, third person, past, participle, comparative or superlative of
another word of these sizes, which is nearly always right. Offensive words are in no list; they were selected by
reading, and only their hashes are kept, in ``unfit.txt``.
"""

import re
import sys
from hashlib import sha256
from pathlib import Path

SOURCE = "/usr/share/dict/scowl"
SIZES = (10, 20, 35, 40, 50, 55, 60, 70)
COUNTS = {"answers.txt": 1965, "guesses.txt": 6329, "common.txt": 4358}
_WORD = re.compile(r"[a-z]+")
_VOWEL = re.compile(r"[aeiouy]")
_UNFIT = frozenset(Path(__file__).with_name("unfit.txt").read_text("ascii").split())


def make_lists(source: Path) -> dict[str, list[str]]:
    """Return the words of each file, in alphabetical order."""
    by_size = {size: _words(source, size) for size in SIZES}
    every_word = frozenset[str]().union(*by_size.values())
    common = {word for word in by_size[10] | by_size[20] if 5 <= len(word) <= 10}
    guesses = {word for word in every_word if len(word) == 5}
    answers = guesses & (by_size[10] | by_size[20] | by_size[35])
    made = {
        "answers.txt": {word for word in answers if not _is_inflected(word, every_word)},
        "guesses.txt": guesses,
        "common.txt": {word for word in common if not _is_inflected(word, every_word)},
    }
    return {name: sorted(word for word in words if _digest(word) not in _UNFIT) for name, words in made.items()}


def _words(source: Path, size: int) -> set[str]:
    files = [source / f"{variety}-words.{size}" for variety in ("english", "american")]
    words = " ".join(file.read_text("latin-1") for file in files if file.exists()).split()
    return {word for word in words if _WORD.fullmatch(word)}


def _is_inflected(word: str, every_word: frozenset[str]) -> bool:
    if word.endswith("s") and not word.endswith("ss"):
        return bool(
            {word[:-1], word.removesuffix("es"), word[:-3] + "y" if word.endswith("ies") else ""} & every_word - {word}
        )
    if word.endswith("ed") and not word.endswith("eed"):
        return bool(_stems(word[:-2]) & every_word)
    if word.endswith("ing") and _VOWEL.search(word[:-3]):
        return bool(_stems(word[:-3]) & every_word)
    if word.endswith("er"):
        return word[:-1] + "st" in every_word and bool(_stems(word[:-2]) & every_word)
    if word.endswith("est"):
        return word[:-2] + "r" in every_word and bool(_stems(word[:-3]) & every_word)
    return False


def _stems(rest: str) -> set[str]:
    """Return possible stems before an ending: like, cry and stop of lik-, cri- and stopp-."""
    stems = {rest, rest + "e"}
    if rest.endswith("i"):
        stems.add(rest[:-1] + "y")
    if rest[-1:] == rest[-2:-1]:
        stems.add(rest[:-1])
    return stems


def _digest(word: str) -> str:
    return sha256(word.encode()).hexdigest()[:8]


if __name__ == "__main__":
    for name, words in make_lists(Path(*sys.argv[1:] or [SOURCE])).items():
        assert len(words) == COUNTS[name], f"{name} has {len(words)} words, and should have {COUNTS[name]}"
        Path(__file__).with_name(name).write_text("".join(f"{word}\n" for word in words))
