"""A run on disk: a folder that is readable at every moment, and from which an interrupted run goes on.

    attnflow.json        the format, the fingerprint of the run, its provenance, how long its segments are; written first
    blocks/000000.zarr   the frames of a segment and their observables, an xarray dataset; complete as soon as it has its name
    carry-000000.npz     what the next segment starts from; written after the block, then the one before is deleted
    status.json          how the run ended, and the solver's figures; written last, deleted when the run goes on to a later t1

Files and folders are written under another name and renamed, so that a kill leaves a whole one or none.
"""

import hashlib
import json
import os
import pathlib
import platform
import re
import shutil
import uuid
from importlib import metadata
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jaxtyping import PyTree

from attnflow._types import PathLike
from attnflow._version import __version__

if TYPE_CHECKING:
    import xarray

FORMAT = 4


class Store:
    """The folder of one run."""

    def __init__(self, folder: PathLike):
        self.folder = pathlib.Path(folder)

    @classmethod
    def open(cls, folder: PathLike, fingerprint: str, provenance: dict[str, Any], **about: Any) -> "Store":
        """A new folder, or that of the same run begun earlier; any other is refused and left as it is. A new header has what is said
        `about` the run."""
        store = cls(folder)
        if not store.begun():
            (store.folder / "blocks").mkdir(parents=True, exist_ok=True)
            _write(store.folder / "attnflow.json", {"format": FORMAT, "fingerprint": fingerprint, "provenance": provenance} | about)
            return store
        header = store.header()
        if header["fingerprint"] != fingerprint:
            raise ValueError(
                f"{str(folder)!r} holds another run (begun with {_difference(header['provenance'], provenance)}); give an empty folder"
            )
        return store

    def begun(self) -> bool:
        """Whether the folder holds anything."""
        if self.folder.exists() and not self.folder.is_dir():
            raise ValueError(f"out must be a folder, got the file {str(self.folder)!r}")
        return self.folder.is_dir() and any(self.folder.iterdir())

    def length(self, otherwise: Any) -> Any:
        """How long the run was to last when it was begun, which default steps go by."""
        return self.header().get("length", otherwise) if self.begun() else otherwise

    def header(self) -> dict[str, Any]:
        """Format, fingerprint and provenance; a clear error if the folder is not a run."""
        header = self._read("attnflow.json")
        if header is None:
            raise ValueError(f"{str(self.folder)!r} is not a run of attnflow: it has no attnflow.json")
        if header.get("format") != FORMAT:
            raise ValueError(f"{str(self.folder)!r} has format {header.get('format')}, this attnflow reads format {FORMAT}")
        return header

    def status(self) -> dict[str, Any] | None:
        """How the run ended, `None` if it has not."""
        return self._read("status.json")

    def count(self) -> int:
        """How many blocks are complete."""
        carries = sorted(self.folder.glob("carry-*.npz"))
        if carries:
            return int(carries[-1].stem.removeprefix("carry-")) + 1
        return len(list((self.folder / "blocks").glob("*.zarr"))) if self.status() is not None else 0

    def carry(self, like: PyTree) -> PyTree:
        """What the last complete block left, in the structure of `like`."""
        file = self.folder / f"carry-{self.count() - 1:06}.npz"
        try:
            with np.load(file, allow_pickle=False) as arrays:
                leaves = [arrays[f"leaf{i}"] for i in range(len(arrays.files))]
        except Exception as error:
            raise ValueError(f"{str(file)!r} is damaged ({error}); delete the folder and run again") from error
        return jax.tree.unflatten(jax.tree.structure(like), [jax.numpy.asarray(leaf) for leaf in leaves])

    def append(self, index: int, dataset: "xarray.Dataset", carry: PyTree | None) -> None:
        """Write a block and, unless the run is over, what the next one starts from."""
        block = self.folder / "blocks" / f"{index:06}.zarr"
        draft = block.with_name(f".{uuid.uuid4().hex}")
        dataset.to_zarr(draft, consolidated=False, zarr_format=3)
        if block.exists():
            shutil.rmtree(block)
        draft.rename(block)
        if carry is not None:
            file = self.folder / f"carry-{index:06}.npz"
            draft = file.with_name(f".{uuid.uuid4().hex}.npz")
            arrays: dict[str, Any] = {f"leaf{i}": np.asarray(leaf) for i, leaf in enumerate(jax.tree.leaves(carry))}
            np.savez(draft, **arrays)
            draft.rename(file)
            (self.folder / f"carry-{index - 1:06}.npz").unlink(missing_ok=True)

    def replace_last(self, dataset: "xarray.Dataset") -> None:
        """Write the last state of a run that does not keep its positions."""
        draft = self.folder / f".{uuid.uuid4().hex}"
        dataset.to_zarr(draft, consolidated=False, zarr_format=3)
        shutil.rmtree(self.folder / "last.zarr", ignore_errors=True)
        draft.rename(self.folder / "last.zarr")

    def last(self) -> "xarray.Dataset | None":
        """The last state, if it is kept apart."""
        return self._open(self.folder / "last.zarr") if (self.folder / "last.zarr").exists() else None

    def finish(self, status: dict[str, Any]) -> None:
        """Note how the run ended."""
        _write(self.folder / "status.json", status)

    def go_on(self) -> None:
        """The run has not ended after all."""
        (self.folder / "status.json").unlink(missing_ok=True)

    def blocks(self) -> "list[xarray.Dataset]":
        """The complete blocks, as datasets in memory."""
        return [self._open(self.folder / "blocks" / f"{index:06}.zarr") for index in range(self.count())]

    def _open(self, block: pathlib.Path) -> "xarray.Dataset":
        import xarray

        # The format before could name a codec that unpickles.
        try:
            with xarray.open_zarr(block, consolidated=False, chunks=None, zarr_format=3) as data:
                return data.load()
        except Exception as error:
            raise ValueError(f"{str(block)!r} is damaged ({type(error).__name__}: {error})") from error

    def _read(self, name: str) -> dict[str, Any] | None:
        file = self.folder / name
        if not file.is_file():
            return None
        try:
            return json.loads(file.read_text())
        except (OSError, ValueError) as error:
            raise ValueError(f"{str(file)!r} is damaged ({error})") from error


def _write(file: pathlib.Path, content: dict[str, Any]) -> None:
    draft = file.with_name(f".{uuid.uuid4().hex}")
    draft.write_text(json.dumps(content, indent=2) + "\n")
    os.replace(draft, file)


def fingerprint(tree: PyTree) -> str:
    """A number that two runs share exactly when all their arrays and all their structure are the same."""
    leaves, structure = jax.tree.flatten(tree)
    digest = hashlib.sha256(_plain(structure).encode())
    for leaf in leaves:
        if isinstance(leaf, jax.Array | np.ndarray) and not jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            digest.update(f"{leaf.dtype}{leaf.shape}".encode() + np.ascontiguousarray(leaf).tobytes())
        else:
            code = getattr(leaf, "__code__", None)
            digest.update(_plain(leaf).encode() + (b"" if code is None else code.co_code + _plain(code.co_consts).encode()))
    return digest.hexdigest()


def provenance(**parts: Any) -> dict[str, Any]:
    """What the run is made of, and with which versions."""
    versions = {"attnflow": __version__, "python": platform.python_version()}
    versions |= {name: metadata.version(name) for name in ("jax", "equinox", "diffrax", "numpy")}
    return {name: _plain(part) for name, part in parts.items()} | {"versions": versions}


def _plain(value: Any) -> str:
    """A description without memory addresses, the same in every process."""
    return re.sub(r" at 0x[0-9a-f]+", "", str(value))


def _difference(old: dict[str, Any], new: dict[str, Any]) -> str:
    parts = [f"{name} {old.get(name)}" for name in new if name not in ("versions", "t1", "frames") and old.get(name) != new[name]]
    return ", ".join(parts) or "the same arguments but other numbers"
