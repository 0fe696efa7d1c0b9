"""Spectral clustering of a graph: its Laplacian, the smallest eigenpairs, the eigengap, k-means."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from scipy.sparse import csr_array

Double = NDArray[np.float64]

DENSE: Final = 1500
"""Most nodes of a connected component whose eigenpairs are computed from the dense matrix, which
is exact and takes about a second."""
MOST: Final = 10
"""Largest number of clusters that the eigengap may choose."""
ZERO: Final = 1e-6
"""Eigenvalues up to this are zeros, one of each group of nodes that is cut off from the others."""
ITERATIONS: Final = 5000
"""Largest number of iterations for the eigenpairs of one component."""
STARTS: Final = 10
"""Number of starts of k-means."""


@dataclass(frozen=True, eq=False)
class Spectrum:
    eigenvalues: Double
    """The smallest eigenvalues of the normalised Laplacian, float64 (c,), ascending, 0 … 2. There
    are as many zeros as the graph has connected components."""
    vectors: Double
    """Eigenvectors of the random walk on the graph, float64 (n, c): D^−½ times the eigenvectors of
    the symmetric Laplacian (Shi and Malik, "Normalized cuts", 2000). Their rows are far apart for
    small clusters, so that k-means finds a group of 1 % of the nodes."""


def spectrum(affinity: csr_array, count: int) -> Spectrum:
    """Return the `count` smallest eigenpairs of the normalised Laplacian I − D^−½ A D^−½, where D
    holds the sums of A's rows; fewer if the graph has fewer nodes.

    Each connected component is solved alone: an iteration from one start vector cannot see an
    eigenvalue twice, and 0 is an eigenvalue of every component. The start vectors are fixed, so
    that the result is the same in every run.

    Args:
        affinity: symmetric (n, n), ≥ 0, with zeros on the diagonal; each row has a positive sum.
    """
    from scipy.linalg import eigh
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import connected_components, laplacian
    from scipy.sparse.linalg import ArpackNoConvergence, eigsh

    matrix = csr_array(laplacian(affinity, normed=True))
    size = matrix.shape[0]
    _, component = connected_components(matrix, directed=False)
    values: list[Double] = []
    vectors: list[Double] = []
    for number in range(component.max() + 1):
        nodes = np.flatnonzero(component == number)
        part = matrix[nodes][:, nodes]
        wanted = min(count, len(nodes))
        if len(nodes) <= DENSE:
            eigenvalues, inside = eigh(part.toarray(), subset_by_index=[0, wanted - 1])
        else:
            start = np.random.default_rng(0).uniform(0.5, 1, len(nodes))
            # The smallest eigenvalues of L are those of 2 I − L that lie at its outer end, where
            # the iteration converges without a factorisation.
            turned = -part
            turned.setdiag(turned.diagonal() + 2)
            try:
                eigenvalues, inside = eigsh(
                    turned,
                    wanted,
                    which="LA",
                    v0=start,
                    tol=1e-6,
                    ncv=4 * wanted,
                    maxiter=ITERATIONS,
                )
            except ArpackNoConvergence as error:  # fewer pairs divide the maps more coarsely
                eigenvalues, inside = error.eigenvalues, error.eigenvectors
            order = np.argsort(-eigenvalues)
            eigenvalues, inside = 2 - eigenvalues[order], inside[:, order]
            if not len(eigenvalues):  # the first pair is known
                roots = np.sqrt(affinity.sum(axis=1)[nodes])
                eigenvalues, inside = np.zeros(1), (roots / np.linalg.norm(roots))[:, None]
        whole = np.zeros((size, len(eigenvalues)))
        whole[nodes] = inside
        values.append(eigenvalues)
        vectors.append(whole)
    together = np.concatenate(values)
    order = np.argsort(together, kind="stable")[:count]
    degrees = affinity.sum(axis=1)
    scaled = np.concatenate(vectors, axis=1)[:, order] / np.sqrt(degrees)[:, None]
    return Spectrum(np.clip(together[order], 0, 2), scaled)


def eigengap(eigenvalues: Double) -> int:
    """Return the number of clusters k, 1 … `MOST`, at which λ_{k+1} − λ_k is largest, the smallest
    such k (von Luxburg 2007, section 8.3); 1 if there is only one eigenvalue. If more than `MOST`
    eigenvalues are zeros, it is their number: each is of a group that is cut off from the others,
    and differences between zeros are rounding errors."""
    zeros = int((eigenvalues <= ZERO).sum())
    if zeros > MOST:
        return min(zeros, max(len(eigenvalues) - 1, 1))
    gaps = np.diff(eigenvalues[: MOST + 1])
    return int(gaps.argmax()) + 1 if gaps.size else 1


def partition(vectors: Double, count: int, seed: int) -> NDArray[np.int64]:
    """Return the cluster of each node, int64 (n,), 0 … count − 1: k-means on the first `count`
    eigenvectors.

    Args:
        vectors: of a `Spectrum`, with at least `count` columns.
        count: at least 1. Some clusters remain empty if there are fewer different rows.
    """
    if count == 1:
        return np.zeros(len(vectors), np.int64)
    import warnings

    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # fewer different rows than clusters
        means = KMeans(count, n_init=STARTS, random_state=seed).fit(vectors[:, :count])
    return np.asarray(means.labels_, np.int64)


def conductances(affinity: csr_array, labels: NDArray[np.int64], count: int) -> Double:
    """Return each cluster's conductance, float64 (count,), 0 … 1: the share of the affinity of its
    members that leads to other clusters, NaN for an empty cluster. It is the cluster's term of the
    normalised cut."""
    from scipy.sparse import csr_array

    size = len(labels)
    member = csr_array((np.ones(size), (np.arange(size), labels)), shape=(size, count))
    between = (member.T @ affinity @ member).toarray()
    whole = between.sum(1)
    inside = np.diag(between)
    scores: Double = np.full(count, np.nan)
    np.divide(whole - inside, whole, out=scores, where=whole > 0)
    return scores
