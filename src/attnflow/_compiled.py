"""Compiled programs, kept between processes: the persistent cache of JAX, in one folder for the library and the command line."""

import os
import pathlib
import warnings

import jax
from jax.experimental.compilation_cache import compilation_cache

from attnflow._check import folder as check_folder
from attnflow._types import PathLike


def cache_folder() -> pathlib.Path:
    """The cache folder of the user: `$XDG_CACHE_HOME/attnflow`, by default `~/.cache/attnflow`."""
    home = os.environ.get("XDG_CACHE_HOME")
    return (pathlib.Path(home) if home else pathlib.Path.home() / ".cache") / "attnflow"


def keep_compiled(folder: PathLike | None = None) -> pathlib.Path | None:
    """Keep compiled programs in a folder, so that the next process loads them instead of compiling them again.

    Call it once, before the first computation. The command line does the same, in the same folder. Programs are identified by what they
    compute, the version of JAX and the processor, so that a folder may be shared, and deleted at any time. A folder that was chosen before,
    by `JAX_COMPILATION_CACHE_DIR` or `jax.config`, is kept unless another is given here.

    **Arguments:** `folder`, by default `$XDG_CACHE_HOME/attnflow` or `~/.cache/attnflow`.

    Returns the folder; `None`, with a warning, if it cannot be written: then programs are compiled in every process.
    """
    if folder is not None:
        check_folder("folder", folder)
    chosen = getattr(jax.config, "jax_compilation_cache_dir", None)
    if folder is None and chosen is not None:
        return pathlib.Path(chosen)
    try:
        path = cache_folder() if folder is None else pathlib.Path(folder).expanduser()
        path.mkdir(parents=True, exist_ok=True)
        if not os.access(path, os.W_OK):
            raise PermissionError(f"no permission to write to {path}")
    except (OSError, RuntimeError) as error:
        cure = "set XDG_CACHE_HOME to a folder that can be written, or give one to af.keep_compiled"
        warnings.warn(f"compiled programs are not kept: {error}; {cure}", stacklevel=2)
        return None
    jax.config.update("jax_compilation_cache_dir", str(path))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    # JAX looks for its folder once, at the first compilation, which may have been before this call.
    compilation_cache.reset_cache()
    return path
