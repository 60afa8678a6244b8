"""Random weight matrices of the literature. The same key gives the same matrices."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from attnflow import _check as check
from attnflow._types import DType, Key


def gaussian(dim: int, rows: int | None = None, *, key: Key, count: int = 1, dtype: DType | None = None) -> Float[Array, "count p d"]:
    r"""`count` matrices `[rows, dim]` with independent $\mathcal{N}(0, 1/d)$ entries: a query and a key are
    `gaussian(d, p, key=key, count=2)`."""
    shape = (check.count("count", count), check.count("dim", dim) if rows is None else check.count("rows", rows), check.count("dim", dim))
    return jax.random.normal(check.key("key", key), shape, check.real_type("dtype", dtype)) / jnp.sqrt(dim)


def goe(dim: int, *, key: Key, dtype: DType | None = None) -> Float[Array, "d d"]:
    """The Gaussian orthogonal ensemble: symmetric, variance $1/d$ off the diagonal and $2/d$ on it; the spectrum fills $[-2, 2]$."""
    square = gaussian(dim, key=key, dtype=dtype)[0]
    return (square + square.T) / jnp.sqrt(2)


def wigner(dim: int, *, key: Key, dtype: DType | None = None) -> Float[Array, "d d"]:
    r"""A Wigner matrix of signs: symmetric, entries $\pm 1/\sqrt{d}$; the spectrum fills $[-2, 2]$ as $d$ grows."""
    dim = check.count("dim", dim)
    signs = jax.random.rademacher(check.key("key", key), (dim, dim), check.real_type("dtype", dtype))
    upper = jnp.triu(signs)
    return (upper + jnp.triu(signs, 1).T) / jnp.sqrt(dim)


def __getattr__(name: str) -> object:
    raise check.no_attribute(__name__, name, globals())
