"""Bounds and deadlines for the connections of servers that this library starts."""
