"""Displays in notebooks: what is shown, that hostile text stays text, and the progress of a training."""

from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st
from support.viewer_runs import Look, needs_chromium, played

from gym_trl import GymGRPOTrainer, GymSpec, evaluate, show
from gym_trl.displays import RenderedText
from gym_trl.errors import ConfigError
from gym_trl.evaluation.estimates import Estimate
from gym_trl.evaluation.evaluation import Evaluation
from gym_trl.evaluation.scores import Row
from gym_trl.records import read_records
from gym_trl.records.files import ReadRecord
from gym_trl.records.schema import as_record
from gym_trl.report import Report, Verdict, problem
from gym_trl.types import EpisodeResult, StopReason
from gym_trl.viewer.notebook.frame import Page
from gym_trl.viewer.notebook.html import number

OURS = {"div", "span", "b", "table", "thead", "tbody", "tr", "td", "th", "pre", "details", "summary"}
HOSTILE = [
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    '"><svg onload=alert(1)>',
    "</pre></td><iframe srcdoc='<script>alert(1)</script>'>",
    "&lt;script&gt;",
    "<!--",
    "]]><style>*{display:none}</style>",
    "'\"`\ud800\0\x1b[31m",
]
TEXTS = st.sampled_from(HOSTILE) | st.text() | st.lists(st.sampled_from(HOSTILE)).map("\n\n".join)


class Read(HTMLParser):
    """Tags, names of attributes, and texts of HTML."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.frame: dict[str, str | None] = {}
        self.texts: list[str] = []
        self.feed(html)
        self.close()

    @property
    def text(self) -> str:
        return "".join(self.texts)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes.update(name for name, _ in attrs)
        self.frame |= dict(attrs) if tag == "iframe" else {}

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    def handle_comment(self, data: str) -> None:
        self.tags.add("!--")

    def handle_decl(self, decl: str) -> None:
        self.tags.add("!")

    def unknown_decl(self, data: str) -> None:
        self.tags.add("!")

    def handle_pi(self, data: str) -> None:
        self.tags.add("?")


def episode(text: str = "ox") -> EpisodeResult:
    return played(seed=1, turns=2, reward=1.0, answer=text or "ox", thinking=text, stop_reason=StopReason.SUCCESS)


def shown_with(text: str) -> list[Any]:
    """Return one object of each kind, which holds a text wherever it can."""
    row = Row(text, {text: text}, text, 1, 1, 0, Estimate(1.0), Estimate(1.0), {}, 1.0, None, 0.0, None, None, {})
    found = problem(text, text)
    record: Any = as_record(episode(text), policy=text)
    record["turns"][0]["observation"] = record["last_observation"] = record["task"]["id"] = record["error"] = text
    return [
        RenderedText(text),
        Evaluation([row], Path("runs", text.replace("\0", "")), 1),
        episode(text),
        ReadRecord(record),
        found,
        Report(text, (found,)),
    ]


def assert_shown(one: Any, text: str) -> None:
    visible = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").replace("\0", "\ufffd")
    read = Read(one._repr_html_())
    assert read.tags <= OURS, type(one)
    assert read.attributes <= {"style"}, type(one)
    assert visible in read.text, type(one)


@given(TEXTS)
def test_text_of_a_stranger_is_shown_and_is_never_markup(text: str) -> None:
    for one in shown_with(text):
        assert_shown(one, text)


@pytest.mark.parametrize("text", HOSTILE)
def test_options_of_a_stranger_are_shown_and_are_never_markup(text: str) -> None:
    spec = GymSpec("TrlEnv/Echo-v0", instructions=text, system_prompt=text)
    assert_shown(spec, text)
    assert_shown(spec.env_spec, repr(text)[1:-1])


def test_the_page_is_in_a_frame_that_cannot_reach_the_notebook(tmp_path: Path) -> None:
    page = show([episode("".join(HOSTILE))], out=tmp_path / "page.html")
    read = Read(page._repr_html_())
    assert read.tags == {"iframe"}
    assert read.frame["sandbox"] == "allow-scripts"
    with_base = (tmp_path / "page.html").read_text().replace("<head>", '<head><base href="about:srcdoc">', 1)
    assert read.frame["srcdoc"] == with_base


@pytest.mark.browser
@pytest.mark.processes
@needs_chromium
def test_links_of_a_page_stay_in_its_frame(look: Look, tmp_path: Path) -> None:
    markup = show([episode(text) for text in HOSTILE], out=tmp_path / "page.html")._repr_html_()
    (tmp_path / "notebook.html").write_text(f'<meta charset="utf-8"><title>a notebook</title>{markup}')
    look.driver.get((tmp_path / "notebook.html").as_uri())
    look.driver.switch_to.frame(0)
    try:
        look.until("document.documentElement.dataset.ready === 'yes'")
        look.click("[data-tab=episodes]")
        look.until("document.querySelectorAll('.grid-row').length > 0")
        assert look.js("location.href") == "about:srcdoc#/episodes"
        look.driver.execute_script("document.querySelector('.grid-row').click()")
        look.until("document.querySelector('#talk') !== null")
        with pytest.raises(Exception, match="cross-origin"):
            look.js("parent.document.title")
    finally:
        look.driver.switch_to.default_content()
    assert look.js("document.title") == "a notebook"
    assert look.complaints() == []


def test_representations_name_options_and_no_addresses() -> None:
    def observe(observation: int, info: dict[str, Any]) -> str:
        return str(observation)

    spec = GymSpec("FrozenLake-v1", num_tasks=8, observe=observe)
    assert repr(spec).startswith("GymSpec('FrozenLake-v1', ")
    assert "num_tasks=8" in repr(spec)
    for text in (repr(spec), repr(spec.env_spec), str(spec._repr_html_()), str(spec.env_spec._repr_html_())):
        assert "observe" in text
        assert " at 0x" not in text


def test_scores_records_and_findings_are_lines(tmp_path: Path) -> None:
    scores = evaluate("TrlEnv/Echo-v0", "random", episodes=3, out=tmp_path)
    first = next(read_records(tmp_path))
    assert repr(scores).splitlines()[1].startswith("  random on TrlEnv/Echo-v0: success 0.")
    assert repr(scores).endswith("(3 episodes)")
    assert repr(first) == f"<Record of {first['task']['id']}: return {first['return']:g}, 1 turn, failure>"
    assert repr(problem("a loop", "end it")) == f"<{Verdict.PROBLEM}: a loop -> end it>"
    assert repr(show(scores)) == f"<Page of 3 episodes: {tmp_path / 'view.html'}>"


def test_show_names_what_it_cannot_show() -> None:
    with pytest.raises(ConfigError, match="give evaluate"):
        show(evaluate("TrlEnv/Echo-v0", "random", episodes=1))
    with pytest.raises(ConfigError, match="run must be a folder, an Evaluation, or episodes, got 3"):
        show(3)


def test_a_page_too_large_for_a_notebook_is_only_named(tmp_path: Path) -> None:
    (file := tmp_path / "view.html").write_bytes(b" " * 17_000_000)
    assert Read(Page(file, 2, 100)._repr_html_()).tags == {"div"}


@pytest.fixture
def printed(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """List of what is displayed, which begins anew each time, as in a notebook."""
    ipython = pytest.importorskip("IPython.display", reason="make test-full installs requirements-notebook.txt")
    shown: list[Any] = []

    class Output:
        update = staticmethod(shown.append)

    def display(one: Any, **_: Any) -> Output:
        shown.append(one)
        return Output()

    monkeypatch.setattr(ipython, "display", display)
    return shown


@pytest.mark.full
@pytest.mark.trl
@pytest.mark.parametrize("kind", ["GymGRPOTrainer", "GRPOTrainer"])
def test_a_training_in_a_notebook_shows_its_episodes(tmp_path: Path, printed: list[Any], kind: str) -> None:
    import trl
    from support.tiny_trainer import make
    from transformers.utils.notebook import NotebookProgressCallback

    word = {"alphabet": "ab", "word_length": 1}
    plain: Any = {"action_format": "plain", "max_tokens_per_turn": 1, "cut_actions": "accept"}
    spec = GymSpec("TrlEnv/Echo-v0", env_kwargs=word, num_tasks=8, num_eval_tasks=4, **plain)
    trainer = make(
        tmp_path,
        spec,
        GymGRPOTrainer if kind == "GymGRPOTrainer" else trl.GRPOTrainer,
        grpo={"max_steps": 3, "eval_strategy": "steps", "eval_steps": 2},
        callbacks=[NotebookProgressCallback],
    )
    trainer.train()
    last = printed[-1]
    logged = trainer.state.log_history
    evaluations = [one for one in logged if "eval_env/return" in one]
    steps = [one for one in logged if "env/return" in one]
    assert repr(last).startswith("step 3 of 3, ")
    assert (
        f"return {number(steps[-1]['env/return'])}, invalid actions {number(steps[-1]['env/invalid_actions'])}"
        in repr(last)
    )
    assert "Training Loss" not in last
    read = Read(last)
    assert read.tags == (OURS | {"progress", "svg", "rect", "polyline"}) - {"pre"}
    assert {"Success", "Return", "Invalid actions per episode"} <= set(read.texts)
    assert "Evaluations" in read.texts
    assert {number(one["eval_env/unscored"]) for one in evaluations} <= set(read.texts)
    assert f"the last {len(steps)} of {len(steps)}" in read.text


@pytest.mark.full
def test_the_prompt_of_ipython_prints_lines() -> None:
    pretty = pytest.importorskip(
        "IPython.lib.pretty", reason="make test-full installs requirements-notebook.txt"
    ).pretty
    record: Any = ReadRecord(as_record(episode()))
    assert pretty(RenderedText("> 4\nHigher.")) == "> 4\nHigher."
    assert pretty([record, problem("a loop", "end it")]) == f"[{record!r},\n <problem: a loop -> end it>]"
