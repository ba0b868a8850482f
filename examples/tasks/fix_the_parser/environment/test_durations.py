"""Tests of the package durations."""

import unittest

from durations import parse, show


class TestDurations(unittest.TestCase):
    """Texts and their seconds."""

    def test_reads_several_parts(self) -> None:
        """Units add up."""
        self.assertEqual(parse("1h 30m"), 5400)

    def test_reads_numbers_of_several_digits(self) -> None:
        """A number may be long."""
        self.assertEqual(parse("90s"), 90)

    def test_writes_what_it_reads(self) -> None:
        """Writing is the inverse of reading."""
        self.assertEqual(show(5400), "1h 30m")


if __name__ == "__main__":
    unittest.main()
