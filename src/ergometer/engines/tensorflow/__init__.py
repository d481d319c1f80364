"""TensorFlow: the graph interpreted once, into one tf.function for the whole step.

Its CPU kernels take images with their channels last, so images and kernels are kept so inside.
"""

import tempfile
from pathlib import Path
from typing import Any

from ergometer.core.errors import UnavailableError
from ergometer.core.graph import Graph, Lowered
from ergometer.core.span import Span
from ergometer.engines._portable import Portable, installed
from ergometer.engines.tensorflow._interpret import is_depthwise
from ergometer.engines.tensorflow._load import tensorflow
from ergometer.engines.tensorflow._session import Session
from ergometer.engines.tensorflow._trace import MARK, events_of, spans_in


class TensorFlow(Portable):
    name = "tensorflow"
    title = "TensorFlow, one tf.function"
    extra = "tensorflow"
    package = "tensorflow"
    distribution = "tensorflow"
    oldest = (2, 19)
    untraced = ""

    def __init__(self) -> None:
        super().__init__()
        if not installed(self.distribution) and installed("tensorflow-cpu"):
            self.distribution = "tensorflow-cpu"

    def bring(self) -> None:
        tensorflow()

    def build(self, graph: Graph, arrays: dict[str, Any], folder: Path) -> None:
        """The graph is all that it needs: only what TensorFlow cannot do is found out here."""
        for node in graph.nodes:
            if node.op == "conv" and is_depthwise(graph, node):
                stride, dilation = node.attributes["stride"], node.attributes["dilation"]
                if stride[0] != stride[1] or (max(stride) > 1 and max(dilation) > 1):
                    raise UnavailableError(
                        f"tensorflow has no depthwise convolution with two strides, or with stride and dilation "
                        f"(layer {node.layer!r})."
                    )

    def open(self, lowered: Lowered, device: str, threads: int) -> Session:
        tf = tensorflow()
        tf.config.threading.set_intra_op_parallelism_threads(threads)
        tf.config.threading.set_inter_op_parallelism_threads(1)  # it would come on top of the others
        tf.config.set_visible_devices([], "GPU")
        return Session(lowered)

    def ops(self, steps: int) -> list[Span]:
        tf, session = tensorflow(), self.session
        assert isinstance(session, Session)
        self.step()  # it is compiled before it is traced
        done = []
        with tempfile.TemporaryDirectory() as folder:
            tf.profiler.experimental.start(folder)
            for _ in range(steps):
                with tf.profiler.experimental.Trace(MARK):
                    done.append(self.step())
            tf.profiler.experimental.stop()
            (path,) = Path(folder).rglob("*.xplane.pb")
            return spans_in(session.graph, done, events_of(path.read_bytes()))


ENGINE = TensorFlow
