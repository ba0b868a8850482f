"""MiniWoB++ in a real headless Chromium; the tests share one, as environments of a process do."""

import os
import re
import shutil
import signal
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import gymnasium as gym
import psutil
import pytest

import gym_trl
from gym_trl.envs.external.browser import Tab
from gym_trl.errors import ConfigError

pytestmark = [
    pytest.mark.external,
    pytest.mark.browser,
    pytest.mark.processes,
    # Importing it registers its 128 environments, so that it is not looked for that way.
    pytest.mark.skipif(not all(map(find_spec, ("miniwob", "selenium"))), reason="MiniWoB++ is not installed"),
    pytest.mark.skipif(not (shutil.which("chromium") and shutil.which("chromedriver")), reason="there is no Chromium"),
]

make: Any = gym.make  # whose type knows only its own arguments


@pytest.fixture(scope="module")
def browser():
    """Keeps it open from one test to the next."""
    tab = Tab()
    yield tab
    tab.close()


@pytest.fixture
def env(request, browser):
    env = make("External/MiniWoB-v0", task=request.param)
    yield env
    env.close()


def with_task(name):
    return pytest.mark.parametrize("env", [name], indirect=True)


def numbers(observation, what):
    """Of the elements that read like that."""
    return [int(number) for number in re.findall(rf"\[(\d+)\] {what}", observation)]


def click_button(observation):
    wanted = re.search(r'Click on the "(.+)" button', observation)[1]  # type: ignore[index]
    number = numbers(observation, f'button "{re.escape(wanted)}"')[0]
    return f"click({number})"


def test_a_page_is_awaited_even_if_the_driver_takes_it_for_loaded(browser, tmp_path):
    (tmp_path / "page.html").write_text("""<script>
        var state = "loading";
        Object.defineProperty(document, "readyState", {get: () => state});
        onload = () => setTimeout(() => { state = "complete"; }, 500);
    </script>""")
    browser.load((tmp_path / "page.html").as_uri())
    with browser as driver:
        assert driver.execute_script("return state;") == "complete"


@with_task("click-button")
def test_a_scripted_policy_solves_a_click_task(env):
    for seed in range(5):
        observation, info = env.reset(seed=seed)
        assert info == {}
        _, reward, terminated, truncated, info = env.step(click_button(observation))
        assert (reward, terminated, truncated, info["success"]) == (1.0, True, False, True)


@with_task("click-button")
def test_the_wrong_button_costs_one_and_ends_it(env):
    observation, _ = env.reset(seed=0)
    right = int(click_button(observation)[6:-1])
    wrong = next(number for number in numbers(observation, "button") if number != right)
    _, reward, terminated, _, info = env.step(f"click({wrong})")
    assert (reward, terminated, info["success"], info["action_valid"]) == (-1.0, True, False, True)


@with_task("login-user")
def test_fields_are_typed_into_and_show_what_they_hold(env):
    observation, _ = env.reset(seed=3)
    name, password = re.findall(r'"(\w+)"', observation)[:2]
    first, second = numbers(observation, "input_text")[0], numbers(observation, "input_password")[0]
    observation = env.step(f'type({first}, "{name}")')[0]
    assert f'[{first}] input_text with "{name}" (chosen)' in observation
    assert "username" not in observation  # what is to be done was said once
    observation = env.step(f'type({second}, "{password}")')[0]
    assert env.step(f"click({numbers(observation, 'button')[0]})")[1] == 1.0


@with_task("focus-text")
def test_keys_are_pressed_and_the_focus_is_where_it_was_clicked(env):
    for action in ('press("<Tab>")', "click(4)"):
        assert env.reset(seed=0)[0].startswith('Focus into the textbox.\n[4] input_text with ""')
        assert env.step(action)[1] == 1.0


@with_task("click-button")
def test_what_is_no_action_does_not_reach_the_page(env):
    observation, _ = env.reset(seed=0)
    for action in (
        "",
        "click",
        "click(999)",
        "click(-1)",
        "click(True, 2)",
        'click("5")',
        "click(5); click(6)",
        "click(ref=5)",
        "eval(5)",
        'type(5, "\\n")',
        'press("<Power>")',
        "click(" * 5_000,
        "\x00",
        "__import__('os').abort()",
    ):
        said, reward, terminated, _, info = env.step(action)
        assert (said, reward, terminated, info["action_valid"]) == ("That is no action.", 0.0, False, False), action
    assert env.step(click_button(observation))[1] == 1.0


@with_task("click-button")
def test_thinking_costs_nothing(env):
    observation, _ = env.reset(seed=0)
    time.sleep(1.0)  # a tenth of what MiniWoB++ gives an episode
    assert env.step(click_button(observation))[1] == 1.0


def test_what_is_missing_is_said(monkeypatch):
    with pytest.raises(ConfigError, match="MiniWoB\\+\\+ has no task 'nonesuch'; it has \\['ascending-numbers'"):
        make("External/MiniWoB-v0", task="nonesuch")
    env = make("External/MiniWoB-v0", task="click-button")  # for which no browser is started yet
    monkeypatch.setattr(Tab, "_driver", None)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ConfigError, match="there is no chromium on the path: apt-get install chromium"):
        env.reset(seed=0)


def test_a_killed_browser_is_one_episodes_error(browser):
    env = make("External/MiniWoB-v0", task="click-button")
    observation, _ = env.reset(seed=0)
    for process in psutil.Process(Tab._driver.service.process.pid).children():
        process.kill()
    with pytest.raises(Exception, match=r"(?s)."):
        env.step(click_button(observation))
    again, _ = env.reset(seed=0)
    assert again == observation
    assert env.step(click_button(again))[1] == 1.0
    env.close()


def test_the_last_one_that_is_closed_ends_every_process(browser):
    browser.close()
    before = {process.pid for process in psutil.Process().children(recursive=True)}
    envs = [make("External/MiniWoB-v0", task="click-button") for _ in range(2)]
    for env in envs:
        env.reset(seed=0)
    started = [one for one in psutil.Process().children(recursive=True) if one.pid not in before]
    assert any("chrom" in process.name() for process in started)
    profile = Path(Tab._profile)
    envs[0].close()
    assert all(process.is_running() for process in started[:1])
    assert profile.exists()
    envs[1].close()
    envs[1].close()  # once is enough
    assert psutil.wait_procs(started, timeout=10)[1] == []
    assert not profile.exists()


@pytest.mark.parametrize("killed", [False, True])
def test_a_worker_process_takes_its_browser_with_it(killed):
    before = {process.pid for process in psutil.Process().children(recursive=True)}
    envs: Any = gym.make_vec("External/MiniWoB-v0", 2, task="click-button", executor="process", workers=1)
    observations, _ = envs.reset(seed=0)
    started = [one for one in psutil.Process().children(recursive=True) if one.pid not in before]
    assert any("chrom" in process.name() for process in started)
    assert envs.step([click_button(observation) for observation in observations])[1].tolist() == [1.0, 1.0]
    if killed:
        os.kill(envs.unwrapped._crew._workers[0].pid, signal.SIGKILL)
    else:
        envs.close()
    assert psutil.wait_procs(started, timeout=20)[1] == []
    envs.close()


def test_it_is_a_spec_as_any_other():
    spec = gym_trl.GymSpec(
        "External/MiniWoB-v0", env_kwargs={"task": "click-button"}, action_format="plain", turn_limit=3, num_tasks=2
    )
    assert "Do what the web page asks." in spec.train_dataset[0]["prompt"][0]["content"]
