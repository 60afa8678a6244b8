"""Many tokens on spectral sums: a run to a metastable state, its energy, its memory. A million of them in `make studies`."""

import json
import subprocess
import sys

import numpy as np
import pytest
from scipy.special import iv

SCRIPT = r"""
import json, pathlib, re, sys
import jax, numpy as np
jax.config.update("jax_enable_x64", True)
import attnflow as af

n, d, beta, end = int(sys.argv[1]), int(sys.argv[2]), 9.0, float(sys.argv[3])
mu, law, sums = af.samplers.sphere(n, d, key=jax.random.key(0)), af.simple_attention(beta, d), af.Spectral(1e-9)
energy = af.OnHost(lambda mu: af.energy(mu, beta, log_scale=-beta, sums=af.Spectral(1e-10)))
path = af.solve(law, mu, t1=end, save_at=6, rtol=1e-5, atol=1e-6, observe={"energy": energy}, keep_states=False, sums=sums, progress=True)
peak = int(re.findall(r"VmHWM:\s+(\d+)", pathlib.Path("/proc/self/status").read_text())[0]) / 2**20
points = np.asarray(path.final.points)
mass = np.histogram(np.arctan2(points[:, 1], points[:, 0]), bins=90, range=(-np.pi, np.pi))[0] / n
full = mass > 1 / 90
print(json.dumps({
    "kind": path.status.kind, "engine": path.stats["engine"], "error": path.stats["sums"]["error"], "peak": peak,
    "energy": path.observed["energy"].values.tolist(), "clusters": int((full & ~np.roll(full, 1)).sum()),
}))
"""


@pytest.mark.long
@pytest.mark.parametrize(
    ("n", "d", "end"),
    [(30_000, 2, 13.0), pytest.param(10**6, 2, 16.0, marks=pytest.mark.slow), pytest.param(10**6, 3, 16.0, marks=pytest.mark.slow)],
)
def test_many_tokens_to_a_metastable_state(n, d, end):
    done = subprocess.run([sys.executable, "-c", SCRIPT, str(n), str(d), str(end)], capture_output=True, text=True, check=True)
    found = json.loads(done.stdout.splitlines()[-1])
    print(found)
    assert found["kind"] == "reached"
    assert found["engine"].startswith("spectral (circle" if d == 2 else "spectral (Gaussian")
    assert found["error"] <= 1e-9
    assert found["peak"] < 4.0  # GB
    assert np.diff(found["energy"]).min() > -1e-9 * found["energy"][-1]
    assert found["energy"][-1] > 1.5 * found["energy"][0]
    if d == 2:
        # The fastest mode of the uniform law is the number of clusters (arXiv:2410.23228), here with the next beside it.
        k = np.arange(1, 20)
        assert abs(found["clusters"] - k[np.argmax(k**2 * iv(k, 9.0))]) <= 1
