"""Distributions are complete, and the pages lead from installation to a trained model and an own environment."""

import os
import re
import shutil
import subprocess
import sys
import tomllib

import pytest
from support import release

ROOT = release.ROOT
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_the_changelog_begins_with_the_version_of_the_project():
    newest = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert newest is not None
    assert newest[1] in {PROJECT["version"].partition(".dev")[0], "Unreleased"}


@pytest.fixture(scope="module")
def distributions(tmp_path_factory):
    """An sdist, and the wheel that is built from it."""
    return release.build(tmp_path_factory.mktemp("dist"))


@pytest.mark.full
@pytest.mark.timeout(600)
def test_the_wheel_describes_itself_as_an_index_shows_it(distributions):
    fields, readme = release.metadata(distributions[1])
    assert fields["Version"] == [PROJECT["version"]]
    assert fields["Description-Content-Type"] == ["text/markdown"]
    assert "import gymnasium as gym, gym_trl" in readme
    assert release.relative_links(readme) == []
    assert set(fields["Provides-Extra"]) == set(PROJECT["optional-dependencies"])


@pytest.mark.full
@pytest.mark.timeout(600)
def test_links_of_the_readme_lead_to_files_of_the_release(tmp_path):
    address = "https://example.org/someone/gym-trl"
    for name in ("gym_trl", "wrappers", "envs", "README.md", "LICENSE", "hatch_build.py", "pyproject.toml"):
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, tmp_path / name, symlinks=True)
        else:
            shutil.copy(ROOT / name, tmp_path / name)
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    (tmp_path / "pyproject.toml").write_text(text.replace('repository = ""', f'repository = "{address}/"'))
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", tmp_path / "dist", tmp_path]
    subprocess.run(pip, check=True)
    fields, readme = release.metadata(next((tmp_path / "dist").glob("*.whl")))
    assert f"Repository, {address}" in fields["Project-URL"]
    targets = re.findall(rf"\]\({address}/(\w+)/v{PROJECT['version']}/([^)#]+)", readme)
    assert len(targets) > 20
    assert {kind for kind, path in targets if path.endswith(".png")} == {"raw"}
    assert [path for _, path in targets if not (ROOT / path).exists()] == []
    assert release.relative_links(readme) == []


@pytest.mark.full
@pytest.mark.trl
@pytest.mark.processes
@pytest.mark.timeout(900)
def test_a_newcomer_gets_from_installation_to_an_own_environment(tmp_path):
    checkout, home = tmp_path / "gym-trl", tmp_path / "home"
    home.mkdir()
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if tracked.returncode:
        pytest.skip("this is no checkout of git")
    for name in filter(None, tracked.stdout.split("\0")):
        (checkout / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, checkout / name, follow_symlinks=False)
    commands = [
        *first_commands("docs/installation.md"),
        *first_commands("docs/quickstart.md"),
        *first_commands("docs/guides/new_environment.md"),
    ]
    assert len(commands) > 10
    # Nothing of this environment but what pip needs to reach its index; the constraints have PyTorch's build for CPUs.
    kept = {name: value for name, value in os.environ.items() if name.startswith(("PIP_", "SSL_", "OMP_", "MALLOC_"))}
    path = f"{sys.base_prefix}/bin:/usr/bin:/bin"
    cache = subprocess.run([sys.executable, "-m", "pip", "cache", "dir"], capture_output=True, text=True, check=True)
    settings = {"PIP_CONSTRAINT": str(ROOT / "constraints.txt"), "PIP_COMPILE": "0"}  # as in the Makefile
    settings["PIP_CACHE_DIR"] = cache.stdout.strip()  # what has been downloaded is not downloaded again
    subprocess.run(
        ["bash", "-e", "-o", "pipefail", "-c", "\n".join(commands)],
        cwd=checkout,
        env={**kept, **settings, "PATH": path, "HOME": str(home), "LANG": "C.UTF-8", "TERM": "dumb"},
        check=True,
    )
    assert (checkout / "runs" / "echo" / "view.html").is_file()
    assert (checkout / "lift" / "pyproject.toml").is_file()


def first_commands(page: str) -> list[str]:
    """Return the commands of the first console block of a page."""
    block = re.search(r"```console\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), re.DOTALL)
    assert block is not None
    return [line[2:] for line in block[1].splitlines() if line.startswith("$ ")]
