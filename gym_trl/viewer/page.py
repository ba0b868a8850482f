"""Page of a run: one HTML file with its script, its style, and the episodes in compressed chunks."""

import base64
import gzip
import hashlib
import html
import re
from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from os import PathLike
from pathlib import Path
from typing import Any, BinaryIO, Final

from gym_trl.errors import ConfigError
from gym_trl.records import replaced, to_json
from gym_trl.viewer.run import Run

_CHUNK_EPISODES: Final = 128
_CHUNK_BYTES: Final = 1_000_000
_NOTEBOOK_BYTES: Final = 16_000_000
_POLICY: Final = (
    "default-src 'none'; script-src 'sha256-{script}'; style-src 'sha256-{style}'; img-src data:; "
    "connect-src 'none'; base-uri 'none'; form-action 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)


def write_page(run: Path, out: Path, *, tokenizer: Path | None = None, refresh: int | None = None) -> dict[str, int]:
    r"""Write the page of the run at ``run`` to ``out``, and return the numbers of episodes, broken lines and bytes.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     path = Path(folder, "rollouts.jsonl")
    ...     _ = path.write_text('{"version": 1, "task": {}, "turns": [], "return": 1.0}\n')
    ...     write_page(path, Path(folder, "run.html"))["episodes"]
    1

    The content of episodes is embedded as base64 of compressed JSON, and the page's script inserts it as text, so it
    cannot inject HTML.

    Args:
        run: Folder of a run, or a file of its episodes.
        out: Path of the page, which is replaced as a whole.
        tokenizer: Path of the tokenizer for the ids. Default: the run's own.
        refresh: Seconds after which an open page reads the file again.

    Raises:
        ConfigError: The run does not exist, or no line of the file is a record of an episode.
        OSError: The file cannot be written.
    """
    read = Run(run, tokenizer=tokenizer)
    if out.exists() and out.samefile(run):
        raise ConfigError(f"{out} has the records that are read; name another file")
    parts = {name: _part(f"page.{end}") for name, end in (("style", "css"), ("script", "js"))}
    parts |= {"policy": html.escape(policy()), "title": html.escape(f"{read.index()['name']} · gym-trl")}
    before, after = (
        re.sub(r"\[\[(\w+)\]\]", lambda place: parts[place[1]], half).encode("utf-8", "replace")
        for half in _part("page.html").split("[[data]]")
    )
    with replaced(out) as file:
        file.write(before)
        firsts: list[int] = []
        for first, records, tokens in _chunks(read):
            _write_data(file, f"records-{len(firsts)}", records)
            _write_data(file, f"tokens-{len(firsts)}", tokens)
            firsts.append(first)
        _write_data(file, "index", to_json({**read.index(), "firsts": firsts, "refresh": refresh}))
        file.write(after)
        counts = {"episodes": len(read.columns["return"]), "broken": len(read.broken), "bytes": file.tell()}
        if not counts["episodes"] and (read.broken or run.is_file()):
            raise ConfigError(f"{run} has no episodes: none of its {len(read.broken)} lines is a record")
    return counts


def policy() -> str:
    """Return the content security policy: only the page's own script, and no requests."""
    script, style = (
        base64.b64encode(hashlib.sha256(_part(name).encode()).digest()).decode() for name in ("page.js", "page.css")
    )
    return _POLICY.format(script=script, style=style)


@cache
def _part(name: str) -> str:
    return files("gym_trl.viewer").joinpath(name).read_text(encoding="utf-8")


def _chunks(run: Run) -> Iterator[tuple[int, str, str]]:
    """Yield the number of a chunk's first episode, its records, and their tokens, which a search does not read."""
    first, chunk, size = 0, list[tuple[str, str]](), 0
    for record, tokens in run.episodes():
        chunk.append((to_json(record), to_json(tokens)))
        size += sum(map(len, chunk[-1]))
        if len(chunk) == _CHUNK_EPISODES or size > _CHUNK_BYTES:
            yield first, *_lists(*chunk)
            first, chunk, size = first + len(chunk), [], 0
    if chunk:
        yield first, *_lists(*chunk)


def _lists(*pairs: tuple[str, str]) -> tuple[str, str]:
    records, tokens = zip(*pairs, strict=True)
    return f"[{','.join(records)}]", f"[{','.join(tokens)}]"


def _write_data(file: BinaryIO, name: str, content: str) -> None:
    packed = base64.b64encode(gzip.compress(content.encode("ascii"), compresslevel=6, mtime=0))
    file.write(b'<script type="application/gzip" id="%s">%s</script>\n' % (name.encode(), packed))


def show(run: Any, *, out: str | PathLike[str] | None = None, height: int = 640) -> Any:
    """Write the page of a run, as ``gym-trl view`` does, and return it in a frame, for the last line of a cell.

    Whatever an episode has written, it does not reach the notebook: the frame has an origin of its own.

    Args:
        run: Folder of a run or file of records, or an ``Evaluation`` with a folder.
        out: File to write. Default: ``view.html`` in the folder of the run.
        height: Height of the frame in pixels.

    Raises:
        ConfigError: There are no episodes in it, or the page is too large for a notebook.
        OSError: The file cannot be written.
    """
    from IPython.display import IFrame

    folder = getattr(run, "folder", run)
    if not isinstance(folder, str | PathLike):
        raise ConfigError(f"run must be a folder or a file of records, got {folder!r:.80}: give evaluate(out=FOLDER)")
    source = Path(folder)
    page = Path(out or (source / "view.html" if source.is_dir() else source.with_suffix(".html")))
    if (size := write_page(source, page)["bytes"]) > _NOTEBOOK_BYTES:
        raise ConfigError(f"{page} has {size / 1e6:.0f} MB, too many for a notebook: open it in a browser")
    return IFrame(f"data:text/html;base64,{base64.b64encode(page.read_bytes()).decode()}", "100%", height)
