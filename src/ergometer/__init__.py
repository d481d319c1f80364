"""Ergometer measures the work that training a neural network costs on this device."""

TYPE_CHECKING = False  # what type checkers take for typing's; importing typing would double the start-up
if TYPE_CHECKING:
    from ergometer.core.errors import ErgoError
    from ergometer.core.record import Metric, Record
    from ergometer.core.spec import Spec
    from ergometer.run.measure import measure
    from ergometer.store.database import Store

__version__ = "0.1.0"
__all__ = ["ErgoError", "Metric", "Record", "Spec", "Store", "__version__", "measure"]

_HOME = {
    "ErgoError": "ergometer.core.errors",
    "Metric": "ergometer.core.record",
    "Record": "ergometer.core.record",
    "Spec": "ergometer.core.spec",
    "Store": "ergometer.store.database",
    "measure": "ergometer.run.measure",
}


def __getattr__(name: str) -> object:
    """Import a public name on first use, so that `ergo --help` loads nothing it does not need."""
    if name not in _HOME:
        raise AttributeError(f"module 'ergometer' has no attribute {name!r}")
    from importlib import import_module

    found: object = getattr(import_module(_HOME[name]), name)
    return found
