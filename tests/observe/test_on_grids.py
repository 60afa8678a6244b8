"""Energy and entropy of densities, against closed forms and against tokens."""

import math
from decimal import Decimal

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attnflow as af

SLOPED = np.array([0.6, 0.0, 0.8])


GRIDS = {
    "line": ([af.Interval(-1.0, 1.0, 64)], lambda x: (1 + 0.5 * x[:, 0]) / 2),
    "plane": ([af.Interval(-1.0, 1.0, 12), af.Interval(-1.0, 1.0, 15)], lambda x: (1 + 0.5 * x[:, 0]) / 4),
    "circle": ([af.Circle(64)], lambda x: (1 + 0.5 * x[:, 0]) / (2 * np.pi)),
    "icosphere": ([af.Icosphere(4)], lambda x: (1 + 0.5 * (x @ SLOPED)) / (4 * np.pi)),
    "order": ([af.Order(4), af.Interval(-1.0, 1.0, 30)], lambda x, s: (1 + 0.5 * (2 * s - 1) * x[:, 0]) / 2),
}


@pytest.mark.parametrize("name", GRIDS)
@pytest.mark.cases
def test_energy_is_that_of_the_cells_as_tokens(name):
    axes, density = GRIDS[name]
    mu = af.Grid.from_density(density, axes)
    np.testing.assert_allclose(af.energy(mu, 3.0), af.energy(mu.particles(), 3.0, sums=af.Dense()), rtol=1e-12)
    np.testing.assert_allclose(af.energy(mu, 3.0, log_scale=-3.0), np.exp(-3) * af.energy(mu, 3.0), rtol=1e-12)


def test_energy_beyond_the_range_of_numbers(rng):
    x = rng.normal(size=(6, 3))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    mu = af.Particles(x, space=af.Sphere())
    exact = [[Decimal(float(c)) for c in row] for row in x]
    pairs = [(1000 * sum(s * t for s, t in zip(a, b, strict=True))).exp() for a in exact for b in exact]
    expected = (sum(pairs, Decimal(0)) / 36 / 2000).ln()
    with pytest.warns(UserWarning, match=r"energy at beta = 1000 is beyond the range of float64, got inf; use log=True"):
        assert af.energy(mu, 1000.0) == np.inf
    np.testing.assert_allclose(af.energy(mu, 1000.0, log=True), float(expected), rtol=1e-13)
    np.testing.assert_allclose(af.energy(mu, 1000.0, log_scale=-1000.0), float((expected - 1000).exp()), rtol=1e-11)


def test_energy_of_uniform_laws():
    """`2 beta E` is the average of `e^{beta x_1}`: I_0(beta) on the circle, sinh(beta) / beta on S^2."""
    beta = 4.0
    circle, sphere = np.i0(beta), np.sinh(beta) / beta
    np.testing.assert_allclose(2 * beta * af.energy(af.Grid.uniform([af.Circle(64)]), beta), circle, rtol=1e-12)
    np.testing.assert_allclose(2 * beta * af.energy(af.Grid.uniform([af.Icosphere(4)]), beta), sphere, rtol=1e-6)
    # Latitudes: at least second order in the width of a band.
    errors = [2 * beta * float(af.energy(af.Grid.uniform([af.Zonal(3, cells)]), beta)) / sphere - 1 for cells in (40, 80)]
    assert abs(errors[1]) < 1e-6
    assert errors[0] / errors[1] > 3.9


@pytest.mark.long
def test_energy_of_a_zonal_law_is_that_of_its_tokens(key):
    """The rows of its keys are more than its cells: points around each band."""
    n, beta, uniform = 4000, 2.0, af.Grid.uniform([af.Zonal(5, 60)])
    tilted = uniform.mass * jnp.exp(uniform.points[:, 0])
    mu = uniform.with_state(tilted / jnp.sum(tilted))
    # All pairs of n tokens: the noise is n^{-1/2}, and n of the pairs are a token with itself, e^beta.
    with_self = 2 * beta * float(af.energy(mu.sample(n, key=key), beta))
    np.testing.assert_allclose(2 * beta * af.energy(mu, beta), (with_self - np.exp(beta) / n) / (1 - 1 / n), rtol=0.02)


def test_energy_climbs_along_attention():
    """To first order in the step; compiled, as `solve` observes it."""
    mu, beta = af.Grid.from_density(lambda x: (1 + 0.3 * x[:, 0]) / (2 * np.pi), [af.Circle(64)]), 2.0
    found = jax.jit(lambda mu: af.energy(mu, beta))
    rate = mu.rate(af.simple_attention(beta, 2).at(mu))
    np.testing.assert_allclose(found(mu), af.energy(mu, beta), rtol=1e-14)
    assert float(found(mu.with_state(mu.mass + 1e-3 * rate))) > float(found(mu)) + 1e-5


@pytest.mark.long
def test_entropy_of_gaussians():
    """`d/2 log(2 pi e) + 1/2 log det S`; the sum over the middles of cells is exact but for round-off."""
    line = af.Grid.from_density(lambda x: jnp.exp(-((x[:, 0] - 1) ** 2) / 8) / np.sqrt(8 * np.pi), [af.Interval(-20.0, 22.0, 100)])
    np.testing.assert_allclose(af.entropy(line), 0.5 * np.log(2 * np.pi * np.e * 4), rtol=1e-12)
    plane = af.Grid.from_density(
        lambda x: jnp.exp(-(x[:, 0] ** 2) / 2 - x[:, 1] ** 2) / (np.sqrt(2) * np.pi),
        [af.Interval(-9.0, 9.0, 60), af.Interval(-7.0, 7.0, 60)],
    )
    np.testing.assert_allclose(af.entropy(plane), np.log(2 * np.pi * np.e) + 0.5 * np.log(0.5), rtol=1e-10)
    # That of the tokens, smoothed a little, is near.
    tokens = line.quantiles(2000)
    np.testing.assert_allclose(af.entropy(tokens, 0.2), af.entropy(line), rtol=0.01)


@pytest.mark.long
def test_entropy_of_uniform_laws():
    """The logarithm of the length or area; an empty cell has none."""
    areas = ([af.Circle(9)], 2 * np.pi), ([af.Icosphere(3)], 4 * np.pi), ([af.Order(3), af.Interval(0.0, 5.0, 4)], 5.0)
    for axes, area in (*areas, ([af.Zonal(5, 8)], 2 * np.pi**2.5 / math.gamma(2.5))):
        np.testing.assert_allclose(af.entropy(af.Grid.uniform(axes)), np.log(area), rtol=1e-12)
    half = af.Grid(np.array([0.5, 0.0, 0.5, 0.0]), [af.Interval(0.0, 4.0, 4)])
    np.testing.assert_allclose(af.entropy(half), np.log(2), rtol=1e-14)
    assert np.isfinite(jax.grad(lambda m: af.entropy(half.with_state(m)))(half.mass)).all()


def test_bad_input_is_named(rng):
    mu, tokens = af.Grid.uniform([af.Circle(8)]), af.Particles(rng.normal(size=(5, 2)))
    with pytest.raises(ValueError, match=r"a Grid has a density of its own, got bandwidth 0.1; leave it out"):
        af.entropy(mu, 0.1)
    with pytest.raises(ValueError, match="the entropy of Particles needs the width of a kernel, got none; give bandwidth=h"):
        af.entropy(tokens)
    with pytest.raises(ValueError, match=r"a Gaussian has a density of its own, got bandwidth 0.1; leave it out"):
        af.entropy(af.Gaussian([0.0], [[1.0]]), 0.1)
    with pytest.raises(ValueError, match=r"a GaussianMixture has a density of its own, got bandwidth 0.1; leave it out"):
        af.entropy(af.GaussianMixture([1.0], [[0.0]], [[[1.0]]]), 0.1)
    with pytest.raises(TypeError, match=r"mu must be Particles or a Grid, got Gaussian; draw tokens with .sample\(n, key=key\)"):
        af.energy(af.Gaussian([0.0], [[1.0]]), 1.0)
    with pytest.raises(ValueError, match=r"a cell is wider than the kernel, whose width is 0.1: the axis needs at least 63 cells, got 8"):
        af.energy(mu, 100.0)
