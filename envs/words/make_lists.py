"""Generate the word lists from those of SCOWL: ``apt-get install scowl``, then ``python make_lists.py``.

The source is Debian's package ``scowl`` 2020.12.07-2, whose files grade words by frequency: size 10 has the most common
words, 95 all. The lists use words of lowercase letters a to z only, from ``english-words`` and ``american-words``. The
notices that SCOWL's licence requires are in ``COPYRIGHT``; sizes above 70, whose sources require more, are not used.

* ``guesses.txt``: words of 5 letters, sizes 10 to 70.
* ``answers.txt``: those of sizes 10 to 35 that are not inflected.
* ``common.txt``: words of 5 to 10 letters, sizes 10 and 20, that are not inflected.

A word is called inflected when it looks like a plural, third person, past, participle, comparative or superlative of
another word of these sizes, which is nearly always right. Offensive words are in no list; they were selected by
reading, and only their hashes are kept here.
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
_UNFIT = """
0033728f 0228f90e 044eb98b 08a841e9 0ca06fe6 0f28c496 110c6c5a 11cf8376 120f6e5b 1600725e 16761b6c 183936b0
1b253a25 1b830448 1d78b370 227c0106 25390976 2554d191 268651b3 28f82588 2c1d8af3 2c32c156 2da888fb 304bf48b
36f4662d 38012c26 39b1b7b3 3b2afc70 3fc35091 4098e1a8 4140197e 45eb60d1 45fb7c3b 470dd245 47ad6e3f 47b673e0
48fab7a5 49b17b5d 4d99251b 517ae3f7 522788b6 5304378d 59888a40 5d59a0e0 5e5fe409 5e9cf6db 6122fdf4 63a44b1e
63bd9333 64e8abab 6556c1a5 6577be77 6adc452d 6d93e852 6ef9d9fd 78a00d18 7c4a23e0 7e85c676 805c0cdf 8171c4ec
82159dd0 8353bea1 85266837 860836fa 867d7897 875f8594 92a9bf81 937d56e4 94a2b576 9557070a 984979b9 984b5c6e
99e367bc 9ae315a9 9db582be 9e7e1870 9ff6fa40 a1b28fa8 a1c1a3b7 a23cb585 a3686065 a40ccba8 a4c7815e a6ee0e6b
a76d588d ac1d2ec6 acc96930 acefec68 ad6cacf3 b04a8a40 b2a57d64 b6548f7d b88a33fd ba6fb01a ba7463ed bbf8bb78
bf7e9c38 c22f315f c2c3b68b c5116290 c7653054 c7de95d6 ca05283d cd7e4d47 d15779dd d31f9b0c d5146a62 d730ead8
d75a838d daec0c23 dc2abe4e dd32831e df1a0ec1 df2b7e24 e14a747f e512a055 e5313522 e6836793 e84dde50 e96d8eb3
e9b64384 ea3621f3 eb9f46c0 ebc98c1e eea29916 f0a67995 f59e28f8 f6952d6e f6a9dcb1 f86e4f74 f9d0d9b1 faa69b10
fcd2e615 fff1d7d2
"""


def make_lists(source: Path) -> dict[str, list[str]]:
    """Return the words of each file, in alphabetical order."""
    by_size = {size: _words(source, size) for size in SIZES}
    known = frozenset[str]().union(*by_size.values())
    common = {word for word in by_size[10] | by_size[20] if 5 <= len(word) <= 10}
    guesses = {word for word in known if len(word) == 5}
    answers = guesses & (by_size[10] | by_size[20] | by_size[35])
    made = {
        "answers.txt": {word for word in answers if not _is_inflected(word, known)},
        "guesses.txt": guesses,
        "common.txt": {word for word in common if not _is_inflected(word, known)},
    }
    return {name: sorted(word for word in words if _digest(word) not in _UNFIT) for name, words in made.items()}


def _words(source: Path, size: int) -> set[str]:
    files = [source / f"{variety}-words.{size}" for variety in ("english", "american")]
    words = " ".join(file.read_text("latin-1") for file in files if file.exists()).split()
    return {word for word in words if _WORD.fullmatch(word)}


def _is_inflected(word: str, known: frozenset[str]) -> bool:
    if word.endswith("s") and not word.endswith("ss"):
        return bool(
            {word[:-1], word.removesuffix("es"), word[:-3] + "y" if word.endswith("ies") else ""} & known - {word}
        )
    if word.endswith("ed") and not word.endswith("eed"):
        return bool(_stems(word[:-2]) & known)
    if word.endswith("ing") and _VOWEL.search(word[:-3]):
        return bool(_stems(word[:-3]) & known)
    if word.endswith("er"):
        return word[:-1] + "st" in known and bool(_stems(word[:-2]) & known)
    if word.endswith("est"):
        return word[:-2] + "r" in known and bool(_stems(word[:-3]) & known)
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
