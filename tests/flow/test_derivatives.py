"""Derivatives through `solve`: forward mode, reverse mode, and Hessians, against differences and closed forms."""

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attnflow as af


def test_forward_mode_is_the_difference_quotient(key):
    mu = af.samplers.sphere(5, 3, key=key)
    tangent = jax.random.normal(jax.random.key(1), mu.points.shape)

    def spread(beta, points, adjoint=None):
        path = af.solve(af.simple_attention(beta, 3), mu.with_state(points), 1.0, save_at=2, rtol=1e-10, atol=1e-12, adjoint=adjoint)
        return af.mean_cosine(path.final)

    def forward(beta, points):
        return spread(beta, points, diffrax.ForwardMode())

    tangent = mu.space.project(mu.points, tangent)
    value, along = jax.jvp(forward, (2.0, mu.points), (1.0, tangent))
    assert value == pytest.approx(float(spread(2.0, mu.points)), rel=1e-9)
    h = 1e-5
    ends = [float(spread(2.0 + s * h, mu.space.nearest(mu.points + s * h * tangent))) for s in (-1, 1)]
    assert along == pytest.approx((ends[1] - ends[0]) / (2 * h), rel=1e-6)


@pytest.mark.long
def test_the_hessian_of_a_gaussian_is_the_closed_form():
    """Softmax with logit b<x,y> on N(0, s) in one dimension: s' = 2 b s^2, so s(t) = s / (1 - 2 b s t) =: f(b, s), and its Hessian."""

    def cov(at, adjoint=None):
        b, s = at
        path = af.solve(af.simple_attention(b, 1), af.Gaussian(jnp.zeros(1), s[None, None]), 0.5, save_at=2, adjoint=adjoint, **options)
        return path.final.cov[0, 0]

    options = {"rtol": 1e-10, "atol": 1e-12, "max_steps": 128}
    at = jnp.array([-1.0, 0.7])
    exact = jax.hessian(lambda at: at[1] / (1 - at[0] * at[1]))(at)
    hessian = jax.jacfwd(jax.grad(lambda at: cov(at, diffrax.DirectAdjoint())))(at)
    np.testing.assert_allclose(hessian, exact, rtol=1e-6)
    np.testing.assert_allclose(jax.jacfwd(lambda at: cov(at, diffrax.ForwardMode()))(at), jax.grad(cov)(at), rtol=1e-8)


@pytest.mark.long
def test_gradients_of_a_batch_do_not_mind_a_member_that_blows_up():
    """x' = x e^{x^2}: members that reach t1 have their derivatives, by dx(t)/dx0 = v(x(t)) / v(x0)."""

    def final(x):
        path = af.solve(af.simple_attention(1.0, 1, af.Unnormalized()), af.Particles(x[None, None]), t1=0.3, save_at=2)
        return jnp.where(path.status.code == 0, path.final.points[0, 0], 0.0)

    starts = jnp.array([0.1, 1.2, 0.3])
    ends, slopes = jax.vmap(jax.value_and_grad(final))(starts)
    speed = lambda x: x * np.exp(x**2)  # noqa: E731
    np.testing.assert_allclose(np.asarray(slopes)[::2], speed(np.asarray(ends)[::2]) / speed(np.asarray(starts)[::2]), rtol=1e-5)
    assert ends[1] == 0
