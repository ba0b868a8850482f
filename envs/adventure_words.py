"""Vocabulary of the commands of the text adventure."""

import re

from gym_trl.envs.adventure_house import STEPS

_PLAIN = re.compile(r"[A-Za-z ,\t\r\n]{1,120}[.!]?\s*")
_SKIPPED = frozenset(("the", "a", "an", "my", "some", "please", "then"))
PREPOSITIONS = frozenset(
    ("on", "onto", "in", "into", "inside", "from", "off", "out", "of", "with", "using", "at", "to")
)
VERBS_WITH_THINGS = ("take", "drop", "put", "open", "close", "unlock", "cook", "eat", "look")
WAYS = {**{way: way for way in STEPS}, **{way[0]: way for way in STEPS}}
_SYNONYMS = {
    "go": ("go", "walk", "run", "move", "head", "enter"),
    "take": ("take", "get", "grab", "collect", "pick up", "pick"),
    "drop": ("drop", "put down", "leave", "discard"),
    "put": ("put", "place", "set", "insert", "lay"),
    "open": ("open",),
    "close": ("close", "shut"),
    "unlock": ("unlock",),
    "cook": ("cook", "roast", "fry", "bake", "boil", "heat"),
    "eat": ("eat", "consume", "swallow"),
    "look": ("look", "l", "look around", "look at", "look in", "look inside", "examine", "x", "inspect", "read"),
    "inventory": ("inventory", "i", "inv", "check inventory", "take inventory", "look at inventory"),
}
_VERBS = {tuple(phrase.split()): verb for verb, phrases in _SYNONYMS.items() for phrase in phrases}


def plain_words(action: str) -> list[str]:
    """Return the significant words, or none if the action is not made of plain words."""
    if not _PLAIN.fullmatch(action):
        return []
    return [word for word in re.findall("[a-z]+", action.lower()) if word not in _SKIPPED]


def split_verb(words: list[str]) -> tuple[str, list[str]]:
    """Return the verb in the wording of the rules, and the words after it."""
    if words[-1:] in (["up"], ["down"]) and len(words) > 2 and words[0] in ("pick", "put"):
        words = [words[0], words[-1], *words[1:-1]]
    if " ".join(words) in WAYS:
        return "go", words
    for length in (3, 2, 1):
        verb = _VERBS.get(tuple(words[:length]))
        if verb is not None:
            return verb, words[length:]
    return "", words
