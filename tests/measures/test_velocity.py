"""Velocities made of others: what they compute, and that they pass on what their parts report."""

import jax.numpy as jnp
import numpy as np

import attnflow as af
from attnflow.measures.velocity import Mapped, Velocity
from attnflow.sums import Dense


class Iterated(Velocity):
    """`x -> x^2`, with something to report."""

    number: int

    def __call__(self, x, order=None):
        return x**2

    @property
    def report(self):
        return {"iterations": self.number}

    @property
    def engines(self):
        return (Dense(),)


def test_made_of_others(rng):
    x, B = jnp.asarray(rng.normal(size=(4, 2))), jnp.asarray(rng.normal(size=(2, 2)))
    v = Iterated(3)
    made = {
        "scaled": (v.scaled(2.0), 2 * x**2),
        "then": (v.then(B), x**2 @ B.T),
        "minus": (v.minus(B), x**2 - x @ B.T),
        "of": (v.of(B), (x @ B.T) ** 2),
        "checked": (v.checked(2), x**2),
        "step": (v.step(0.1), x + 0.1 * x**2),
        "mapped": (Mapped(v, jnp.sin), jnp.sin(x**2)),
    }
    for name, (velocity, expected) in made.items():
        np.testing.assert_allclose(velocity(x), expected, rtol=1e-13, err_msg=name)
        assert (velocity.report, velocity.engines) == (v.report, v.engines), name
    linear = af.Affine(B, B[0])
    for name, affine in {
        "scaled": linear.scaled(2.0),
        "then": linear.then(B),
        "minus": linear.minus(B),
        "of": linear.of(B),
        "step": linear.step(0.1),
        "compose": linear.compose(linear),
    }.items():
        assert isinstance(affine, af.Affine), name
    np.testing.assert_allclose(linear.compose(linear)(x), linear(linear(x)), rtol=1e-12)


def test_a_sum_reports_under_the_numbers_of_its_parts(rng):
    x = jnp.asarray(rng.normal(size=(4, 2)))
    total = Iterated(1) + af.Affine(jnp.eye(2), jnp.zeros(2)) + Iterated(2)
    np.testing.assert_allclose(total(x), 2 * x**2 + x, rtol=1e-13)
    assert total.report == {"part 0": {"part 0": {"iterations": 1}}, "part 1": {"iterations": 2}}
    assert len(total.engines) == 2
