"""Tiny games of ALFWorld, written as its own are: a kitchen with five places and two things."""

import json
from pathlib import Path

PLACES = {
    "CounterTop": "",
    "Fridge": "openable",
    "Microwave": "openable",
    "Shelf": "",
    "Drawer": "openable",
}
CHANGES = {"hot": ("heat", "isHot"), "cool": ("cool", "isCool"), "": ("", "")}


def problem(thing: str, place: str, change: str) -> str:
    """Return a problem in PDDL: put a thing, heated or cooled, in or on a place; it begins in the drawer."""
    kinds = [thing, "Mug"]
    init = ["(atLocation agent1 loc_0)"]
    for number, (name, openable) in enumerate(PLACES.items(), start=1):
        where = f"{name}_bar_1"
        init += [f"(receptacleAtLocation {where} loc_{number})", f"(receptacleType {where} {name}Type)"]
        init += [f"(canContain {name}Type {kind}Type)" for kind in kinds]
        init += [f"(openable {where})"] if openable else []
    for kind, where, number in ((thing, "Drawer_bar_1", 5), ("Mug", "Shelf_bar_1", 4)):
        one = f"{kind}_bar_1"
        init += [f"(objectType {one} {kind}Type)", f"(inReceptacle {one} {where})"]
        init += [f"({fact} {one})" for fact in ("pickupable", "heatable", "coolable")]
        init.append(f"(objectAtLocation {one} loc_{number})")
    wanted = [f"(objectType ?o {thing}Type)", f"(receptacleType ?r {place}Type)", "(inReceptacle ?o ?r)"]
    wanted += [f"({CHANGES[change][1]} ?o)"] if change else []
    objects = [
        "agent1 - agent",
        f"{' '.join(f'loc_{number}' for number in range(6))} - location",
        f"{' '.join(f'{name}_bar_1' for name in PLACES)} - receptacle",
        f"{' '.join(f'{kind}_bar_1' for kind in kinds)} - object",
        f"{' '.join(f'{name}Type' for name in PLACES)} - rtype",
        f"{' '.join(f'{kind}Type' for kind in kinds)} - otype",
    ]
    goal = f"(exists (?o - object ?r - receptacle) (and {' '.join(wanted)}))"
    return "\n".join(
        [
            "(define (problem kitchen) (:domain alfred)",
            f"(:objects {' '.join(objects)})",
            f"(:init {' '.join(init)} (= (total-cost) 0))",
            f"(:goal (and {goal}))",
            "(:metric minimize (total-cost)))",
        ]
    )


def write_games(folder: Path) -> Path:
    """Write four games, and one that is marked as unsolvable, and return the folder."""
    import alfworld

    data = Path(alfworld.__file__).with_name("data")
    domain, grammar = ((data / f"alfred.{ending}").read_text() for ending in ("pddl", "twl2"))
    tasks = [
        ("pick_heat_then_place_in_recep", "Apple", "Fridge", "hot", True),
        ("pick_heat_then_place_in_recep", "Bread", "Shelf", "hot", True),
        ("pick_cool_then_place_in_recep", "Egg", "CounterTop", "cool", True),
        ("pick_and_place_simple", "Potato", "Microwave", "", True),
        ("pick_and_place_simple", "Fork", "Microwave", "", False),
    ]
    for kind, thing, place, change, solvable in tasks:
        words = " ".join(["put a", *change.split(), thing.lower(), "in", place.lower()])
        game = {
            "pddl_domain": domain,
            "grammar": grammar.replace("UNKNOWN GOAL", words),
            "pddl_problem": problem(thing, place, change),
            "solvable": solvable,
        }
        trial = folder / f"{kind}-{thing}-None-{place}-1" / "trial_T1"
        trial.mkdir(parents=True)
        (trial / "game.tw-pddl").write_text(json.dumps(game))
    return folder
