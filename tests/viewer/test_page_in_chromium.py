"""The page in a real Chromium: what it shows, how it is used, and what it refuses."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
from support.viewer_runs import (
    Auction,
    Look,
    needs_chromium,
    play_games,
    played,
    write_credit,
    write_games,
    write_large_run,
    write_run,
)

from gym_trl.engines.scripted import ScriptedEngine
from gym_trl.evaluation.estimates import share_of
from gym_trl.executors.inline import InlinePool
from gym_trl.records.files import RecordWriter
from gym_trl.records.schema import as_record
from gym_trl.rollout import Episode, History, Limits, run_episodes
from gym_trl.rollout.loop import GameResult
from gym_trl.testing import ByteChat
from gym_trl.types import StopReason, Task
from gym_trl.viewer.page import write_page

pytestmark = [pytest.mark.browser, pytest.mark.processes, needs_chromium]

ROWS = "[...document.querySelectorAll('.grid-row')].filter((one) => !one.hidden)"
EPISODE = "document.querySelector('#talk') !== null"
GROUP = "document.querySelector('.group-grid') !== null"
LARGE = 20_000


def table(look: Look, small: str, query: str = "") -> list[str]:
    """Open the table, and say which episodes it shows."""
    look.open(f"{small}#/episodes{query}")
    look.until("document.querySelector('#shown')?.textContent")
    return shown(look)


def shown(look: Look) -> list[str]:
    found: list[str] = look.js(
        f"{ROWS}.sort((a, b) => a.dataset.position - b.dataset.position).map((row) => row.dataset.episode)"
    )
    return found


def ask(look: Look, query: str) -> list[str]:
    """Type a filter."""
    look.js("document.querySelector('#filter').select()")
    look.driver.find_element("css selector", "#filter").send_keys(query)
    look.until(f"location.hash.includes('q=') && document.querySelector('#filter').value === {json.dumps(query)}")
    look.until("!document.querySelector('#shown').textContent.includes('searching')")
    look.until(f"new URLSearchParams(location.hash.split('?')[1]).get('q') === {json.dumps(query)}")
    return shown(look)


def test_it_opens_on_the_curves_and_says_what_was_learnt(look: Look, small: str) -> None:
    look.open(small)
    look.until("document.querySelectorAll('.chart path.smooth').length >= 4")
    titles = look.texts(".panel h2")
    assert [title.split("env/")[0] for title in titles if "env/" in title] == [
        "Return",
        "Success",
        "Turns",
        "Ended",
    ]
    assert "0.100 → 0.900" in look.texts(".fact b")
    assert look.js("document.querySelectorAll('.chart .level.optimum').length") == 1
    assert look.js("document.querySelectorAll('.chart .area').length") == 2
    assert look.js("document.title") == "first · gym-trl"
    assert look.complaints() == []


def test_rates_have_their_number_of_episodes_and_their_interval(look: Look, small: str) -> None:
    look.open(small)
    look.until("document.querySelectorAll('.chart path.smooth').length >= 4")
    after = share_of(0.9, 100)
    assert f"{after}" in look.texts(".charts .plain td")
    assert f"[{after.low:.3f}, {after.high:.3f}]" in look.texts(".fact em")[0]
    rows = look.texts(".charts .plain tr")
    assert next(row for row in rows if row.startswith("after")).endswith("100")
    assert next(row for row in rows if row.startswith("optimum")).endswith("exact")
    assert look.js("document.querySelectorAll('.chart path.band').length") == 1
    assert any("8 episodes a step, 95% interval" in title for title in look.texts(".panel h2"))


@pytest.mark.parametrize("place", ["#/", "#/episodes", "#/episode/2", "#/episode/2/tokens", "#/group/9"])
def test_a_phone_shows_each_page_without_scrolling_sideways(look: Look, small: str, place: str) -> None:
    phone = {"width": 390, "height": 844, "deviceScaleFactor": 1, "mobile": True}
    look.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", phone)
    try:
        look.open(f"{small}{place}")
        look.until("document.querySelector('#main').children.length > 0")
        assert (
            look.js("Math.max(document.documentElement.scrollWidth, document.querySelector('#main').scrollWidth)")
            == 390
        )
        cells = look.js(
            "[...document.querySelectorAll('.fact, .grid-row > *')].map((one) => one.getBoundingClientRect().right)"
        )
        assert max(cells, default=0) <= 390
        if place == "#/episodes":
            assert look.texts(".grid-head button") == ["#", "ended", "return", "turns"]
            assert look.texts(".grid-row:first-child > *")[1:] == ["success", "1", "1"]
    finally:
        look.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_labels_of_levels_that_are_close_do_not_overlap(look: Look, pages: Path) -> None:
    folder = write_run(pages / "close")
    summary = json.loads((folder / "summary.json").read_text())
    close = {"success_optimum": 0.51, "success_random": 0.5, "success_blind": 0.505}
    (folder / "summary.json").write_text(json.dumps(summary | close))
    write_page(folder, pages / "close.html")
    look.open((pages / "close.html").as_uri())
    look.until("document.querySelectorAll('.chart text.blind').length > 0")
    boxes = look.js(
        "[...document.querySelectorAll('.chart text:is(.optimum, .blind, .random)')]"
        ".map((one) => one.getBoundingClientRect()).map((box) => [box.top, box.bottom]).sort((a, b) => a[0] - b[0])"
    )
    assert len(boxes) == 3
    assert all(above[1] <= below[0] + 1 for above, below in pairwise(boxes))


def test_every_other_metric_is_a_curve_once_it_is_asked_for(look: Look, small: str) -> None:
    look.open(small)
    assert look.texts(".more .panel h2") == []
    look.click(".more summary")
    look.until("document.querySelectorAll('.more .panel').length === 1")
    assert look.texts(".more .panel h2")[0].startswith("loss")


def test_a_click_on_a_curve_leads_to_the_episodes_of_that_step(look: Look, small: str) -> None:
    look.open(small)
    look.until("document.querySelectorAll('.chart path.smooth').length >= 4")
    look.click(".chart")
    look.until("document.querySelector('#filter')")
    assert look.js("document.querySelector('#filter').value") in {"step:2", "step:3"}
    assert look.texts("#shown") == ["8 of 32 episodes"]


def test_a_header_sorts_up_down_and_back(look: Look, small: str) -> None:
    assert table(look, small)[:4] == ["0", "1", "2", "3"]
    turns = "[data-column=turns] button"
    look.click(turns)
    assert shown(look)[:3] == ["2", "6", "10"]  # most turns first
    assert look.js("document.querySelector('[data-column=turns]').ariaSort") == "descending"
    look.click(turns)
    assert shown(look)[:3] == ["0", "3", "4"]
    look.click(turns)
    assert shown(look)[:3] == ["0", "1", "2"]
    assert look.js("location.hash") == "#/episodes"


@pytest.mark.parametrize(
    ("query", "count"),
    [
        ("return<0", 12),
        ("return>0 step=1", 2),
        ("step>=3 -ended:success", 2),
        ("ended:limit", 12),
        ("ended:success", 20),
        ("success", 20),
        ("-success", 12),
        ('"success"', 0),
        ("success:no", 12),
        ("task:instance=6", 16),
        ("turns:3", 8),
        ("seed:1001", 16),
        ("group!=0 step<2", 4),
        ('"ox 2.5"', 1),
        ("think OX step:4", 0),
        ("which OX step:4", 2),
        ('"constructor:1"', 0),
    ],
)
def test_a_filter_keeps_what_it_says(look: Look, small: str, query: str, count: int) -> None:
    if not look.js(f"location.href.startsWith({json.dumps(small)}) && document.querySelector('#filter') !== null"):
        table(look, small)
    ask(look, query)
    assert look.texts("#shown") == [f"{count} of 32 episodes{'' if count else ' Clear the filter'}"]
    assert len(shown(look)) == min(count, 32)


def test_a_filter_that_makes_no_sense_says_so_and_keeps_the_rows(look: Look, small: str) -> None:
    table(look, small)
    assert len(ask(look, "return>much")) > 20
    assert look.texts("#shown.wrong") == ["return is a number, not “much” Clear the filter"]


def test_an_unknown_column_and_an_empty_result_say_so_and_lead_back(look: Look, small: str) -> None:
    table(look, small)
    ask(look, "step:4 constructor:1")
    assert look.texts("#shown.wrong")[0].startswith("There is no column “constructor”. Columns: #, step, ")
    look.click("#shown button")
    look.until("document.querySelector('#filter').value === 'step:4 \"constructor:1\"'")
    look.until("document.querySelector('#shown').textContent.startsWith('0 of 32 episodes')")
    look.click("#shown button")
    look.until("document.querySelector('#shown').textContent === '32 of 32 episodes'")


def test_columns_chips_and_filters_have_one_name_each(look: Look, small: str) -> None:
    table(look, small)
    heads = look.texts(".grid-head button")
    for name in heads:
        ask(look, f"{name}:none")
        assert look.texts("#shown")[0].split()[1] == "of", name
    chips = look.js("[...document.querySelectorAll('.facets .facet')].map((one) => one.title.split('=')[0])")
    assert set(chips) <= set(heads)
    assert {"task", "ended", "success", "group"} <= set(heads)


def test_a_filter_is_in_the_address(look: Look, small: str) -> None:
    assert table(look, small, "?q=step%3A2&sort=-tokens")[:2] == ["8", "12"]
    assert look.texts("#shown") == ["8 of 32 episodes"]


def test_the_buttons_write_the_filter(look: Look, small: str) -> None:
    table(look, small)
    look.click(".facet")
    look.until("document.querySelector('#shown').textContent.startsWith('20 of')")
    assert look.js("document.querySelector('#filter').value") == "ended=success"
    look.click(".facet[aria-pressed=true]")
    look.until("document.querySelector('#shown').textContent.startsWith('32 of')")


def test_everything_can_be_done_with_keys(look: Look, small: str) -> None:
    from selenium.webdriver.common.keys import Keys

    look.open(small)
    look.keys("2")
    look.until("document.querySelector('#rows') === document.activeElement")
    look.keys("j", Keys.ARROW_DOWN, "j", "k")
    assert look.js("document.querySelector('.grid-row.here').dataset.episode") == "2"
    look.keys(Keys.ENTER)
    look.until(EPISODE)
    assert look.texts("h1") == ["Episode 2"]
    look.keys("j", "j")
    assert look.js("document.querySelector('.turn.here').dataset.turn") == "1"
    look.keys(Keys.ARROW_RIGHT)
    look.until("document.querySelector('h1').textContent === 'Episode 3'")
    look.keys(Keys.ARROW_LEFT, "m")
    look.until("document.querySelector('.raw') !== null")
    look.keys("g")
    look.until(GROUP)
    look.keys(Keys.ARROW_LEFT, Keys.ENTER)
    look.until("document.querySelector('h1')?.textContent === 'Episode 1'")
    look.keys(Keys.ESCAPE)
    look.until("document.querySelector('#filter') !== null")
    look.keys("/", *"step:4", Keys.ESCAPE)
    look.until("document.querySelector('#shown').textContent === '8 of 32 episodes'")
    look.keys("?")
    assert look.js("document.querySelector('#help').open")
    look.keys(Keys.ESCAPE, "1")
    look.until("document.querySelector('.charts') !== null")


def test_an_episode_has_its_tokens_coloured_by_probability(look: Look, small: str) -> None:
    look.open(f"{small}#/episode/2")
    assert look.texts(".turn-head > span:first-child") == ["Turn 1", "Turn 2", "Turn 3"]
    assert look.texts(".reward") == ["0", "0", "\N{MINUS SIGN}0.5"]
    assert look.texts(".said.model .text") == ["ox 1.2"] * 3
    assert look.texts(".who")[0] == "system"
    tokens = look.js(
        "[...document.querySelectorAll('.talk .tok[data-i]')].map((one) => [one.textContent, one.dataset.p])"
    )
    assert "".join(text for text, _ in tokens) == "ox 1.2" * 3
    assert {level for _, level in tokens} <= {str(level) for level in range(7)}
    assert len({level for _, level in tokens}) > 2
    colours = look.js(
        "[...document.querySelectorAll('.talk .tok[data-i]')].map((one) => getComputedStyle(one).backgroundColor)"
    )
    assert len(set(colours)) == len({level for _, level in tokens})
    assert look.js("document.querySelectorAll('.rewards rect').length") == 3


def test_thinking_is_folded_and_a_key_opens_it(look: Look, small: str) -> None:
    look.open(f"{small}#/episode/0")
    assert look.js("document.querySelectorAll('.think').length") == 1
    assert not look.js("document.querySelector('.think').open")
    assert look.texts(".said.model > .text") == ["ox 1.0"]
    look.keys("h")
    assert look.js("document.querySelector('.think').open")
    assert "Which one?" in look.texts(".think .text")[0]


@pytest.mark.parametrize(
    "case",  # what was said, its thinking, its answer, what is folded, what is not
    [
        ("<think>hm</think>ox", "hm", "ox", "<think>hm</think>", "ox"),
        ("<think>hm", "hm", "", "<think>hm", ""),  # its tokens ran out
        ("<|channel|>analysis<|message|>hm<|end|>ox", "hm", "ox", "<|channel|>analysis<|message|>hm<|end|>", "ox"),
        ("ox<think>hm</think>", "hm", "ox", "", "ox<think>hm</think>"),
    ],
)
def test_thinking_ends_where_the_answer_begins(look: Look, pages: Path, case: tuple[str, ...]) -> None:
    spoken, thinking, answer, folded, rest = case
    record: dict[str, Any] = {**as_record(played(turns=1, answer=spoken), tokens=True, decode=lambda ids: chr(ids[0]))}
    record["turns"][0] |= {"thinking": thinking, "answer": answer}
    (pages / "thinking.jsonl").write_text(json.dumps(record) + "\n")
    write_page(pages / "thinking.jsonl", pages / "thinking.html")
    look.open(f"{(pages / 'thinking.html').as_uri()}#/episode/0")
    assert look.texts(".think .text") == ([folded] if folded else [])
    assert look.texts(".said.model > .text:not(.empty)") == ([rest] if rest else [])


def test_the_tokens_show_the_mask(look: Look, small: str) -> None:
    look.open(f"{small}#/episode/1/tokens")
    assert "".join(look.texts(".tok.in")) == "ox 1.1" * 2
    assert "".join(look.texts(".tok.out")) == "Say ox."
    assert "19 tokens, 12 sampled" in look.texts(".raw .turn-head")[0]
    look.js("document.querySelector('.tok.in').dispatchEvent(new PointerEvent('pointerover', {bubbles: true}))")
    told = look.texts("#tip")[0]
    assert told.startswith('"o"id111mask1logprob-')
    assert "probability" in told


def test_a_group_is_side_by_side_turn_by_turn(look: Look, small: str) -> None:
    look.open(f"{small}#/group/9")
    assert look.texts("h1") == ["4 episodes on one task"]
    assert look.js("[...document.querySelectorAll('[data-member]')].map((one) => one.dataset.member)") == [
        "8",
        "9",
        "10",
        "11",
    ]
    tops = look.js(
        "[...document.querySelectorAll('.group-cell [data-turn=\"0\"]')]"
        ".map((one) => Math.round(one.getBoundingClientRect().top))"
    )
    assert len(tops) == 4
    assert len(set(tops)) == 1
    assert look.texts(".group-card.here b") == ["1"]
    assert "+0.75 to mean" in look.texts(".group-card.here")[0]
    look.keys("a")  # the same game at all steps
    look.until("document.querySelectorAll('[data-member]').length === 16")


@pytest.fixture(scope="module")
def credited(pages: Path) -> str:
    """Return the page of a run with credit per turn."""
    folder = write_credit(write_run(pages / "credited"))
    write_page(folder, folder / "view.html")
    return (folder / "view.html").as_uri()


def test_each_turn_has_the_colour_and_the_number_of_its_advantage(look: Look, small: str, credited: str) -> None:
    look.open(f"{credited}#/episode/26")  # step 4
    assert look.texts(".credit b") == ["0", "+1.68", "\N{MINUS SIGN}0.9"]
    levels = "[...document.querySelectorAll('.turn[data-credit]')].map((one) => one.dataset.credit)"
    assert look.js(levels) == ["0", "3", "-1"]
    colours = "[...document.querySelectorAll('.turn-head')].map((one) => getComputedStyle(one).backgroundColor)"
    one_theme = look.js(colours)
    look.keys("t")
    other_theme = look.js(colours)
    assert len(set(one_theme)) == len(set(other_theme)) == 3
    assert not set(one_theme) & set(other_theme)
    look.js("localStorage.clear()")
    assert look.js("document.querySelectorAll('.credits i').length") == 7
    assert look.js("document.querySelectorAll('.of-credit rect').length") == 3
    assert look.complaints() == []
    look.open(f"{small}#/episode/26")
    assert look.texts(".credit, .credits, .of-credit, [data-credit], .met") == []


def test_a_group_shows_where_its_episodes_met(look: Look, small: str, credited: str) -> None:
    look.open(f"{credited}#/group/9")
    marks = look.texts(".group-cell .met")
    # All start in one state, are on their own between, and end in one.
    assert marks == ["A \N{MULTIPLICATION SIGN}4"] * 4 + ["B \N{MULTIPLICATION SIGN}4"] * 4
    assert look.js("document.querySelector('.group-cell .met').title") == "episodes 8, 9, 10, 11 were in this state"
    assert look.js("document.querySelectorAll('.group-bar .credits i').length") == 7
    last = "[...document.querySelectorAll('.group-cell .met')].at(-1)"
    look.js(f"{last}.dispatchEvent(new PointerEvent('pointerover', {{bubbles: true}}))")
    assert look.texts(".met.same") == ["B \N{MULTIPLICATION SIGN}4"] * 4
    look.keys("a")  # states have numbers within a group only
    look.until("document.querySelectorAll('[data-member]').length === 16")
    assert look.texts(".group-cell .met") == []
    assert len(look.texts(".group-cell .credit")) == 28
    assert look.complaints() == []
    look.open(f"{small}#/group/9")
    assert look.texts(".credit, .credits, [data-credit], .met") == []


# ---------------------------------------------------------------------------------------------------------------------
# Games of several seats
# ---------------------------------------------------------------------------------------------------------------------

GAME = "document.querySelector('.game-grid') !== null"
LINES = """[...document.querySelectorAll('.game-time')].map((time) => {
    const cells = []
    for (let cell = time.nextElementSibling; cell?.matches('.game-cell'); cell = cell.nextElementSibling)
        cells.push([...cell.querySelectorAll('.said .text')].map((text) => text.textContent).join(' > '))
    return [time.textContent, ...cells]
}).filter((line) => line[0])"""
"""Lines of a game's time line: number, and what each seat saw and said."""


@pytest.fixture(scope="module")
def poker(pages: Path) -> tuple[str, list[GameResult]]:
    """Return the page of a run of games of Kuhn poker, two of each deal, and the games."""
    played = play_games(
        "TrlEnv/KuhnPoker-v0", "TrlEnv/KuhnPoker-v0", lambda rng: rng.choice(["bet", "pass"]), seeds=range(4), copies=2
    )
    folder = write_games(pages / "poker", played, copies=2, policy="tiny")
    write_page(folder, folder / "view.html")
    return (folder / "view.html").as_uri(), played


def one_game(pages: Path, name: str, played: list[GameResult], **about: Any) -> str:
    folder = write_games(pages / name, played, **about)
    write_page(folder, folder / "view.html")
    return f"{(folder / 'view.html').as_uri()}#/game/0"


def lines_of(played: GameResult) -> list[list[str]]:
    """Return the time line of a game as the page should show it."""
    turns = sorted((at, one.seat or 0, turn) for one in played for at, turn in zip(one.order, one.turns, strict=True))
    lines = []
    for at, seat, turn in turns:
        cells = [""] * len(played)
        cells[seat] = f"{turn.observation} > {turn.answer.text}<end>"
        lines.append([str(at + 1), *cells])
    return [*lines, ["end", *(one.messages[-1].content for one in played)]]


def test_a_game_is_shown_with_all_seats_on_one_time_line(look: Look, poker: tuple[str, list[GameResult]]) -> None:
    page, played = poker
    assert {len(one.turns) for game in played for one in game} == {1, 2}
    for number, game in enumerate(played):
        look.open(f"{page}#/game/{2 * number + 1}")
        assert look.texts("h1") == ["Game of 2 seats"]
        assert look.js(LINES) == lines_of(game)
        assert look.texts(".group-card b") == ["seat 0", "seat 1"]
        assert look.texts(".group-card.here b") == ["seat 1"]
        ends = look.texts("[data-end] .reward")
        assert [float(text.split()[1].replace("\N{MINUS SIGN}", "-")) for text in ends] == [
            one.episode_return for one in game
        ]
    assert look.complaints() == []


def test_what_a_seat_saw_is_in_its_own_column_and_colour_only(look: Look, poker: tuple[str, list[GameResult]]) -> None:
    page, played = poker
    look.open(f"{page}#/game/0")
    own = [[turn.observation.split("card: ")[1][0] for turn in one.turns] for one in played[0]]
    for seat, cards in enumerate(own):
        seen = " ".join(look.texts(f".game-cell[data-seat='{seat}'] [data-turn] .said.env .text"))
        assert f"You are player {seat + 1}." in seen
        assert f"You are player {2 - seat}." not in seen
        assert [seen.split("card: ")[1][0]] * len(cards) == cards
        heads = f".game-cell[data-seat='{seat}'] [data-turn] .said.env .who"
        assert set(look.texts(heads)) == {f"Seen by seat {seat} alone"}
    colours = "[...document.querySelectorAll('[data-end]')].map((one) => getComputedStyle(one).borderLeftColor)"
    one_theme = look.js(colours)
    look.keys("t")
    other_theme = look.js(colours)
    assert len({*one_theme, *other_theme}) == 4
    look.js("localStorage.clear()")


def test_a_game_of_three_seats_that_bid_at_once_has_three_columns(look: Look, pages: Path) -> None:
    [played] = play_games(Auction, "Auction-v0", lambda rng: str(rng.randint(1, 9)), seeds=[5])
    look.open(one_game(pages, "auction", [played]))
    assert look.texts("h1") == ["Game of 3 seats"]
    assert look.js(LINES) == lines_of(played)
    assert sorted(look.js(LINES)[-1][1:]) == ["You lose.", "You lose.", "You win."]
    assert look.complaints() == []


def test_a_board_game_has_as_many_lines_as_turns(look: Look, pages: Path) -> None:
    name = "TrlEnv/TicTacToe-v0"
    [played] = play_games(name, name, lambda rng: str(rng.randint(1, 9)), seeds=[1])
    look.open(one_game(pages, "board", [played]))
    assert look.js(LINES) == lines_of(played)
    for _ in range(3):
        look.keys("j")  # the turns of all seats, in order
    assert look.js("document.querySelector('.turn.here').closest('.game-cell').previousElementSibling.textContent") == (
        "3" if look.js(LINES)[2][1] else ""
    )


def test_a_game_can_be_reached_and_left_with_keys(look: Look, poker: tuple[str, list[GameResult]]) -> None:
    from selenium.webdriver.common.keys import Keys

    page, _ = poker
    look.open(f"{page}#/episodes")
    look.until("document.querySelector('#shown')?.textContent")
    look.keys("j", "j", "j", "s")
    look.until(GAME)
    assert look.js("location.hash") == "#/game/3"
    look.keys(Keys.ARROW_LEFT)
    assert look.texts(".group-card.here b") == ["seat 0"]
    look.keys("n", "n", "p")
    look.until("location.hash === '#/game/4' && document.querySelector('[data-member=\"4\"]')")
    look.keys(Keys.ENTER)
    look.until("document.querySelector('h1')?.textContent === 'Episode 4'")
    assert look.texts("a.verdict.seat") == ["seat 0 of a game"]
    look.keys("s")
    look.until(GAME)
    look.keys("g")
    look.until(GROUP)
    look.keys("s")
    look.until(GAME)
    look.keys("?")
    assert "A game" in look.texts("#help h3")
    look.keys(Keys.ESCAPE, Keys.ESCAPE)
    look.until(EPISODE)


def test_the_table_has_the_seat_and_finds_it(look: Look, small: str, poker: tuple[str, list[GameResult]]) -> None:
    assert table(look, poker[0], "?q=seat%3A1") == [str(number) for number in range(1, 16, 2)]
    assert "seat" in look.texts(".grid-head button")
    table(look, small)
    assert "seat" not in look.texts(".grid-head button")
    look.open(f"{small}#/game/3")  # not a seat's
    look.until(EPISODE)


def test_a_group_of_self_play_is_grouped_by_game(look: Look, poker: tuple[str, list[GameResult]]) -> None:
    page, played = poker
    look.open(f"{page}#/group/5")
    assert look.texts("h1") == ["2 games of one task"]
    assert look.js("[...document.querySelectorAll('a.group-game')].map((one) => one.getAttribute('href'))") == [
        "#/game/4",
        "#/game/6",
    ]
    assert look.js("[...document.querySelectorAll('[data-member]')].map((one) => one.dataset.member)") == list("4567")
    second = [game[1].episode_return or 0.0 for game in played[2:4]]  # its mean is that of its seat
    expected = second[0] - sum(second) / 2
    told = look.texts(".group-card.here")[0].replace("\N{MINUS SIGN}", "-")
    assert f"{expected:+g} to mean" in told or (expected == 0 and "0 to mean" in told)


def test_a_seat_that_was_never_to_move_is_there_and_says_so(look: Look, pages: Path) -> None:
    [played] = play_games(Auction, "Auction-v0", lambda rng: "nothing", seeds=[1])
    assert [one.stop_reason.value for one in played] == ["crashed", "unplayed", "unplayed"]
    look.open(one_game(pages, "unplayed", [played]))
    assert look.texts("[data-end] .verdict") == ["crashed", "unplayed", "unplayed"]
    assert len(look.js(LINES)) == 2


def test_turns_without_a_recorded_order_are_said_to_be_without(look: Look, pages: Path) -> None:
    played = play_games(Auction, "Auction-v0", lambda rng: "4", seeds=[1])
    folder = write_games(pages / "older", played)
    records = [json.loads(line) for line in (folder / "rollouts.jsonl").read_text().splitlines()]
    for name, kept in (("unordered", [{**one, "order": None} for one in records]), ("part", records[::2])):
        (pages / f"{name}.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in kept))
        write_page(pages / f"{name}.jsonl", pages / f"{name}.html")
    look.open(f"{(pages / 'unordered.html').as_uri()}#/game/1")
    assert "not recorded: turns of one number are beside each other" in look.texts(".game-note")[0]
    assert len(look.texts("[data-turn]")) == 3
    look.open(f"{(pages / 'part.html').as_uri()}#/game/1")
    assert look.texts(".game-note") == ["1 turn of seats that are not recorded"]
    assert look.texts("h1") == ["Game of 2 seats"]


def test_segments_have_their_borders_and_what_was_dropped_is_said(look: Look, pages: Path) -> None:
    chat = ByteChat()
    episode = Episode(
        Task("TrlEnv/GuessNumber-v0", 1),
        chat=chat,
        limits=Limits(tokens_per_turn=9),
        history=History(last=1, summary=lambda messages: "<b>50</b>!"),
    )
    with InlinePool(gym.make) as pool:
        [result] = run_episodes([episode], pool=pool, engine=ScriptedEngine(lambda request: chat.say("50")))
    (pages / "segments").mkdir()
    with RecordWriter(pages / "segments") as writer:
        writer.write(as_record(result, tokens=True, decode=chat.show))
    page = pages / "segments.html"
    write_page(pages / "segments", page)
    look.open(f"{page.as_uri()}#/episode/0")
    assert look.texts(".border") == [
        "Segment 2 turns 1 to 2 are no longer shown to the model, but these notes:<b>50</b>!",
        "Segment 3 turns 1 to 4 are no longer shown to the model, but these notes:<b>50</b>!",
    ]
    assert look.js("[...document.querySelectorAll('.border + .turn')].map((one) => one.dataset.turn)") == ["3", "5"]
    look.go("#/episode/0/tokens", "document.querySelectorAll('[data-segment]').length === 2")
    assert [text.split(" \u00b7 ")[0] for text in look.texts(".turn-head")] == [
        "Prompt",
        "Completion",
        "Prompt of segment 2",
        "Completion of segment 2",
        "Prompt of segment 3",
        "Completion of segment 3",
    ]


def test_a_run_that_was_only_evaluated_shows_how_its_numbers_are_spread(look: Look, pages: Path) -> None:
    with RecordWriter(write_run(pages / "eval", steps=0)) as records:
        for seed in range(12):
            records.write(as_record(played(seed=seed, turns=1 + seed % 3), split="eval", policy="solver"))
    (pages / "eval" / "summary.json").unlink()
    write_page(pages / "eval", pages / "eval.html")
    look.open((pages / "eval.html").as_uri())
    look.until("document.querySelectorAll('.chart .bar').length > 0")
    assert "Turnsof 12 episodesmean 2" in look.texts(".panel h2")
    assert look.complaints() == []


def test_the_theme_follows_the_system_until_a_key_says_otherwise(look: Look, small: str) -> None:
    back = "getComputedStyle(document.body).backgroundColor"
    seen = {}
    for scheme in ("light", "dark"):
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        look.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        look.open(small)
        seen[scheme] = look.js(back)
    assert seen["light"] != seen["dark"]
    look.keys("t")
    assert look.js(back) == seen["light"]
    look.keys("t")
    assert look.js(back) == seen["dark"]
    look.js("localStorage.clear()")


def test_an_address_that_leads_nowhere_does_no_harm(look: Look, small: str) -> None:
    look.open(f"{small}#/nowhere")
    look.until("document.querySelector('.charts') !== null")
    look.js("location.hash = '#/episode/99999'")
    look.until("document.body.textContent.includes('There is no episode 99999 in this run.')")


# ---------------------------------------------------------------------------------------------------------------------
# Hostile transcripts
# ---------------------------------------------------------------------------------------------------------------------

HOSTILE = [
    "</script><script>window.owned = 1</script>",
    "<img src=x onerror='window.owned = 2'>",
    "<svg onload=window.owned=3></svg>",
    "<!--<script>",
    "]]><script>window.owned=4</script>",
    "<a href='javascript:window.owned=5'>here</a>",
    "<iframe srcdoc='<script>parent.owned=6</script>'></iframe>",
    "<style>*{display:none}</style><base href=//evil>",
    "<meta http-equiv=refresh content='0;url=about:blank'>",
    "{{constructor.constructor('window.owned=7')()}} ${window.owned=8} [[data]] [[script]]",
    "__proto__",
    "\u202e\u2066right to left\x00\x1b[31m",
    "\ud800 alone",
    "&lt;b&gt; &amp;",
]
EVIL = "\n".join(HOSTILE)


@pytest.fixture(scope="module")
def evil(pages: Path) -> str:
    """A run in which everything that is text is hostile, also the names of things."""
    folder = pages / "<img src=x onerror=window.owned=9>[[script]]"
    write_run(folder, steps=1)
    with RecordWriter(folder) as records:
        for step in (1, 2):
            trajectory = played(turns=3, thinking=EVIL, answer=EVIL, observation=EVIL, reward=-1.0)
            about: dict[str, Any] = {"policy": EVIL, "split": EVIL, "step": step, "group": 1}
            about |= {EVIL: EVIL, "note": {EVIL: [EVIL]}}
            record = as_record(trajectory, tokens=True, decode=lambda ids: HOSTILE[ids[0] % len(HOSTILE)], **about)
            record |= {"game": 0, "seat": step, "order": [step, 7, 2**32 - 1]}
            record["task"] |= {"env_id": EVIL, "options": {EVIL: EVIL}}
            record["turns"][0]["action"] = EVIL
            records.write(record | {"stop_reason": EVIL, "opening": [{"role": EVIL, "content": EVIL}]})  # type: ignore[arg-type,typeddict-unknown-key,unused-ignore]
        records.write(as_record(played(turns=0, error=EVIL, stop_reason=StopReason.ENV_ERROR)))
    summary = {"success_before": EVIL, "steps": EVIL, EVIL: EVIL}
    (folder / "summary.json").write_text(json.dumps(summary))
    options = {"env": EVIL, "model": EVIL, "steps": EVIL}
    (folder / "config.json").write_text(json.dumps({"options": options, "versions": {"trl": EVIL}}))
    with (folder / "metrics.jsonl").open("a") as metrics:
        metrics.write(json.dumps({"step": 2, EVIL: 1.0, f"env/stop/{EVIL}": 0.5, "__proto__": 2, "x": EVIL}) + "\n")
    write_page(folder, pages / "evil.html")
    return (pages / "evil.html").as_uri()


def test_a_hostile_transcript_is_nowhere_in_the_file(evil: str, pages: Path) -> None:
    text = (pages / "evil.html").read_text(encoding="utf-8")
    assert "owned" not in text.replace("&lt;img src=x onerror=window.owned=9&gt;", "")
    assert text.count("<script>") == 1
    assert evil


@pytest.mark.parametrize(
    "place",
    ["#/", "#/episodes", "#/episode/8", "#/episode/8/tokens", "#/group/8", "#/group/8/all", "#/game/8", "#/episode/10"],
)
def test_a_hostile_transcript_is_only_ever_text(look: Look, evil: str, place: str) -> None:
    look.open(f"{evil}{place}")
    look.js("document.querySelectorAll('details').forEach((one) => { one.open = true })")
    look.js(
        "[...document.querySelectorAll('.tok, .chart, .grid-row')].slice(0, 40).forEach((one) =>"
        "['pointerover', 'pointermove'].forEach((kind) =>"
        "one.dispatchEvent(new PointerEvent(kind, {bubbles: true, clientX: 200, clientY: 200}))))"
    )
    look.until("new Promise((done) => setTimeout(() => done(true), 50))")
    assert look.js("window.owned") is None
    elements = set(look.js("[...document.querySelectorAll('body *')].map((one) => one.tagName.toLowerCase())"))
    assert elements.isdisjoint({"img", "iframe", "style", "base", "meta", "object", "embed", "form"})
    assert look.js("document.querySelectorAll('script:not([type])').length") == 1
    assert look.js("[...document.querySelectorAll('a')].every((one) => one.getAttribute('href').startsWith('#'))")
    assert look.js(
        "[...document.querySelectorAll('*')]"
        ".every((one) => one.getAttributeNames().every((name) => !name.startsWith('on')))"
    )
    assert look.complaints() == []  # nothing was tried that the policy had to stop


def test_a_hostile_transcript_can_be_read_as_it_was_said(look: Look, evil: str) -> None:
    look.open(f"{evil}#/episode/8")
    # Compared in the page: a lone surrogate has no form outside of it.
    assert look.js(f"document.querySelectorAll('.said.env .text')[1].textContent === {json.dumps(EVIL)}")


@pytest.mark.parametrize(
    "attempt",
    [
        "document.body.innerHTML = '<img src=x onerror=window.owned=1>'",
        "document.body.append(Object.assign(document.createElement('script'), {textContent: 'window.owned=1'}))",
        "setTimeout('window.owned=1')",
    ],
)
def test_the_policy_would_stop_a_page_that_forgot_itself(look: Look, small: str, attempt: str) -> None:
    look.open(small)
    # As an event's handler, because what a driver runs is outside of the policy.
    failed = look.js(
        "new Promise((done) => { const timer = setTimeout(() => done('nothing'), 100);"
        f"addEventListener('probe', () => {{ try {{ {attempt} }}"
        " catch (error) { clearTimeout(timer); done('threw') } });"
        "dispatchEvent(new Event('probe')) })"
    )
    assert look.js("window.owned") is None
    assert failed == "threw" or look.complaints()
    look.complaints()


def test_the_page_can_ask_nobody(look: Look, small: str) -> None:
    look.open(small)
    assert look.js("fetch('https://example.com/').then(() => 'asked', () => 'refused')") == "refused"
    assert any("Content Security Policy" in line for line in look.complaints())


# ---------------------------------------------------------------------------------------------------------------------
# A large run
# ---------------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def large(pages: Path) -> tuple[str, int]:
    """The page of a run of 20,000 episodes, and into how many chunks they are cut."""
    folder = write_large_run(pages / "large", LARGE, turns=2, words=4, different=500)
    counts = write_page(folder, pages / "large.html")
    assert counts["episodes"] == LARGE
    return (pages / "large.html").as_uri(), counts["chunks"]


def test_twenty_thousand_episodes_are_a_screenful_of_rows_and_few_chunks(look: Look, large: tuple[str, int]) -> None:
    url, chunks = large
    decoded = "Number(document.documentElement.dataset.decoded || 0)"
    look.open(f"{url}#/episodes")
    assert look.texts("#shown") == ["20,000 of 20,000 episodes"]
    assert look.js(decoded) == 0
    assert look.js("document.querySelectorAll('.grid-row').length") < 60
    look.js("document.querySelector('#rows').scrollTo(0, 1e9)")
    look.until(f"{ROWS}.some((row) => row.dataset.episode === '19999')")
    for top in range(0, 600_000, 20_000):
        look.js(f"document.querySelector('#rows').scrollTo(0, {top})")
    look.click("[data-column=return] button")
    look.until("document.querySelector('[data-column=return]').ariaSort === 'descending'")
    assert look.js("document.querySelectorAll('.grid-row').length") < 60
    assert look.js(decoded) == 0
    look.js("location.hash = '#/episode/12345'")
    look.until("document.querySelector('h1')?.textContent === 'Episode 12345'")
    assert look.js(decoded) == 2  # what was said, and its tokens
    look.js("location.hash = '#/group/12345'")
    look.until(GROUP)
    assert look.js(decoded) <= 4
    assert chunks > 100


def test_searching_all_transcripts_decodes_each_chunk_once(look: Look, large: tuple[str, int]) -> None:
    url, chunks = large
    look.open(f"{url}#/episode/19999")
    words = '"' + " ".join(look.texts(".said.model .text")[0].split()[:3]) + '"'
    look.open(f"{url}#/episodes?q={words.replace(' ', '%20')}&sort=-%23")
    look.until("/^[0-9]+ of 20,000 episodes$/.test(document.querySelector('#shown').textContent)")
    assert shown(look)[0] == "19999"
    assert look.js("Number(document.documentElement.dataset.decoded)") == chunks


def test_scores_by_arguments_lead_to_their_own_episodes(look: Look, tmp_path: Path) -> None:
    arguments: list[dict[str, Any]] = [{}, {"n": 1}, {"n": "1"}, {"order": "a b"}]
    with RecordWriter(tmp_path) as writer:
        for number, env_kwargs in enumerate(arguments):
            for _ in range(number + 1):
                writer.write(as_record(played(), policy="p", env_kwargs=env_kwargs))
    page = tmp_path / "page.html"
    write_page(tmp_path, page)
    look.open(page.as_uri())
    look.until("document.querySelector('table.plain')?.rows.length === 5")
    rows = "[...document.querySelector('table.plain').tBodies[0].rows]"
    assert look.js(f"{rows}.map((row) => [...row.cells].slice(0, 2).map((cell) => cell.textContent))") == [
        ["n='1'", "3"],
        ["n=1", "2"],
        ["order='a b'", "4"],
        ["\N{EN DASH}", "1"],
    ]
    links = look.js(f"{rows}.map((row) => row.querySelector('a').getAttribute('href'))")
    for number, link in zip((3, 2, 4, 1), links, strict=True):
        look.open(f"{page.as_uri()}{link}")
        look.until("document.querySelector('#shown')?.textContent")
        assert len(shown(look)) == number, link
    assert look.complaints() == []
