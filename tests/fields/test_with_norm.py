"""Schemes of normalization on equiangular tokens against the scalar equations for the cosine and the radius."""

import numpy as np
import pytest
from scipy.integrate import solve_ivp

import attnflow as af

N, BETA, END = 6, 1.5, 3.0


def scalar(scheme, alpha=0.7, switch=1.0):
    """The common cosine and the common radius: `g' = f(g) / s`, with the parts of the average along a token and its size."""

    def rate(t, y):
        g, r = y
        z = np.exp(BETA) + (N - 1) * np.exp(BETA * g)
        a, b = np.exp(BETA) / z, np.exp(BETA * g) / z
        along = a + (N - 1) * b * g
        size = np.sqrt(a**2 + (N - 1) * b**2 + 2 * a * b * (N - 1) * g + (N - 1) * (N - 2) * b**2 * g)
        f = 2 * (1 - g) * ((N - 1) * g + 1) * np.exp(BETA * g) / z
        s, dr = {
            "post": (1, 0),
            "pre": (r, along),
            "peri": (r * size, along / size),
            "mix": (1, 0) if t < switch else (r, along),
            "ngpt": (size / alpha, 0),
            "sqrt": (np.sqrt(1 + t), 0),
        }[scheme]
        return [f / s, dr]

    first = solve_ivp(rate, (0, switch), [0.0, 1.0], rtol=1e-10, atol=1e-12).y[:, -1]
    return solve_ivp(rate, (switch, END), first, rtol=1e-10, atol=1e-12).y[:, -1]


@pytest.mark.parametrize("scheme", ["post", "pre", "peri", "mix", "ngpt", "sqrt"])
@pytest.mark.cases
def test_cosine_and_radius_follow_their_equations(scheme):
    field = af.with_norm(af.simple_attention(BETA, N), scheme, switch=1.0, alpha=0.7)
    path = af.solve(field, af.Particles(np.eye(N)), t1=END, save_at=[1.0, END], rtol=1e-8, atol=1e-10)
    x = np.asarray(path.final.points)
    r = np.linalg.norm(x, axis=1)
    g = (x @ x.T / np.outer(r, r))[~np.eye(N, dtype=bool)]
    cosine, radius = scalar(scheme)
    # The switch lies inside a step, which the controller finds by itself.
    tolerance = 1e-4 if scheme == "mix" else 1e-6
    np.testing.assert_allclose(g, cosine, atol=tolerance)
    np.testing.assert_allclose(r, radius, rtol=tolerance)


@pytest.mark.long
def test_post_is_the_law_on_the_sphere(key):
    start = af.samplers.sphere(8, 3, key=key)
    law = af.simple_attention(2.0, 3)
    ours = af.solve(af.with_norm(law, "post"), af.Particles(2.0 * start.points), t1=2.0, save_at=2)
    there = af.solve(law, start, t1=2.0, save_at=2)
    np.testing.assert_allclose(ours.final.points, 2.0 * there.final.points, atol=1e-5)


def test_bad_input(key):
    with pytest.raises(ValueError, match="scheme must be 'post', 'pre'"):
        af.with_norm(af.simple_attention(1.0, 2), "deep")
    with pytest.raises(ValueError, match="alpha must be positive"):
        af.with_norm(af.simple_attention(1.0, 2), "ngpt", alpha=0.0)
    with pytest.raises(TypeError, match="tokens in R"):
        af.solve(af.with_norm(af.simple_attention(1.0, 3), "pre"), af.samplers.sphere(4, 3, key=key), t1=1.0)
