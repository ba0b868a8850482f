"""``gym-trl view``."""

from pathlib import Path

from gym_trl.cli.errors import one_line
from gym_trl.cli.terminal import say, say_aside
from gym_trl.errors import ConfigError
from gym_trl.files import is_unwritable
from gym_trl.records.schema import FAILURES, ROLLOUTS
from gym_trl.text import counted

EXAMPLES = """
gym-trl view runs/first
gym-trl view runs/first --text 17
"""


def view(
    run: Path,
    *,
    out: Path | None = None,
    tokenizer: Path | None = None,
    text: int | None = None,
) -> None:
    """Write a run as an HTML page with its curves and its episodes.

    Episodes are shown with every token. The page works offline.

    Args:
        run: Folder of a run, or a file of records.
        out: File to write. Default: view.html in the folder of the run.
        tokenizer: Folder of the tokenizer. Default: the run's own.
        text: Print the episode with this number in the terminal instead; -1 is the last one.
    """
    if text is not None:
        from gym_trl.cli.episode_text import print_episode

        if out is not None:
            raise ConfigError("--text prints an episode instead of writing the page: remove --out")
        print_episode(run, text)
        return
    from gym_trl.viewer.page import write_page

    page = out or (run / "view.html" if run.is_dir() else run.with_suffix(".html"))
    records = [run, run / ROLLOUTS, run / FAILURES]
    if page.exists() and any(one.exists() and page.samefile(one) for one in records):
        raise ConfigError(f"{page} has the records that are read; choose another --out")
    try:
        counts = write_page(run, page, tokenizer=tokenizer)
    except OSError as error:
        if out is not None or error.filename != str(page) or not is_unwritable(error):
            raise
        raise ConfigError(f"{one_line(error)}; give --out FILE") from error
    if counts["broken"]:
        say_aside(f"Skipped {counted(counts['broken'], 'line')} that could not be read as records.")
    say(f"Wrote {counted(counts['episodes'], 'episode')} to {page} ({counts['bytes'] / 1e6:.1f} MB).")
