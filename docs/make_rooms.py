"""Generator of docs/concepts/rooms.svg, the picture of the library's rooms, from its imports.

    python docs/make_rooms.py            # write the picture
    python docs/make_rooms.py --check    # exit with status 1 if the picture is not up to date

Floors are the layers of the import-linter contract in pyproject.toml, sentences are the first lines of docstrings, and
an arrow is an import that no other path of arrows already implies.
"""

import ast
import sys
import tomllib
from html import escape
from pathlib import Path
from textwrap import wrap

import grimp

ROOT = Path(__file__).parents[1]
PICTURE = ROOT / "docs" / "concepts" / "rooms.svg"
WIDTH, LEFT, BOX, FLOOR, LINE = 1180, 36, 74, 122, 14


def floors() -> list[list[str]]:
    """Return the rooms of each floor, from the top, as the contract declares them."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"][
        "contracts"
    ]
    [layers] = [contract["layers"] for contract in contracts if contract["type"] == "layers"]
    rooms = [[name.strip() for name in layer.replace("|", ":").split(":")] for layer in layers]
    hidden = {"gym_trl.__main__", "gym_trl._lazy"}
    return [shown for layer in rooms if (shown := [room for room in layer if room not in hidden])]


def sentence(room: str) -> str:
    """Return the first line of a room's docstring."""
    path = ROOT / room.replace(".", "/")
    source = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    first = (ast.get_docstring(ast.parse(source.read_text(encoding="utf-8"))) or "").partition("\n")[0]
    return first.replace("`", "").rstrip(".")


def imports(rooms: list[str]) -> dict[str, set[str]]:
    """Return the rooms that each room imports directly."""
    graph = grimp.build_graph("gym_trl")
    for room in rooms:
        graph.squash_module(room)
    return {room: (graph.find_modules_directly_imported_by(room) & set(rooms)) - {room} for room in rooms}


def reduced(arrows: dict[str, set[str]]) -> list[tuple[str, str]]:
    """Return the arrows that no longer path implies."""

    def reach(room: str) -> set[str]:
        return set().union(*({below} | reach(below) for below in arrows[room]))

    return sorted(
        (room, below)
        for room, belows in arrows.items()
        for below in belows
        if not any(below in reach(other) for other in belows - {below})
    )


def picture() -> str:
    """Return the picture as SVG."""
    layers = floors()
    places: dict[str, tuple[float, float, float]] = {}
    for row, rooms in enumerate(layers):
        width = (WIDTH - LEFT) / len(rooms)
        for column, room in enumerate(rooms):
            places[room] = (LEFT + column * width + 6, row * FLOOR + 8, width - 12)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {len(layers) * FLOOR - FLOOR + BOX + 16}" '
        'font-family="system-ui, sans-serif" font-size="11">',
        '<rect width="100%" height="100%" fill="#fff"/>',
    ]
    for room, below in reduced(imports(list(places))):
        (x, y, width), (to_x, to_y, to_width) = places[room], places[below]
        if y == to_y:
            continue
        start, end = (x + width / 2, y + BOX), (to_x + to_width / 2, to_y)
        middle = (start[1] + end[1]) / 2
        parts.append(
            f'<path d="M{start[0]:.0f} {start[1]} C{start[0]:.0f} {middle:.0f} {end[0]:.0f} {middle:.0f} '
            f'{end[0]:.0f} {end[1]}" fill="none" stroke="#9aa5b1"><title>{room} imports {below}</title></path>'
        )
    for row, rooms in enumerate(layers):
        parts.append(f'<text x="8" y="{row * FLOOR + 50}" font-size="20" fill="#7b8794">{len(layers) - row}</text>')
        for room in rooms:
            x, y, width = places[room]
            parts.append(
                f'<rect x="{x:.0f}" y="{y}" width="{width:.0f}" height="{BOX}" rx="6" fill="#f0f4f8" stroke="#486581"/>'
                f'<text x="{x + 8:.0f}" y="{y + 18}" font-weight="bold" font-size="13">'
                f"{room.removeprefix('gym_trl.')}</text>"
            )
            for number, line in enumerate(wrap(sentence(room), max(12, int(width / 6)))[:4]):
                parts.append(f'<text x="{x + 8:.0f}" y="{y + 33 + number * LINE}">{escape(line)}</text>')
    return "\n".join([*parts, "</svg>", ""])


if __name__ == "__main__":
    drawn = picture()
    if sys.argv[1:] == ["--check"]:
        sys.exit(0 if PICTURE.read_text(encoding="utf-8") == drawn else f"{PICTURE} is not current: run {sys.argv[0]}")
    PICTURE.write_text(drawn, encoding="utf-8")
