"""From the name of a model to the model: one of the suite, or the user's own file."""

import hashlib
import importlib.util
import inspect
import sys
import traceback
from dataclasses import replace
from pathlib import Path
from typing import Any

from ergometer.core import registry
from ergometer.core.errors import UsageError
from ergometer.core.model import Model
from ergometer.core.spec import Spec
from ergometer.store.bundle import is_bundle, manifest_of, model_in
from ergometer.store.bundle_file import unpack

_ARCHIVES = (".onnx", ".pt2")


def is_file(name: str) -> bool:
    return ".py:" in name or name.endswith((".py", *_ARCHIVES)) or is_bundle(name)


def check(
    name: str, shape: tuple[int, ...] | None, classes: int | None, *, inference_only: bool = False
) -> dict[str, str]:
    """Refuse a model that cannot work, before anything runs; options that identify the user's file."""
    if not is_file(name):
        of_suite(name, shape, classes)
        return {}
    if is_bundle(name):
        return _check_bundle(name, shape, classes)
    path_text, _, function = name.partition(".py:")
    path = Path(name if name.endswith(_ARCHIVES) else path_text.removesuffix(".py") + ".py")
    if path.suffix == ".py" and not function:
        raise UsageError(f"{name} names no function: write {path}:build, where build() returns the torch module.")
    try:
        if path.suffix == ".py":
            compile(path.read_bytes(), str(path), "exec")
        with open(path, "rb") as file:
            source = hashlib.file_digest(file, "sha256").hexdigest()[:12]
    except OSError as error:
        raise UsageError(f"{path} cannot be read ({(error.strerror or '').lower()}): check the path.") from error
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None)
        raise UsageError(f"{path} is not valid Python: {error.args[0]} (line {line}).") from error
    if shape is None or (classes is None and not inference_only):
        raise UsageError(f"{name} needs --input (such as 3x224x224) and, to train, --classes (such as 10).")
    return {"source": source}


def _check_bundle(name: str, shape: tuple[int, ...] | None, classes: int | None) -> dict[str, str]:
    if shape is not None or classes is not None:
        raise UsageError(f"{name} holds one network of one size: leave out --input and --classes.")
    directory = unpack(Path(name))
    manifest_of(directory)
    return {"source": directory.name[:12]}


def of_suite(name: str, shape: tuple[int, ...] | None, classes: int | None) -> Model:
    """A network of the suite with its options (`conv_only:width=256,depth=4`), input and classes."""
    base, _, text = name.partition(":")
    model: Model = registry.load("models", base)
    return model.settle(shape, classes, model.parse_options(text))


def resolve(spec: Spec) -> Model:
    """The model of a spec. Executes the user's file, so only a worker calls it."""
    if not is_file(spec.model):
        return of_suite(spec.model, spec.input, spec.classes)
    if is_bundle(spec.model):
        return replace(model_in(unpack(Path(spec.model))), name=spec.model)
    assert spec.input is not None
    classes = spec.classes or 2  # without labels to draw, in inference, it does not matter
    own = Model(
        name=spec.model, title=spec.model, task="your own", input=spec.input, classes=classes, build=_no_builder
    )
    if spec.model.endswith(_ARCHIVES):
        return replace(own, file=Path(spec.model).resolve())
    path_text, _, function = spec.model.partition(".py:")
    path = Path(path_text + ".py").resolve()
    builder = getattr(_import(path), function, None)
    if hasattr(builder, "named_parameters") and not isinstance(builder, type):
        built = builder
        builder = lambda: built  # noqa: E731 - a module that is there already
    if not callable(builder):
        raise UsageError(f"{path.name} has no function {function!r}: write one that returns the torch module.")
    return replace(own, build=lambda input, classes: _call(builder, classes, spec.model, path))


def _no_builder(*_: Any) -> Any:
    raise UsageError("a model that is a file is opened by the engine, which cannot open this one.")


def _import(path: Path) -> Any:
    name = f"_own_{path.stem}"  # a file called torch.py must not become torch
    module_spec = importlib.util.spec_from_file_location(name, path)
    assert module_spec is not None and module_spec.loader is not None
    module = importlib.util.module_from_spec(module_spec)
    sys.path.append(str(path.parent))
    sys.modules[name] = module
    try:
        module_spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise UsageError(f"{path.name} does not import: {described(error, path)}.") from error
    return module


def _call(builder: Any, classes: int, name: str, path: Path) -> Any:
    try:
        takes = inspect.signature(builder).parameters
        keyword = next((word for word in ("classes", "num_classes") if word in takes), None)
        return builder(**{keyword: classes}) if keyword else builder()
    except (Exception, SystemExit) as error:
        raise UsageError(f"{name} failed: {described(error, path)}.") from error


def _is_users(file: Path, path: Path) -> bool:
    """Whether a file lies beside the user's, and is neither ours nor installed."""
    ours = (Path(sys.prefix), Path(__file__).parents[1])
    return file.is_relative_to(path.parent) and not any(file.is_relative_to(folder) for folder in ours)


def described(error: BaseException, path: Path) -> str:
    """The error and the lines of the user's own files on its way, ours and the framework's left out."""
    frames = [
        f"{Path(frame.filename).name} line {frame.lineno} in {frame.name}: {frame.line}"
        for frame in traceback.extract_tb(error.__traceback__)
        if _is_users(Path(frame.filename), path)
    ]
    first = (str(error).strip().splitlines() or [""])[0]
    if "attempted relative import" in first:
        first += " (write `from sibling import x`: the file's own folder is on the path)"
    where = f" ({'; '.join(frames)})" if frames else ""
    return f"{type(error).__name__}: {first}{where}"
