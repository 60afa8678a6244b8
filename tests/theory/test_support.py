"""The bound of the support, on tokens that meet it and under laws that break it."""

import numpy as np
import pytest

import attnflow as af


def radius(mu):
    return float(np.linalg.norm(np.asarray(mu.points), axis=1).max())


@pytest.mark.parametrize("normalize", [af.Softmax(), af.Hardmax()], ids=lambda n: type(n).__name__)
@pytest.mark.cases
def test_tokens_stay_within_the_bound(rng, normalize):
    x, V = rng.normal(size=(12, 2)), rng.normal(size=(2, 2))
    law = af.Attention(af.dot_product(0.3 * np.eye(2), np.eye(2)), V, normalize)
    mu = af.Particles(x)
    assert radius(af.solve(law, mu, t1=0.6, save_at=1).final) <= float(af.theory.support_radius(radius(mu), V, 0.6)) * (1 + 1e-7)


@pytest.mark.long
def test_one_token_meets_it():
    """Alone it moves by x' = V x; along the largest singular direction of a symmetric V that is the bound."""
    law, mu = af.simple_attention(1.0, 2), af.Particles([[3.0, 4.0]])
    times = np.array([0.0, 0.5, 1.0])
    bound = af.theory.support_radius(5.0, np.eye(2), times)
    assert radius(af.solve(law, mu, t1=1.0, save_at=1).final) == pytest.approx(float(bound[-1]), rel=1e-6)
    np.testing.assert_allclose(bound, 5 * np.exp(times))


def test_unnormalized_attention_breaks_it():
    law = af.simple_attention(1.0, 1, af.Unnormalized())
    mu = af.Particles([[1.5], [-1.0]])
    assert radius(af.solve(law, mu, t1=0.1, save_at=1).final) > 1.2 * float(af.theory.support_radius(1.5, np.eye(1), 0.1))


def test_bad_input_is_named():
    for make, message in (
        (lambda: af.theory.support_radius(-1.0, np.eye(2), 1.0), "must not be negative, got -1.0 and 1.0"),
        (lambda: af.theory.support_radius(1.0, np.ones((2, 3)), 1.0), r"value must be square \[d, d\], got \[2, 3\]"),
    ):
        with pytest.raises(ValueError, match=message):
            make()
