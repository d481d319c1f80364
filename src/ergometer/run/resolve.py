"""From the name of a model to the model: one of the suite, or a function in the user's own file."""

import hashlib
import importlib.util
import inspect
import sys
import traceback
from pathlib import Path
from typing import Any

from ergometer.core import registry
from ergometer.core.errors import UsageError
from ergometer.core.model import Model
from ergometer.core.spec import Spec


def is_file(name: str) -> bool:
    return ".py:" in name or name.endswith(".py")


def check(name: str, shape: tuple[int, ...] | None, classes: int | None) -> dict[str, str]:
    """Refuse a model that cannot work, before anything runs; options that identify the user's file."""
    if not is_file(name):
        registry.load("models", name)
        return {}
    path_text, _, function = name.partition(".py:")
    path = Path(path_text.removesuffix(".py") + ".py")
    if not function:
        raise UsageError(f"{name} names no function: write {path}:build, where build() returns the torch module.")
    try:
        source = path.read_bytes()
        compile(source, str(path), "exec")
    except OSError as error:
        raise UsageError(f"{path} cannot be read ({(error.strerror or '').lower()}): check the path.") from error
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None)
        raise UsageError(f"{path} is not valid Python: {error.args[0]} (line {line}).") from error
    if shape is None or classes is None:
        raise UsageError(f"{name} needs --input (such as 3x224x224) and --classes (such as 10).")
    return {"source": hashlib.sha256(source).hexdigest()[:12]}


def resolve(spec: Spec) -> Model:
    """The model of a spec. Executes the user's file, so only a worker calls it."""
    if not is_file(spec.model):
        model: Model = registry.load("models", spec.model)
        return model
    path_text, _, function = spec.model.partition(".py:")
    path = Path(path_text + ".py").resolve()
    builder = getattr(_import(path), function, None)
    if hasattr(builder, "named_parameters") and not isinstance(builder, type):
        built = builder
        builder = lambda: built  # noqa: E731 - a module that is there already
    if not callable(builder):
        raise UsageError(f"{path.name} has no function {function!r}: write one that returns the torch module.")
    assert spec.input is not None and spec.classes is not None
    return Model(
        name=spec.model,
        title=spec.model,
        task="classification",
        input=spec.input,
        classes=spec.classes,
        build=lambda classes: _call(builder, classes, spec.model, path),
    )


def _import(path: Path) -> Any:
    module_spec = importlib.util.spec_from_file_location(path.stem, path)
    assert module_spec is not None and module_spec.loader is not None
    module = importlib.util.module_from_spec(module_spec)
    sys.path.insert(0, str(path.parent))
    sys.modules[path.stem] = module
    try:
        module_spec.loader.exec_module(module)
    except Exception as error:
        raise UsageError(f"{path.name} does not import: {described(error, path)}.") from error
    return module


def _call(builder: Any, classes: int, name: str, path: Path) -> Any:
    try:
        takes = inspect.signature(builder).parameters
        keyword = next((word for word in ("classes", "num_classes") if word in takes), None)
        return builder(**{keyword: classes}) if keyword else builder()
    except Exception as error:
        raise UsageError(f"{name} failed: {described(error, path)}.") from error


def described(error: BaseException, path: Path) -> str:
    """The error and the last line of the user's file on its way."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    first = (str(error).strip().splitlines() or [""])[0]
    if "attempted relative import" in first:
        first += " (write `from sibling import x`: the file's own folder is on the path)"
    where = f" (line {lines[-1]})" if lines else ""
    return f"{type(error).__name__}: {first}{where}"
