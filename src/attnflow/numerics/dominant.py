"""The dominant part of a matrix in `e^{tV}`: its largest eigenvalue, if that is real and positive and has a full set of eigenvectors."""

import dataclasses

import numpy as np
from jaxtyping import Float

from attnflow._types import ArrayLike

# Eigenvalues closer than this share of the largest are taken as equal: round-off splits those of a defective matrix by its square root.
_SAME = 1e-6


@dataclasses.dataclass(frozen=True, eq=False)
class Dominant:
    """`V = l I` on the span F of the columns of `right`, and smaller on the invariant complement, where the rows of `left` vanish.

    `left @ right = I`, and the columns are orthonormal: `left @ z` are the coordinates along F of the projection of z that commutes with V.
    """

    value: float
    left: Float[np.ndarray, "m d"]
    right: Float[np.ndarray, "d m"]


def dominant(matrix: ArrayLike) -> Dominant | str:
    """The dominant part, or a sentence that says why there is none."""
    V = np.asarray(matrix, dtype=float)
    eigenvalues = np.linalg.eigvals(V)
    radius = float(np.abs(eigenvalues).max())
    if radius == 0:
        return "V has no eigenvalue but 0"
    top = eigenvalues[np.abs(eigenvalues) > (1 - _SAME) * radius]
    if np.abs(top - radius).max() > _SAME * radius:
        return f"the largest eigenvalues of V are not one positive number: they are {', '.join(_short(complex(value)) for value in top)}"
    value, m = float(np.real(top).mean()), len(top)
    if np.abs(V - value * np.eye(len(V))).max() <= _SAME * radius:
        return Dominant(value, np.eye(len(V)), np.eye(len(V)))
    u, s, vt = np.linalg.svd(V - value * np.eye(len(V)))
    if s[-m] > _SAME * max(s[0], radius):
        return f"the largest eigenvalue {value:.6g} of V has multiplicity {m} and fewer eigenvectors"
    right, left = vt[-m:].T, u[:, -m:].T
    # The sign of a single vector is chosen so that its largest entry is positive.
    right = right * (np.sign(right[np.abs(right[:, 0]).argmax(), 0]) if m == 1 else 1.0)
    return Dominant(value, np.linalg.solve(left @ right, left), right)


def _short(value: complex) -> str:
    """A number for a message, its imaginary part if it has one."""
    return f"{value.real:.4g}" if abs(value.imag) <= _SAME * abs(value) else f"{value:.4g}"
