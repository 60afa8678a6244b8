"""Images as tokens: the reader of IDX files, the flows against POT and NumPy, the real data where they are installed."""

import dataclasses
import gzip
import math
import pathlib

import numpy as np
import pytest
from scipy.spatial.distance import cdist

from attnflow.studies import BadInput, fashion
from attnflow.studies.tools import idx


def write(folder: pathlib.Path, images: np.ndarray, labels: np.ndarray, zipped: bool = False) -> pathlib.Path:
    """The two files of a data set, header and bytes written here anew."""
    for name, array in ((idx.IMAGES, images), (idx.LABELS, labels)):
        header = bytes([0, 0, 8, array.ndim]) + b"".join(size.to_bytes(4, "big") for size in array.shape)
        content = header + array.astype(np.uint8).tobytes()
        (folder / f"{name}{'.gz' * zipped}").write_bytes(gzip.compress(content) if zipped else content)
    return folder


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> pathlib.Path:
    """Forty images of the size of the real ones, in three classes: a bright band whose place is the class, and noise."""
    rng = np.random.default_rng(5)
    labels = rng.integers(3, size=40)
    images = rng.integers(0, 90, size=(40, 28, 28))
    for image, label in zip(images, labels):
        image[9 * label : 9 * label + 9] += 150
    return write(tmp_path_factory.mktemp("data"), images, labels, zipped=True)


@pytest.fixture(scope="module")
def result(made) -> fashion.Result:
    return fashion.run(fashion.Spec(n=30, eps=20.0, pixels=2.0, steps=3, data=made))


def test_every_check_holds(result):
    checks = fashion.checks(result)
    assert len(checks) == 7
    assert [check for check in checks if not check.ok] == []


@pytest.mark.parametrize("zipped", [False, True])
def test_files_are_read_back(tmp_path, rng, zipped):
    images, labels = rng.integers(256, size=(7, 3, 4)), rng.integers(10, size=7)
    got = idx.labeled(write(tmp_path, images, labels, zipped))
    np.testing.assert_array_equal(got[0], images)
    np.testing.assert_array_equal(got[1], labels)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda b: b"", r"is no IDX file of bytes with 3 axes: it must begin with 00000803, got ''"),
        (lambda b: b"\x89PNG" + b[4:], "it must begin with 00000803, got '89504e47'"),
        (lambda b: b[:2] + bytes([13]) + b[3:], "it must begin with 00000803, got '00000d03'"),
        (lambda b: b[:3] + bytes([1]) + b[4:], "it must begin with 00000803, got '00000801'"),
        (lambda b: b[:9], "must hold .* bytes after its header, got 0"),
        (lambda b: b[:-1], "must hold 7 x 3 x 4 bytes after its header, got 83"),
        (lambda b: b + b"x", "must hold 7 x 3 x 4 bytes after its header, got 85"),
        (lambda b: gzip.compress(b)[:-9], "is a damaged gzip file"),
        (lambda b: bytes([0, 0, 8, 3]) + bytes(12), "must hold 0 x 0 x 0 bytes"),
    ],
)
def test_a_bad_file_is_named(tmp_path, rng, change, message):
    write(tmp_path, rng.integers(256, size=(7, 3, 4)), np.arange(7))
    file = tmp_path / idx.IMAGES
    file.write_bytes(change(file.read_bytes()))
    with pytest.raises(BadInput, match=message) as caught:
        idx.labeled(tmp_path)
    assert str(file) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_images_without_labels(tmp_path, rng):
    with pytest.raises(BadInput, match=r"no train-images-idx3-ubyte in .*; install .*apt-get install dataset-fashion-mnist.* by --data"):
        idx.labeled(tmp_path)
    write(tmp_path, rng.integers(256, size=(7, 3, 4)), np.arange(6))
    with pytest.raises(BadInput, match="images and labels must be as many, got 7 and 6"):
        idx.labeled(tmp_path)


def test_one_step_by_pot(made, result):
    """Forward 2x - B and reverse B, with the plan of POT; how many images an image sees, from its rows."""
    import ot

    images, _ = idx.labeled(made)
    x = 2.0 * images[np.random.default_rng(0).permutation(40)[:30]].reshape(30, -1) / 255
    plan = ot.sinkhorn(np.full(30, 1 / 30), np.full(30, 1 / 30), cdist(x, x, "sqeuclidean") / 2, 20.0, stopThr=1e-9, numItermax=10**5)
    mean, size = 30 * plan @ x, x.var(axis=0).sum()
    assert result.forward.variance[1] == pytest.approx((2 * x - mean).var(axis=0).sum() / size, rel=1e-6)
    assert result.reverse.variance[1] == pytest.approx(mean.var(axis=0).sum() / size, rel=1e-6)
    assert result.forward.distance[1] == pytest.approx(math.sqrt(((x - mean) ** 2).sum() / 30 / size), rel=1e-6)
    entropy = -np.sum(30 * plan * np.log(30 * plan), axis=1).mean()
    assert result.forward.perplexity[0] == pytest.approx(math.exp(entropy), rel=1e-6)
    assert result.perplexity[2.0] == result.forward.perplexity[0]
    assert result.perplexity[1.0] > 1.2 * result.perplexity[2.0]
    assert result.perplexity[255.0] == pytest.approx(1)
    assert result.variance == pytest.approx(size / 20)
    assert result.nearest == pytest.approx((cdist(x, x, "sqeuclidean") + 1e9 * np.eye(30)).min(axis=1).mean() / 20)


def test_the_way_back_starts_where_forward_ended(result):
    np.testing.assert_array_equal(result.back.pictures[0], result.forward.pictures[-1])
    np.testing.assert_array_equal(result.reverse.pictures[0], result.forward.pictures[0])
    assert result.forward.pictures.shape == (4, 3, 28, 28)


def test_each_check_can_fail(result):
    def failed(**flows) -> list[str]:
        return [check.name for check in fashion.checks(dataclasses.replace(result, **flows)) if not check.ok]

    def changed(flow: fashion.Flow, **parts) -> fashion.Flow:
        return dataclasses.replace(flow, **parts)

    names = [check.name for check in fashion.checks(result)]
    assert failed(back=changed(result.back, error=[1e-3])) == names[:1]
    assert failed(reverse=changed(result.reverse, drift=result.reverse.drift + 1e-4)) == names[1:2]
    assert failed(forward=changed(result.forward, variance=result.forward.variance[::-1])) == names[2:3]
    assert failed(reverse=changed(result.reverse, variance=result.reverse.variance[::-1])) == names[3:4]
    assert failed(back=changed(result.back, variance=result.back.variance[::-1])) == names[4:5]
    assert failed(back=changed(result.back, distance=result.back.distance[::-1])) == names[5:6]
    assert failed(forward=changed(result.forward, variance=1e4 * result.forward.variance)) == names[6:]


def test_the_figure(result, tmp_path):
    """Three classes in rows; the data and three steps of three flows in columns, blank between them."""
    figure = fashion.figure(result)
    canvas = np.ma.filled(figure.axes[0].images[0].get_array(), np.nan)
    assert np.isfinite(canvas).sum() == 3 * 10 * 28 * 28
    np.testing.assert_array_equal(canvas[32:60, :28], result.forward.pictures[0, 1])
    np.testing.assert_array_equal(canvas[64:92][np.isfinite(canvas[64:92])].reshape(28, -1)[:, -28:], result.reverse.pictures[-1, 2])
    assert [text.get_text() for text in figure.axes[0].texts][:4] == ["data", "", "forward", "1"]
    figure.savefig(tmp_path / "fashion.png", dpi=50)
    assert (tmp_path / "fashion.png").read_bytes().startswith(b"\x89PNG")


def test_more_images_than_there_are(made):
    with pytest.raises(BadInput, match="n must be at most 40, the number of images there are, got 41"):
        fashion.run(fashion.Spec(n=41, data=made))


def test_images_that_are_all_the_same(tmp_path):
    with pytest.raises(BadInput, match="the images must not all be the same"):
        fashion.run(fashion.Spec(n=5, data=write(tmp_path, np.full((5, 2, 2), 7), np.zeros(5))))


def test_the_real_images(small):
    images, labels = idx.labeled()
    assert images.shape == (60000, 28, 28)
    assert np.bincount(labels).tolist() == [6000] * 10
    assert images.mean() / 255 == pytest.approx(0.2860, abs=1e-4), "the mean that everyone normalizes with"
    assert small.perplexity[255.0] == pytest.approx(1)
    assert small.perplexity[1.0] > 0.9 * 30


@pytest.mark.slow
def test_what_an_image_sees_at_full_size(full):
    assert 5 < full.perplexity[5.0] < 50
    assert full.perplexity[1.0] > 1900
    assert fashion.measured(full)["variance gained forward / that of the heat flow of a density"] < 0.01
