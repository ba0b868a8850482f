"""Print 1 if all calls give the right result and the package's own tests are unchanged, else 0."""

import json
import subprocess
import sys
from pathlib import Path

CALLS = [
    ("parse('1h 30m')", 5400),
    ("parse('90s')", 90),
    ("parse(' 2d 3h 4m 5s ')", 183_845),
    ("parse('120m')", 7200),
    ("parse('100d')", 8_640_000),
    ("show(5400)", "1h 30m"),
    ("show(183845)", "2d 3h 4m 5s"),
    ("show(86400)", "1d"),
    ("show(61)", "1m 1s"),
    ("show(0)", "0s"),
    ("refuses('')", True),
    ("refuses('5')", True),
    ("refuses('1h x')", True),
]
PROGRAM = """
import json, sys
from durations import parse, show
def refuses(text):
    try:
        parse(text)
    except ValueError:
        return True
    return False
print(json.dumps([eval(call) for call in sys.argv[1:]]))
"""


def results() -> object:
    """Return what the calls give in another process, or nothing if they fail there."""
    command = [sys.executable, "-c", PROGRAM, *(call for call, _ in CALLS)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=20)
    try:
        return json.loads(ran.stdout)
    except ValueError:
        return None


unchanged = Path("test_durations.py").read_text() == Path("/tests/test_durations.py").read_text()
print(int(unchanged and results() == [expected for _, expected in CALLS]))
