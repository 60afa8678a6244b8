"""A picture that the library does not know goes through transport with methods of its own."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array, Float

import attnflow as af
from attnflow.measures import FlowingMeasure
from attnflow.measures.line import Histogram
from attnflow.spaces import Euclidean, Space


class Uniform(FlowingMeasure):
    """The uniform law between two points of the line; affine maps keep it one."""

    low: Float[Array, ""]
    high: Float[Array, ""]
    space: Space = eqx.field(default_factory=Euclidean)

    @property
    def mean(self):  # pyright: ignore[reportIncompatibleVariableOverride]
        return jnp.stack([(self.low + self.high) / 2])

    @property
    def cov(self):  # pyright: ignore[reportIncompatibleVariableOverride]
        return jnp.reshape((self.high - self.low) ** 2 / 12, (1, 1))

    @property
    def dim(self):
        return 1

    @property
    def state(self):
        return jnp.stack([self.low, self.high])

    def with_state(self, state):
        return Uniform(state[0], state[1])

    def integrate(self, f):
        return self.tokens(jnp.asarray(1.0), key=None).integrate(f)

    def rate(self, velocity):
        return velocity(self.state[:, None])[:, 0]

    def push(self, map):
        return self.with_state(map(self.state[:, None])[:, 0])

    def retract(self, state):
        return state

    @staticmethod
    def error_norm(scaled_error):
        return jnp.max(jnp.abs(scaled_error))

    def frame(self, states):
        return {"ends": (("time", "end"), states)}

    def tokens(self, eps, *, key):
        middles = (np.arange(400) + 0.5) / 400
        return af.Particles((self.low + (self.high - self.low) * middles)[:, None])

    def projected(self, direction):
        ends = jnp.sort(self.state * direction[0])
        return Histogram(ends, jnp.ones(1, self.dtype))


@pytest.fixture(scope="module")
def pair():
    return Uniform(jnp.asarray(0.0), jnp.asarray(1.0)), Uniform(jnp.asarray(2.0), jnp.asarray(5.0))


def test_distances(pair):
    """The quantile functions are u and 2 + 3u: the mean of `(2 + 2u)^2` is 28/3."""
    mu, nu = pair
    np.testing.assert_allclose(af.wasserstein2(mu, nu), np.sqrt(28 / 3), rtol=1e-12)
    np.testing.assert_allclose(af.sliced_wasserstein2(mu, nu, np.array([[1.0], [-2.0]])), np.sqrt(28 / 3), rtol=1e-12)
    cells = af.Grid.uniform([af.Interval(2.0, 5.0, 7)])
    assert af.wasserstein2(nu, cells) < 1e-7
    normal, tokens = af.Gaussian([3.5], [[0.75]]), nu.tokens(jnp.asarray(0.1), key=None)
    np.testing.assert_allclose(af.wasserstein2(nu, normal), af.wasserstein2(tokens, normal), rtol=0.02)
    np.testing.assert_allclose(af.bures(mu, nu), np.sqrt(9 + (3 - 1) ** 2 / 12), rtol=1e-12)


def test_bridges_scores_and_steps(pair):
    """Inside the interval the density is flat: there is no score, and a heat step of an affine map moves nothing but the ends."""
    mu, nu = pair
    tokens = mu.tokens(jnp.asarray(0.01), key=None)
    found, x = af.self_bridge(mu, 0.01), jnp.array([[0.5], [0.9]])
    np.testing.assert_allclose(found.barycentric(x), af.self_bridge(tokens, 0.01).barycentric(x), atol=1e-12)
    np.testing.assert_allclose(found.score(x[:1]), 0, atol=1e-6)
    np.testing.assert_allclose(af.bridge_score(mu, 0.01)(x), found.score(x), rtol=1e-9)
    assert af.bridge(mu, nu, 1.0).converged
    np.testing.assert_allclose(af.Heat().step(mu, 0.01).measure.mean, mu.mean, atol=1e-6)
    assert float(af.Heat().step(mu, 0.01).measure.cov[0, 0]) > float(mu.cov[0, 0])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda mu: af.heat_flow(mu, 1.0), "mu must be a Gaussian or a GaussianMixture, got Uniform"),
        (lambda mu: af.entropy(mu), "mu must be Particles, a Grid, a Gaussian or a GaussianMixture, got Uniform"),
        (lambda mu: af.kernel_score(mu, 1.0), "mu must be a Gaussian or a GaussianMixture, got Uniform"),
        (lambda mu: af.FokkerPlanck(mu), "target must be a Gaussian, a GaussianMixture or grad log density, got Uniform"),
        (lambda mu: af.energy_distance(mu, mu), "energy_distance is for two clouds, got Uniform and Uniform"),
    ],
)
def test_what_it_cannot_do_is_refused_in_one_line(pair, call, message):
    with pytest.raises(TypeError, match=message):
        call(pair[0])


def test_at_the_tokens_the_engine_of_the_bridge_serves():
    mu = af.samplers.normal(300, 2, key=jax.random.key(0))
    found = af.self_bridge(mu, 0.5, sums=af.Spectral(1e-10))
    assert found.pull_at_tokens().engines == found.pull().engines == (found.kernel.engine,)
    np.testing.assert_allclose(found.barycentric(), found.barycentric(mu.points), atol=1e-8)
    np.testing.assert_allclose(found.pull_at_tokens()(mu.points), found.barycentric() - mu.points, atol=1e-12)
