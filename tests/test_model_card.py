"""A trained model has a card: what it was trained on, its scores, and nothing of the machine or of anybody's markup."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
import torch
import yaml
from hypothesis import given, strategies as st
from markdown_it import MarkdownIt
from rich.console import Console
from support.command_line import run_command_line
from support.lanes import examples

from gym_trl.envs.echo import Echo
from gym_trl.evaluation.estimates import share_estimate
from gym_trl.options import NO_FLAG, TrainOptions
from gym_trl.training.model_card import model_card
from gym_trl.training.options import choose, choose_warm_start
from gym_trl.training.run import train
from gym_trl.training.supervised import warm_start

pytestmark = pytest.mark.trl

CONFIG: dict[str, Any] = {"options": {"env": "TrlEnv/Echo-v0", "model": None}, "versions": {"trl": "1.18.0"}}
SUMMARY: dict[str, Any] = {"steps": 5, "interrupted": False, "eval_episodes": 64, "eval_games": 8}
SUMMARY |= {"eval_games_trained": 8, "return_before": 0.25, "return_after": 0.5}
SUMMARY |= {"episodes_before": 64, "episodes_after": 60}


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def cells(card: str, name: str) -> list[str]:
    """Return the cells of the row with this name."""
    [row] = [line for line in card.splitlines() if line.startswith(f"| {name} |")]
    return [cell.strip() for cell in row.strip("|").split("|")[1:]]


def front_matter(card: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(card.split("---\n")[1])
    return found


def small(env: str = "TrlEnv/GuessNumber-v0", **given: Any) -> TrainOptions:
    options = {
        "steps": 1,
        "episodes_per_step": 8,
        "num_generations": 4,
        "eval_episodes": 8,
        "grpo": {"save_steps": 1},
        **given,
    }
    return choose(env, **options)


def trained(folder: Path, options: TrainOptions) -> tuple[str, dict[str, Any]]:
    """Return the card and the summary of a training."""
    summary = train(options, out=folder, console=Console(quiet=True))
    return (folder / "model" / "README.md").read_text(encoding="utf-8"), summary


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, Any]]:
    """The card and the summary of a short training."""
    return trained(tmp_path_factory.mktemp("runs") / "first", small())


def test_a_card_has_the_scores_of_the_summary_with_intervals_and_n(finished: tuple[str, dict[str, Any]]) -> None:
    card, summary = finished
    for name, when in (("before the training", "before"), ("after it", "after"), ("after it, greedy", "after_greedy")):
        success, episodes = summary[f"success_{when}"], summary[f"episodes_{when}"]
        solved = round(success * episodes)
        expected = str(share_estimate([[True]] * solved + [[False]] * (episodes - solved)))
        assert cells(card, name) == [expected, f"{summary[f'return_{when}']:.3f}", "8"]
        assert re.fullmatch(r"0\.\d{3} \[0\.\d{3}, [01]\.\d{3}\]", expected)
    assert cells(card, "optimum")[::2] == ["1.000", "exact"]
    assert cells(card, "random play")[2] == "1,000"
    assert re.fullmatch(r"0\.\d{3} \[0\.\d{3}, 0\.\d{3}\]", cells(card, "blind baseline")[0])
    assert re.search(
        r"^8 evaluation episodes of 8 games, \w+ of which (is|are) trained on\. A blind", card, re.MULTILINE
    )


def test_a_card_says_what_trained_the_model_and_what_to_cite(finished: tuple[str, dict[str, Any]]) -> None:
    card, _ = finished
    assert front_matter(card)["tags"] == ["gym-trl", "gymnasium", "reinforcement-learning", "trl", "grpo"]
    assert "| environment | `TrlEnv/GuessNumber-v0` |\n| arguments | `high=8`, `turns=4` |" in card
    assert re.search(r"\| `trl` \| `\d+\.\d+", card)
    assert card.count("## Citations") == 1
    assert "vonwerra2020trl" in card
    assert "deepseek" in card.lower()  # GRPO's paper
    assert "wandb" not in card


def test_the_command_of_a_card_trains_with_the_options_of_the_run(
    finished: tuple[str, dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    card, _ = finished
    (tmp_path / "options.json").write_text(card.split("```json\n")[1].split("\n```")[0], encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    command = card.split("```console\n$ gym-trl ")[1].split("\n")[0]
    shown = run_command_line([*shlex.split(command), "--print-config"])
    meant = {name: value for name, value in small().as_dict().items() if name not in NO_FLAG}
    assert yaml.safe_load(shown.output) == meant


def test_a_warm_start_has_a_card_with_its_demonstrations(tmp_path: Path) -> None:
    options = choose_warm_start(policy="solver", episodes=4, batch_size=2, eval_episodes=4)
    done = warm_start(options, out=tmp_path / "warm", console=Console(quiet=True))
    card = (done.model / "README.md").read_text(encoding="utf-8")
    assert done.before is not None
    assert done.after is not None
    for name, score in (("before the training", done.before), ("after it", done.after)):
        assert cells(card, name)[0].startswith(f"{score.success:.3f} [")
        assert cells(card, name)[2] == "4"
    assert "$ gym-trl warm-start TrlEnv/GuessNumber-v0 --policy solver --episodes 4 --batch_size 2" in card
    assert front_matter(card)["tags"][-1] == "sft"
    assert str(tmp_path) not in card


class Reads(Echo):
    """Echo with an argument that is a file."""

    def __init__(self, *, file: str = "", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.file = file


def test_a_card_has_no_path_of_the_machine(tmp_path: Path) -> None:
    gym.register("Tests/Reads-v0", Reads)
    try:
        folder = tmp_path / "some folder"
        first, _ = trained(folder / "first", small("Tests/Reads-v0", env_kwargs={"file": str(tmp_path / "a.txt")}))
        again = small("Tests/Reads-v0", model=str(folder / "first" / "model"), max_tokens_per_turn=3)
        second, _ = trained(folder / "second", again)
    finally:
        del gym.registry["Tests/Reads-v0"]
    assert "`file='a.txt'`" in first
    assert "# `first` trained on `Tests/Reads-v0`" in second
    for card in (first, second):
        assert str(tmp_path) not in card
        assert "base_model" not in front_matter(card)


@examples(60)
@given(st.lists(st.text("abcxyz_0.", min_size=3, max_size=6), min_size=2, max_size=4), st.sampled_from(["", "~", ".."]))
def test_a_path_in_any_option_is_shortened_to_its_name(parts: list[str], root: str) -> None:
    names = [f"d{part}d" for part in parts]
    path = f"{root}/{'/'.join(names)}"
    values = [path, f"python {path} --fast", {"inside": [path, f"file:///{'/'.join(names)}"]}]
    for name in ("env", "model", "success", "system_prompt", "env_kwargs"):
        for value in values:
            if isinstance(value, dict) and name in ("env", "model", "success"):
                continue
            given = {**CONFIG["options"], name: value if name != "env_kwargs" else {"argument": value}}
            card = model_card({**CONFIG, "options": given}, SUMMARY)
            assert f"{names[-2]}/" not in card
            assert names[-1] in card


HOSTILE = st.lists(
    st.sampled_from(
        [
            *(
                "[link](http://evil.example)",
                "![image](http://evil.example/x.png)",
                "<img src=x onerror=alert(1)>",
                "|",
            ),
            *("\n", "\r\n# Title\n", "\n---\n", "```", "`", "\n```\n<script>\n", "<!--", "&lt;", "http://evil.example"),
            *("\u2028", "\u202e", "\x1b[31m", "\x00", "a", "{{ 7 * 7 }}", "\n## Citations\n", "*", "$", "\\", "'", '"'),
        ]
    ),
    min_size=1,
    max_size=6,
).map("".join)


@examples(100)
@given(HOSTILE, st.booleans())
def test_texts_of_options_are_neither_links_nor_markup(text: str, demonstrated: bool) -> None:
    plain = outline(model_card(replaced("harmless", demonstrated), SUMMARY))
    card = model_card(replaced(text, demonstrated), SUMMARY)
    assert outline(card) == plain
    assert front_matter(card)["library_name"] == "transformers"
    assert all(character.isprintable() or character == "\n" for character in card)


def replaced(text: str, demonstrated: bool) -> dict[str, Any]:
    """Return a configuration with a text in all of its places."""
    options = {"env": text, "model": text, "success": text, "env_kwargs": {text: text}, "system_prompt": text}
    more = {"warm_start": {"policy": text, "keep": None}} if demonstrated else {}
    return {"options": {**options, "grpo": {"run_name": text}}, "versions": {"trl": text}, **more}


def outline(card: str) -> list[str]:
    """Return the types of all parts of a page, and where its links lead."""
    page = card.split("---\n", 2)[2]
    tokens = MarkdownIt("commonmark", {"html": True}).enable("table").parse(page)
    parts = [part for token in tokens for part in (token, *(token.children or ()))]
    links = [str(part.attrs.get("href", "")) for part in parts]
    return [f"{part.type} {link}" for part, link in zip(parts, links, strict=True) if part.type != "text"]


@pytest.mark.parametrize("value", ["/home/me/model", "../model", "runs/first/model"])
def test_only_a_model_of_the_hub_is_named_as_the_base(value: str) -> None:
    of = {**CONFIG, "options": {**CONFIG["options"], "model": value}}
    assert "base_model" not in front_matter(model_card(of, SUMMARY))
    of["options"] = {**of["options"], "model": "Qwen/Qwen3-0.6B"}
    assert front_matter(model_card(of, SUMMARY))["base_model"] == "Qwen/Qwen3-0.6B"


def test_keys_passwords_and_addresses_for_reports_are_left_out() -> None:
    options = {
        **CONFIG["options"],
        "env_kwargs": {"api_key": "sk-1234", "verify": "http://me:secret@host/v1#model"},
        "grpo": {"report_to": "wandb", "hub_token": "hf_1234", "vllm_server_base_url": "http://10.0.0.1", "beta": 0.1},
    }
    card = model_card({**CONFIG, "options": options}, SUMMARY)
    for hidden in ("sk-1234", "secret", "wandb", "hf_1234", "10.0.0.1"):
        assert hidden not in card
    assert '"beta": 0.1' in card
