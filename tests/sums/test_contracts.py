"""Masks, logits and engines of a user, with nothing but what their contracts ask for."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attnflow as af


class Every(af.Mask):
    """Queries see the past in steps of `stride`, and themselves."""

    stride: jax.Array

    def visible(self, s, tau):
        return (tau <= s) & (jnp.mod(s - tau, self.stride) == 0)


class Cosine(af.Logit):
    """`beta cos(<w, x - y>)`, a logit of rank 2 that is no quadratic form."""

    beta: jax.Array
    w: jax.Array

    @property
    def dim(self):
        return len(self.w)

    def _rows(self, x):
        angle = x @ self.w
        return jnp.stack([jnp.cos(angle), jnp.sin(angle)], axis=1), jnp.zeros(len(x))

    def queries(self, x, order, c):
        q, a = self._rows(x)
        return self.beta * q, a

    def keys(self, y, order, c):
        return self._rows(y)


class WrittenOut(af.Engine):
    """All pairs at once, by the formulas of the contract."""

    def _logits(self, rows):
        return rows.q @ rows.k.T + rows.b[None]

    def softmax(self, rows, values=None, with_mean=True):
        logits = self._logits(rows) + rows.log_weights[None]
        weights = jax.nn.softmax(logits, axis=1)
        return jax.nn.logsumexp(logits, axis=1), weights @ (rows.k if values is None else values) if with_mean else None

    def pointwise(self, kernel, rows, values):
        return kernel(self._logits(rows) + rows.a[:, None]) @ values

    def largest(self, rows):
        return jnp.max(self._logits(rows), axis=1)


def test_a_mask_needs_visible_alone(rng):
    mu = af.Particles(rng.normal(size=(11, 2)))
    law = af.Attention(af.dot_product(np.eye(2), np.eye(2)), np.eye(2), mask=Every(jnp.asarray(3.0)))
    places = np.arange(11)
    seen = (places[None] <= places[:, None]) & ((places[:, None] - places[None]) % 3 == 0)
    explicit = af.Attention(law.logit, np.eye(2), mask=af.Explicit(seen))
    for sums in (af.Dense(), af.Streamed(4, 3, native=False)):
        found = law.at(mu, sums=sums)(mu.points, mu.sequence)
        np.testing.assert_allclose(found, explicit.at(mu)(mu.points), atol=1e-13)


def test_a_mask_without_reach_is_refused_on_a_grid():
    grid = af.Grid.uniform([af.Order(4), af.Interval(-1.0, 1.0, 8)])
    law = af.Attention(af.dot_product(np.eye(1), np.eye(1)), np.eye(1), mask=Every(jnp.asarray(1.0)))
    with pytest.raises(ValueError, match=r"on a Grid a mask says how far queries see, got Every without a method reach\(s\); use tokens"):
        law.at(grid)(grid.points, grid.sequence)


def test_a_logit_needs_dim_queries_and_keys(rng):
    logit = Cosine(jnp.asarray(1.5), jnp.asarray([0.7, -1.2]))
    x = rng.normal(size=(9, 2))
    phase = x @ np.array([0.7, -1.2])
    logits = 1.5 * np.cos(phase[:, None] - phase[None])
    np.testing.assert_allclose(logit(jnp.asarray(x), jnp.asarray(x)), logits, atol=1e-13)
    weights = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    mu = af.Particles(x)
    for sums in (None, af.Streamed(4, 3, native=False)):
        np.testing.assert_allclose(af.Attention(logit, np.eye(2)).at(mu, sums=sums)(x), weights @ x, atol=1e-13)
    unnormalized = af.Attention(logit, np.eye(2), af.Unnormalized()).at(mu)(x)
    np.testing.assert_allclose(unnormalized, np.exp(logits) @ x / 9, atol=1e-13)
    assert not logit.psd
    with pytest.raises(ValueError, match="a Cosine logit is no quadratic form in the tokens"):
        af.Attention(logit, np.eye(2)).at(af.Gaussian([0.0, 0.0], np.eye(2)))
    with pytest.raises(ValueError, match=r"a Cosine logit has no method swapped\(\), which this needs"):
        af.Attention(logit, np.eye(2), af.Sinkhorn()).at(mu)(x)


@pytest.mark.parametrize("normalize", [af.Softmax(), af.Unnormalized(), af.Sigmoid(), af.Hardmax()], ids=lambda n: type(n).__name__)
def test_an_engine_needs_three_sums(rng, normalize):
    mu = af.Particles(rng.normal(size=(7, 3)), rng.uniform(0.5, 1.5, size=7))
    law = af.Attention(af.dot_product(*rng.normal(size=(2, 3, 3))), rng.normal(size=(3, 3)), normalize)
    np.testing.assert_allclose(law.at(mu, sums=WrittenOut())(mu.points), law.at(mu, sums=af.Dense())(mu.points), atol=1e-12)
