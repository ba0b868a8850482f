"""Colours as people see them who lack one kind of cone."""

import numpy as np

# Machado, Oliveira and Fernandes, "A Physiologically-based Model for Simulation of Color Vision Deficiency" (2009),
# for linear RGB, at full severity.
_SEEN = {
    "normal": np.eye(3),
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}
KINDS = tuple(_SEEN)
_XYZ = np.array(
    [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.1191920, 0.9503041]]
)


def seen(colour: str, kind: str) -> np.ndarray:
    """Return ``"#rrggbb"`` in CIELAB, as it is seen by people with a kind of colour vision."""
    srgb = np.array([int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)])
    linear = np.where(srgb <= 0.04045, srgb / 12.92, ((srgb + 0.055) / 1.055) ** 2.4)
    x, y, z = _XYZ @ np.clip(np.array(_SEEN[kind]) @ linear, 0, 1) / (0.95047, 1.0, 1.08883)
    f = [np.cbrt(one) if one > 0.008856 else 7.787 * one + 16 / 116 for one in (x, y, z)]
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def difference(one: str, other: str) -> float:
    """Return the smallest difference (CIE 1976) of two colours over all kinds of colour vision; 2.3 is just noticed."""
    return min(float(np.linalg.norm(seen(one, kind) - seen(other, kind))) for kind in KINDS)
