"""Opens a model on disk, whatever its format. Owns the choice of the reader; never touches the network.

A third loader (the seam for more formats) is one more file with an `open_...` function and one more line here.
"""

from __future__ import annotations

from pathlib import Path

from sojourn.errors import BadModelFile, ModelNotFound
from sojourn.weights.gguf_checkpoint import open_gguf
from sojourn.weights.gguf_split import shard_paths
from sojourn.weights.hf_checkpoint import open_directory
from sojourn.weights.tensors import Checkpoint, Tensor

__all__ = ["Checkpoint", "Tensor", "open_checkpoint"]


def open_checkpoint(path: Path) -> Checkpoint:
    """Open a GGUF file (any shard), a Hugging Face directory, or a directory that holds one GGUF model.

    ModelNotFound: nothing there, or nothing that is a model. BadModelFile: truncated, damaged, hostile or ambiguous.
    UnsupportedModel: an architecture or a storage format that is not implemented, by name.
    """
    if not path.exists():
        raise ModelNotFound(f"{path}: no such file or directory")
    if not path.is_dir():
        if path.suffix == ".safetensors":
            raise BadModelFile(f"{path}: weights alone are not enough; give the directory that also holds config.json")
        return open_gguf(path)
    models = sorted({str(shard_paths(item)[0]) for item in path.glob("*.gguf")})
    if (path / "config.json").exists() and (not models or any(path.glob("*.safetensors"))):
        return open_directory(path)
    if not models:
        raise ModelNotFound(f"{path}: has no config.json and no *.gguf, so there is no model in it")
    if len(models) > 1:
        names = ", ".join(Path(item).name for item in models[:8])
        raise ModelNotFound(f"{path}: holds {len(models)} GGUF models; name one of them: {names}")
    return open_gguf(Path(models[0]))
