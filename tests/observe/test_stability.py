"""Growth rates from the law against closed forms, against each other and against densities on grids."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import iv

import attnflow as af
from attnflow.numerics.special import zonal_harmonic, zonal_slope

K = np.arange(1, 7)
KINDS = {"softmax": af.Softmax(), "unnormalized": af.Unnormalized(), "sinkhorn": af.Sinkhorn(tolerance=1e-13)}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.cases
def test_rates_on_the_circle(kind):
    """GT 8: `k^2 I_k / (b I_0)` for softmax, `k^2 I_k / b` for USA; under Sinkhorn `q/(1+q)` in place of `q = I_k / I_0`."""
    for beta in (0.5, 5.0):
        q = iv(K, beta) / iv(0, beta)
        expected = K**2 / beta * {"softmax": q, "unnormalized": iv(K, beta), "sinkhorn": q / (1 + q)}[kind]
        np.testing.assert_allclose(af.theory.mode_growth(K, beta, 2, kind=kind), expected, rtol=1e-13)
        np.testing.assert_allclose(af.growth_rates(af.simple_attention(beta, 2, KINDS[kind]), 2, 6), expected, rtol=1e-8)


@pytest.mark.parametrize(("dim", "kind"), [(3, "softmax"), (6, "unnormalized")])
@pytest.mark.cases
def test_rates_on_spheres(dim, kind):
    """Funk and Hecke: `integral e^{b s} P_k(s) (1 - s^2)^{(d-3)/2} ds` over that without the first factors, by quadrature in the angle."""
    beta, angle = 3.0, (np.arange(40_000) + 0.5) * np.pi / 40_000
    s, weight = np.cos(angle), np.sin(angle) ** (dim - 2)
    c = np.array([np.sum(np.exp(beta * s) * zonal_harmonic(k, dim, s) * weight) for k in range(7)]) / weight.sum()
    expected = K * (K + dim - 2) * c[1:] / beta / (c[0] if kind == "softmax" else 1)
    np.testing.assert_allclose(af.theory.mode_growth(K, beta, dim, kind=kind), expected, rtol=1e-6)
    found = af.growth_rates(af.simple_attention(beta, dim, KINDS[kind]), dim, 6)
    np.testing.assert_allclose(found, af.theory.mode_growth(K, beta, dim, kind=kind), rtol=1e-8)


@pytest.mark.long
def test_linear_and_sigmoid_attention():
    """Linear: the kernel `b s` is the derivative of `b s^2/2 = b/(2d) + b (d-1)/(2d) P_2`, so that only mode 2 answers. Sigmoid: it is that
    of `log(1 + e^{bs})/b`, `s/2` plus an even function, so that of the odd modes only the first does."""
    d, b = 3, 2.0
    rates = np.asarray(af.growth_rates(af.simple_attention(b, d, af.Linear()), d, 4))
    # By Funk and Hecke the eigenvalue of P_2 is <s^2/2 b, P_2>, and <P_2^2> = 2/((d+2)(d-1)).
    expected = 2 * d * b * (d - 1) / (2 * d) * 2 / ((d + 2) * (d - 1))
    np.testing.assert_allclose(rates, [0, expected, 0, 0], atol=1e-9)
    rates = np.asarray(af.growth_rates(af.simple_attention(b, d, af.Sigmoid()), d, 3))
    # Mode 1: d - 1 times the eigenvalue of s/2.
    np.testing.assert_allclose(rates[[0, 2]], [(d - 1) / 2 / d, 0], atol=1e-9)
    assert rates[1] > 0


def test_heads_values_and_noise():
    """Rates are linear in the field: heads have their mean, V = -v I has -v times them; noise takes `sigma^2/2 k(k+d-2)`."""
    one, two = af.simple_attention(1.0, 3), af.simple_attention(4.0, 3, af.Unnormalized(-4.0))
    rates = [np.asarray(af.theory.mode_growth(K, beta, 3, kind=kind)) for beta, kind in ((1.0, "softmax"), (4.0, "unnormalized"))]
    np.testing.assert_allclose(af.growth_rates(af.MultiHead([one, two]), 3, 6), (rates[0] + np.exp(-4) * rates[1]) / 2, rtol=1e-8)
    repulsive, decay = af.Attention(one.logit, -2 * np.eye(3)), 0.125 * K * (K + 1)
    np.testing.assert_allclose(af.growth_rates(repulsive, 3, 6, noise=0.5), -2 * rates[0] - decay, rtol=1e-8)
    np.testing.assert_allclose(af.theory.mode_growth(K, 1.0, 3, noise=0.5), rates[0] - decay, rtol=1e-13)


def test_harmonics():
    """Legendre's polynomials, cosines, the equation of the harmonics, and their slopes."""
    s = np.linspace(-0.9, 0.9, 7)
    np.testing.assert_allclose(zonal_harmonic(4, 3, s), np.polynomial.legendre.Legendre.basis(4)(s), atol=1e-14)
    np.testing.assert_allclose(zonal_harmonic(5, 2, s), np.cos(5 * np.arccos(s)), atol=1e-13)
    h = 1e-5
    for k, dim in ((1, 2), (3, 3), (4, 6)):
        np.testing.assert_allclose(
            (zonal_harmonic(k, dim, s + h) - zonal_harmonic(k, dim, s - h)) / (2 * h), zonal_slope(k, dim, s), rtol=1e-7, atol=1e-8
        )


@pytest.mark.parametrize("axes", [[af.Circle(256)], [af.Zonal(5, 128)]])
@pytest.mark.cases
def test_rates_of_a_grid(axes):
    """The rate of change of the density `1 + a Y_k` along Y_k, in finite volumes: second order in the cell."""
    uniform = af.Grid.uniform(axes)
    law, s, w = af.simple_attention(5.0, uniform.dim), np.asarray(uniform.points[:, 0]), np.asarray(uniform.weights)
    expected = np.asarray(af.growth_rates(law, uniform.dim, 3))

    @jax.jit
    def rate(mass):
        mu = uniform.with_state(mass)
        return mu.rate(law.at(mu))

    for k in (1, 2, 3):
        Y = zonal_harmonic(k, uniform.dim, s)
        up, down = (np.asarray(rate(uniform.mass * jnp.asarray(1 + sign * 1e-4 * Y))) for sign in (1, -1))
        assert abs((up - down) @ Y / (2e-4 * (w @ Y**2)) / expected[k - 1] - 1) < 3e-3


def test_closed_forms_of_the_transition():
    """The roots that the sources print; the threshold `K_# = sigma_c^-2`; and sigma_c is where mode 1 neither grows nor decays."""
    assert af.theory.critical_beta(2) == pytest.approx(2.447, abs=5e-4)
    assert af.theory.critical_beta(3) == pytest.approx(1.816, abs=5e-4)
    for d in (2, 3, 6):
        b = af.theory.critical_beta(d)
        assert iv(d / 2 + 1, b) / iv(d / 2, b) == pytest.approx(1 / d, rel=1e-12)
        assert float(af.theory.branch_curvature(b, d)) == pytest.approx(0, abs=1e-13)
        assert float(af.theory.branch_curvature(0.5 * b, d)) < 0 < float(af.theory.branch_curvature(2 * b, d))
        sigma = float(af.theory.critical_noise(b, d))
        rates = np.asarray(af.theory.mode_growth(K, b, d, kind="unnormalized", noise=sigma))
        assert rates[0] == pytest.approx(0, abs=1e-14)
        assert (rates[1:] < 0).all()


@pytest.mark.parametrize(
    ("law", "dim", "modes", "message"),
    [
        (af.Attention(af.dot_product(np.eye(2), np.eye(2)), np.diag([1.0, 2.0])), 2, 3, "look the same in every direction"),
        (af.Attention(af.dot_product(np.eye(2), np.diag([1.0, 2.0])), np.eye(2)), 2, 3, "look the same in every direction"),
        (af.Attention(af.dot_product(np.eye(2), np.eye(2)), [[0.0, -1.0], [1.0, 0.0]]), 2, 3, "look the same in every direction"),
        (af.simple_attention(1.0, 2, mask=af.Causal()), 2, 3, "without a mask"),
        (af.simple_attention(1.0, 4, af.Sinkhorn()), 4, 3, "Sinkhorn rates are for dim 2 and 3, got 4"),
        (af.simple_attention(1.0, 2), 1, 3, "dim >= 2, got 1"),
        (af.simple_attention(1.0, 2), 2, 0, "modes must be whole numbers of at least 1, got 0"),
        (af.simple_attention(1.0, 2), 2, [1, 0], "modes must be whole numbers"),
    ],
)
def test_bad_input_is_named(law, dim, modes, message):
    with pytest.raises(ValueError, match=message):
        af.growth_rates(law, dim, modes)


def test_a_kernel_too_narrow_is_named(monkeypatch):
    """Hardmax has no width at all: the velocity jumps from key to key, and does not vanish for the uniform law."""
    monkeypatch.setattr("attnflow.observe.stability._PAIRS", 2**10)
    with pytest.raises(ValueError, match=r"did not settle: they were still off by 0\.\d+; the kernel of the law is too narrow"):
        af.growth_rates(af.simple_attention(1.0, 2, af.Hardmax()), 2, 6)


def test_bad_input_of_the_closed_forms_is_named():
    with pytest.raises(ValueError, match="beta must be positive, got -1"):
        af.theory.critical_noise(-1.0)
    with pytest.raises(ValueError, match="dim >= 2, got 1"):
        af.theory.critical_beta(1)
    with pytest.raises(ValueError, match="k must be a whole number of at least 1"):
        af.theory.mode_growth(0, 1.0)
    with pytest.raises(TypeError, match="field must be a law or a field, with a method at"):
        af.growth_rates(lambda x: x, 2)
