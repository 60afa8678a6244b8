"""Power laws from measurements: a straight line in logarithms, with its confidence."""

import dataclasses
import math
from typing import Any

import numpy as np


@dataclasses.dataclass(frozen=True)
class PowerLaw:
    """`y = e^intercept x^slope`, by least squares in the logarithms.

    `half_width` is that of the confidence interval of the slope, from the residuals, by Student's t. Where the points bend away from
    a power law the residuals say so; they are not noise.
    """

    slope: float
    intercept: float
    half_width: float
    _center: float
    _quantile_sigma: float
    _spread: float
    _count: int

    def __call__(self, x: Any) -> np.ndarray:
        return np.exp(self.intercept + self.slope * np.log(x))

    def band(self, x: Any) -> tuple[np.ndarray, np.ndarray]:
        """Where the line lies with the same confidence: below and above, at every x."""
        reach = self._quantile_sigma * np.sqrt(1 / self._count + (np.log(x) - self._center) ** 2 / self._spread)
        return self(x) * np.exp(-reach), self(x) * np.exp(reach)


def power_law(x: Any, y: Any, confidence: float = 0.95) -> PowerLaw:
    """The power law through positive `x`, `y` `[k]`, k >= 3."""
    u, v = np.log(np.asarray(x, dtype=float)), np.log(np.asarray(y, dtype=float))
    if len(u) < 3:
        raise ValueError(f"a fit with confidence needs at least 3 points, got {len(u)}")
    center, freedom = u.mean(), len(u) - 2
    spread = ((u - center) ** 2).sum()
    slope = ((u - center) * (v - v.mean())).sum() / spread
    intercept = v.mean() - slope * center
    sigma = math.sqrt(((v - intercept - slope * u) ** 2).sum() / freedom)
    reach = student(freedom, confidence) * sigma
    return PowerLaw(float(slope), float(intercept), float(reach / math.sqrt(spread)), float(center), float(reach), float(spread), len(u))


def student(freedom: int, confidence: float) -> float:
    """The t with `P(|T| <= t) = confidence` for Student's distribution, by bisection on the angle `atan(t / sqrt(freedom))`.

    For whole degrees of freedom the probability is elementary (Abramowitz and Stegun 26.7.3, 26.7.4).
    """

    def within(angle: float) -> float:
        cosine, series = math.cos(angle), 0.0
        term = cosine if freedom % 2 else 1.0
        for power in range(freedom % 2, freedom - 1, 2):
            series += term
            term *= cosine**2 * (power + 1) / (power + 2)
        return 2 / math.pi * (angle + math.sin(angle) * series) if freedom % 2 else math.sin(angle) * series

    low, high = 0.0, math.pi / 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if within(middle) < confidence else (low, middle)
    return math.sqrt(freedom) * math.tan(low)
