"""The result of a study as a tree of arrays: names, groups, and that nothing is lost on the way through a file."""

import dataclasses
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import pytest
import xarray
from jaxtyping import Array, Float, Int

import attnflow as af
from attnflow.report.data import data_tree


class Pair(NamedTuple):
    a: float
    b: np.ndarray


@dataclasses.dataclass(frozen=True)
class Inner:
    ts: Float[np.ndarray, " t"]
    counts: Int[np.ndarray, "t k"]


@dataclasses.dataclass(frozen=True)
class Outer:
    name: str
    flag: bool
    n: int
    nothing: Any
    beta: float
    energy: Float[np.ndarray, " t"]
    states: Float[Array, "t n 2"]
    anything: Float[np.ndarray, "..."]
    inner: Inner
    by_name: dict[str, Any]
    rows: list
    pair: Pair
    path: af.Path
    measure: af.Particles


@pytest.fixture(scope="module")
def result() -> Outer:
    rng = np.random.default_rng(3)
    ts = jnp.linspace(0, 1, 4)
    path = af.Path(ts, jnp.asarray(rng.normal(size=(4, 3, 2))), af.Status("reached", 1.0), {}, af.Particles(rng.normal(size=(3, 2))))
    return Outer(
        name="x < y",
        flag=True,
        n=2**70,
        nothing=None,
        beta=float("nan"),
        energy=rng.normal(size=5),
        states=jnp.asarray(rng.normal(size=(5, 3, 2))),
        anything=rng.normal(size=(2, 2)),
        # Shorter in time than what is above it.
        inner=Inner(rng.normal(size=4), rng.integers(9, size=(4, 2))),
        by_name={"a b/c": rng.normal(size=3), "a-b-c": 2.5, "deep": {"energy": rng.normal(size=7), "complex": np.array([1 + 2j])}},
        rows=[1.5, [1, 2, 3], {"x": np.float32(0.5)}, "text", np.array(["s"]), []],
        pair=Pair(0.25, rng.normal(size=(2, 3))),
        path=path,
        measure=path.measure,
    )


def leaves(value: Any) -> list[np.ndarray]:
    """Every array and number, in whatever order."""
    if isinstance(value, af.Path):
        return [np.asarray(value.states)]
    if isinstance(value, bool | str) or value is None or (isinstance(value, int) and abs(value) > 2**63):
        return []
    if dataclasses.is_dataclass(value):
        return [leaf for field in dataclasses.fields(value) for leaf in leaves(getattr(value, field.name))]
    if isinstance(value, dict):
        return [leaf for item in value.values() for leaf in leaves(item)]
    if isinstance(value, list | tuple) and not (value and all(isinstance(x, int | float) for x in value)):
        return [leaf for item in value for leaf in leaves(item)]
    array = np.asarray(value) if hasattr(value, "dtype") or isinstance(value, int | float | list | tuple) else None
    return [array] if array is not None and array.dtype.kind in "biufc" else []


def test_axes_have_their_annotated_names_where_they_fit(result):
    tree = data_tree(result)
    assert tree["energy"].dims == ("t",)
    assert tree["states"].dims == ("states_0", "states_1", "states_2"), "2 is no name"
    assert tree["anything"].dims == ("anything_0", "anything_1")
    assert tree["inner/ts"].dims == ("ts_0",), "t is of another length above"
    assert tree["inner/counts"].dims == ("counts_0", "counts_1")
    assert data_tree(result.inner)["counts"].dims == ("t", "k")
    assert tree["path"].to_dataset(inherit=False).sizes["time"] == 4


def test_text_is_an_attribute(result):
    tree = data_tree(result, {"study": "fake"})
    assert tree.attrs == {"name": "x < y", "flag": "True", "n": str(2**70), "nothing": "None", "study": "fake"}
    assert tree["rows"].attrs == {"3": "text"}
    assert tree["rows/4"].attrs == {"0": "s"}


def test_nothing_is_lost_on_the_way_through_a_file(result, tmp_path):
    data_tree(result, {"study": "fake"}).to_zarr(tmp_path / "data.zarr", consolidated=False)
    with xarray.open_datatree(tmp_path / "data.zarr", engine="zarr", consolidated=False) as tree:
        found = [array.values for node in tree.subtree for array in node.to_dataset(inherit=False).data_vars.values()]
        assert tree.attrs["study"] == "fake"
        np.testing.assert_array_equal(tree["by_name/deep/energy"].values, result.by_name["deep"]["energy"])
        np.testing.assert_array_equal(tree["pair/b"].values, result.pair.b)
        np.testing.assert_array_equal(tree["by_name/a-b-c"].values, result.by_name["a b/c"])
        assert tree["by_name/a-b-c-"].values == 2.5, "two keys of one name"
        assert tree["rows/1"].values.tolist() == [1, 2, 3]
    kept = [(array.dtype.kind, array.shape, array.tobytes()) for array in found]
    for leaf in leaves(result):
        assert (leaf.dtype.kind, leaf.shape, leaf.tobytes()) in kept


@pytest.mark.parametrize("value", [{}, {"a": {}}, {"a": object()}, {"only": "text"}])
def test_a_result_without_numbers_is_a_tree_too(value, tmp_path):
    data_tree(value).to_zarr(tmp_path / "data.zarr", consolidated=False)
