"""Rebuilds the trained model of a run with its weights, and exports it in formats of other programs."""

import importlib.util
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from hasfl.errors import HasflError, InputError, MissingExtra, ModelError
from hasfl.replacing import replace_file
from hasfl.runs.exports import RECORD_FORMATS
from hasfl.runs.exports.following import refuse_files_of_runs
from hasfl.runs.overview import scenario_folder, stored_scenario
from hasfl.runs.store import MODEL, MODEL_INPUT, RESULT, RunFolder
from hasfl.runs.task import module_of

ONNX_PACKAGES = ("onnx", "onnxscript")  # packages with which torch writes ONNX
# The batch size of example inputs. From a batch of one, torch's exporter would conclude that 1 is the only
# possible batch size.
EXAMPLE_BATCH = 2


def export_model(run: Path, form: str, file: Path | None = None) -> Path:
    """Write the model of a finished run in one of `FORMATS`; returns the path of the new file.

    The exported model takes batches of any size. By default, the file is in the folder of the run.
    """
    if form not in FORMATS:
        raise InputError(f"--to must be one of {', '.join((*FORMATS, *RECORD_FORMATS))}, got {form!r}")
    suffix, write = FORMATS[form]
    folder = RunFolder.open(run)
    missing = [name for name in ONNX_PACKAGES if importlib.util.find_spec(name) is None]
    if form == "onnx" and missing:
        raise MissingExtra(f"writing ONNX needs {' and '.join(missing)}: pip install 'hasfl[export]'")
    target = file or run / f"model{suffix}"
    refuse_files_of_runs(target)
    weights = saved_weights(folder)
    replace_file(target, lambda path: write(folder, weights, path), advice="the run itself is unchanged")
    return target


def saved_weights(run: RunFolder) -> dict[str, Tensor]:
    """The weights and buffers of a finished run, named as in the `state_dict` of the user's model."""
    path = run.path / MODEL
    if not path.exists():
        raise InputError(f"{run.path} must be a finished run, but has no {MODEL}: continue it with --resume")
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise InputError(
            f"{path} must hold the weights of a model, but cannot be read ({error}): restore it from a copy"
        ) from None


def trained_module(run: RunFolder, weights: dict[str, Tensor]) -> tuple[nn.Module, Tensor]:
    """The model of a run with these weights, in evaluation mode, and a batch of samples as an example."""
    scenario, folder = stored_scenario(run), scenario_folder(run)
    samples, outputs = _kept_input(run)
    module, example = module_of(scenario, samples, outputs, folder=folder)
    try:
        module.load_state_dict(weights)
    except RuntimeError as error:
        reason = " ".join(str(error).split())
        raise InputError(
            f"the weights of {run.path} must fit model {scenario.model_name!r}, but do not ({reason}): "
            "restore the model as it was when it was trained"
        ) from None
    shape = (EXAMPLE_BATCH, *example.shape[1:])
    return module.cpu().eval(), torch.zeros(shape, dtype=example.dtype)


def _kept_input(run: RunFolder) -> tuple[Tensor, int]:
    """A sample of the shape and type that the run was trained on, and the number of outputs.

    The data are not read, so that a model can be exported on a machine without the data.
    """
    try:
        kept = run.result()[MODEL_INPUT]
        return torch.zeros(1, *kept["shape"], dtype=getattr(torch, kept["type"])), int(kept["outputs"])
    except (AttributeError, KeyError, TypeError, ValueError):
        raise InputError(
            f"{run.path / RESULT} must say in {MODEL_INPUT} which samples the model takes, but does not: "
            "restore it from a copy"
        ) from None


def _write_state_dict(run: RunFolder, weights: dict[str, Tensor], path: Path) -> None:
    torch.save(weights, path)


def _write_torch_export(run: RunFolder, weights: dict[str, Tensor], path: Path) -> None:
    module, example = trained_module(run, weights)
    program = _exported(module, lambda: torch.export.export(module, (example,), dynamic_shapes=ANY_BATCH))
    torch.export.save(program, path)


def _write_onnx(run: RunFolder, weights: dict[str, Tensor], path: Path) -> None:
    module, example = trained_module(run, weights)
    program = _exported(
        module,
        lambda: torch.onnx.export(
            module,
            (example,),
            dynamic_shapes=ANY_BATCH,
            input_names=["samples"],
            output_names=["outputs"],
            verbose=False,
        ),
    )
    program.save(path, external_data=False)


def _exported(module: nn.Module, export: Callable[[], Any]) -> Any:
    """Call an exporter of torch for a module; any failure becomes a ModelError with one sentence."""
    try:
        with _without_remarks():
            return export()
    except HasflError:
        raise
    except Exception as error:  # an exporter runs the user's forward, which may raise anything
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ModelError(
            f"torch cannot export {type(module).__name__} for all batch sizes ({reason}): take its weights "
            "with --to state-dict"
        ) from error


@contextmanager
def _without_remarks() -> Iterator[None]:
    """Silence warnings and logs of torch's exporters about themselves, such as optional packages."""
    logger = logging.getLogger("torch.onnx")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(before)


# Tells torch's exporters that the first dimension of the input is the batch, which may have any size.
ANY_BATCH = ({0: torch.export.Dim("batch")},)
FORMATS = {
    "state-dict": (".pt", _write_state_dict),
    "onnx": (".onnx", _write_onnx),
    "torch-export": (".pt2", _write_torch_export),
}
