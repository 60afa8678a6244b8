"""Files of trained transformers as Hugging Face writes them: `config.json`, `*.safetensors` (one or in shards), `tokenizer.json`.

Tensors are read as data, never as code: a file is checked by `safetensors` before anything is taken from it, and a tensor is a view of the
file until it is used. `pytorch_model.bin` is read through torch, with weights only.
"""

import importlib.util
import json
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

import ml_dtypes
import numpy as np

from attnflow import _check as check
from attnflow._types import PathLike

# Numbers that a weight may be made of; others, such as positions that some files carry as buffers, are left where they are.
_FLOATS = {"F64": np.float64, "F32": np.float32, "F16": np.float16, "BF16": ml_dtypes.bfloat16}
# Old names of the gain and the bias of a layer norm.
_LEGACY = {"gamma": "weight", "beta": "bias"}


def find_folder(name: PathLike) -> pathlib.Path:
    """The folder of a model: a path, or an installed package with a `config.json` and weights inside."""
    folder = check.folder("folder", name).expanduser()
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise ValueError(f"{str(name)!r} has no config.json; give the folder of a model as Hugging Face writes it")
        return folder
    spec = importlib.util.find_spec(str(name)) if str(name).isidentifier() else None
    for place in (spec.submodule_search_locations or []) if spec is not None else []:
        for config in sorted(pathlib.Path(place).rglob("config.json")):
            if _weight_files(config.parent):
                return config.parent
    raise ValueError(f"folder must be a folder with a model, or an installed package that has one inside, got {str(name)!r}")


class Config(dict[str, Any]):
    """A JSON object; a key that it lacks is refused by name."""

    def __missing__(self, key: str) -> Any:
        raise ValueError(f"config.json lacks {key!r}, without which a model of this type cannot be read")


def read_json(file: pathlib.Path) -> Config:
    """The JSON object in a file."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"), object_hook=Config)
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{str(file)!r} is not JSON ({error}); download it again") from None
    if not isinstance(content, Config):
        raise ValueError(f"{str(file)!r} must hold a JSON object, got a {type(content).__name__}")
    return content


class Weights(Mapping[str, np.ndarray]):
    """The tensors of a model by name, without the `prefix` of the family, which a file has or not. Each is a view of its file; `take`
    copies it in the precision `dtype`, and `taken` counts the numbers that were."""

    folder: pathlib.Path
    prefix: str
    dtype: np.dtype
    taken: int

    def __init__(self, folder: pathlib.Path, prefix: str, dtype: np.dtype):
        self.folder, self.prefix, self.dtype, self.taken = folder, prefix, dtype, 0
        files = _weight_files(folder)
        if not files:
            raise ValueError(f"{str(folder)!r} has no weights, neither *.safetensors nor pytorch_model.bin; download them")
        self._tensors: dict[str, np.ndarray] = {}
        for file in files:
            found = _pickled(file) if file.suffix == ".bin" else _views(file)
            self._tensors |= {_plain(name, prefix): tensor for name, tensor in found.items()}

    def __getitem__(self, name: str) -> np.ndarray:
        return self._tensors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def take(self, name: str, *shape: int) -> np.ndarray:
        """The tensor of a name, refused unless it is there and has this shape."""
        if name not in self:
            raise ValueError(f"{str(self.folder)!r} has no tensor {name!r}, with or without {self.prefix!r} before it; download it again")
        if self[name].shape != shape:
            raise ValueError(
                f"{name!r} in {str(self.folder)!r} must have shape {list(shape)} by config.json, got {list(self[name].shape)}; "
                "the two are not of one model"
            )
        self.taken += self[name].size
        return self[name].astype(self.dtype)


def _plain(name: str, prefix: str) -> str:
    head, dot, last = name.removeprefix(prefix).rpartition(".")
    return f"{head}{dot}{_LEGACY.get(last, last)}"


def _weight_files(folder: pathlib.Path) -> list[pathlib.Path]:
    """The files that hold the weights: one, or the shards that an index names; none if there are none."""
    for name in ("model.safetensors", "pytorch_model.bin"):
        if (folder / name).is_file():
            return [folder / name]
        if (folder / f"{name}.index.json").is_file():
            return _shards(folder / f"{name}.index.json")
    return sorted(folder.glob("*.safetensors"))


def _shards(index: pathlib.Path) -> list[pathlib.Path]:
    places = read_json(index).get("weight_map")
    names = set(places.values()) if isinstance(places, dict) and all(isinstance(name, str) for name in places.values()) else set()
    if not names:
        raise ValueError(f"{str(index)!r} must have a weight_map from tensors to files, got {check.shown(places)}; download it again")
    for name in sorted(names):
        if pathlib.PurePath(name).name != name or pathlib.PurePath(name).suffix not in (".safetensors", ".bin"):
            raise ValueError(f"{str(index)!r} must name files of weights in its own folder, got {name!r}")
        if not (index.parent / name).is_file():
            raise ValueError(f"{str(index)!r} names the file {name!r}, which is not there; download it")
    return [index.parent / name for name in sorted(names)]


def _views(file: pathlib.Path) -> dict[str, np.ndarray]:
    """The tensors of a safetensors file, as views of it: eight bytes of length, a JSON header with the place of each, then their bytes."""
    try:
        from safetensors import SafetensorError, safe_open
    except ImportError:
        raise ImportError("reading a model needs safetensors; pip install 'attnflow[models]'") from None
    try:
        # The library checks the header against the length of the file before anything of it is used.
        with safe_open(file, framework="numpy"):
            pass
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{str(file)!r} is not a whole safetensors file ({error}); download it again") from None
    with file.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        header = json.loads(stream.read(length))
    data = np.memmap(file, np.uint8, mode="r", offset=8 + length) if file.stat().st_size > 8 + length else np.zeros(0, np.uint8)
    places = {name: place for name, place in header.items() if name != "__metadata__" and place["dtype"] in _FLOATS}
    return {
        name: np.asarray(data[slice(*place["data_offsets"])]).view(_FLOATS[place["dtype"]]).reshape(place["shape"])
        for name, place in places.items()
    }


def _pickled(file: pathlib.Path) -> dict[str, np.ndarray]:
    """The tensors of a torch file, of which torch loads weights only."""
    try:
        import torch
    except ImportError:
        raise ImportError(f"{file.name!r} is a pickle, which torch reads; pip install torch, or save the model as safetensors") from None
    try:
        loaded = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:
        reason = str(error).split("\n")[0][:200]
        raise ValueError(f"{str(file)!r} is not a file of weights alone ({reason}); save the model as safetensors") from None
    if not isinstance(loaded, dict):
        raise ValueError(f"{str(file)!r} must hold tensors by name, got a {type(loaded).__name__}; save the model as safetensors")
    tensors = {name: tensor.detach() for name, tensor in loaded.items() if torch.is_tensor(tensor) and tensor.is_floating_point()}
    # NumPy has no bfloat16 of its own, single precision holds it exactly.
    return {name: (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy() for name, tensor in tensors.items()}
