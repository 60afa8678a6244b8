"""Stationary laws against closed forms and long runs; bifurcations and branches against expansions."""

import functools
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import attnflow as af

# Few grids: each is compiled for.
CIRCLE, BANDS = [af.Circle(48)], [af.Zonal(3, 48, nodes=8)]


class Pull(af.Field):
    """`Gamma(x) = - rate x + pull (mean - x)`: Ornstein and Uhlenbeck, with tokens that attract each other."""

    rate: float
    pull: float

    def at(self, mu: Any, t: Any = 0.0, sums: Any = None):
        mean = mu.mean
        return lambda x: -self.rate * x + self.pull * (mean[None] - x)


def usa(beta: Any, dim: int) -> af.Attention:
    return af.simple_attention(beta, dim, af.Unnormalized())


def tilted(axes: list, tilt: float) -> af.Grid:
    uniform = af.Grid.uniform(axes)
    mass = np.exp(tilt * np.asarray(uniform.points[:, 0])) * np.asarray(uniform.weights)
    return uniform.with_state(jnp.asarray(mass / mass.sum()))


@pytest.mark.long
def test_a_gaussian_on_the_line():
    """`N(0, sigma^2 / (2 (rate + pull)))`, exactly so on cells of any width; its mean, the slowest perturbation, decays at `rate`."""
    guess = af.Grid.from_density(lambda x: jnp.exp(-((x[:, 0] - 0.3) ** 2) / 2) / np.sqrt(2 * np.pi), [af.Interval(-5, 5, 80)])
    found = af.stationary(Pull(0.5, 1.0), guess, 0.8)
    assert found.converged
    assert found.error < 1e-9
    assert found.order < 1e-9
    np.testing.assert_allclose(found.measure.cov, 0.64 / 3, rtol=1e-8)
    assert found.growth == pytest.approx(-0.5, abs=0.01)


@functools.cache
def ordered(dim: int) -> af.Stationary:
    """An ordered state of USA below the critical noise, on the circle or on S^2."""
    sigma = 0.9 * float(af.theory.critical_noise(1.0, dim))
    return af.stationary(usa(1.0, dim), tilted(CIRCLE if dim == 2 else BANDS, 1.5), sigma)


@pytest.mark.parametrize("dim", [2, 3])
@pytest.mark.long
def test_an_ordered_state_solves_its_equation(dim):
    """`log rho = 2/sigma^2 integral e^{<x,y>} drho(y) + const`, up to errors of second order in the cell."""
    state = ordered(dim)
    assert state.converged
    assert 0.3 < state.order < 0.95
    assert state.growth < 0
    mu = state.measure
    y, log_weights = (np.asarray(array) for array in mu.atoms()[:2])
    field = np.exp(np.asarray(mu.points) @ y.T) @ np.exp(log_weights)
    gap = np.log(np.asarray(mu.density)) - 2 / state.noise**2 * field
    assert np.ptp(gap) < 0.01


@pytest.mark.long
def test_a_turned_guess_gives_the_turned_state():
    """The phase of a guess is kept on the circle: turned by 13 cells the state is the same up to round-off."""
    state = ordered(2)
    guess = tilted(CIRCLE, 1.5)
    again = af.stationary(usa(1.0, 2), guess.with_state(jnp.roll(guess.mass, 13)), state.noise)
    np.testing.assert_allclose(again.measure.mass, np.roll(state.measure.mass, 13), atol=1e-11)
    assert again.growth == pytest.approx(state.growth, abs=1e-6)


def test_the_uniform_law_grows_like_its_first_mode():
    sigma = 0.9 * float(af.theory.critical_noise(1.0, 2))
    found = af.stationary(usa(1.0, 2), af.Grid.uniform(CIRCLE), sigma)
    assert found.iterations == 0
    assert found.growth == pytest.approx(float(af.theory.mode_growth(1, 1.0, 2, kind="unnormalized", noise=sigma)), rel=1e-2)


@pytest.mark.long
def test_a_law_that_does_not_turn_has_no_free_phase():
    """With a pull to the first axis on top, the state lies along it, whatever the phase of the guess."""
    guess = tilted(CIRCLE, 1.0)
    guess = guess.with_state(jnp.roll(guess.mass, 10))
    found = af.stationary(usa(0.5, 2) + Wind(), guess, 1.5)
    assert found.converged
    assert abs(float(found.measure.mean[1])) < 1e-9
    assert float(found.measure.mean[0]) > 0.3


class Wind(af.Field):
    """`Gamma(x) = e_1`."""

    def at(self, mu: Any, t: Any = 0.0, sums: Any = None):
        return lambda x: jnp.zeros_like(x).at[:, 0].set(1)


@pytest.mark.parametrize(("dim", "axes"), [(2, CIRCLE), (3, BANDS)])
@pytest.mark.long
def test_bifurcations(dim, axes):
    """Critical noise and curvature against closed forms, on both sides of the critical beta."""
    for beta in (1.0, 3.0):
        found = af.bifurcation(usa(beta, dim), af.Grid.uniform(axes))
        assert found.noise == pytest.approx(float(af.theory.critical_noise(beta, dim)), rel=1e-3)
        assert found.curvature == pytest.approx(float(af.theory.branch_curvature(beta, dim)), rel=0.05)
        assert np.sign(found.curvature) == np.sign(beta - af.theory.critical_beta(dim))


@pytest.mark.long
def test_a_branch_begins_as_its_expansion_says():
    start = af.bifurcation(usa(1.0, 2), af.Grid.uniform(CIRCLE))
    states = af.branch(usa(1.0, 2), start, between=(0.9 * start.noise, 2.0), step=0.02, points=8)
    a = 2 * states.order[1:]
    np.testing.assert_allclose(states.parameter[1:] ** 2 / start.noise**2, 1 + start.curvature * a**2, atol=0.1 * a.max() ** 4)
    assert states[0].order < 1e-12
    assert (states.growth[1:] < 0).all()
    assert (states.error < 1e-9).all()
    assert states.status == "points"


@pytest.mark.long
def test_a_fold_beyond_the_critical_beta():
    """States rise above the critical noise unstable, turn back, and are stable from there on; at the fold the growth rate vanishes."""
    field = usa(4.0, 2)
    start = af.bifurcation(field, af.Grid.uniform(CIRCLE))
    states = af.branch(field, start, between=(0.95 * start.noise, 2 * start.noise))
    assert states.status == "left"
    assert len(states.folds) == 1
    noise, order = states.folds[0]
    assert noise > 1.02 * start.noise
    before, after = states.order < order - 0.02, states.order > order + 0.02
    assert (states.growth[1:][before[1:]] > 0).all()
    assert (states.growth[after] < 0).all()
    # The other way round the fold, from the last state.
    back = af.branch(field, states[-1], between=(0.9 * start.noise, 2 * start.noise), direction=1, points=8)
    np.testing.assert_allclose(np.interp(back.parameter[1:], states.parameter[::-1][:8], states.order[::-1][:8]), back.order[1:], atol=2e-3)


@pytest.mark.long
def test_a_branch_in_the_inverse_temperature():
    """At a fixed noise, from beta = 1 on: the last state is the stationary one for its beta."""
    state = ordered(2)

    def family(beta):
        return usa(beta, 2), state.noise

    states = af.branch(family, state, between=(0.5, 1.2), at=1.0)
    assert states.status == "left"
    assert (np.diff(states.parameter) > 0).all()
    assert (np.diff(states.order) > 0).all()
    last = af.stationary(usa(states.parameter[-1], 2), state.measure, state.noise)
    assert last.order == pytest.approx(states.order[-1], abs=1e-7)


@pytest.mark.long
def test_a_mode_that_always_decays_has_no_bifurcation():
    repulsive = af.Attention(usa(1.0, 2).logit, -np.eye(2), af.Unnormalized())
    with pytest.raises(ValueError, match="mode 1 of the uniform measure decays without noise too"):
        af.bifurcation(repulsive, af.Grid.uniform(CIRCLE))


def test_bad_input_is_named():
    law, circle = usa(1.0, 2), af.Grid.uniform(CIRCLE)
    cases = [
        (TypeError, lambda: af.stationary(law, af.Particles(np.ones((3, 2))), 1.0), "guess must be a Grid, .*, got Particles"),
        (ValueError, lambda: af.stationary(law, circle, 0.0), "noise must be positive, got 0"),
        (ValueError, lambda: af.stationary(law, circle, 1.0, tolerance=0.0), "tolerance must be positive, got 0"),
        (ValueError, lambda: af.stationary(law, circle, 1.0, max_iterations=0), "max_iterations must be at least 1, got 0"),
        (ValueError, lambda: af.stationary(usa(1.0, 3), af.Grid.uniform([af.Icosphere(4)]), 1.0), "got Icosphere"),
        (ValueError, lambda: af.stationary(law, af.Grid.uniform([af.Circle(5000)]), 1.0), "at most 4096 cells, got 5000"),
        (ValueError, lambda: af.stationary(usa(1e4, 2), circle, 1.0), "cells"),
        (TypeError, lambda: af.stationary(lambda x: x, circle, 1.0), "field must be a law or a field"),
        (TypeError, lambda: af.bifurcation(law, af.Grid.uniform([af.Interval(0, 1, 8)])), "Circle or a Zonal axis, got Interval"),
        (ValueError, lambda: af.bifurcation(law, circle, mode=0), "mode must be at least 1, got 0"),
        (ValueError, lambda: af.bifurcation(usa(1.0, 3), af.Grid.uniform(BANDS), mode=2), "on a Zonal axis mode must be odd, got 2"),
        (TypeError, lambda: af.branch(law, circle, (0.5, 1.0)), "start must be a Bifurcation or a Stationary measure, got Grid"),
        (ValueError, lambda: af.branch(law, ordered(2), (5.0, 6.0)), "between must be a range with the parameter of the start"),
        (TypeError, lambda: af.branch(law, ordered(2), (0.1, 2.0), at=1.0), "field must be a function p -> .* where at is given"),
        (ValueError, lambda: af.branch(law, ordered(2), (0.1, 2.0), step=0.0), "step must be positive, got 0.0"),
    ]
    for kind, call, message in cases:
        with pytest.raises(kind, match=message):
            call()
