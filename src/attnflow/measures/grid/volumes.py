"""Finite volumes: how mass passes from cell to cell along a velocity, and how it diffuses.

Second order in space on smooth densities; mass is conserved to round-off; masses stay non-negative as long as a step of length h keeps
`h outflow <= 1/2`, because a density at a face is at most twice that of the cell it leaves.
"""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from attnflow.measures.grid.mesh import Mesh
from attnflow.numerics.arrays import one_program
from attnflow.numerics.rows import dot
from attnflow.numerics.special import scaled_bessel

# Where k / (1 - e^{-k}) is 2, and differences of logarithms below which an extremum counts as smooth.
_STEEP, _FLAT = 1.5936, 0.5
# Terms of the Chebyshev series of a heat step: enough for z up to about 3000; a longer step is divided.
_TERMS, _LONGEST = 512, 3000.0


@one_program
def face_velocity(mesh: Mesh, velocity: Float[Array, "n d"]) -> Float[Array, " f"]:
    """The speed across each face, from left to right: the mean of the two cells."""
    left, right = mesh.links.sides(velocity)
    return 0.5 * (dot(left, mesh.tangents[:, 0]) + dot(right, mesh.tangents[:, 1]))


@one_program
def transport(mesh: Mesh, mass: Float[Array, " n"], speed: Float[Array, " f"]) -> Float[Array, " n"]:
    """d(mass)/dt under speeds across faces: upwind, with the density taken as an exponential in each cell.

    Of a cell with mean r and logarithmic slope k, `e^{k x}` has the value `r k / (1 - e^{-k})` at the face ahead. These flows
    depend on tails, where a density falls by a factor from cell to cell: straight lines make them too heavy, exponentials follow them.
    """
    density = mass / mesh.volumes
    some = mass > 0
    logs = jnp.where(some, jnp.log(jnp.where(some, mass, 1)), math.log(jnp.finfo(mass.dtype).tiny)) - mesh.log_volumes
    behind, left, right, ahead = mesh.links.around(logs)
    forward = speed > 0
    upwind = jnp.where(forward, *mesh.links.sides(density))
    slope = _slope(jnp.where(forward, left - behind, right - ahead), jnp.where(forward, right - left, left - right))
    flux = mesh.areas * speed * upwind * _ahead(slope)
    # Each flux is read by two cells; a branch in between keeps the compiler from computing it twice.
    return jax.lax.cond(jnp.isfinite(speed[0]), lambda: mesh.links.gather(flux), lambda: jnp.full_like(mass, jnp.nan))


def _slope(a: Float[Array, " f"], b: Float[Array, " f"]) -> Float[Array, " f"]:
    """The slope of a line through differences a and b: `minmod(2a, 2b, (a+b)/2)` (van Leer 1977), and at a flat extremum the mean."""
    mean, most = 0.5 * (a + b), 2 * jnp.minimum(jnp.abs(a), jnp.abs(b))
    flat = jnp.maximum(jnp.abs(a), jnp.abs(b)) < _FLAT
    return jnp.where(flat, mean, jnp.where(a * b > 0, jnp.clip(mean, -most, most), 0))


def _ahead(k: Float[Array, " f"]) -> Float[Array, " f"]:
    """`k / (1 - e^{-k})`, at most 2."""
    k = jnp.clip(k, -50, _STEEP)
    small = jnp.abs(k) < 1e-2
    safe = jnp.where(small, 1, k)
    return jnp.where(small, 1 + k / 2 + k**2 / 12 - k**4 / 720, safe / (1 - jnp.exp(-safe)))


@one_program
def scharfetter_gummel(mesh: Mesh, mass: Float[Array, " n"], speed: Float[Array, " f"], diffusion: Float[Array, ""]) -> Float[Array, " n"]:
    """d(mass)/dt under `d_t rho + div(rho v) = D Laplace rho`, both at once: smooth in the masses, for stationary states and their spectra.

    The flux through a face with speed v is the one that is constant between the two middles: `D/gap (B(-p) left - B(p) right)` with
    `B(p) = p / (e^p - 1)`, `p = v gap / D` (Scharfetter and Gummel 1969). Where it vanishes `right = e^p left`: stationary densities are
    positive, however fast they fall from cell to cell.
    """
    density = mass / mesh.volumes
    p = speed * mesh.gaps / diffusion
    back = _bernoulli(p)
    left, right = mesh.links.sides(density)
    flux = (back + p) * left - back * right
    return mesh.links.gather(mesh.areas * diffusion / mesh.gaps * flux)


def _bernoulli(p: Float[Array, " f"]) -> Float[Array, " f"]:
    """`p / (e^p - 1)`, which is `- p + p / (1 - e^{-p})`; by its series where that cancels."""
    small = jnp.abs(p) < 1e-2
    safe = jnp.where(small, 1, jnp.clip(p, -700, 700))
    return jnp.where(small, 1 - p / 2 + p**2 / 12 - p**4 / 720, safe / jnp.expm1(safe))


@one_program
def outflow(mesh: Mesh, speed: Float[Array, " f"]) -> Float[Array, ""]:
    """The largest share of its own volume that a cell loses in unit time."""
    flow = mesh.areas * speed
    return jnp.max(mesh.links.collect(jnp.maximum(flow, 0), jnp.maximum(-flow, 0)) / mesh.volumes)


@one_program
def laplace(mesh: Mesh, mass: Float[Array, " n"]) -> Float[Array, " n"]:
    """d(mass)/dt under `d_t rho = Laplace rho`: the flux through a face is the difference of densities over the gap."""
    left, right = mesh.links.sides(mass / mesh.volumes)
    return mesh.links.gather(mesh.areas / mesh.gaps * (left - right))


@one_program
def heat(mesh: Mesh, mass: Float[Array, " n"], time: Float[Array, ""]) -> Float[Array, " n"]:
    """The masses after `d_t rho = Laplace rho` for a time, however long: `e^{time L}` as a Chebyshev series, exact to round-off.

    With the spectrum of L in [-2c, 0], `e^{time L} = sum_k (2 - [k=0]) e^{-z} I_k(z) T_k(1 + L/c)`, z = c time. Round-off below zero is set
    to zero and the mass restored.
    """
    # By Gershgorin: twice the largest diagonal entry bounds the spectrum, so c is that entry.
    share = mesh.areas / mesh.gaps
    c = jnp.max(mesh.links.collect(share, share) / mesh.volumes)
    pieces = jnp.maximum(jnp.ceil(c * time / _LONGEST), 1)
    share = scaled_bessel(c * time / pieces, _TERMS)
    share = share.at[1:].multiply(2)
    terms = jnp.sum(share > jnp.finfo(mass.dtype).eps / 8)

    def shifted(u: Array) -> Array:
        return u + laplace(mesh, u) / c

    def piece(_, mass: Array) -> Array:
        def term(k: Array, carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
            before, now, total = carry
            return now, 2 * shifted(now) - before, total + share[k] * now

        _, _, found = jax.lax.fori_loop(1, terms, term, (mass, shifted(mass), share[0] * mass))
        found = jnp.maximum(found, 0)
        return found * (jnp.sum(mass) / jnp.sum(found))

    return jax.lax.fori_loop(0, pieces.astype(int), piece, mass)
