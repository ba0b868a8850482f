"""Entry point of ``python -m gym_trl``, the same as the command ``gym-trl``."""

import sys

from gym_trl.cli import main

if __name__ == "__main__":
    sys.exit(main())
