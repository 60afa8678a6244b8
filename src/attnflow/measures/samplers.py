"""Random starts: token clouds of the distributions that the literature starts from. The same key gives the same tokens."""

import jax
import jax.numpy as jnp
from jaxtyping import Array

from attnflow import _check as check
from attnflow._types import ArrayLike, DType, Key, Scalar
from attnflow.measures.gaussians.mixture import GaussianMixture
from attnflow.measures.particles import Particles
from attnflow.numerics.arrays import floats, one_program, positive
from attnflow.spaces import Ellipsoid, Sphere


def normal(n: int, dim: int, *, key: Key, dtype: DType | None = None) -> Particles:
    r"""$n$ tokens of $\mathcal{N}(0, I)$ in $\mathbb{R}^d$."""
    return Particles(_standard_normal(n, dim, key, dtype))


def mixture(n: int, weights: ArrayLike, means: ArrayLike, covs: ArrayLike, *, key: Key) -> Particles:
    """$n$ tokens of a Gaussian mixture: `GaussianMixture(weights, means, covs).sample(n, key=key)`."""
    return GaussianMixture(weights, means, covs).sample(n, key=key)


def sphere(n: int, dim: int, *, key: Key, radius: Scalar = 1.0, dtype: DType | None = None) -> Particles:
    r"""$n$ tokens uniform on the sphere $S^{d-1}$ of $\mathbb{R}^d$, by default that of radius 1."""
    _check_sizes(n, dim, key)
    space, points = Sphere(radius), _uniform_directions(n, dim, key, check.real_type("dtype", dtype))
    return Particles(points if space.radius == 1 else space.radius * points, space=space)


def ellipsoid(n: int, axes: ArrayLike, *, key: Key, dtype: DType | None = None) -> Particles:
    r"""$n$ tokens uniform by area on the ellipsoid with these axes, exactly: directions $u$ are drawn anew until one is taken, which
    happens with probability $\min a \cdot |u / a|$, proportional to the area that $u \mapsto a u$ makes of an area of the sphere."""
    space = Ellipsoid(axes)
    _check_sizes(n, len(space.axes), key)
    return Particles(_uniform_by_area(n, space, key, check.real_type("dtype", dtype)), space=space)


def hemisphere(n: int, dim: int, *, key: Key, pole: ArrayLike | None = None, dtype: DType | None = None) -> Particles:
    """$n$ tokens uniform on the half of the sphere around `pole` (the first axis if not given)."""
    points = sphere(n, dim, key=key, dtype=dtype).points
    if pole is None:
        axis = jnp.zeros(dim, points.dtype).at[0].set(1)
    else:
        axis = floats("pole", pole, "d").astype(points.dtype)
        if axis.shape != (dim,):
            raise ValueError(f"pole must have {dim} coordinates, got {len(axis)}")
    return Particles(jnp.where(points @ axis < 0, -1, 1)[:, None] * points, space=Sphere())


def ball(n: int, dim: int, *, key: Key, radius: Scalar = 1.0, dtype: DType | None = None) -> Particles:
    r"""$n$ tokens uniform in the ball of $\mathbb{R}^d$ around 0."""
    _check_sizes(n, dim, key)
    direction, length = jax.random.split(key)
    points = sphere(n, dim, key=direction, dtype=dtype).points if dim > 1 else jnp.sign(_standard_normal(n, dim, direction, dtype))
    radii = positive("radius", radius) * jax.random.uniform(length, (n, 1), points.dtype) ** (1 / dim)
    return Particles(points * radii.astype(points.dtype))


def cube(n: int, dim: int, *, key: Key, half_width: Scalar = 1.0, dtype: DType | None = None) -> Particles:
    """$n$ tokens uniform in the cube $[-h, h]^d$, $h$ the `half_width`."""
    _check_sizes(n, dim, key)
    side = positive("half_width", half_width)
    points = jax.random.uniform(key, (n, dim), check.real_type("dtype", dtype), -1, 1)
    return Particles(points * side.astype(points.dtype))


def orthonormal(n: int, dim: int, *, key: Key, dtype: DType | None = None) -> Particles:
    r"""$n \le d$ orthonormal tokens on the sphere, in a random frame: the equiangular start."""
    _check_sizes(n, dim, key)
    if n > dim:
        raise ValueError(f"at most {dim} tokens of R^{dim} are orthonormal, got n = {n}")
    frame, _ = jnp.linalg.qr(_standard_normal(n, dim, key, dtype).T)
    return Particles(frame.T, space=Sphere())


@one_program
def _uniform_directions(n: int, dim: int, key: Key, dtype: jnp.dtype) -> Array:
    return Sphere().nearest(_standard_normal(n, dim, key, dtype))


@one_program
def _uniform_by_area(n: int, space: Ellipsoid, key: Key, dtype: jnp.dtype) -> Array:
    axes = jnp.asarray(space.axes, dtype)[None]

    def drawn(carry: tuple[Key, Array, Array]) -> tuple[Key, Array, Array]:
        key, points, taken = carry
        key, direction, chance = jax.random.split(key, 3)
        u = _uniform_directions(n, axes.size, direction, dtype)
        fits = jax.random.uniform(chance, (n,), dtype) < min(space.axes) * jnp.linalg.norm(u / axes, axis=1)
        return key, jnp.where(taken[:, None], points, axes * u), taken | fits

    start = key, jnp.zeros((n, axes.size), dtype), jnp.zeros(n, bool)
    return jax.lax.while_loop(lambda carry: ~jnp.all(carry[2]), drawn, start)[1]


def _standard_normal(n: int, dim: int, key: Key, dtype: DType | None) -> Array:
    _check_sizes(n, dim, key)
    return jax.random.normal(key, (n, dim), check.real_type("dtype", dtype))


def _check_sizes(n: int, dim: int, key: Key) -> None:
    check.count("n", n)
    check.count("dim", dim)
    check.key("key", key)


def __getattr__(name: str) -> object:
    raise check.no_attribute(__name__, name, globals())
