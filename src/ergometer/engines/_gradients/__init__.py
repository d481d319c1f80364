"""A whole training step as one graph, for engines that cannot differentiate: forward, backward, update.

The graph that comes out has the operations of the canonical one, less batch_norm, layer_norm, conv_transpose, pick
and cross_entropy, which are taken apart, and convolutions have one group, or one per channel. To them it adds:

| op | inputs | attributes |
| --- | --- | --- |
| conv_input | dy, weight | those of conv: the gradient of its input |
| conv_weight | x, dy | those of conv: the gradient of its weight |
| max_pool_input | x, y, dy | those of max_pool; where several are the maximum, the first takes all |
| avg_pool_input | dy | those of avg_pool |
| where_positive | x, dy | dy where x > 0, elsewhere 0 |
| where_equal | a, b, dy | dy where a == b, elsewhere 0 |
| expand | x | to the shape of the output |
| one_hot | indices (n) | the output is (n, c) |
| scatter_rows | indices, dy | the rows of dy added to those of a table of zeros |
| normal_cdf | x | |
"""

from typing import Any

from ergometer.core.graph import Graph
from ergometer.engines._gradients.backward import Step
from ergometer.engines._gradients.forward import Forward, Plain


def training_graph(graph: Graph) -> tuple[Graph, dict[str, Any]]:
    """The step and its new constants. Every parameter, velocity and buffer is a buffer of it, with its update."""
    plain, numbers = Plain(graph).write()
    step, more = Step(plain).write()
    return step, numbers | more


def inference_graph(graph: Graph) -> tuple[Graph, dict[str, Any]]:
    """The forward pass alone, in the same operations."""
    plain, numbers = Plain(graph).write()
    forward, more = Forward(plain).write()
    return forward, numbers | more
