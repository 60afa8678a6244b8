"""The temperature of a score: the criterion against integrals, the choice against the exact score of the density."""

import pickle

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attnflow as af
from attnflow.transport.choose_eps import _directions, score_loss

KEY = jax.random.key(0)

SCORES = (af.kernel_score, af.bridge_score, af.richardson_score)
MIX = af.GaussianMixture([0.5, 0.5], [[-1.5, 0.0], [1.5, 0.0]], [np.eye(2) / 2] * 2)
N = 800


@pytest.fixture(scope="module")
def cloud() -> af.Particles:
    return MIX.sample(N, key=jax.random.key(3))


@pytest.fixture(scope="module")
def quick(cloud):
    """Its choice for the kernel score, which takes no iteration."""
    return af.choose_eps(cloud, af.kernel_score, key=KEY)


def squared_errors(score, mu, epsilons, density):
    """The mean of `|s - grad log rho|^2` at as many new tokens of the density, for every eps."""
    x = density.sample(N, key=jax.random.key(4)).points
    exact = density.score(x)
    return np.array([float(squared_error(score(mu, eps), x, exact)) for eps in epsilons])


@eqx.filter_jit
def squared_error(score, x, exact):
    return jnp.mean(jnp.sum((score(x) - exact) ** 2, axis=1))


@pytest.mark.long
def test_the_loss_is_the_squared_error_less_the_fisher_information(rng):
    """`integral |s|^2 + 2 div s = integral |s - grad log rho|^2 - integral |grad log rho|^2` on weighted tokens as good as rho; and the
    divergence is that of central differences."""
    rho, h = af.quadrature(MIX, 40), 1e-5
    exact = np.asarray(MIX.score(rho.points))
    few = af.Particles(rng.normal(size=(12, 2)), weights=rng.uniform(size=12))
    for score in (af.kernel_score, af.richardson_score):
        s = eqx.filter_jit(score(few, 0.7))
        value = np.asarray(s(rho.points))
        directions = jnp.asarray(_directions(rho.points.shape, np.dtype(float), key=KEY))
        losses = np.asarray(score_loss(score(few, 0.7), rho.points, directions))
        slopes = [np.asarray(s(rho.points + h * e[None]) - s(rho.points - h * e[None]))[:, i] / (2 * h) for i, e in enumerate(np.eye(2))]
        np.testing.assert_allclose(losses, np.sum(value**2, axis=1) + 2 * sum(slopes), atol=1e-7)
        expected = np.asarray(rho.weights) @ np.sum((value - exact) ** 2 - exact**2, axis=1)
        np.testing.assert_allclose(np.asarray(rho.weights) @ losses, expected, rtol=1e-4)


def test_in_many_dimensions_the_divergence_is_right_on_average(rng):
    matrix, directions = jnp.asarray(rng.normal(size=(20, 20))), jnp.asarray(_directions((2000, 20), np.dtype(float), key=KEY))
    losses = score_loss(lambda x: x @ matrix.T, jnp.zeros((2000, 20)), directions)
    # Of one sign vector the deviation is at most sqrt(2) |M|, of these 32,000 it is far less.
    assert abs(np.mean(losses) / 2 - np.trace(matrix)) < 4 * np.sqrt(2 / 32_000) * np.linalg.norm(matrix)


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.long
def test_the_choice_is_near_the_best(score, cloud):
    """The root mean square error is within a factor 2 of the best, and the losses differ as the squared errors do."""
    choice = af.choose_eps(cloud, score, key=KEY)
    errors = squared_errors(score, cloud, choice.epsilons, MIX)
    best = list(choice.epsilons).index(choice)
    assert np.sqrt(errors[best]) < 2 * np.sqrt(errors.min())
    # Neither end is any good: the factor says something.
    assert min(errors[0], errors[-1]) > 4 * errors.min()
    # Where bias rules, a score of four fifths of the tokens errs as that of all.
    late = slice(best, None)
    off = (choice.losses - choice.losses[best]) - (errors - errors[best])
    assert np.all(np.abs(off[late]) <= 4 * choice.errors[late])
    assert np.all(choice.errors[late] < 0.2)
    assert choice.errors[best] == 0
    assert choice.epsilons[0] < choice < choice.epsilons[-1]


@pytest.mark.long
def test_weighted_tokens_of_an_anisotropic_density():
    """Drawn from a wider density, with weights that make up for it."""
    narrow = af.GaussianMixture([0.3, 0.7], [[-1.5, 0.0], [1.5, 0.0]], [np.diag([0.3, 2.0])] * 2)
    wide = af.Gaussian([0.0, 0.0], np.diag([3.0, 3.0]))
    drawn = wide.sample(N, key=jax.random.key(5)).points
    log_wide = -jnp.sum(drawn**2, axis=1) / 6
    mu = af.Particles(drawn, weights=jnp.exp(narrow.log_density(drawn) - log_wide))
    choice = af.choose_eps(mu, key=KEY)
    errors = squared_errors(af.bridge_score, mu, choice.epsilons, narrow)
    assert np.sqrt(errors[list(choice.epsilons).index(choice)]) < 2 * np.sqrt(errors.min())


@pytest.mark.long
def test_the_choice_is_that_of_the_measure(cloud, quick):
    """Order does not matter, twins are one token of twice the weight, tokens without mass are none; and keys deal."""
    points = np.asarray(cloud.points)
    twins = af.Particles(np.concatenate([points[::-1], points[: N // 2]]))
    heavy = af.Particles(points, weights=np.where(np.arange(N) < N // 2, 2.0, 1.0))
    ghosts = af.Particles(np.concatenate([points, points + 0.01]), weights=np.repeat([1.0, 0.0], N))
    np.testing.assert_allclose(af.choose_eps(ghosts, af.kernel_score, key=KEY).losses, quick.losses, rtol=1e-9)
    doubled = [af.choose_eps(mu, af.kernel_score, key=KEY) for mu in (twins, heavy)]
    np.testing.assert_allclose(doubled[0].losses, doubled[1].losses, rtol=1e-9)
    assert doubled[0] == doubled[1]
    assert abs(doubled[0].losses - quick.losses).max() > 0.01
    other = af.choose_eps(cloud, af.kernel_score, key=jax.random.key(1))
    assert abs(other.losses - quick.losses).max() > 0.01
    assert quick / 2 <= other <= 2 * quick


def test_the_losses_are_weighted_by_hand(rng):
    """Two folds and two candidates, with the score of a kernel density written down."""
    points, w, epsilons = rng.normal(size=(12, 1)), rng.uniform(1, 3, size=12), np.array([0.3, 0.6])
    with pytest.warns(UserWarning, match="at an end of the candidates"):
        choice = af.choose_eps(af.Particles(points, weights=w), af.kernel_score, epsilons=epsilons, folds=2, key=jax.random.key(2))
    rank = np.argsort(points[:, 0])[np.asarray(jax.random.permutation(jax.random.key(2), 12))]
    for eps, loss in zip(epsilons, choice.losses):
        total = 0.0
        for held, kept in ((rank[:6], rank[6:]), (rank[6:], rank[:6])):
            gaps = points[kept, 0][None] - points[held]
            p = w[kept] * np.exp(-(gaps**2) / (2 * eps))
            p /= p.sum(axis=1, keepdims=True)
            s, second = (p * gaps).sum(axis=1) / eps, (p * gaps**2).sum(axis=1) / eps**2
            total += w[held] @ (s**2 + 2 * (second - s**2 - 1 / eps))
        np.testing.assert_allclose(loss, total / w.sum(), rtol=1e-10)


def test_a_range_goes_on_beyond_its_ends_or_says_so(rng, cloud):
    # A score of the user's own, in other units: more than the variance is best.
    few = af.Particles(rng.normal(size=(12, 1)))
    choice = af.choose_eps(few, lambda mu, eps: af.kernel_score(mu, eps / 100), folds=2, key=KEY)
    assert choice.epsilons[0] < choice < choice.epsilons[-1]
    assert choice > few.cov[0, 0]
    with pytest.warns(UserWarning, match="eps = 10: the best may lie beyond; give epsilons that reach lower"):
        assert af.choose_eps(few, af.kernel_score, epsilons=[10, 20], folds=2, key=KEY) == 10
    with pytest.warns(UserWarning, match=r"eps = 0.02: the best may lie beyond; give epsilons that reach higher"):
        assert af.choose_eps(cloud, af.kernel_score, epsilons=[0.02, 0.01], key=KEY) == 0.02


def test_a_choice_is_a_number(cloud, quick):
    assert quick in quick.epsilons
    assert f"{quick / 2:.3f}" == f"{float(quick) / 2:.3f}"
    x = cloud.points[:3]
    np.testing.assert_array_equal(af.kernel_score(cloud, quick)(x), af.kernel_score(cloud, float(quick))(x))
    copy = pickle.loads(pickle.dumps(quick))
    assert copy == quick
    assert (copy.losses == quick.losses).all()


def test_bad_input_is_named(rng, cloud):
    for mu in (MIX, af.Gaussian([0.0], [[1.0]]), af.samplers.sphere(20, 3, key=jax.random.key(0))):
        with pytest.raises(TypeError, match="a sample of tokens in R.*, got " + type(mu).__name__):
            af.choose_eps(mu, key=KEY)
    with pytest.raises(ValueError, match="at least 10 tokens at different places, got 9"):
        af.choose_eps(af.Particles(rng.normal(size=(9, 2))), key=KEY)
    with pytest.raises(ValueError, match="at least 10 tokens at different places, got 1"):
        af.choose_eps(af.Particles(np.ones((50, 2))), key=KEY)
    with pytest.raises(ValueError, match=r"epsilons must be positive, got -1.0"):
        af.choose_eps(cloud, epsilons=[0.1, -1.0], key=KEY)
    with pytest.raises(ValueError, match=r"epsilons must be at least two different numbers, got 0.1 alone"):
        af.choose_eps(cloud, epsilons=[0.1, 0.1], key=KEY)
    with pytest.raises(ValueError, match=r"epsilons must be finite, got nan"):
        af.choose_eps(cloud, epsilons=[0.1, np.nan], key=KEY)
    with pytest.raises(ValueError, match="folds must be between 2 and half the number of places, 400, got 1"):
        af.choose_eps(cloud, folds=1, key=KEY)
    with pytest.raises(TypeError, match=r"score must be af.bridge_score, .*, got 0.1"):
        af.choose_eps(cloud, 0.1, key=KEY)
    with pytest.raises(ValueError, match="outside jit and grad"):
        jax.jit(lambda x: af.choose_eps(af.Particles(x), key=KEY))(cloud.points)
