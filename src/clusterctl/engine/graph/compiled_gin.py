"""Training steps of graph isomorphism networks on a CPU, in numpy and numba: `convolutions.Gin` and `PlainGin`.

A batch of small graphs has a few hundred rows, and in torch a step on them is mostly the time of its 800 calls. Here it
makes about 50, and the graphs are not even cut out of their collection. Loss and gradients are those of the networks up
to rounding, with the same dropout.
"""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from clusterctl.engine.graph.compiled import GOLDEN_BITS, compiled, compiled_sums, draw_words, mix
from clusterctl.engine.graph.convolutions import Gin
from clusterctl.engine.graph.hashing import Purpose, stream
from clusterctl.engine.graph.masks import kept_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from clusterctl.engine.graph.collection import Collection
    from clusterctl.engine.graph.convolutions import Distinct, PlainGin

    Numbers = NDArray[np.int64]
    Floats = NDArray[np.floating[Any]]
    Parameters = Sequence[Floats]  # of a linear map: weight, bias, and gain and offset of the norm behind it, if any

_U = np.uint64
_SPARSE = 1 / 4  # of the inputs: if more of them are not 0, a product of whole rows is faster
_EPSILON = 1e-5  # of torch.nn.LayerNorm


class GraphRows(NamedTuple):
    """Graphs of a collection as one disconnected graph, with a row for each node."""

    graphs: Numbers  # [graphs], numbers in the collection
    bounds: Numbers  # [graphs + 1], rows of each graph's nodes
    inputs: Numbers  # [distinct], rows of the table of inputs
    places: Numbers  # [nodes], the place of each node's input in `inputs`
    edges: int


class _Mapped(NamedTuple):
    """What a linear map got and gave, for its gradient."""

    given: Floats | None  # None: the inputs
    out: Floats
    factors: Floats | None = None  # of a norm, by row
    normed: Floats | None = None  # the rows after it, before its gain and offset


class _Layer(NamedTuple):
    maps: list[_Mapped]
    nodes: Floats  # the row of each node, after dropout
    read: Floats  # the readout of each graph


class CompiledGin:
    """`network` in training over graphs of `collection`, whose `first_sum` is `inputs`; on a CPU, all of one dtype."""

    def __init__(self, network: Gin | PlainGin, collection: Collection, inputs: Distinct) -> None:
        self._parameters, self._has_norms = list(network.parameters()), isinstance(network, Gin)
        self._depth, self._is_mean = len(network.layers), network.readout == "mean"
        self._lowest, self._scale = kept_of(network.dropout)
        self._bounds = collection.bounds.numpy()
        edges = ((collection.indptr, collection.indices), collection.outgoing)
        self._incoming, self._outgoing = ((indptr.numpy(), indices.numpy()) for indptr, indices in edges)
        self._inputs, self._of = inputs.rows.numpy(), inputs.of.numpy()
        of_row, columns = self._inputs.nonzero()
        self._sparse = None  # or as a CSR matrix, such as of the sums of one-hot degrees
        if columns.size <= _SPARSE * self._inputs.size:
            offsets = np.searchsorted(of_row, np.arange(len(self._inputs) + 1))
            self._sparse = offsets, columns, self._inputs[of_row, columns]
        self._place = np.full(len(self._inputs), -1)  # of each input, while graphs are cut

    def rows_of(self, graphs: Tensor) -> GraphRows:
        """The graphs with these int64 numbers. Not thread-safe."""
        numbers = graphs.numpy()
        return GraphRows(numbers, *_rows_of(numbers, self._bounds, self._incoming[0], self._of, self._place))

    def differentiated(
        self, rows: GraphRows, y: Tensor, weights: Tensor, total: int, randomness: tuple[int, ...]
    ) -> tuple[Tensor, Tensor]:
        """The part of these graphs in the mean cross-entropy of `total` graphs, and its gradients in one vector.

        `y` are their classes, int64 [graphs], and `weights` [graphs] 0 for padding; `randomness` keys dropout. The
        gradients are in the order of the network's parameters.
        """
        maps, scores = self._by_layer([parameter.detach().numpy() for parameter in self._parameters])
        with np.errstate(all="ignore"):  # numbers that are not finite are seen in the loss, as in torch
            given, layers = self._forward(rows, maps, scores, randomness)
            loss = _cross_entropy(given, y.numpy(), weights.numpy(), total)  # in place
            found = self._backward(rows, maps, scores, layers, given)
        gradients = np.concatenate([gradient.ravel() for gradient in found])
        return torch.tensor(loss, dtype=self._parameters[0].dtype), torch.from_numpy(gradients)

    def _by_layer(self, parameters: Parameters) -> tuple[list[list[Parameters]], list[Parameters]]:
        """Those of the linear maps of each layer, and of its scores; the network lists them in this order."""
        size, each = (4, 2) if self._has_norms else (2, 1)
        end = self._depth * each * size
        maps = [parameters[at : at + size] for at in range(0, end, size)]
        scores = [parameters[at : at + 2] for at in range(end, len(parameters), 2)]
        return [maps[at : at + each] for at in range(0, len(maps), each)], scores

    def _forward(
        self, rows: GraphRows, maps: list[list[Parameters]], scores: list[Parameters], randomness: tuple[int, ...]
    ) -> tuple[Floats, list[_Layer]]:
        """The scores [graphs, classes], and what the gradients need of each layer."""
        layers: list[_Layer] = []
        for depth, of_layer in enumerate(maps):
            given, done = None, []
            if depth:
                given = _sum_around(layers[-1].nodes, rows.graphs, rows.bounds, self._bounds, *self._incoming)
            for weight, bias, *norm in of_layer:
                product = self._first(rows, weight) if given is None else given @ weight.T
                if norm:
                    out, factors = _norm(product, bias, *norm)
                    done.append(_Mapped(given, out, factors, product))
                else:
                    done.append(_Mapped(given, _rectify(product, bias, self._is_rectified(depth))))
                given = done[-1].out
            nodes = done[-1].out if depth else done[-1].out[rows.places]
            if self._scale > 1:
                key = _U(stream(Purpose.DROPOUT, *randomness, depth) % (1 << 64))
                _drop(nodes, rows.graphs, self._bounds, key, self._lowest, nodes.dtype.type(self._scale))
            layers.append(_Layer(done, nodes, _read(nodes, rows.bounds, self._is_mean)))
        if not scores:
            return layers[-1].read, layers
        parts = (layer.read @ weight.T + bias for layer, (weight, bias) in zip(layers, scores, strict=True))
        return reduce(np.add, parts), layers

    def _backward(
        self,
        rows: GraphRows,
        maps: list[list[Parameters]],
        scores: list[Parameters],
        layers: list[_Layer],
        gradient: Floats,
    ) -> list[Floats]:
        """The gradients of all parameters, from that of the scores."""
        of_maps: list[Floats] = []  # the last one first
        of_nodes = np.zeros_like(layers[-1].nodes)
        for depth in reversed(range(self._depth)):
            done, nodes, _ = layers[depth]
            if scores or depth == self._depth - 1:
                of_read = gradient @ scores[depth][0] if scores else gradient
                _read_back(of_read, rows.bounds, self._is_mean, of_nodes)
            if self._scale > 1:
                _drop_back(nodes, of_nodes, nodes.dtype.type(self._scale))
            back = of_nodes if depth else _add_by_place(of_nodes, rows.places, rows.inputs.size)
            for (given, out, *normed), (weight, _, *norm) in zip(reversed(done), reversed(maps[depth]), strict=True):
                if norm:
                    of_maps += _norm_back(back, out, *normed, norm[0])
                else:
                    of_maps.append(_rectify_back(back, out, self._is_rectified(depth)))
                of_maps.append(self._first_back(rows, back) if given is None else back.T @ given)
                if given is not None:
                    back = back @ weight
            if depth:
                of_nodes = _sum_around(back, rows.graphs, rows.bounds, self._bounds, *self._outgoing)
        of_scores = [part for layer in layers if scores for part in (gradient.T @ layer.read, gradient.sum(0))]
        return [*reversed(of_maps), *of_scores]

    def _is_rectified(self, depth: int) -> bool:
        """Whether a layer without norms is: all but the last."""
        return depth < self._depth - 1

    def _first(self, rows: GraphRows, weight: Floats) -> Any:
        """The product of the inputs of these graphs with the first weights."""
        if self._sparse is None:
            return self._inputs[rows.inputs] @ weight.T
        return _sparse_product(rows.inputs, *self._sparse, weight.T.copy())

    def _first_back(self, rows: GraphRows, gradient: Floats) -> Any:
        if self._sparse is None:
            return gradient.T @ self._inputs[rows.inputs]
        return _sparse_product_back(rows.inputs, *self._sparse, gradient, self._inputs.shape[1]).T


# The loops. Those of a forward that return nothing, and those of a gradient, change the rows that they get.


@compiled
def _rows_of(graphs: Any, of_collection: Any, indptr: Any, of: Any, place: Any) -> Any:
    """All but the first field of `GraphRows`."""
    bounds, edges = np.zeros(graphs.size + 1, dtype=np.int64), 0
    for number in range(graphs.size):
        first, last = of_collection[graphs[number]], of_collection[graphs[number] + 1]
        bounds[number + 1] = bounds[number] + last - first
        edges += indptr[last] - indptr[first]
    inputs, places = np.empty(bounds[-1], dtype=np.int64), np.empty(bounds[-1], dtype=np.int64)
    found = row = 0
    for graph in graphs:
        for node in range(of_collection[graph], of_collection[graph + 1]):
            wanted = of[node]
            if place[wanted] < 0:
                place[wanted] = found
                inputs[found] = wanted
                found += 1
            places[row] = place[wanted]
            row += 1
    for wanted in inputs[:found]:
        place[wanted] = -1
    return bounds, inputs[:found].copy(), places, edges


@compiled_sums
def _sparse_product(inputs: Any, offsets: Any, columns: Any, numbers: Any, weights: Any) -> Any:
    """The rows `inputs` of a CSR matrix, times `weights` [columns, out]."""
    out = np.zeros((inputs.size, weights.shape[1]), dtype=weights.dtype)
    for row in range(inputs.size):
        for place in range(offsets[inputs[row]], offsets[inputs[row] + 1]):
            number, column = numbers[place], columns[place]
            for channel in range(out.shape[1]):
                out[row, channel] += number * weights[column, channel]
    return out


@compiled_sums
def _sparse_product_back(inputs: Any, offsets: Any, columns: Any, numbers: Any, gradient: Any, width: Any) -> Any:
    """The gradient of `weights` [columns, out]."""
    out = np.zeros((width, gradient.shape[1]), dtype=gradient.dtype)
    for row in range(inputs.size):
        for place in range(offsets[inputs[row]], offsets[inputs[row] + 1]):
            number, column = numbers[place], columns[place]
            for channel in range(out.shape[1]):
                out[column, channel] += number * gradient[row, channel]
    return out


@compiled_sums
def _sum_around(rows: Any, graphs: Any, bounds: Any, of_collection: Any, indptr: Any, indices: Any) -> Any:
    """Each node's row and those of its neighbours."""
    out = rows.copy()
    for number in range(graphs.size):
        first, last = of_collection[graphs[number]], of_collection[graphs[number] + 1]
        shift = bounds[number] - first
        for node in range(first, last):
            for edge in range(indptr[node], indptr[node + 1]):
                neighbor = indices[edge] + shift
                for channel in range(out.shape[1]):
                    out[node + shift, channel] += rows[neighbor, channel]
    return out


@compiled_sums
def _norm(rows: Any, bias: Any, gain: Any, offset: Any) -> Any:
    """Normalise the rows plus `bias`; returns the rectified outputs of the norm, and its factors."""
    kind, width = rows.dtype.type, rows.shape[1]
    factors, out = np.empty(len(rows), dtype=rows.dtype), np.empty_like(rows)
    for row in range(len(rows)):
        total, squares = kind(0), kind(0)
        for channel in range(width):
            rows[row, channel] += bias[channel]
            total += rows[row, channel]
        mean = total / kind(width)
        for channel in range(width):
            rows[row, channel] -= mean
            squares += rows[row, channel] * rows[row, channel]
        factor = kind(1) / np.sqrt(squares / kind(width) + kind(_EPSILON))
        for channel in range(width):
            rows[row, channel] *= factor
            value = rows[row, channel] * gain[channel] + offset[channel]
            out[row, channel] = kind(0) if value < 0 else value  # NaN stays, so that its loss is noticed
        factors[row] = factor
    return out, factors


@compiled_sums
def _norm_back(gradient: Any, out: Any, factors: Any, rows: Any, gain: Any) -> Any:
    """Make the gradient that of the product; returns those of `offset`, `gain` and `bias`."""
    kind, width = rows.dtype.type, rows.shape[1]
    of_offset, of_gain, of_bias = np.zeros_like(gain), np.zeros_like(gain), np.zeros_like(gain)
    for row in range(len(rows)):
        total, along = kind(0), kind(0)
        for channel in range(width):
            given = gradient[row, channel] if out[row, channel] > 0 else kind(0)
            of_offset[channel] += given
            of_gain[channel] += given * rows[row, channel]
            given *= gain[channel]
            total += given
            along += given * rows[row, channel]
            gradient[row, channel] = given
        mean, along = total / kind(width), along / kind(width)
        for channel in range(width):
            given = factors[row] * (gradient[row, channel] - mean - rows[row, channel] * along)
            of_bias[channel] += given
            gradient[row, channel] = given
    return of_offset, of_gain, of_bias


@compiled_sums
def _rectify(rows: Any, bias: Any, is_rectified: Any) -> Any:
    """Add `bias`, and set what is negative to 0."""
    zero = rows.dtype.type(0)
    for row in range(len(rows)):
        for channel in range(rows.shape[1]):
            value = rows[row, channel] + bias[channel]
            rows[row, channel] = zero if is_rectified and value < 0 else value
    return rows


@compiled_sums
def _rectify_back(gradient: Any, out: Any, is_rectified: Any) -> Any:
    """Make the gradient that of the product; returns that of the bias."""
    zero, of_bias = out.dtype.type(0), np.zeros(out.shape[1], dtype=out.dtype)
    for row in range(len(out)):
        for channel in range(out.shape[1]):
            if is_rectified and out[row, channel] <= 0:
                gradient[row, channel] = zero
            of_bias[channel] += gradient[row, channel]
    return of_bias


@compiled_sums
def _add_by_place(gradient: Any, places: Any, count: Any) -> Any:
    """The sum of the rows with the same place."""
    out = np.zeros((count, gradient.shape[1]), dtype=gradient.dtype)
    for row in range(len(gradient)):
        for channel in range(out.shape[1]):
            out[places[row], channel] += gradient[row, channel]
    return out


@compiled
def _drop(rows: Any, graphs: Any, of_collection: Any, key: Any, lowest: Any, scale: Any) -> None:
    """`masks.keyed_dropout` by node."""
    width, zero, row = rows.shape[1], rows.dtype.type(0), 0
    drawn = np.empty((width + 3) // 4, dtype=np.uint64)
    lanes = drawn.view(np.int16)
    for graph in graphs:
        for node in range(of_collection[graph], of_collection[graph + 1]):
            draw_words(mix(_U(node) * GOLDEN_BITS + key), drawn)
            for channel in range(width):
                rows[row, channel] = rows[row, channel] * scale if lanes[channel] >= lowest else zero
            row += 1


@compiled_sums
def _drop_back(rows: Any, gradient: Any, scale: Any) -> None:
    """Of rows that are not negative: where they are 0, the gradient does not matter before the rectifier."""
    zero = rows.dtype.type(0)
    for row in range(len(rows)):
        for channel in range(rows.shape[1]):
            gradient[row, channel] = gradient[row, channel] * scale if rows[row, channel] > 0 else zero


@compiled_sums
def _read(rows: Any, bounds: Any, is_mean: Any) -> Any:
    """The sum or mean of each graph's rows."""
    kind, out = rows.dtype.type, np.zeros((bounds.size - 1, rows.shape[1]), dtype=rows.dtype)
    for graph in range(len(out)):
        for row in range(bounds[graph], bounds[graph + 1]):
            for channel in range(out.shape[1]):
                out[graph, channel] += rows[row, channel]
        if is_mean:
            part = kind(1) / kind(max(1, bounds[graph + 1] - bounds[graph]))
            for channel in range(out.shape[1]):
                out[graph, channel] *= part
    return out


@compiled_sums
def _read_back(gradient: Any, bounds: Any, is_mean: Any, of_rows: Any) -> None:
    """Add the gradient of each graph to those of its rows."""
    kind = gradient.dtype.type
    for graph in range(len(gradient)):
        part = kind(1) / kind(max(1, bounds[graph + 1] - bounds[graph])) if is_mean else kind(1)
        for row in range(bounds[graph], bounds[graph + 1]):
            for channel in range(of_rows.shape[1]):
                of_rows[row, channel] += gradient[graph, channel] * part


@compiled_sums
def _cross_entropy(scores: Any, y: Any, weights: Any, total: Any) -> Any:
    """The sum over the graphs, divided by `total`. The scores become its gradient."""
    kind, loss = scores.dtype.type, scores.dtype.type(0)
    for graph in range(len(scores)):
        highest, whole, right = scores[graph].max(), kind(0), y[graph]
        share = kind(weights[graph]) / kind(total)
        loss += share * (highest - scores[graph, right])
        for label in range(scores.shape[1]):
            scores[graph, label] = np.exp(scores[graph, label] - highest)
            whole += scores[graph, label]
        loss += share * np.log(whole)
        for label in range(scores.shape[1]):
            scores[graph, label] *= share / whole
        scores[graph, right] -= share
    return loss
