"""The user's own network as a file: a torch.export archive (.pt2) or an .onnx file."""

import zipfile
from typing import TYPE_CHECKING, Any

from ergometer.core.errors import UsageError
from ergometer.core.model import Model

if TYPE_CHECKING:
    import torch

# Where an op of an exported graph says whether it trains.
_TRAINS_AT = {"aten.batch_norm.default": 5, "aten.dropout.default": 2}
# What decompositions make of them is for one mode alone.
_INFERENCE_ONLY = ("aten._native_batch_norm_legit_no_training.default",)
_TRAINING_ONLY = (
    "aten._native_batch_norm_legit.default",
    "aten._native_batch_norm_legit_functional.default",
    "aten.native_dropout.default",
)


def open_file(model: Model, training: bool | None) -> "torch.nn.Module":
    """The module that the model's file describes; UsageError if it cannot be read, or not in that mode."""
    assert model.file is not None
    if model.file.suffix == ".onnx":
        from ergometer.engines.torch.onnx import read_onnx

        return read_onnx(model.file)
    return _read_archive(model.file, training)


def _read_archive(path: Any, training: bool | None) -> "torch.nn.Module":
    import torch

    if not zipfile.is_zipfile(path):
        raise UsageError(f"{path.name} is no torch.export archive: write it with torch.export.save(program, path).")
    try:
        program = torch.export.load(path)
    except Exception as error:
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise UsageError(f"{path.name} cannot be loaded by torch {torch.__version__}: {first}.") from error
    module = program.module()
    for node in module.graph.nodes:
        if training is not None and str(node.target) in (_INFERENCE_ONLY if training else _TRAINING_ONLY):
            verb, other = ("trained", "inference") if training else ("used for inference", "training")
            raise UsageError(
                f"{path.name} cannot be {verb}: it was exported for {other} alone ({node.target}); export it without "
                "decompositions."
            )
    return module


def set_training(module: "torch.nn.Module", training: bool) -> None:
    """module.train(), also for an exported graph, whose ops carry the mode themselves."""
    import torch

    if not isinstance(module, torch.fx.GraphModule) or not hasattr(module, "_guards_fn"):
        module.train(training)
        return
    for node in module.graph.nodes:
        at = _TRAINS_AT.get(str(node.target))
        if at is not None:
            node.update_arg(at, training)
    module.recompile()
