#!/bin/bash
set -e
sed -i 's/(\[0-9\])/([0-9]+)/; s/total, rest = 0, text$/total, rest = 0, text.strip()/' durations/reading.py
sed -i 's/    while rest:/    if not rest:\n        raise ValueError(f"not a duration: {text!r}")\n    while rest:/' durations/reading.py
sed -i 's/count > 1/count/; s/return " ".join(parts)/return " ".join(parts) or "0s"/' durations/writing.py
python3 -m unittest
