#!/bin/bash
# The package runs in a process of its own; check.py compares what it prints.
python3 -I /tests/check.py > /logs/verifier/reward.txt
