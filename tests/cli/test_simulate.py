"""Simulations from a file: those that run, those that are cut off, and those that are refused."""

import io
import json
import pathlib
import signal
import tomllib

import numpy as np
import pytest
import xarray

from attnflow.cli import main
from attnflow.simulate import read

BASE = {"measure": 'picture = "particles"\nn = 6', "law": "", "time": "t1 = 0.1\nframes = 3", "output": "movie = false"}
TOKENS = 'picture = "particles"\nn = 6\n'
FLAT = TOKENS + 'space = "euclidean"\nstart = "normal"\n'
GRID = 'picture = "grid"\n'
GAUSSIAN = 'picture = "gaussian"\nmean = [0.0, 1.0]\ncov = [[1.0, 0.0], [0.0, 1.0]]\n'
TIME = "t1 = 0.1\nframes = 3\n"
FILES = ["claims.json", "data.zarr", "figure.pdf", "figure.png", "path", "report.html", "run.json"]


def toml(top: str = "", **tables: str | None) -> str:
    """A file that makes sense but for the tables that are given; `None` leaves one out."""
    return f"{top}\n" + "\n".join(f"[{name}]\n{text}" for name, text in (BASE | tables).items() if text is not None)


def files(folder: pathlib.Path) -> list[str]:
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*"))


def tree(out: pathlib.Path) -> xarray.DataTree:
    with xarray.open_datatree(out / "data.zarr", engine="zarr", consolidated=False) as found:
        return found.load()


def refused(capsys) -> str:
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("attnflow: ")
    assert err.count("\n") == 1
    assert err[:-1].isprintable()
    return err


def test_the_example_makes_sense_and_has_every_key(tmp_path, capsys, settings):
    assert main(["spec"]) == 0
    example = capsys.readouterr().out
    file = tmp_path / "example.toml"
    file.write_text(example)
    assert main(["simulate", str(file), "--check"]) == 0
    assert capsys.readouterr().out == f"{file} makes sense\n"
    assert files(tmp_path) == ["example.toml"], "--check writes nothing"
    assert files(settings) == []

    # Each key is shown, with its default but for those that say another.
    small = tmp_path / "small.toml"
    small.write_text('[measure]\npicture = "particles"\n[law]\n[time]\nt1 = 15.0\n')
    shown, least = read(file), read(small)
    assert shown.measure == least.measure
    assert shown.time == least.time
    assert shown.law[0].temperature == 0.111
    assert (shown.output.radius, shown.output.movie) == (least.output.radius, least.output.movie)
    for table in ("gaussian", "grid"):
        lines = example.split(f'# picture = "{table}"')[1].split("\n\n")[0].splitlines()
        other = tomllib.loads(f'[measure]\npicture = "{table}"\n' + "\n".join(line.removeprefix("# ") for line in lines))
        text = "\n".join(f"{key} = {json.dumps(value)}" for key, value in other["measure"].items())
        file.write_text(toml(measure=text))
        assert len(other["measure"]) == {"gaussian": 3, "grid": 5}[table]
        read(file)
    # Those that its choices do not read are commented out.
    for key in ("scale", "order", "file", "half_width", "deviation", "width", "slope", "rtol", "atol", "noise"):
        assert f"# {key} = " in example


def test_masks_of_a_file_against_numpy(tmp_path):
    """Widths and slopes in tokens, and over the whole sequence with fractions."""
    from attnflow.simulate import build

    place = np.arange(9)
    far = place[:, None] - place[None]
    cases = [
        ("position", "window", "width = 3", (far >= 0) & (far < 3), 0.0),
        ("position", "alibi", "slope = 0.25", far >= 0, 0.25),
        ("fraction", "window", "width = 0.3", (far >= 0) & (far / 8 < 0.3), 0.0),
        ("fraction", "alibi", "slope = 2.0", far >= 0, 2.0 / 8),
    ]
    file = tmp_path / "own.toml"
    for order, mask, number, seen, slope in cases:
        file.write_text(toml(measure=f'picture = "particles"\nn = 9\norder = "{order}"', law=f'mask = "{mask}"\n{number}'))
        spec = read(file)
        mu = spec.measure.build(spec.seed, tmp_path)
        x = np.asarray(mu.points)
        p = np.where(seen, np.exp(x @ x.T - slope * far), 0)
        np.testing.assert_allclose(build.field(spec, 3).weights(mu.points, mu), p / p.sum(axis=1, keepdims=True), rtol=1e-12)


def simulated(tmp_path, text: str, *options: str) -> pathlib.Path:
    (tmp_path / "own.toml").write_text(text)
    assert main(["simulate", str(tmp_path / "own.toml"), "--out", str(tmp_path / "out"), *options]) == 0
    return tmp_path / "out"


@pytest.mark.long
def test_tokens_on_the_sphere_with_all_that_can_be_watched(tmp_path, capsys):
    watched = ["energy", "clusters", "order", "effective_rank", "attention_entropy"]
    out = simulated(tmp_path, toml(top="seed = 3", law="temperature = 0.2", output=f"observe = {json.dumps(watched)}\nmovie = true"))
    assert sorted(p.name for p in out.iterdir()) == sorted([*FILES, "movie.mp4"])
    found = tree(out)
    assert {*found["observed"].data_vars} == {*watched}
    assert found["observed/clusters"].values.tolist()[0] == 6
    states = next(array.values for array in found["path"].data_vars.values() if array.shape == (3, 6, 3))
    np.testing.assert_allclose(np.linalg.norm(states, axis=2), 1, atol=1e-14)
    record = json.loads((out / "claims.json").read_text())
    assert record["seed"] == 3
    assert record["parameters"]["law"][0]["temperature"] == 0.2
    assert record["measured"]["status"] == "reached at t = 0.1"
    assert record["measured"]["order at the end"] == found["observed/order"].values[-1]
    assert "The simulation own.toml" in capsys.readouterr().out

    # Another seed is another run; the same one is done.
    spec = [str(tmp_path / "own.toml"), "--out", str(out), "--resume"]
    assert main(["simulate", *spec, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == record
    assert main(["simulate", *spec, "--seed", "4"]) == 2
    assert "other seed" in refused(capsys)


@pytest.mark.long
def test_tokens_of_a_file_under_two_causal_heads(tmp_path, monkeypatch, capsys):
    points = np.random.default_rng(1).normal(size=(5, 2))
    np.save(tmp_path / "points.npy", points)
    heads = '[[law]]\nmask = "causal"\n[[law]]\nmask = "causal"\nquery = "gaussian"\nvalue = [[0.0, -1.0], [1.0, 0.0]]\n'
    text = f'{heads}[measure]\npicture = "particles"\nspace = "euclidean"\nfile = "points.npy"\n[time]\n{TIME}'
    monkeypatch.chdir(tmp_path)
    pathlib.Path("$x$.toml").write_text(text)
    assert main(["simulate", "$x$.toml", "--no-movie", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["parameters"]["measure"]["n"] == 5, "the sizes are those of the file"
    page = pathlib.Path("results", "$x$", "report.html").read_text(encoding="utf-8")
    assert "<h1>The simulation $x$.toml</h1>" in page, "a file may have any name, which is not a formula"
    assert sorted(p.name for p in pathlib.Path("results", "$x$").iterdir()) == FILES
    found = tree(pathlib.Path("results", "$x$"))
    states = next(array.values for array in found["path"].data_vars.values() if array.shape == (3, 5, 2))
    np.testing.assert_array_equal(states[0], points)
    # Both heads let the first token see itself only: x' = (x + R x) / 2, with R a quarter turn.
    growth = np.exp(0.05 * (1 + 1j)) * complex(*points[0])
    np.testing.assert_allclose(states[-1, 0], [growth.real, growth.imag], rtol=1e-6)


@pytest.mark.long
def test_tokens_in_more_than_three_dimensions_have_no_movie(tmp_path):
    np.save(tmp_path / "points.npy", np.eye(4)[:2])
    out = simulated(tmp_path, toml(measure='picture = "particles"\nfile = "points.npy"', output=None))
    assert sorted(p.name for p in out.iterdir()) == FILES


@pytest.mark.long
def test_a_gaussian(tmp_path):
    out = simulated(tmp_path, toml(measure=GAUSSIAN, output='observe = ["effective_rank"]'))
    assert sorted(p.name for p in out.iterdir()) == FILES
    # Under V = A = I the inverse of the covariance falls by 2t.
    np.testing.assert_allclose(tree(out)["path/cov"].values[-1], np.eye(2) / 0.8, rtol=1e-6)


@pytest.mark.long
@pytest.mark.parametrize(
    ("measure", "shape"),
    [
        (GRID + "cells = 32\nmode = 2\namplitude = 0.5", (3, 32)),
        (GRID + 'domain = "interval"\ncells = 24', (3, 24)),
        (GRID + 'domain = "square"\ncells = 8\nhalf_width = 3.0', (3, 8, 8)),
    ],
    ids=["circle", "interval", "square"],
)
def test_a_density(measure, shape, tmp_path):
    watched = ["energy", "order"] if "domain" not in measure else []
    out = simulated(tmp_path, toml(measure=measure, time=f"{TIME}noise = 0.1", output=f"observe = {json.dumps(watched)}"))
    assert sorted(p.name for p in out.iterdir()) == FILES
    assert any(array.shape == shape for array in tree(out)["path"].data_vars.values())
    checks = json.loads((out / "claims.json").read_text())["checks"]
    assert checks[0]["name"] == "mass at the end"
    assert checks[0]["measured"] == pytest.approx(1, abs=1e-12)


@pytest.mark.long
def test_noise_is_of_the_seed(tmp_path):
    text = toml(measure=FLAT + "dim = 2", time=f'{TIME}noise = 0.5\nspacing = "log"\nuntil = "consensus"')
    found = []
    for options in (["--seed", "1"], ["--overwrite", "--seed", "1"], ["--overwrite", "--seed", "2"]):
        data = tree(simulated(tmp_path, text, *options))["path"]
        found.append(next(array.values for array in data.data_vars.values() if array.shape == (3, 6, 2)))
    assert found[0].tobytes() == found[1].tobytes()
    assert not np.allclose(found[0], found[2])


@pytest.mark.long
def test_a_simulation_that_is_killed_goes_on_to_the_same_numbers(start, tmp_path):
    # A state of 800 numbers makes a dozen segments.
    measure = 'picture = "particles"\nn = 8\ndim = 100'
    text = toml(measure=measure, time="t1 = 0.2\nframes = 24", output='observe = ["energy"]\nmovie = false')
    (tmp_path / "own.toml").write_text(text)
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    # All in processes of their own: here the checks of types are part of what is run.
    assert start("simulate", "own.toml", "--out", "whole").process.wait(300) == 0
    blocks = cut / "path" / "blocks"
    for least in (1, 4):
        command = start("simulate", "own.toml", "--out", "cut", "--resume")
        command.wait_for(lambda least=least: blocks.is_dir() and len(list(blocks.glob("*.zarr"))) >= least)
        assert command.stop(signal.SIGKILL)[0] == -signal.SIGKILL
    assert not (cut / "report.html").exists()
    assert start("simulate", "own.toml", "--out", "cut", "--resume").process.wait(300) == 0
    # Groups are listed as the file system has them.
    first, second = ({node.path: node for node in tree(folder).subtree} for folder in (whole, cut))
    assert first.keys() == second.keys()
    count = 0
    for a, b in ((first[path], second[path]) for path in first):
        for name in a.data_vars:
            assert a[name].values.tobytes() == b[name].values.tobytes()
            count += 1
    assert count >= 2
    assert sorted(p.name for p in cut.iterdir()) == FILES


def npy(array) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


STORED = 'picture = "particles"\nfile = "points.npy"\n'
WRONG: list[tuple[str, str | bytes | None, str]] = [
    # The file itself.
    ("missing", None, "there is no file"),
    ("not TOML", "[measure", "is not TOML"),
    ("twice", toml() + "\n[law]\n", "is not TOML"),
    ("not UTF-8", b"seed = 1 # \xff\xfe", "cannot be read as text"),
    ("empty", "", "the table [measure] is missing"),
    ("no measure", toml(measure=None), "the table [measure] is missing"),
    ("no law", toml(law=None), "the table [law] is missing"),
    ("no time", toml(time=None), "the table [time] is missing"),
    ("unknown table", toml(outputs="movie = true"), "no key or table 'outputs', it may have measure, law, time, output and seed"),
    ("unknown key", toml(top="sede = 1"), "no key or table 'sede'"),
    ("measure is a number", toml("measure = 3", measure=None), "measure must be a table, got 3"),
    ("measure is a list", toml("measure = []", measure=None), "measure must be a table, got []"),
    ("law is a number", toml("law = 3", law=None), "law must be a table, got 3"),
    ("law is empty", toml("law = []", law=None), "give at least one [[law]]"),
    ("law is a list of numbers", toml("law = [1]", law=None), "law[0] must be a table, got 1"),
    ("time is a list", toml("time = [1]", time=None), "time must be a table, got [1]"),
    ("output is text", toml('output = "none"', output=None), "output must be a table, got 'none'"),
    ("seed below 0", toml("seed = -1"), "seed must be at least 0 and below 4294967296, got -1"),
    ("seed too large", toml("seed = 4294967296"), "seed must be"),
    ("seed is a fraction", toml("seed = 1.5"), "seed must be"),
    ("seed is text", toml('seed = "a"'), "seed must be a whole number"),
    # Tokens.
    ("no picture", toml(measure="n = 6"), "measure.picture is missing, it must be particles, gaussian or grid"),
    ("unknown picture", toml(measure='picture = "mixture"'), "measure.picture must be particles, gaussian or grid, got 'mixture'"),
    ("picture is a number", toml(measure="picture = 3"), "measure.picture must be particles, gaussian or grid, got 3"),
    ("no tokens", toml(measure='picture = "particles"\nn = 0'), "measure.n must be at least 1, got 0"),
    ("n below 0", toml(measure='picture = "particles"\nn = -3'), "measure.n must be at least 1, got -3"),
    ("n is text", toml(measure='picture = "particles"\nn = "many"'), "measure.n must be a whole number of at least 1, got 'many'"),
    ("n is a fraction", toml(measure='picture = "particles"\nn = 2.5'), "measure.n must be"),
    ("n is true", toml(measure='picture = "particles"\nn = true'), "measure.n must be a whole number of at least 1, got true"),
    ("n is a list", toml(measure='picture = "particles"\nn = [6]'), "measure.n must be"),
    ("n is a table", toml(measure='picture = "particles"\nn = {a = 6}'), "measure.n must be a whole number of at least 1, got a table"),
    ("dim is zero", toml(measure=TOKENS + "dim = 0"), "measure.dim must be"),
    ("S^0", toml(measure=TOKENS + "dim = 1"), "measure.dim must be at least 2 on the sphere, got 1"),
    ("unknown space", toml(measure=TOKENS + 'space = "torus"'), "measure.space must be sphere or euclidean, got 'torus'"),
    ("unknown start", toml(measure=TOKENS + 'start = "here"'), "measure.start must be uniform, hemisphere"),
    ("normal on the sphere", toml(measure=TOKENS + 'start = "normal"'), "measure.start must be uniform, hemisphere or orthonormal"),
    ("uniform in space", toml(measure=TOKENS + 'space = "euclidean"'), "measure.start must be normal, ball or cube"),
    ("more than orthonormal", toml(measure=TOKENS + 'start = "orthonormal"'), "measure.n must be at most measure.dim"),
    ("scale below 0", toml(measure=FLAT + "scale = -1.0"), "measure.scale must be positive and finite, got -1.0"),
    ("scale is nan", toml(measure=FLAT + "scale = nan"), "measure.scale must be positive and finite, got nan"),
    ("scale is inf", toml(measure=FLAT + "scale = -inf"), "measure.scale must be positive and finite, got -inf"),
    (
        "unknown key of tokens",
        toml(measure=TOKENS + "color = 1"),
        "measure has no key 'color', the keys of the picture 'particles' are picture,",
    ),
    ("key of a Gaussian", toml(measure=TOKENS + "mean = [1.0]"), "measure has no key 'mean'"),
    ("file is a number", toml(measure=TOKENS + "file = 3"), "measure.file must be text, got 3"),
    ("file is not there", toml(measure=TOKENS + 'file = "nowhere.npy"'), "measure.file: there is no file"),
    ("file is a folder", toml(measure=TOKENS + 'file = "."'), "measure.file: there is no file"),
    ("file is text", toml(measure=TOKENS + 'file = "own.toml"'), "is not an .npy file of numbers"),
    # A Gaussian.
    ("no mean", toml(measure='picture = "gaussian"\ncov = [[1.0]]'), "measure.mean is missing, it must be a list of one or more numbers"),
    ("no cov", toml(measure='picture = "gaussian"\nmean = [1.0]'), "measure.cov is missing, it must be a matrix"),
    ("cov too small", toml(measure='picture = "gaussian"\nmean = [1, 2]\ncov = [[1]]'), "measure.cov must be 2 x 2 like measure.mean"),
    ("cov ragged", toml(measure='picture = "gaussian"\nmean = [1, 2]\ncov = [[1, 0], [1]]'), "measure.cov must be 2 x 2"),
    ("cov not positive", toml(measure='picture = "gaussian"\nmean = [1]\ncov = [[-1]]'), "measure: cov must be positive semidefinite"),
    ("cov lopsided", toml(measure='picture = "gaussian"\nmean = [1, 0]\ncov = [[1, 0.5], [0, 1]]'), "measure: cov must be symmetric"),
    ("cov is a row", toml(measure='picture = "gaussian"\nmean = [1, 0]\ncov = [1, 2]'), "measure.cov must be a matrix"),
    (
        "mean is empty",
        toml(measure='picture = "gaussian"\nmean = []\ncov = []'),
        "measure.mean must be a list of one or more numbers, got []",
    ),
    ("mean is text", toml(measure='picture = "gaussian"\nmean = ["a"]\ncov = [[1]]'), "measure.mean must be a list of one or more numbers"),
    (
        "mean is nan",
        toml(measure='picture = "gaussian"\nmean = [nan]\ncov = [[1]]'),
        "measure.mean must be a list of one or more numbers, got [nan]",
    ),
    (
        "cov is inf",
        toml(measure='picture = "gaussian"\nmean = [0]\ncov = [[inf]]'),
        "measure.cov must be a matrix [[...], ...], got [[inf]]",
    ),
    ("n of a Gaussian", toml(measure=GAUSSIAN + "n = 4"), "measure has no key 'n'"),
    # A density.
    ("few cells", toml(measure=GRID + "cells = 2"), "measure.cells must be at least 4, got 2"),
    ("amplitude of 1", toml(measure=GRID + "amplitude = 1.0"), "measure.amplitude must be at least 0 and below 1, got 1.0"),
    ("amplitude below 0", toml(measure=GRID + "amplitude = -0.1"), "measure.amplitude must be"),
    ("mode of 0", toml(measure=GRID + "mode = 0"), "measure.mode must be"),
    ("mode above the cells", toml(measure=GRID + "mode = 9\ncells = 8"), "measure.mode must be below half of measure.cells"),
    ("unknown domain", toml(measure=GRID + 'domain = "sphere"'), "measure.domain must be circle, interval or square, got 'sphere'"),
    ("n of a grid", toml(measure=GRID + "n = 4"), "the keys of the picture 'grid' are"),
    ("no width", toml(measure=GRID + "half_width = 0"), "measure.half_width must be positive and finite, got 0"),
    ("too narrow", toml(measure=GRID + 'domain = "interval"\ndeviation = 1e-9'), "measure.deviation must be at least the width of a cell"),
    ("tolerance of a grid", toml(measure=GRID, time=TIME + "rtol = 1e-3"), "time.rtol is not for a grid"),
    # What cannot fit.
    ("enormous n", toml(measure=TOKENS.replace("6", "10" + "0" * 12)), "lower measure.n, measure.dim or time.frames"),
    ("n beyond numbers", toml(measure=TOKENS.replace("6", "1" + "0" * 400)), "measure.n"),
    ("enormous dim", toml(measure=TOKENS + "dim = 1000000"), "lower measure.n, measure.dim or time.frames"),
    ("enormous frames", toml(time="t1 = 1.0\nframes = 1000000000000"), "lower measure.n, measure.dim or time.frames"),
    ("enormous cells", toml(measure=GRID + "cells = 1000000000000"), "lower measure.cells or time.frames"),
    ("enormous square", toml(measure=GRID + 'domain = "square"\ncells = 1000000'), "lower measure.cells or time.frames"),
    ("enormous perceptron", toml(law="hidden = 1000000000000"), "or law.hidden"),
    # The law.
    ("temperature of 0", toml(law="temperature = 0"), "law.temperature must be positive and finite, got 0"),
    ("temperature below 0", toml(law="temperature = -1.0"), "law.temperature must be"),
    ("temperature is inf", toml(law="temperature = inf"), "law.temperature must be positive and finite, got inf"),
    ("temperature beyond numbers", toml(law="temperature = 1" + "0" * 400), "law.temperature must be"),
    ("beta", toml(law="beta = 9.0"), "law has no key 'beta', the keys are logit, temperature,"),
    ("unknown logit", toml(law='logit = "cosine"'), "law.logit must be dot_product or squared_distance, got 'cosine'"),
    ("unknown normalization", toml(law='normalization = "relu"'), "law.normalization must be softmax, sinkhorn,"),
    ("unknown mask", toml(law='mask = "diagonal"'), "law.mask must be none, causal, window or alibi, got 'diagonal'"),
    ("no window", toml(law='mask = "window"\nwidth = 0'), "law.width must be"),
    ("slope below 0", toml(law='mask = "alibi"\nslope = -1.0'), "law.slope must be"),
    ("window without a width", toml(law='mask = "window"'), "law.width is missing, it must be how many tokens a token sees"),
    (
        "window of a part",
        toml(law='mask = "window"\nwidth = 0.1'),
        "law.width must be at least 1, in tokens, got 0.1; or set measure.order",
    ),
    ("alibi without a slope", toml(law='mask = "alibi"'), "law.slope is missing, it must be how much a logit falls per token"),
    # Keys that nothing would read.
    ("width without a window", toml(law="width = 16"), "law.width is of window, got the mask 'none'; leave it out"),
    ("small width without a window", toml(law='mask = "causal"\nwidth = 0.1'), "law.width is of window, got the mask 'causal'"),
    ("width of alibi", toml(law='mask = "alibi"\nslope = 1.0\nwidth = 3'), "law.width is of window, got the mask 'alibi'"),
    ("slope of a window", toml(law='mask = "window"\nwidth = 3\nslope = 1.0'), "law.slope is of alibi, got the mask 'window'"),
    ("slope of the second head", toml(law=None, top="law = [{}, {slope = 1.0}]"), "law[1].slope is of alibi, got the mask 'none'"),
    ("temperature of hardmax", toml(law='normalization = "hardmax"\ntemperature = 2.0'), "law.temperature is not seen by hardmax"),
    ("order without a mask", toml(measure=TOKENS + 'order = "fraction"'), "measure.order is read by masks alone"),
    ("unknown order", toml(measure=TOKENS + 'order = "time"'), "measure.order must be position or fraction, got 'time'"),
    ("scale on the sphere", toml(measure=TOKENS + "scale = 2.0"), "measure.scale is of normal, ball and cube, got the sphere"),
    ("width on the circle", toml(measure=GRID + "half_width = 2.0"), "measure.half_width is of the interval and the square"),
    ("deviation on the circle", toml(measure=GRID + "deviation = 2.0"), "measure.deviation is of the interval and the square"),
    ("mode of a square", toml(measure=GRID + 'domain = "square"\nmode = 2'), "measure.mode is of the circle, got the domain 'square'"),
    ("amplitude of an interval", toml(measure=GRID + 'domain = "interval"\namplitude = 0.1'), "measure.amplitude is of the circle"),
    ("tolerance with noise", toml(time=TIME + "noise = 0.1\nrtol = 1e-3"), "time.rtol is not for tokens with noise, whose steps are fixed"),
    ("radius without clusters", toml(output="radius = 0.1"), "output.radius is of clusters, which output.observe does not have"),
    ("movie of a density", toml(measure=GRID, output="movie = true"), "output.movie is of tokens in up to three dimensions"),
    ("movie in four dimensions", toml(measure=TOKENS + "dim = 4", output="movie = true"), "output.movie is of tokens"),
    ("hidden below 0", toml(law="hidden = -1"), "law.hidden must be at least 0, got -1"),
    (
        "unknown matrix",
        toml(law='query = "cauchy"'),
        "law.query must be a number, gaussian, goe, wigner or a matrix [[...], ...], got 'cauchy'",
    ),
    ("matrix is a row", toml(law="query = [1.0, 2.0]"), "law.query must be a number"),
    ("matrix is empty", toml(law="key = []"), "law.key must be a number"),
    ("matrix is true", toml(law="value = true"), "law.value must be a number"),
    ("query too narrow", toml(law="query = [[1.0]]"), "law.query must be of 3 columns, as the measure is on R^3, got rows of [1] numbers"),
    ("query ragged", toml(law="query = [[1, 0, 0], [1]]"), "law.query must be of 3 columns"),
    ("value not square", toml(law="value = [[1, 0, 0]]"), "law.value must be 3 x 3"),
    ("query without its key", toml(law="query = [[1, 0, 0]]"), "law.query and law.key must have as many rows as each other, got 1 and 3"),
    ("wrong second head", toml(law=None, top="law = [{}, {temperature = 0}]"), "law[1].temperature must be"),
    ("second head too wide", toml(law=None, top="law = [{}, {key = [[1.0]]}]"), "law[1].key must be of 3 columns"),
    ("causal Sinkhorn", toml(law='normalization = "sinkhorn"\nmask = "causal"'), "law.mask must be none under sinkhorn"),
    ("masked Gaussian", toml(measure=GAUSSIAN, law='mask = "causal"'), "law.mask must be none where tokens have no order"),
    ("masked density", toml(measure=GRID, law='mask = "alibi"'), "law.mask must be none where tokens have no order"),
    (
        "hardmax of a Gaussian",
        toml(measure=GAUSSIAN, law='normalization = "hardmax"'),
        "law.normalization must be softmax, sinkhorn or linear",
    ),
    ("sigmoid of a Gaussian", toml(measure=GAUSSIAN, law='normalization = "sigmoid"'), "law.normalization must be"),
    ("perceptron of a Gaussian", toml(measure=GAUSSIAN, law="hidden = 4"), "law.hidden must be 0"),
    # Time.
    ("no end", toml(time="frames = 3"), "time.t1 is missing, it must be a positive number"),
    ("ends at once", toml(time="t1 = 0"), "time.t1 must be positive and finite, got 0"),
    ("ends before it begins", toml(time="t1 = 1.0\nt0 = 2.0"), "time.t1 must be after time.t0, got 1.0 and 2.0"),
    ("ends where it begins", toml(time="t1 = 1.0\nt0 = 1.0"), "time.t1 must be after time.t0"),
    ("end is nan", toml(time="t1 = nan"), "time.t1 must be positive and finite, got nan"),
    ("end is inf", toml(time="t1 = inf"), "time.t1 must be positive and finite, got inf"),
    ("end is text", toml(time='t1 = "long"'), "time.t1 must be a positive number, got 'long'"),
    ("end is a day", toml(time="t1 = 2020-01-01"), "time.t1 must be a positive number, got 2020-01-01"),
    ("one frame", toml(time="t1 = 1.0\nframes = 1"), "time.frames must be at least 2, got 1"),
    ("half a frame", toml(time="t1 = 1.0\nframes = 2.5"), "time.frames must be"),
    (
        "frames that coincide",
        toml(time="t1 = 10000000001\nt0 = 1e10\nframes = 1000000"),
        "time.frames must be so few that their times differ",
    ),
    ("unknown spacing", toml(time=TIME + 'spacing = "sqrt"'), "time.spacing must be even or log, got 'sqrt'"),
    ("rtol of 0", toml(time=TIME + "rtol = 0"), "time.rtol must be a positive number, got 0"),
    ("atol below 0", toml(time=TIME + "atol = -1.0"), "time.atol must be"),
    ("noise below 0", toml(time=TIME + "noise = -1.0"), "time.noise must be"),
    ("until unknown", toml(time=TIME + 'until = "done"'), "time.until must be never, steady or consensus, got 'done'"),
    ("consensus of a Gaussian", toml(measure=GAUSSIAN, time=TIME + 'until = "consensus"'), "time.until: consensus is of particles"),
    ("consensus of a density", toml(measure=GRID, time=TIME + 'until = "consensus"'), "time.until: consensus is of particles"),
    ("no steps", toml(time=TIME + "max_steps = 0"), "time.max_steps must be"),
    ("unknown key of time", toml(time=TIME + "dt = 0.1"), "time has no key 'dt', the keys are t1, t0, frames,"),
    # Output.
    ("unknown key of output", toml(output="film = true"), "output has no key 'film', the keys are observe, radius and movie"),
    ("unknown observable", toml(output='observe = ["mass"]'), "output.observe must be a list with any of energy, clusters,"),
    ("observe is text", toml(output='observe = "energy"'), "output.observe must be a list"),
    ("observe is numbers", toml(output="observe = [1]"), "output.observe must be a list"),
    ("radius of 0", toml(output="radius = 0"), "output.radius must be positive and finite, got 0"),
    ("movie is text", toml(output='movie = "yes"'), "output.movie must be true or false, got 'yes'"),
    ("movie is 1", toml(output="movie = 1"), "output.movie must be true or false, got 1"),
    ("order in space", toml(measure=FLAT, output='observe = ["order"]'), "output.observe: order is on the sphere or the circle"),
    ("clusters of a density", toml(measure=GRID, output='observe = ["clusters"]'), "output.observe: clusters are of particles"),
    ("clusters of a Gaussian", toml(measure=GAUSSIAN, output='observe = ["clusters"]'), "output.observe: clusters are of particles"),
    ("energy of a Gaussian", toml(measure=GAUSSIAN, output='observe = ["energy"]'), "output.observe: the energy is of particles and grids"),
    (
        "entropy of a density",
        toml(measure=GRID, output='observe = ["attention_entropy"]'),
        "output.observe: attention_entropy is of particles",
    ),
    (
        "entropy of two heads",
        toml("law = [{}, {}]", law=None, output='observe = ["attention_entropy"]'),
        "under one head with law.hidden = 0; leave it out",
    ),
    ("entropy with a perceptron", toml(law="hidden = 4", output='observe = ["attention_entropy"]'), "with law.hidden = 0"),
]


@pytest.mark.parametrize(("text", "message"), [case[1:] for case in WRONG], ids=[case[0] for case in WRONG])
def test_a_file_that_makes_no_sense_is_one_line_and_writes_nothing(text, message, tmp_path, monkeypatch, capsys, settings):
    monkeypatch.chdir(tmp_path)
    if text is not None:
        pathlib.Path("own.toml").write_bytes(text if isinstance(text, bytes) else text.encode())
    before = files(tmp_path)
    assert main(["simulate", "own.toml"]) == 2
    said = refused(capsys)
    assert message in said
    assert len(said) < 400
    assert "own.toml" in said or said.startswith("attnflow: measure: "), "the file or the table is named"
    assert files(tmp_path) == before
    assert files(settings) == []


def test_there_are_many_of_them():
    assert len(WRONG) >= 100
    assert len({case[0] for case in WRONG}) == len(WRONG)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (npy(np.zeros(4)), "measure.file must hold real points [n, dim], got float64 of shape [4]"),
        (npy(np.zeros((0, 2))), "got float64 of shape [0, 2]"),
        (npy(np.zeros((2, 3), dtype=complex)), "got complex128 of shape [2, 3]"),
        (npy(np.array([["a"]])), "measure.file must hold real points"),
        (npy(np.array([[1.0, np.nan]])), "measure.file must hold finite points"),
        (npy(np.zeros((4, 2)))[:-8], "is not an .npy file of numbers"),
        (b"", "is not an .npy file of numbers"),
        (npy(np.ones((3, 1))), "measure.dim must be at least 2 on the sphere, got 1"),
    ],
)
def test_tokens_of_a_file_that_makes_no_sense(content, message, tmp_path, capsys):
    (tmp_path / "points.npy").write_bytes(content)
    (tmp_path / "own.toml").write_text(toml(measure=STORED))
    before = files(tmp_path)
    assert main(["simulate", str(tmp_path / "own.toml"), "--out", str(tmp_path / "out")]) == 2
    assert message in refused(capsys)
    assert files(tmp_path) == before


@pytest.mark.parametrize("given", ["n = 3", "dim = 3", 'start = "uniform"', "scale = 1.0"])
def test_tokens_of_a_file_are_not_drawn_too(given, tmp_path, capsys):
    (tmp_path / "points.npy").write_bytes(npy(np.eye(3)))
    (tmp_path / "own.toml").write_text(toml(measure=STORED + given))
    assert main(["simulate", str(tmp_path / "own.toml"), "--check"]) == 2
    assert f"measure.{given.split()[0]} is not read where measure.file has the tokens; leave it out" in refused(capsys)


def test_places_that_cannot_be_written_to(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    pathlib.Path("own.toml").write_text(toml())
    pathlib.Path("file").write_text("kept")
    pathlib.Path("other").mkdir()
    pathlib.Path("other", "thesis.tex").write_text("kept")
    before = files(tmp_path)
    for out, message in {"file": "'file' is a file", "file/below": "file' is a file", "other": "holds other files"}.items():
        assert main(["simulate", "own.toml", "--out", out]) == 2
        assert message in refused(capsys)
    for wrong, message in {"--frames": "--frames", "--seed": "--seed"}.items():
        assert main(["simulate", "own.toml", wrong, "x"]) == 2
        assert message in refused(capsys)
    assert main(["simulate"]) == 2
    assert "attnflow simulate --help says more" in refused(capsys)
    assert main(["simulate", "own.toml", "--seed", "-1"]) == 2
    assert "seed must be at least 0 and below 4294967296, got -1" in refused(capsys)
    assert files(tmp_path) == before


def test_a_velocity_that_is_not_finite_is_refused_by_the_run_and_nothing_stays(tmp_path, capsys):
    (tmp_path / "own.toml").write_text(toml(law='temperature = 1e-4\nnormalization = "unnormalized"'))
    assert main(["simulate", str(tmp_path / "own.toml"), "--out", str(tmp_path / "out")]) == 2
    assert "the velocity at t0 must be finite" in capsys.readouterr().err
    assert files(tmp_path) == ["own.toml"]
