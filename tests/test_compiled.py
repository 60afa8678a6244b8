"""What is compiled, and what is kept: no host callbacks, nothing twice, nothing for building laws."""

import contextlib
import json
import os
import pathlib
import subprocess
import sys

import jax
import numpy as np
import pytest

import attnflow as af
from attnflow._compiled import cache_folder

COUNT = """
import json, sys
import jax
jax.config.update("jax_enable_x64", True)
import numpy as np
import attnflow as af
events = {"hits": 0, "misses": 0}
jax.monitoring.register_event_listener(lambda name, **_: events.update(
    {key: count + 1 for key, count in events.items() if name == f"/jax/compilation_cache/cache_{key}"}))
folder = af.keep_compiled()
law = af.simple_attention(2.0, 3)
tokens = af.samplers.sphere(8, 3, key=jax.random.key(0))
"""
RUNS = """
af.solve(law, tokens, t1=1.0, save_at=3)
af.theory.equiangular(4, 1.0, [0.5, 1.0])
af.solve(law, af.Gaussian(np.zeros(3), 0.1 * np.eye(3)), t1=0.5, save_at=3)
af.solve(af.simple_attention(2.0, 2), af.Grid.uniform([af.Circle(cells=16)]), t1=0.1, noise=0.5, save_at=3)
af.solve(law, tokens, t1=0.1, noise=0.1, key=jax.random.key(1), step=0.05, save_at=3, until=af.Steady())
af.layers(law, tokens, depth=3)
af.sweep(lambda key, beta: (af.simple_attention(beta, 3), af.samplers.sphere(8, 3, key=key)), {"beta": [1.0, 2.0]}, seeds=2, t1=0.5,
         observe={"order": af.order_parameter}, progress=False)
af.characteristics(af.GaussianMixture([0.5, 0.5], [[-1.0], [1.0]], np.ones((2, 1, 1))), [[0.3]], 0.5)
af.self_bridge(af.Particles(np.linspace(0, 1, 8)[:, None]), 0.1)
"""
END = """
print(json.dumps(events | {"folder": str(folder)}))
"""


@pytest.mark.long
def test_a_second_process_compiles_nothing(tmp_path):
    """Every program is kept, so none has a host callback, and none depends on anything but what it computes."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("JAX_")} | {"XDG_CACHE_HOME": str(tmp_path)}

    def ran() -> dict:
        out = subprocess.run([sys.executable, "-c", COUNT + RUNS + END], capture_output=True, text=True, check=False, env=environment)
        assert out.returncode == 0, out.stderr
        return json.loads(out.stdout.splitlines()[-1])

    first, second = ran(), ran()
    assert first["misses"] > 3
    assert pathlib.Path(first["folder"]) == tmp_path / "attnflow"
    assert second["misses"] == 0
    assert second["hits"] >= first["misses"]


@contextlib.contextmanager
def compilations():
    """The names of the programs that are compiled within."""
    found: list[str] = []

    def listen(name: str, seconds: float, **about) -> None:
        if name == "/jax/core/compile/backend_compile_duration":
            found.append(str(about.get("fun_name")))

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        yield found
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)


def test_building_laws_and_measures_compiles_nothing(rng):
    d, p = 24, 4
    with compilations() as programs:
        heads = []
        for _ in range(12):
            query, key = rng.normal(size=(2, p, d))
            value = rng.normal(size=(d, d))
            heads.append(af.Attention(af.dot_product(query, key, np.sqrt(p), query_bias=np.ones(p), key_bias=np.ones(p)), value))
            heads.append(af.Attention(af.squared_distance(query, key, 2.0), value, af.Sinkhorn(tolerance=1e-8)))
        block = af.MultiHead(heads).then(af.Perceptron(rng.normal(size=(4 * d, d)), rng.normal(size=(d, 4 * d))))
        af.LayerNorm(np.ones(d), np.zeros(d))
        af.simple_attention(3.0, d, af.Unnormalized(log_scale=-3.0), mask=af.Causal())
        af.Particles(rng.normal(size=(7, d)), weights=np.arange(1.0, 8.0))
        af.Gaussian(np.zeros(d), np.eye(d))
        af.GaussianMixture([1, 2], np.zeros((2, 3)), [np.eye(3)] * 2)
        af.Grid.uniform([af.Circle(cells=9)])
    assert programs == []
    assert block is not None


def test_built_on_the_host_or_traced_a_law_is_the_same(rng):
    """The matrices that NumPy makes are those of JAX."""
    query, key = rng.normal(size=(2, 3, 5))
    a, b = rng.normal(size=(2, 3))

    def numbers(query, key, a, b):
        dot, squared = af.dot_product(query, key, 0.7, query_bias=a, key_bias=b).form, af.squared_distance(query, key, 0.7).form
        return [dot.A, dot.p, dot.r, dot.constant, squared.A, squared.P, squared.R]

    for host, traced in zip(numbers(query, key, a, b), jax.jit(numbers)(query, key, a, b), strict=True):
        np.testing.assert_allclose(host, traced, rtol=1e-13)


def test_a_velocity_called_by_hand_is_few_programs():
    mu = af.Particles(np.linspace(0, 1, 26).reshape(13, 2))
    with compilations() as programs:
        af.simple_attention(1.0, 2).at(mu)(mu.points)
    assert len(programs) <= 3


@pytest.fixture
def settings():
    """JAX's settings, put back."""
    names = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs", "jax_persistent_cache_min_entry_size_bytes")
    kept = {name: getattr(jax.config, name) for name in names}
    yield
    for name, value in kept.items():
        jax.config.update(name, value)


def test_the_folder_of_compiled_programs(settings, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    assert cache_folder() == tmp_path / "caches" / "attnflow"
    jax.config.update("jax_compilation_cache_dir", None)
    assert af.keep_compiled() == cache_folder()
    assert cache_folder().is_dir()
    assert af.keep_compiled(tmp_path / "mine") == tmp_path / "mine"
    # A folder that was chosen stays.
    assert af.keep_compiled() == tmp_path / "mine"
    (tmp_path / "file").touch()
    with pytest.warns(UserWarning, match=r"compiled programs are not kept: .*; set XDG_CACHE_HOME to a folder"):
        assert af.keep_compiled(tmp_path / "file" / "below") is None
    assert jax.config.jax_compilation_cache_dir == str(tmp_path / "mine")
