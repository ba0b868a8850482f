"""The page in a real Chromium: what it shows, how it is used, and what it refuses."""

import json
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
from support.viewer_runs import Look, needs_chromium, played, recorded, write_large_run, write_run

from gym_trl.engines.scripted import ScriptedEngine
from gym_trl.executors.inline import InlinePool
from gym_trl.history import last_turns
from gym_trl.records import ROLLOUTS, append, record_of
from gym_trl.rollout import Limits, rollout, run
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
    look.until(f"new URLSearchParams(location.hash.split('?')[1]).get('q') === {json.dumps(query)}")
    look.until("!document.querySelector('#shown').textContent.includes('searching')")
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
    assert look.js("document.querySelectorAll('.chart .level.random').length") == 2
    assert look.js("document.querySelectorAll('.chart .area').length") == 2
    assert look.js("document.title") == "first · gym-trl"
    assert look.complaints() == []


def test_rates_have_their_number_of_episodes_and_their_interval(look: Look, small: str) -> None:
    look.open(small)
    look.until("document.querySelectorAll('.chart path.smooth').length >= 4")
    assert "0.900 [0.450, 0.950]" in look.texts(".charts .plain td")
    assert "[0.450, 0.950]" in look.texts(".fact em")[0]
    rows = look.texts(".charts .plain tr")
    assert next(row for row in rows if row.startswith("after")).endswith("100")
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
            assert look.texts(".grid-row:first-child > *")[1:] == ["ended", "1", "1"]
    finally:
        look.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


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
    [("ended", 20), ("turn_limit", 12), ("instance=6", 16), ("TRAIN ox 2.5", 1), ("which one", 8), ("nowhere", 0)],
)
def test_a_filter_keeps_the_episodes_with_its_words(look: Look, small: str, query: str, count: int) -> None:
    table(look, small)
    assert len(ask(look, query)) == count
    assert look.texts("#shown") == [f"{count} of 32 episodes{'' if count else ' Clear the filter'}"]
    if not count:
        look.click("#shown button")
        look.until("document.querySelector('#shown').textContent === '32 of 32 episodes'")


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
    look.keys("/", *"ox 4.", Keys.ESCAPE)
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


def test_each_turn_has_the_colour_and_the_number_of_its_advantage(look: Look, small: str, pages: Path) -> None:
    folder = write_run(pages / "credited", credit=True)
    write_page(folder, folder / "view.html")
    look.open(f"{(folder / 'view.html').as_uri()}#/episode/26")  # step 4
    assert look.texts(".credit b") == ["0", "+1.68", "\N{MINUS SIGN}0.9"]
    colours = "[...document.querySelectorAll('.turn-head')].map((one) => getComputedStyle(one).backgroundColor)"
    assert len(set(look.js(colours))) == 3
    assert look.js("document.querySelectorAll('.of-credit rect').length") == 3
    assert look.complaints() == []
    look.open(f"{small}#/episode/26")
    assert look.texts(".credit, .credits, .of-credit, [data-credit]") == []


def test_segments_have_their_borders(look: Look, pages: Path) -> None:
    chat, tasks = ByteChat(), [Task("TrlEnv/GuessNumber-v0", 1)]
    with InlinePool(gym.make) as pool:
        engine = ScriptedEngine(lambda request: chat.say("50"))
        options: Any = {"limits": Limits(tokens_per_turn=9), "history": last_turns(1)}
        [[result]] = run(rollout(tasks, pool=pool, engine=engine, chat=chat, **options))
    append(pages / "segments" / ROLLOUTS, [recorded(result)])
    page = pages / "segments.html"
    write_page(pages / "segments", page)
    look.open(f"{page.as_uri()}#/episode/0")
    assert [text[:9] for text in look.texts(".border")] == ["Segment 2", "Segment 3"]
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
    records = [record_of(played(seed=seed, turns=1 + seed % 3), split="eval", policy="solver") for seed in range(12)]
    append(write_run(pages / "eval", steps=0) / ROLLOUTS, records)
    (pages / "eval" / "summary.json").unlink()
    write_page(pages / "eval", pages / "eval.html")
    look.open((pages / "eval.html").as_uri())
    look.until("document.querySelectorAll('.chart .bar').length > 0")
    assert "Turnsof 12 episodesmean 2" in look.texts(".panel h2")
    assert look.complaints() == []


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
    for step in (1, 2):
        episode = played(turns=3, thinking=EVIL, answer=EVIL, observation=EVIL, reward=-1.0)
        about: dict[str, Any] = {"policy": EVIL, "split": EVIL, "step": step, "group": 1, "advantages": [EVIL, 1, -1]}
        about |= {EVIL: EVIL, "note": {EVIL: [EVIL]}}
        texts = [HOSTILE[one % len(HOSTILE)] for one in episode.row.completion_ids]
        record = record_of(episode, tokens=True, **about) | {"token_texts": texts, "seat": step}
        record["task"] |= {"env_id": EVIL, "options": {EVIL: EVIL}}
        record["turns"][0]["action"] = EVIL
        append(folder / ROLLOUTS, [record | {"stop_reason": EVIL, "opening": [{"role": EVIL, "content": EVIL}]}])
    append(folder / ROLLOUTS, [record_of(played(turns=0, error=EVIL, stop_reason=StopReason.ENV_ERROR))])
    score = {"success": [EVIL, 0.5], "return": EVIL}
    summary = {"before": {EVIL: score, "<b>": score}, "after": {EVIL: score}, "steps": EVIL, EVIL: EVIL}
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
    ["#/", "#/episodes", "#/episode/8", "#/episode/8/tokens", "#/group/8", "#/group/8/all", "#/episode/10"],
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


def test_twenty_thousand_episodes_are_a_screenful_of_rows_and_few_chunks(look: Look, pages: Path) -> None:
    counts = write_page(write_large_run(pages / "large", LARGE, turns=2, words=4, different=500), pages / "large.html")
    url, chunks = (pages / "large.html").as_uri(), counts["chunks"]
    decoded = "Number(document.documentElement.dataset.decoded || 0)"
    look.open(f"{url}#/episodes")
    assert look.texts("#shown") == ["20,000 of 20,000 episodes"]
    look.js("document.querySelector('#rows').scrollTo(0, 1e9)")
    look.until(f"{ROWS}.some((row) => row.dataset.episode === '19999')")
    look.click("[data-column=return] button")
    look.until("document.querySelector('[data-column=return]').ariaSort === 'descending'")
    assert look.js("document.querySelectorAll('.grid-row').length") < 60
    assert look.js(decoded) == 0
    look.js("location.hash = '#/episode/19999'")
    look.until("document.querySelector('h1')?.textContent === 'Episode 19999'")
    assert look.js(decoded) == 2  # what was said, and its tokens
    words = "%20".join(look.texts(".said.model .text")[0].split()[:3])
    look.open(f"{url}#/episodes?q={words}&sort=-%23")
    look.until("/^[0-9]+ of 20,000 episodes$/.test(document.querySelector('#shown').textContent)")
    assert shown(look)[0] == "19999"
    assert look.js(decoded) == chunks > 100
