"""Default tolerances: one table, by precision."""

import jax.numpy as jnp

from attnflow._types import DType

# What is not given is this, in double and in single precision.
_TABLE = {
    # The step size of `solve`: relative and absolute error of one step.
    "rtol": (1e-7, 1e-4),
    "atol": (1e-9, 1e-6),
    # The error of a marginal of a bridge or of Sinkhorn attention, and of the dual of exact transport.
    "sinkhorn": (1e-10, 1e-5),
    # The relative error of a spectral sum.
    "spectral": (1e-9, 1e-4),
    # The residual of a stationary density, relative to the terms that cancel in it.
    "newton": (1e-9, 1e-3),
    # Two eigenvalues or gaps that count as equal.
    "equal": (1e-9, 1e-4),
    # The scalar equations of `theory`.
    "theory": (1e-12, 1e-6),
    # One over the largest condition number of eigenvectors that are used as a basis.
    "basis": (1e-6, 1e-3),
}


def default(name: str, dtype: DType) -> float:
    """The tolerance with this name for numbers of this precision."""
    double, single = _TABLE[name]
    return double if dtype == jnp.float64 else single
