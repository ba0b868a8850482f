"""The site is built strictly, offline, and everything that it says is there."""

import functools
import os
import re
import subprocess
import sys
import threading
import tomllib
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urljoin, urlsplit

import pytest
import yaml
from support.viewer_runs import chromium, needs_chromium

import gym_trl
from gym_trl import testing, wrappers
from gym_trl.registration import ENVS

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
CONFIG = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
LOADS = {
    "script": "src",
    "img": "src",
    "iframe": "src",
    "source": "src",
    "video": "src",
    "audio": "src",
    "embed": "src",
}
LOADED_LINKS = {"stylesheet", "icon", "preload", "prefetch", "modulepreload", "preconnect", "dns-prefetch", "manifest"}
PATIENCE_S = 240.0


def pages_in(nav: Any) -> list[str]:
    """The files that the navigation names."""
    if isinstance(nav, str):
        return [nav]
    return [page for item in (nav.values() if isinstance(nav, dict) else nav) for page in pages_in(item)]


class Page(HTMLParser):
    """Contents of a page of HTML: ids, links, and what the browser loads for it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.styles = ""
        self._in_style = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value for name, value in attrs if value}
        self.ids |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        if tag in LOADS and "src" in given:
            self.loads.append(given["src"])
        if tag == "link" and "href" in given and LOADED_LINKS & set(given.get("rel", "").split()):
            self.loads.append(given["href"])
        self.styles += given.get("style", "")
        self._in_style = tag == "style"

    def handle_data(self, data: str) -> None:
        if self._in_style:
            self.styles += data
            self._in_style = False


def test_every_page_is_in_the_navigation():
    written = {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")}
    written |= {f"notebooks/{notebook.stem}.md" for notebook in (ROOT / "examples").glob("*.ipynb")}
    named = pages_in(CONFIG["nav"])
    assert not (orphans := written - set(named)), f"add a line to nav in mkdocs.yml for {sorted(orphans)}"
    assert not (missing := set(named) - written), f"nav in mkdocs.yml names {sorted(missing)}, which are not in docs/"
    assert len(named) == len(set(named)), "nav in mkdocs.yml names a page twice"


@pytest.fixture(scope="session")
def site(tmp_path_factory):
    """The folder of the site, built as ``make docs`` builds it."""
    if not all(map(find_spec, ("mkdocs", "material", "mkdocstrings", "griffe", "nbformat"))):
        pytest.skip("mkdocs-material, mkdocstrings or nbformat is not installed: make test-full does it")
    folder = tmp_path_factory.mktemp("site")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT,
        env={
            **os.environ,
            "NO_MKDOCS_2_WARNING": "1",
            "GYM_TRL_DOCS_OUTPUTS": "0",
            "http_proxy": DEAD,
            "https_proxy": DEAD,
        },
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert built.returncode == 0, built.stdout + built.stderr
    return folder


DEAD = "http://127.0.0.1:9"  # whoever wants the network while the site is built does not get it


@pytest.fixture(scope="session")
def pages(site):
    return {str(file.relative_to(site)): Page(file.read_text(encoding="utf-8")) for file in site.rglob("*.html")}


@pytest.mark.full
def test_no_page_loads_anything_from_elsewhere(site, pages):
    assert len(pages) > 30
    for name, page in pages.items():
        outside = [url for url in page.loads if urlsplit(url).netloc]
        assert not outside, f"{name} loads {outside}"
        assert "http" not in page.styles, f"{name} has a style that loads something"
    for sheet in site.rglob("*.css"):
        asked = re.findall(r"(?:url\(|@import)\s*[\"']?((?:https?:)?//[^\"')]*)", sheet.read_text(encoding="utf-8"))
        assert not asked, f"{sheet.relative_to(site)} loads {asked}"


@pytest.mark.full
def test_every_link_inside_of_the_site_leads_somewhere(site, pages):
    looked_at = 0
    for name, page in pages.items():
        if name == "404.html":
            continue
        for link in page.links:
            if urlsplit(link).scheme or urlsplit(link).netloc:
                continue
            path, _, anchor = urljoin(name, link).partition("#")
            target = unquote(path) or name
            assert (site / target).is_file(), f"{name} links to {link}, and there is no {target}"
            if anchor and target in pages and not anchor.startswith("/"):  # those are addresses within the viewer
                looked_at += 1
                assert unquote(anchor) in pages[target].ids, f"{name} links to {link}, and {target} has no such heading"
    assert looked_at > 1_000


@pytest.mark.full
def test_every_public_name_is_on_an_api_page(pages):
    shown = set().union(*(page.ids for name, page in pages.items() if name.startswith("api/")))
    public = {f"gym_trl:{name}" for name in gym_trl.__all__} | {f"gym_trl.wrappers:{name}" for name in wrappers.__all__}
    public |= {f"gym_trl.testing:{name}" for name in testing.__all__} | set().union(*map(imported_in, told_to_import()))
    assert len(public) > 80
    games = {path.rpartition(":")[2] for path in ENVS.values()}  # on the gallery's page
    known = games | {one.rpartition(".")[2] for one in shown if one.startswith("gym_trl.")}
    unseen = sorted(name for name in public if name.rpartition(":")[2] not in known)
    assert not unseen, f"{unseen} are on no page of docs/api/: add ::: lines"


def told_to_import() -> list[Path]:
    """Return the pages in which users read what to import."""
    return [ROOT / "README.md", *DOCS.rglob("*.md"), *(ROOT / "examples").glob("*.py")]


def imported_in(file: Path) -> set[str]:
    """Return the imports of a page or a script from this library, as ``module:name``."""
    text = re.sub(r"^(>>>|\.\.\.) ", "", file.read_text(encoding="utf-8"), flags=re.MULTILINE)
    found = re.findall(r"^from (gym_trl[\w.]*) import \(?([\w, ]+)", text, re.MULTILINE)
    return {f"{module}:{name.partition(' as ')[0].strip()}" for module, names in found for name in names.split(",")}


@pytest.mark.full
def test_every_game_is_in_the_gallery_with_a_replay(pages):
    for env_id in gym_trl.GAMES:
        assert env_id.lower().replace("/", "") in pages["games.html"].ids
        replay = f"replays/{env_id.partition('/')[2]}.html"
        assert replay in pages
        assert any(link.startswith(replay) for link in pages["games.html"].links)


def test_no_table_has_an_empty_column():
    for page in [ROOT / "README.md", ROOT / "benchmarks" / "README.md", *DOCS.rglob("*.md")]:
        tables = re.findall(r"^\|.*\n\|[-| :]+\|\n(?:\|.*\n)+", page.read_text(encoding="utf-8"), re.MULTILINE)
        for table in tables if page.parent.name != "cards" else ():  # those are written with their version's code
            header, _, *rows = [re.split(r"(?<!\\)\|", line)[1:-1] for line in table.splitlines()]
            empty = [name for column, name in enumerate(header) if not any(row[column].strip() for row in rows)]
            assert not empty, f"{page.name}: {empty}"


def test_every_guide_says_first_whom_it_serves():
    served = [page for page in CONFIG["nav"] if {"Environments", "Training", "Scale", "Looking"} & set(page)]
    for name in pages_in(served):
        first = (DOCS / name).read_text(encoding="utf-8").split("\n\n")[1]
        assert first.startswith(("For ", "*For ")), name


@pytest.mark.full
def test_every_page_says_which_version_it_describes(site, pages):
    for name in pages:
        if not name.startswith("replays/"):
            assert f"gym-trl {VERSION}" in (site / name).read_text(encoding="utf-8"), name


@pytest.mark.browser
@needs_chromium
def test_a_browser_without_network_shows_the_pages_and_finds_words(site):
    handler = functools.partial(Quiet, directory=str(site))
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}/"
    try:
        with chromium("--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1") as look:
            look.driver.get(url + "index.html")
            look.driver.switch_to.frame(look.driver.find_element("css selector", "iframe.replay"))
            look.until("document.querySelector('main').innerText.includes('Episode 0')")
            for name in ("index.html", "games.html", "api/training.html"):
                look.driver.get(url + name)
                # The browser lists a resource some time after the page has loaded it.
                look.until("performance.getEntriesByType('resource').length > 0")
                loaded = look.js("performance.getEntriesByType('resource').map(e => e.name)")
                assert [one for one in loaded if not one.startswith(url)] == []
            search(look)
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.browser
@needs_chromium
def test_from_the_disk_words_are_found_and_a_game_is_replayed(site):
    with chromium("--host-resolver-rules=MAP * ~NOTFOUND") as look:
        look.driver.get((site / "index.html").as_uri())
        search(look)
        look.driver.get((site / "games.html").as_uri())
        look.driver.execute_script("document.querySelector('a[href^=\"replays/TowerOfHanoi-v0\"]').click()")
        look.until("document.querySelectorAll('[data-member]').length === 2")
        shown = look.driver.find_element("tag name", "main").text
        assert "eval · solver" in shown
        assert "eval · random" in shown
        assert look.complaints() == []


def search(look: Any) -> None:
    look.driver.execute_script("document.querySelector('label[for=__search]').click()")
    look.until("document.querySelector('.md-search__input')")
    look.driver.execute_script(SEARCH)
    look.until("document.querySelector('.md-search-result__item a')")
    assert look.complaints() == []


SEARCH = """
const field = document.querySelector('.md-search__input');
field.focus();
field.value = 'GymSpec';
field.dispatchEvent(new Event('input', {bubbles: true}));
field.dispatchEvent(new KeyboardEvent('keyup', {bubbles: true}));
"""


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *args: object) -> None:
        pass
