"""Hold an ensemble of trees as plain arrays: it scores rows by NumPy alone, and is kept in a file that cannot run code.

All nodes of all trees lie one after the other. A row goes left at a node where x[feature] ≤ threshold, right where it
is larger, and by `missing_left` where x[feature] is missing; at a leaf it takes the node's value. What it took from
tree t is added to the output `outputs[t]`:

    scores[i, k] = baseline[k] + Σ_{t: outputs[t] = k} value[leaf of row i in tree t]
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from labeldp.releases import BoolArray, FloatArray

if TYPE_CHECKING:
    from sklearn.ensemble import HistGradientBoostingClassifier

Int32Array = npt.NDArray[np.int32]
# Pairs of a row and a tree that walk down together: few enough for a processor's cache.
_PAIRS = 1 << 18
_TYPES = {"feature": np.int32, "left": np.int32, "right": np.int32, "roots": np.int32, "outputs": np.int32}
_TYPES |= {"threshold": np.float64, "value": np.float64, "baseline": np.float64, "missing_left": np.bool_}


@dataclass(frozen=True, eq=False)
class Forest:
    """An ensemble of trees ready for use; a child comes after its parent, so that every walk ends.

    Args:
        feature, threshold: what a node asks, (nodes,); of no meaning at leaves.
        missing_left: whether a missing number goes left, (nodes,).
        left, right: children, (nodes,); −1 at leaves.
        value: what a leaf adds, (nodes,).
        roots: first node of each tree, (trees,).
        outputs: which output each tree adds to, (trees,).
        baseline: where each output starts, (K,).

    >>> stump = Forest(
    ...     feature=np.array([0, 0, 0]), threshold=np.array([0.5, 0.0, 0.0]), missing_left=np.zeros(3, dtype=bool),
    ...     left=np.array([1, -1, -1]), right=np.array([2, -1, -1]), value=np.array([0.0, -1.0, 1.0]),
    ...     roots=np.array([0]), outputs=np.array([0]), baseline=np.array([0.25]),
    ... )
    >>> stump.scores(np.array([[0.5], [0.6], [np.nan]])).ravel()
    array([-0.75,  1.25,  1.25])
    """

    feature: Int32Array
    threshold: FloatArray
    missing_left: BoolArray
    left: Int32Array
    right: Int32Array
    value: FloatArray
    roots: Int32Array
    outputs: Int32Array
    baseline: FloatArray

    def __post_init__(self) -> None:
        for name, kind in _TYPES.items():
            object.__setattr__(self, name, np.ascontiguousarray(getattr(self, name), dtype=kind))
        nodes = np.arange(len(self.value))
        inner, children = self.left >= 0, np.stack([self.left, self.right])
        sizes = {len(array) for array in (self.feature, self.threshold, self.missing_left, self.left, self.right)}
        sound = (
            sizes == {len(nodes)}
            and len(self.roots) == len(self.outputs)
            and ((children > nodes) & (children < len(nodes)))[:, inner].all()
            and (self.feature[inner] >= 0).all()
            and ((self.roots >= 0) & (self.roots < len(nodes))).all()
            and ((self.outputs >= 0) & (self.outputs < len(self.baseline))).all()
        )
        if not sound:
            raise ValueError(
                "the arrays make no forest: lengths differ, a child does not come after its parent, or a root, an "
                "output or a feature is out of range; give those of Forest.arrays"
            )

    @property
    def num_outputs(self) -> int:
        """Return the number of outputs K."""
        return len(self.baseline)

    def scores(self, rows: npt.ArrayLike) -> FloatArray:
        """Return baseline plus the sum of the trees, (n, K), of rows (n, features) in which NaN is missing."""
        table = np.asarray(rows, dtype=np.float64)
        needed = int(self.feature[self.left >= 0].max(initial=-1)) + 1
        if table.ndim != 2 or table.shape[1] < needed:
            raise ValueError(f"rows have shape {table.shape}; give (n, features) with at least {needed} features")
        found = np.empty((len(table), self.num_outputs))
        at_once = max(1, _PAIRS // max(1, len(self.roots)))
        adds_to = np.equal(self.outputs[:, None], np.arange(self.num_outputs)).astype(np.float64)
        for start in range(0, len(table), at_once):
            part = table[start : start + at_once]
            found[start : start + at_once] = self.value[self._leaves(part)] @ adds_to + self.baseline
        return found

    def _leaves(self, table: FloatArray) -> npt.NDArray[np.int32]:
        """Return the leaf of every row in every tree, (n, trees): all pairs go down a level at a time."""
        node = np.tile(self.roots, len(table))
        walking = np.flatnonzero(self.left[node] >= 0)
        while len(walking):
            here = node[walking]
            asked = table[walking // len(self.roots), self.feature[here]]
            goes_left = np.where(np.isnan(asked), self.missing_left[here], asked <= self.threshold[here])
            there = np.where(goes_left, self.left[here], self.right[here])
            node[walking] = there
            walking = walking[self.left[there] >= 0]
        return node.reshape(len(table), len(self.roots))

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return all that it is, by name, in types that safetensors has."""
        return {one.name: getattr(self, one.name) for one in fields(self)}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, npt.NDArray[Any]]) -> Forest:
        """Return the forest of these arrays; raise ValueError where they make none."""
        missing = sorted(_TYPES.keys() - arrays.keys())
        if missing:
            raise ValueError(f"the arrays {missing} of a forest are missing; give those of Forest.arrays")
        return cls(**{name: arrays[name] for name in _TYPES})

    @classmethod
    def from_boosting(cls, fitted: HistGradientBoostingClassifier) -> Forest:
        """Return the trees of a fitted booster: its `decision_function`, with one output for two classes, K for more.

        Boosters that split on categories as such are refused: give them numbers, or one column per category.
        """
        stages: Any = getattr(fitted, "_predictors", None)
        if stages is None:
            raise ValueError("the booster is not fitted; call fit first")
        if getattr(fitted, "is_categorical_", None) is not None:
            raise ValueError("the booster splits on categories; fit it with categorical_features=None")
        trees = [(tree.nodes, output) for stage in stages for output, tree in enumerate(stage)]
        starts = np.cumsum([0, *(len(nodes) for nodes, _ in trees)])[:-1]
        nodes = np.concatenate([nodes for nodes, _ in trees])
        leaf, shift = nodes["is_leaf"].astype(bool), np.repeat(starts, [len(nodes) for nodes, _ in trees])
        left, right = (np.where(leaf, -1, nodes[side].astype(np.int64) + shift) for side in ("left", "right"))
        return cls(
            nodes["feature_idx"], nodes["num_threshold"], nodes["missing_go_to_left"], left, right, nodes["value"],
            starts, np.array([output for _, output in trees]), np.ravel(fitted._baseline_prediction),
        )  # fmt: skip
