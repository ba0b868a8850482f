"""Generator of docs/cards, which has the card of every environment, as ``gym-trl card`` measures it.

    python docs/make_cards.py                        # measure all of them again, about half a minute each
    python docs/make_cards.py TrlEnv/Echo-v0         # only some
    python docs/make_cards.py --train 120 TrlEnv/Echo-v0
    python docs/make_cards.py --check                # exit with status 1 if rules, examples or the list are not current

The tokens are those of SmolLM2 (``gym_trl.testing.pretrained``) if it is installed.
"""

import re
import sys
from argparse import ArgumentParser
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym

import gym_trl
from gym_trl.env_checker.card import make_card, outline, train_briefly
from gym_trl.env_checker.card.page import markdown
from gym_trl.errors import GymTRLError
from gym_trl.policies.weights import load_tokenizer
from gym_trl.sandbox.isolation import bubblewrap_problem
from gym_trl.testing.pretrained import pretrained_folder

FOLDER = Path(__file__).parent / "cards"
_WHOLE = re.MULTILINE | re.DOTALL
HEAD = """# Cards

What `gym-trl card ID` measures of each environment, with its default arguments: rules, an example, scores of policies
that play and that do not, findings, size, speed, tasks, and criteria of OpenEnv's RFC 008. How to read them, and
how to make one of your own environment: [the guide](../guides/cards.md).

`python docs/make_cards.py` writes these pages. Speeds were measured on a machine that was also used otherwise.

| environment | findings | solver | random play | blind baseline | best constant |
|---|---|---|---|---|---|
"""


def main() -> int:
    """Write the cards that are named, or all, and the list of them."""
    parser = ArgumentParser()
    parser.add_argument("ids", nargs="*")
    parser.add_argument("--train", type=float, default=0.0)
    parser.add_argument("--check", action="store_true")
    given = parser.parse_args()
    if given.check:
        old = [env_id for env_id in sorted(gym_trl.GAMES) if not is_current(env_id)]
        old += ["the list"] * ((FOLDER / "index.md").read_text(encoding="utf-8") != index())
        sys.stderr.write(f"not current: {', '.join(old)}\n" if old else "")
        return int(bool(old))
    FOLDER.mkdir(exist_ok=True)
    tokenizer, name = find_tokenizer()
    for env_id in given.ids or sorted(gym_trl.GAMES):
        learning = train_briefly(env_id, seconds=given.train) if given.train else None
        tokens = {"tokenizer": tokenizer, "tokenizer_name": name}
        card = make_card(maker(env_id), env_id, seconds=60.0, learning=learning, **tokens)
        file_of(env_id).write_text(markdown(card), encoding="utf-8")
    (FOLDER / "index.md").write_text(index(), encoding="utf-8")
    return 0


def is_current(env_id: str) -> bool:
    """Return whether a card has the current rules and the current example; numbers are not compared."""
    lasting = re.search(
        r"^## Rules$.*?(?=^## (?:Findings|Size and speed)$)", markdown(outline(maker(env_id), env_id)), _WHOLE
    )
    assert lasting is not None
    return file_of(env_id).exists() and lasting[0] in file_of(env_id).read_text(encoding="utf-8")


def maker(env_id: str) -> Any:
    """Return a function that makes an environment."""
    kwargs: dict[str, Any] = {}
    if env_id == "TrlEnv/CodeAgent-v0" and bubblewrap_problem() is not None:  # this script runs only its own programs
        kwargs = {"isolation": "limits"}
    return partial(gym.make, env_id, disable_env_checker=True, **kwargs)


def find_tokenizer() -> tuple[Any, str]:
    """Return the tokenizer of the pretrained model, or none."""
    try:
        folder = pretrained_folder()
    except GymTRLError:
        return None, ""
    return load_tokenizer(str(folder)), folder.name


def file_of(env_id: str) -> Path:
    """Return the file of an environment's card."""
    return FOLDER / f"{env_id.rpartition('/')[2]}.md"


def index() -> str:
    """Return the list of the cards, with numbers from the cards themselves."""
    return HEAD + "".join(f"{row(env_id)}\n" for env_id in sorted(gym_trl.GAMES) if file_of(env_id).exists())


def row(env_id: str) -> str:
    """Return the line of an environment in the list."""
    text = file_of(env_id).read_text(encoding="utf-8")
    found = re.search(r"^\| findings \| (.*?) \|$", text, re.MULTILINE)
    cells = [f"[{env_id}]({file_of(env_id).name})", found[1] if found else ""]
    for name in ("solver", "random", "blind", "constant"):
        level = re.search(rf"^\| {name} \| ([^ |]*)", text, re.MULTILINE)
        cells.append(level[1] if level else "")
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    sys.exit(main())
