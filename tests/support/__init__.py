"""Common to tests: doubles, planted faults, trainings of tiny models, and programs that tests start."""
