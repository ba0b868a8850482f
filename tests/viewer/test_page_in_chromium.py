"""The page in a real Chromium: what it shows, how it is used, and what it refuses."""

import json
import math
import re
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
from support.viewer_runs import played, recorded, write_run

from gym_trl.engines.scripted import ScriptedEngine
from gym_trl.executors.inline import InlinePool
from gym_trl.history import last_turns
from gym_trl.records import ROLLOUTS, append, record_of
from gym_trl.rollout import Limits, rollout, run
from gym_trl.testing import ByteChat
from gym_trl.types import StopReason, Task
from gym_trl.viewer.page import write_page
from viewer.chromium import Look

pytestmark = pytest.mark.needs(package="chromium")


def listed(look: Look) -> list[str]:
    """Return the episodes that the table shows."""
    found: list[str] = look.js("[...document.querySelectorAll('a.row')].map((row) => row.hash.split('/')[2])")
    return found


def test_it_opens_on_the_curves_and_says_what_was_learnt(look: Look, small: str) -> None:
    look.open(small)
    look.until("document.querySelectorAll('.chart path.smooth').length >= 5")
    assert [title.split("env/")[0] for title in look.texts(".charts h2") if "env/" in title] == [
        *("Return", "Success", "Turns", "Ended"),
    ]
    assert "Successenv/success · 8 episodes1" in look.texts(".charts h2")
    assert look.texts(".fact b")[0] == "0.100 → 0.900"
    assert [row.split(" ")[0] for row in look.texts("tbody tr")] == ["before0.100", "after0.900", "random0.200"]
    assert "0.900 [0.450, 0.950]" in look.texts("td")
    assert look.js("document.querySelectorAll('.level.random').length") == 1
    assert look.complaints() == []


@pytest.mark.parametrize("place", ["#/", "#/episodes", "#/episode/2", "#/episode/2/tokens", "#/group/9"])
def test_a_phone_shows_each_page_without_scrolling_sideways(look: Look, small: str, place: str) -> None:
    phone = {"width": 390, "height": 844, "deviceScaleFactor": 1, "mobile": True}
    look.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", phone)
    try:
        look.open(f"{small}{place}")
        widths = "[document.documentElement, document.querySelector('main')].map((one) => one.scrollWidth)"
        assert look.js(widths) == [390, 390]
        cells = "[...document.querySelectorAll('.fact, .row > *')].map((one) => one.getBoundingClientRect().right)"
        assert max(look.js(cells), default=0) <= 390
    finally:
        look.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_the_table_sorts_and_its_filter_keeps_the_episodes_with_all_words(look: Look, small: str) -> None:
    from selenium.webdriver.common.keys import Keys

    look.open(f"{small}#/episodes")
    assert listed(look)[:3] == ["0", "1", "2"]
    look.click("[data-column=turns]")
    assert listed(look)[:3] == ["0", "3", "4"]
    look.click("[data-column=turns]")
    assert listed(look)[:3] == ["2", "6", "10"]
    for query, found in {"turn_limit": 12, "instance=6": 16, "TRAIN ox 2.5": 1, "which one": 8, "nowhere": 0}.items():
        look.js("document.querySelector('#filter').select()")
        look.driver.find_element("css selector", "#filter").send_keys(query)
        look.until(f"document.querySelector('#shown').textContent === '{found} of 32 episodes'")
        assert len(listed(look)) == found
    look.go("#/episodes?q=which&sort=-%23", "document.querySelector('#shown').textContent === '8 of 32 episodes'")
    assert listed(look) == ["28", "24", "20", "16", "12", "8", "4", "0"]
    look.click("a.row")
    look.until("document.querySelector('h1')?.textContent === 'Episode 28'")
    look.keys(Keys.ARROW_RIGHT)  # in the order of the table
    look.until("document.querySelector('h1').textContent === 'Episode 24'")
    look.keys(Keys.ARROW_LEFT)
    look.until("document.querySelector('h1').textContent === 'Episode 28'")


def test_an_episode_has_its_tokens_coloured_by_probability(look: Look, small: str) -> None:
    look.open(f"{small}#/episode/2")
    assert look.texts(".turn-head > span:first-child") == ["Turn 1", "Turn 2", "Turn 3"]
    assert look.texts(".reward") == ["0", "0", "\N{MINUS SIGN}0.5"]
    assert look.texts(".who")[0] == "system"
    assert look.texts(".said.model .text") == ["ox 1.2"] * 3
    tokens = "[...document.querySelectorAll('.talk span.tok')]"
    assert "".join(look.js(f"{tokens}.map((one) => one.textContent)")) == "ox 1.2" * 3
    levels = look.js(f"{tokens}.map((one) => one.dataset.p)")
    assert len(set(look.js(f"{tokens}.map((one) => getComputedStyle(one).backgroundColor)"))) == len(set(levels)) > 2
    look.go("#/episode/0", "document.querySelector('h1').textContent === 'Episode 0'")
    assert look.texts(".said.model > .text") == ["ox 1.0"]
    assert look.js("document.querySelector('.think').open") is False
    assert "Which one?" in look.texts(".think .text")[0]


def test_each_token_has_its_text_mask_and_logprob(look: Look, small: str) -> None:
    look.open(f"{small}#/episode/1/tokens")
    row = played(seed=1000, turns=2, answer="ox 1.1").row
    said = "".join(map(chr, row.completion_ids))
    assert "".join(look.texts(".raw .tok")) == said == "ox 1.1Say ox.ox 1.1"
    assert "".join(look.texts(".tok.out")) == "Say ox."
    for at, (mask, logprob) in enumerate(zip(row.mask, row.logprobs, strict=True)):
        look.js(f"document.querySelector('.tok[data-i=\"{at}\"]').dispatchEvent(new PointerEvent('pointerover'))")
        [told] = look.texts("#tip")
        assert told.startswith(f"{json.dumps(said[at])}id{ord(said[at])}mask{mask}")
        numbers = re.findall(r"logprob(.+?)probability(.+) %", told)
        assert len(numbers) == mask
        for shown in numbers:
            assert logprob is not None
            assert [*map(float, shown)] == pytest.approx([logprob, 100 * math.exp(logprob)], rel=0.01, abs=0.001)


def test_a_group_is_side_by_side_turn_by_turn(look: Look, small: str) -> None:
    look.open(f"{small}#/group/9")
    assert [one.split(" to mean")[0] for one in look.texts(".member-head")] == [
        *("1endedEpisode 8+0.75", "1endedEpisode 9+0.75"),
        *(f"\N{MINUS SIGN}0.5turn_limitEpisode {one}\N{MINUS SIGN}0.75" for one in (10, 11)),
    ]
    tops = look.js("[...document.querySelectorAll('[data-turn=\"0\"]')].map((one) => one.getBoundingClientRect().top)")
    assert (len(tops), len(set(tops))) == (4, 1)
    said = "<think>Which one? </think>ox 2.0" + 2 * "ox 2.1" + 3 * "ox 2.2" + "ox 2.3"
    assert sorted("".join(look.texts(".group .tok"))) == sorted(said)


def test_each_turn_has_the_colour_and_the_number_of_its_advantage(look: Look, small: str) -> None:
    look.open(f"{small}#/episode/26")
    assert look.texts(".credit b") == ["0", "+0.42", "\N{MINUS SIGN}0.9"]
    colours = "[...document.querySelectorAll('.turn-head')].map((one) => getComputedStyle(one).backgroundColor)"
    assert len(set(look.js(colours))) == 3


def test_segments_have_their_borders(look: Look, pages: Path) -> None:
    chat, tasks = ByteChat(), [Task("TrlEnv/GuessNumber-v0", 1)]
    with InlinePool(gym.make) as pool:
        engine = ScriptedEngine(lambda request: chat.say("50"))
        options: Any = {"limits": Limits(tokens_per_turn=9), "history": last_turns(1)}
        [[result]] = run(rollout(tasks, pool=pool, engine=engine, chat=chat, **options))
    append(pages / "segments" / ROLLOUTS, [recorded(result)])
    write_page(pages / "segments", pages / "segments.html")
    look.open(f"{(pages / 'segments.html').as_uri()}#/episode/0")
    assert [one[:9] for one in look.texts(".border")] == ["Segment 2", "Segment 3"]
    assert look.js("[...document.querySelectorAll('.border + .turn')].map((one) => one.dataset.turn)") == ["3", "5"]
    look.go("#/episode/0/tokens", "document.querySelector('.raw') !== null")
    assert [one.split(" \u00b7 ")[0] for one in look.texts(".turn-head")] == [
        *("Prompt", "Completion", "Prompt of segment 2", "Completion of segment 2"),
        *("Prompt of segment 3", "Completion of segment 3"),
    ]


def test_an_open_page_follows_a_run_that_grows_and_keeps_its_place(look: Look, pages: Path) -> None:
    folder, page = write_run(pages / "grows", steps=1), pages / "grows.html"
    write_page(folder, page, refresh=1)
    look.open(f"{page.as_uri()}#/episodes?sort=-turns")
    append(folder / ROLLOUTS, [record_of(played(turns=5))])
    write_page(folder, page, refresh=1)
    look.until("document.documentElement.dataset.episodes === '9'")
    assert listed(look)[0] == "8"


def test_a_page_of_five_thousand_episodes_shows_the_rows_that_are_needed(look: Look, pages: Path) -> None:
    append(pages / "large" / ROLLOUTS, [recorded(played(seed=seed)) for seed in range(5_000)])
    write_page(pages / "large", pages / "large.html")
    look.open(f"{(pages / 'large.html').as_uri()}#/episodes")
    assert look.texts("#shown") == ["5,000 of 5,000 episodes"]
    assert len(listed(look)) == 200
    look.js("document.querySelector('main').scrollTo(0, 1e9)")
    look.until("document.querySelectorAll('a.row').length > 200")
    look.click("[data-column=seed]")
    look.click("[data-column=seed]")
    assert listed(look)[0] == "4999"


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
    folder = write_run(pages / "<img src=x onerror=window.owned=9>[[script]]", steps=1)
    for step in (1, 2):
        episode = played(turns=3, thinking=EVIL, answer=EVIL, observation=EVIL, reward=-1.0)
        about: dict[str, Any] = {"policy": EVIL, "split": EVIL, "step": step, "group": 1, "advantages": [EVIL, 1, -1]}
        texts = [HOSTILE[one % len(HOSTILE)] for one in episode.row.completion_ids]
        record = record_of(episode, tokens=True, **about, token_texts=texts) | {EVIL: EVIL, "note": {EVIL: [EVIL]}}
        record["task"] |= {"env_id": EVIL, "options": {EVIL: EVIL}}
        record["turns"][0]["action"] = EVIL
        append(folder / ROLLOUTS, [record | {"stop_reason": EVIL, "opening": [{"role": EVIL, "content": EVIL}]}] * 2)
    append(folder / ROLLOUTS, [record_of(played(turns=0, error=EVIL, stop_reason=StopReason.ENV_ERROR))])
    score = {"policy": EVIL, "success": {"mean": EVIL, "low": 0.5}, "return": EVIL}
    summary = {"before": {EVIL: score, "model": score}, "after": {EVIL: score}, "steps": EVIL, EVIL: EVIL}
    (folder / "summary.json").write_text(json.dumps(summary))
    (folder / "config.json").write_text(json.dumps({"options": {"env": EVIL, "model": EVIL, "steps": EVIL}}))
    append(folder / "metrics.jsonl", [{"step": 2, EVIL: 1.0, f"env/stop/{EVIL}": 0.5, "__proto__": 2, "x": EVIL}])
    write_page(folder, pages / "evil.html")
    return (pages / "evil.html").as_uri()


def test_a_hostile_transcript_is_nowhere_in_the_file(evil: str, pages: Path) -> None:
    text = (pages / "evil.html").read_text(encoding="utf-8")
    assert "owned" not in text.replace("&lt;img src=x onerror=window.owned=9&gt;", "")
    assert text.count("<script>") == 1
    assert evil


@pytest.mark.parametrize(
    "place",
    ["#/", "#/episodes", f"#/episodes?q={EVIL[:9]}", "#/episode/8", "#/episode/8/tokens", "#/group/8", "#/episode/12"],
)
def test_a_hostile_transcript_is_only_ever_text(look: Look, evil: str, place: str) -> None:
    look.open(f"{evil}{place}")
    look.js("document.querySelectorAll('details').forEach((one) => { one.open = true })")
    look.js(
        "[...document.querySelectorAll('.tok, .chart, .row')].slice(0, 40).forEach((one) =>"
        "['pointerover', 'pointermove'].forEach((kind) =>"
        "one.dispatchEvent(new PointerEvent(kind, {bubbles: true, clientX: 200, clientY: 200}))))"
    )
    look.until("new Promise((done) => setTimeout(() => done(true), 50))")
    assert look.js("document.querySelector('main .opening')") is None
    assert look.js("window.owned") is None
    elements = set(look.js("[...document.querySelectorAll('body *')].map((one) => one.tagName.toLowerCase())"))
    assert elements.isdisjoint({"img", "iframe", "style", "base", "meta", "object", "embed", "form"})
    assert look.js("document.querySelectorAll('script:not([type])').length") == 1
    assert look.js("[...document.querySelectorAll('a')].every((one) => one.getAttribute('href').startsWith('#'))")
    names = "[...document.querySelectorAll('*')].flatMap((one) => one.getAttributeNames())"
    assert look.js(f"{names}.every((name) => !name.startsWith('on'))")
    assert look.complaints() == []  # nothing was tried that the policy had to stop


@pytest.mark.parametrize(
    "attempt",
    [
        "document.body.innerHTML = '<img src=x onerror=window.owned=1>'",
        "document.body.append(Object.assign(document.createElement('script'), {textContent: 'window.owned=1'}))",
        "fetch('https://example.com/').then(() => { window.owned = 1 })",
    ],
)
def test_the_policy_would_stop_a_page_that_forgot_itself(look: Look, small: str, attempt: str) -> None:
    look.open(small)
    # As an event's handler, because what a driver runs is outside of the policy.
    look.js(f"addEventListener('probe', () => {{ {attempt} }}) ?? dispatchEvent(new Event('probe'))")
    look.until("new Promise((done) => setTimeout(() => done(true), 100))")
    assert look.js("window.owned") is None
    assert any("Content Security Policy" in line or "requires 'Trusted" in line for line in look.complaints())
