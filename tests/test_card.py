"""Cards of environments: a sound environment has no finding, and pages are whole."""

import json
import re
from functools import cache
from html.parser import HTMLParser
from pathlib import Path

from hypothesis import given, strategies as st
from support import planted_cards
from support.command_line import run_command_line

from gym_trl.env_checker.card.card import CARD_CHECKS, Card, make_card
from gym_trl.env_checker.card.page import markdown, page
from gym_trl.env_checker.card.plays import Plays, References, always, level_of
from gym_trl.env_checker.card.splits import period_of
from gym_trl.report import OK, PROBLEM, Finding
from gym_trl.seeding import derive_seed


def finding(card: Card, name: str) -> Finding:
    return next(one for one in card.findings if one.name == name)


@cache
def card_of_digits() -> Card:
    return make_card(planted_cards.Digits, "Digits", episodes=60, seconds=60.0, search_steps=1_500)


def test_a_sound_environment_has_no_finding_of_the_card() -> None:
    card = card_of_digits()
    assert card.count(PROBLEM) == 0
    assert {finding(card, name).verdict for name in CARD_CHECKS} == {OK}
    assert {one.policy for one in card.levels} == {"solver", "random", "blind", "constant"}


def test_rewards_are_all_the_same_only_if_those_of_the_cards_own_episodes_are() -> None:
    card = make_card(planted_cards.SeldomPays, "SeldomPays", episodes=200, seconds=10.0, search_steps=0)
    chance = next(level for level in card.levels if level.policy == "random")
    assert chance.mean_return.mean
    assert finding(card, "reward").verdict is OK
    assert f"{chance.episodes} episodes" in finding(card, "reward").got


class Checker(HTMLParser):
    """Parser that requires every element to be closed in its order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag != "meta":
            self.open.append(tag)
        for name, value in attrs:
            assert name not in ("src", "onload"), value

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def check(text: str) -> Checker:
    checker = Checker()
    checker.feed(text)
    assert checker.open == ["html"]
    return checker


def test_pages_have_all_sections_and_need_nothing_else() -> None:
    card = card_of_digits()
    shown, text = check(page(card)), markdown(card)
    for title in ("Rules", "Example", "Scores", "Findings", "Size", "Tasks"):
        assert f"## {title}" in text
        assert title in shown.text
    assert "light dark" in page(card)
    assert len(page(card)) < 25_000
    assert len(text) < 15_000
    assert not re.findall(r"https?://", page(card))


@given(st.text(max_size=30), st.text(max_size=30))
def test_any_text_of_an_environment_stays_text(rules: str, got: str) -> None:
    found = (Finding("stalling", PROBLEM, f"<b>{got}|*![x](https://a.b/c)", "<script>"),)
    card = Card("A/B-v0", {"x": got}, rules, f"```{rules}", got, rules, findings=found)
    checker = check(page(card))
    assert "<script>" not in page(card)
    assert "<img" not in page(card)
    assert checker.open == ["html"]
    rows = [line for line in markdown(card).split("\n") if line.startswith("| error |")]
    assert len(rows) == 1
    assert len(re.findall(r"(?<!\\)\|", rows[0])) == 5


@given(st.integers(2, 60), st.lists(st.integers(0, 2**31 - 1), min_size=300, max_size=300, unique=True))
def test_a_period_of_the_seeds_is_found_and_none_where_there_is_none(period: int, seeds: list[int]) -> None:
    found = period_of(seeds, [str(seed % period) for seed in seeds])
    if found is not None:
        assert period % found == 0 or found % period == 0
    spread = len({seed % period for seed in seeds}) == period
    assert found is not None or not spread
    assert period_of(seeds, [str(derive_seed(number) % 7) for number in range(300)]) is None


def test_the_command_writes_all_formats_and_is_strict_on_request(tmp_path: Path) -> None:
    file = Path(planted_cards.__file__)
    few = ["--episodes", "20", "--seconds", "3", "--search-steps", "300"]
    arguments = ["card", f"{file}:FewSeeds", *few, "--out", str(tmp_path / "all"), "--out", str(tmp_path / "one.md")]
    result = run_command_line([*arguments, "--fail-on-error"])
    assert result.exit_code == 1, result.output
    assert "error: tasks by seed: seeds that differ by 10 give the same task" in result.stderr
    assert {path.name for path in (tmp_path / "all").iterdir()} == {"card.md", "card.html", "card.json"}
    read = json.loads((tmp_path / "all" / "card.json").read_text(encoding="utf-8"))
    assert read["problem"] == 1
    assert (tmp_path / "one.md").read_text(encoding="utf-8") == (tmp_path / "all" / "card.md").read_text(
        encoding="utf-8"
    )


def test_levels_of_a_card_count_every_episode_once_any_policy_declares_success() -> None:
    """The solver's success is declared, random play's failures are not."""
    with Plays(planted_cards.OnlyWins, episodes=20) as plays:
        references = References.of(plays)
        copied = level_of("b", plays.of("b", always("b")), declares=plays.declares)
    assert references.solver is not None
    assert (references.solver.success.mean, references.chance.success.mean, copied.success.mean) == (1.0, 0.0, 0.0)
    assert references.objective == "success"
    # Five equal numbers are no certainty; these are one number.
    assert references.solver.success == references.solver.mean_return
