"""Parts of a run: kept as data that come back bit by bit, and never run."""

import dataclasses
import io
import json
import pathlib
import pickle
import zipfile
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attnflow as af
from attnflow.studies import BadInput, cold, geometries, langevin, pictures, support
from attnflow.studies.tools import data
from attnflow.studies.tools.data import Of
from attnflow.studies.tools.parts import kept, parts


@dataclasses.dataclass(frozen=True)
class Inner:
    name: str
    values: np.ndarray | None = None


@dataclasses.dataclass(frozen=True)
class Outer:
    inner: Inner
    several: list[Inner]
    by_key: dict[float, np.ndarray]
    number: float = 0.0


def again(value: Any, like: Any = None) -> Any:
    return data.from_bytes(data.to_bytes(value, like), like)


def same(a: Any, b: Any) -> bool:
    """Of one type, and bit by bit the same."""
    if type(a) is not type(b):
        return False
    if isinstance(a, np.ndarray | np.generic | jax.Array):
        x, y = np.asarray(a), np.asarray(b)
        return x.dtype == y.dtype and x.shape == y.shape and x.tobytes() == y.tobytes()
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if dataclasses.is_dataclass(a) and not isinstance(a, af.Particles | af.Gaussian):
        return all(same(getattr(a, field.name), getattr(b, field.name)) for field in dataclasses.fields(a))
    leaves = jax.tree.leaves(a)
    return a == b if leaves == [a] else same(leaves, jax.tree.leaves(b)) and jax.tree.structure(a) == jax.tree.structure(b)


ODD = np.array([np.nan, -0.0, np.inf, 5e-324, 0.1, np.nextafter(1, 2)])


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        7**40,
        0.1,
        -0.0,
        float("-inf"),
        "Schrödinger $\\beta$\n",
        ODD,
        ODD.astype(np.float32),
        np.arange(6).reshape(2, 3).T,
        np.zeros((0, 3)),
        np.array([True, False]),
        np.float64(0.1),
        np.int32(-3),
        jnp.arange(3.0),
        (1.0, [2, (ODD,)], {"a": None, 2.5: {3: ()}}),
        {"structure": "array0", "array": 0},
    ],
    ids=repr,
)
def test_plain_data_come_back_bit_by_bit(value):
    assert same(again(value), value)


def test_dataclasses_and_modules_come_back_as_what_the_study_says():
    outer = Outer(Inner("a", ODD), [Inner("b"), Inner("c", ODD[:2])], {0.5: ODD}, float("nan"))
    found = again((outer, 3), (Outer, None))[0]
    assert same(dataclasses.replace(found, number=0.0), dataclasses.replace(outer, number=0.0))
    assert np.isnan(found.number)
    start = af.Particles(np.eye(3), weights=[0.2, 0.3, 0.5], space=af.Sphere())
    fewer = af.Particles(np.eye(3)[:2], weights=[0.1, 0.7], space=af.Sphere())
    assert same(again([fewer, start], [start]), [fewer, start])
    path = af.Path(jnp.arange(2.0), jnp.stack([start.points] * 2), af.Status("reached", 1.0), {"steps": 3, "left": None}, start)
    assert same(again(path, Of(af.Path, measure=fewer)), path)
    gaussian = af.Gaussian([0.1, 0.2], [[1.0, 0.3], [0.3, 0.5]])
    assert same(again(gaussian, gaussian), gaussian)


def test_what_studies_keep():
    """Examples of what the longer studies have as parts; the others are kept whenever they are run in a folder."""
    few = np.array([0.5, 0.25])
    found = cold.Concentration(few, few, few, {20.0: few, 0.5: few[:1]}, 0.1, 0.2)
    assert same(again(found, cold.Concentration), found)
    for found in (langevin.Comparison("N", few, few, 1.0, 2.0), support.Stability("L2", "bump", few, np.ones((1, 2, 2)), None)):
        assert same(again(found, type(found)), found)
    verdicts = [
        af.Verdict("polytope", "it rests", 1e-3, 1e-9, 2, np.eye(2), labels=np.arange(2)),
        af.Verdict("undecided", "it moves", 1e-3),
    ]
    geometry = geometries.Geometry("V = I", np.eye(2), af.Prediction("polytope", "a theorem"), verdicts, few, np.ones((2, 3, 2)))
    assert same(again((geometry, 0.5), (geometries.Geometry, None)), (geometry, 0.5))
    grid = af.Grid.uniform([af.Circle(8)])
    cloud, one = (af.Particles(np.eye(2)[:n], space=af.Sphere()) for n in (2, 1))
    rates = pictures.Rates("circle", few, few, few, few, 1e-16, 0.0)
    kept = again((rates, (grid, grid, cloud)), (pictures.Rates, (grid, grid, one)))
    assert same(kept[0], rates)
    assert same(jax.tree.leaves(kept[1]), jax.tree.leaves((grid, grid, cloud)))
    assert kept[1][0].axes == grid.axes


def test_what_is_not_data_is_refused_before_it_is_written(tmp_path):
    class Mine(dict):
        pass

    for value in (object(), Mine(), {1}, lambda: 0, 1j, np.array([object()]), Inner("a"), af.Particles(np.eye(2))):
        with pytest.raises(TypeError, match="a part of a study must be"):
            again(value)
    for value, like in (
        (Inner("a"), Outer),
        (af.Gaussian([0.0], [[1.0]]), af.Particles(np.eye(2))),
        ((1, 2), (None,)),
        ((1,), [None]),
        (af.Particles(np.eye(2), weights=[1.0, 1.0]), af.Particles(np.eye(2))),
    ):
        with pytest.raises(TypeError, match="a part of a study must be"):
            again(value, like)
    with pytest.raises(TypeError, match="for a module give an example"):
        again(af.Particles(np.eye(2)), af.Particles)
    with pytest.raises(TypeError, match="like must be"):
        again(1, "a string")
    with kept(tmp_path), pytest.raises(TypeError, match="got object"):
        parts(lambda i: object(), [0], "odd")
    assert not list(tmp_path.glob("*.npz"))


class Hostile:
    """A pickle that writes a file when it is loaded."""

    def __init__(self, mark: pathlib.Path):
        self.mark = mark

    def __reduce__(self):
        return pathlib.Path.touch, (self.mark,)


def hostile(mark: pathlib.Path) -> dict[str, bytes]:
    """Files that would run code if they were loaded as pickles, or make a class that they name."""
    code = pickle.dumps(Hostile(mark))
    objects, structured, named = io.BytesIO(), io.BytesIO(), io.BytesIO()
    np.savez(objects, structure=np.frombuffer(b'{"array": 0}', np.uint8), array0=np.array([Hostile(mark)], object))
    np.savez(structured, structure=np.array([Hostile(mark)], object), array0=np.zeros(2))
    text = json.dumps({"object": "pathlib.Path", "fields": {"name": "a", "values": str(mark)}}).encode()
    np.savez(named, structure=np.frombuffer(text, np.uint8))
    one = io.BytesIO()
    np.save(one, np.array([Hostile(mark)], object))
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name in ("structure.npy", "array0.npy"):
            archive.writestr(name, code)
    return {
        "pickle": code,
        "object array": objects.getvalue(),
        "object structure": structured.getvalue(),
        "class by name": named.getvalue(),
        "npy": one.getvalue(),
        "pickles in a zip": packed.getvalue(),
    }


DAMAGED = {"empty": b"", "text": b"parts", "cut": None}


@pytest.mark.parametrize(
    "like", [None, Inner, af.Particles(np.eye(2)), (None,), [None]], ids=["plain", "dataclass", "module", "tuple", "list"]
)
def test_a_hostile_or_damaged_part_runs_nothing_and_is_one_line(like, tmp_path):
    mark, file = tmp_path / "ran", tmp_path / "loop-0.npz"
    whole = io.BytesIO()
    np.savez(whole, structure=np.zeros(100, np.uint8))
    damaged = {name: whole.getvalue()[:90] if content is None else content for name, content in DAMAGED.items()}
    for name, content in (hostile(mark) | damaged).items():
        file.write_bytes(content)
        with kept(tmp_path), pytest.raises(BadInput, match="not a part of this run, or is damaged") as caught:
            parts(lambda i: pytest.fail("computed"), [0], "loop", like=like)
        assert "\n" not in str(caught.value), name
        assert "delete it, and --resume computes it again" in str(caught.value)
    assert not mark.exists()
    # The test would see it.
    pickle.loads(pickle.dumps(Hostile(mark)))
    assert mark.exists()


def test_pickles_of_before_are_not_opened(tmp_path):
    mark = tmp_path / "ran"
    for name in ("loop-0.part", "loop-0.pkl", "loop-0"):
        (tmp_path / name).write_bytes(pickle.dumps(Hostile(mark)))
    with kept(tmp_path):
        assert parts(lambda i: i + 1, [0], "loop") == [1]
    assert not mark.exists()


def test_a_part_of_another_form_is_refused(tmp_path):
    with kept(tmp_path):
        parts(lambda i: (1, ODD), [0], "loop")
        for like in (Inner, (None,), [None], af.Particles(np.eye(2)), Outer):
            with pytest.raises(BadInput, match="not a part of this run"):
                parts(lambda i: 0, [0], "loop", like=like)
        parts(lambda i: af.Gaussian([0.0], [[1.0]]), [0], "law", like=af.Gaussian([0.0], [[1.0]]))
        with pytest.raises(BadInput, match="not a part of this run"):
            parts(lambda i: 0, [0], "law", like=af.Particles(np.eye(2)))


def test_what_was_computed_and_what_is_read_are_the_same(tmp_path):
    with kept(tmp_path):
        first = parts(lambda i: (np.arange(6.0).reshape(2, 3).T[::2], i), range(2), "loop")
        second = parts(lambda i: pytest.fail("computed again"), range(2), "loop")
    assert same(first, second)
    assert [a.strides for a, _ in first] == [a.strides for a, _ in second], "in memory too, which sums depend on"
