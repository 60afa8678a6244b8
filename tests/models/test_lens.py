"""What the layers of a model do to a prompt, against NumPy on the path itself; and the nulls."""

import itertools

import numpy as np
import pytest

import attnflow as af
from attnflow.models.lens import random_start, shuffled_order, shuffled_weights


@pytest.fixture
def model(saved):
    """The model of a family, as the library reads it."""
    return lambda name: af.models.load(saved(name)[1])


def test_shuffled_weights_have_the_same_entries_in_other_places(model, rng):
    bert = model("bert")
    other = shuffled_weights(bert, rng)
    for mine, its in zip(bert.blocks, other.blocks, strict=True):
        for read in (lambda block: block.attention.laws.out, lambda block: block.perceptron.hidden):
            a, b = np.asarray(read(mine)), np.asarray(read(its))
            np.testing.assert_array_equal(np.sort(a.ravel()), np.sort(b.ravel()))
            assert (a != b).mean() > 0.9
        np.testing.assert_array_equal(mine.norms[0].gain, its.norms[0].gain)


def test_other_nulls(model, prompt, rng):
    bert = model("bert")
    ids = np.asarray(prompt("bert"))
    mu = bert.measure(ids)
    noise = random_start(mu, rng)
    np.testing.assert_allclose(np.mean(noise.points**2), np.mean(mu.points**2), rtol=0.3)
    other = shuffled_order(bert, ids, rng)
    assert other[0] == ids[0]
    assert other[-1] == ids[-1]
    np.testing.assert_array_equal(np.sort(other), np.sort(ids))


@pytest.mark.long
def test_look_against_numpy(model, prompt):
    bert, ids = model("bert"), np.asarray(prompt("bert"))
    found = bert.look(ids, nulls=False).sel(case="trained")
    path = bert.path(ids)
    x = np.asarray(path.states)
    n = x.shape[1]
    unit = x / np.linalg.norm(x, axis=2, keepdims=True)
    cosines = np.einsum("tid,tjd->tij", unit, unit)
    np.testing.assert_allclose(found["cosine"], (cosines.sum(axis=(1, 2)) - n) / (n * (n - 1)), rtol=1e-10)
    np.testing.assert_allclose(found["cosines"].sum("bin"), 1, rtol=1e-12)
    np.testing.assert_allclose(
        found["step_size"], [np.linalg.norm(b - a) / np.linalg.norm(a) for a, b in itertools.pairwise(x)], rtol=1e-10
    )
    assert (found["w2"] <= found["displacement"] + 1e-9).all()
    values = np.linalg.eigvalsh(np.cov(x[-1].T, bias=True))
    share = values[values > 1e-14] / values.sum()
    np.testing.assert_allclose(found["effective_rank"][-1], np.exp(-(share * np.log(share)).sum()), rtol=1e-6)
    for head in range(bert.shape.heads):
        mu = bert.block(1).seen(0, path[2])
        matrix = np.asarray(bert.law(1, head).weights(mu.points, mu))
        np.testing.assert_allclose(found["entropy"][1, head], -(matrix * np.log(matrix)).sum(axis=1).mean(), rtol=1e-8)
        np.testing.assert_allclose(found["column_error"][1, head], np.abs(matrix.sum(axis=0) - 1).max(), rtol=1e-8)
        np.testing.assert_allclose(found["sink"][1, head], matrix.sum(axis=0).max() / n, rtol=1e-8)


def test_a_short_prompt_cannot_be_looked_at(model):
    with pytest.raises(ValueError, match="x must have at least 7 tokens to be looked at, got 3; give a longer text"):
        model("bert").look(np.array([1, 2, 3]))


def test_figures_of_a_prompt(model, prompt):
    page = af.plot.tokenization(model("bert"), np.asarray(prompt("bert")))
    assert len(page.axes[0].texts) == len(prompt("bert"))
    image = np.linspace(0, 1, np.prod([*model("vit").embedding.size, 3])).reshape(*model("vit").embedding.size, 3)
    assert len(af.plot.tokenization(model("vit"), image).axes) == 2
