"""``python -m gym_trl`` is ``gym-trl``."""

from gym_trl.cli import main

if __name__ == "__main__":
    main()
