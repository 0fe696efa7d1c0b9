"""The graph, its Laplacian and its clusters, by hand and beside scikit-learn."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.sparse import csr_array
from sklearn.cluster import SpectralClustering
from sklearn.metrics import adjusted_rand_score

from cam.clusters import spectral
from cam.clusters.graph import affinity, distributions, neighbour_count
from cam.clusters.spectral import conductances, eigengap, partition, spectrum
from cam.drawing.placement import Float

# Nodes 0 and 1 joined by 2, nodes 1 and 2 by 1. The degrees are 2, 3 and 1.
PATH = csr_array(np.array([[0.0, 2, 0], [2, 0, 1], [0, 1, 0]]))


def test_distributions_are_of_the_square() -> None:
    """1 and 2 become 1 and 4, of 5."""
    found = distributions(np.array([[[0, 1], [2, 0]]], np.float32))
    np.testing.assert_allclose(found, [[0, 0.2, 0.8, 0]], atol=1e-7)


@pytest.mark.parametrize(
    ("count", "expected"), [(2, 1), (3, 2), (8, 3), (1000, 7), (1097, 8), (10_000, 10)]
)
def test_number_of_neighbours(count: int, expected: int) -> None:
    assert neighbour_count(count) == expected


def test_affinity_by_hand() -> None:
    """Points on a line, whose shares are x and 1 − x: the total variation is the difference of x.

    Nearest: 0 → 1 at 0.1, 1 → 0 at 0.1, 2 → 1 at 0.3; so the scales are 0.1, 0.1 and 0.3. a_01 =
    a_10 = exp(−1), and a_21 = exp(−0.09 / 0.03) = exp(−3), one way only: half of it remains.
    """
    x = np.array([0.1, 0.2, 0.5], np.float32)
    found = affinity(np.stack([x, 1 - x], 1), 1).toarray()
    half = math.exp(-3) / 2
    expected = [[0, math.exp(-1), 0], [math.exp(-1), 0, half], [0, half, 0]]
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_equal_points_are_no_neighbours_of_themselves() -> None:
    found = affinity(np.tile(np.array([[0.25, 0.75]], np.float32), (9, 1)), 3).toarray()
    assert not found.diagonal().any()
    assert (found.sum(1) > 0).all()
    assert found.max() == 1


def test_eigenpairs_by_hand() -> None:
    """L has −2 / √(2 · 3) and −1 / √(3 · 1) beside the diagonal of ones.

    det(L − λ) = (1 − λ)³ − (1 − λ)(4/6 + 1/3), so λ is 0, 1 and 2. The first vector of the
    random walk is constant: 1 / √6 with the degrees' sum 6. The second vanishes at the middle."""
    found = spectrum(PATH, 3)
    np.testing.assert_allclose(found.eigenvalues, [0, 1, 2], atol=1e-12)
    np.testing.assert_allclose(np.abs(found.vectors[:, 0]), 1 / math.sqrt(6), atol=1e-12)
    np.testing.assert_allclose(found.vectors[1, 1], 0, atol=1e-12)
    assert len(spectrum(PATH, 2).eigenvalues) == 2
    assert len(spectrum(PATH, 9).eigenvalues) == 3


@pytest.mark.parametrize(
    ("eigenvalues", "expected"),
    [
        ([0, 0, 0.5, 0.6], 2),
        ([0, 0.5, 0.6, 0.7], 1),
        ([0, 0.25, 0.5, 1], 3),
        ([0, 0.25, 0.5], 1),  # of equal gaps the first
        ([0], 1),
        ([0.0] * 11 + [1.0], 11),  # eleven groups that are cut off
        ([1e-9 * each for each in range(20)] + [0.3, 0.9], 20),  # rounding errors are not gaps
        ([0.0] * 33, 32),  # there may be more of them
        ([0, 0.1, *(0.11 + each / 100 for each in range(11)), 0.9], 1),  # the gap is too far off
        ([0.0] * 10 + [1.0], 10),
    ],
)
def test_eigengap(eigenvalues: list[float], expected: int) -> None:
    assert eigengap(np.array(eigenvalues)) == expected


def test_conductances_by_hand() -> None:
    """Of {0, 1} one of five leaves, of {2} everything; a third cluster is empty."""
    found = conductances(PATH, np.array([0, 0, 1]), 3)
    np.testing.assert_allclose(found, [1 / 5, 1, np.nan])


def groups(sizes: tuple[int, ...], seed: int) -> tuple[Float, np.ndarray[tuple[int], np.dtype]]:
    """Return distributions around as many centres, and which is around which."""
    random = np.random.default_rng(seed)
    centres = random.dirichlet(np.full(9, 0.3), len(sizes))
    truth = np.repeat(np.arange(len(sizes)), sizes)
    points = centres[truth] + random.uniform(0, 0.02, (len(truth), 9))
    return (points / points.sum(1, keepdims=True)).astype(np.float32), truth


@pytest.mark.parametrize("seed", range(3))
def test_as_scikit_learn_clusters_the_same_affinity(seed: int) -> None:
    points, truth = groups((60, 40, 12), seed)
    graph = affinity(points, 20)
    found = partition(spectrum(graph, 4).vectors, 3, seed=0)
    theirs = SpectralClustering(3, affinity="precomputed", random_state=0).fit(
        graph.toarray() + 1e-9  # one component, as theirs wants
    )
    assert adjusted_rand_score(found, theirs.labels_) == 1
    assert adjusted_rand_score(found, truth) == 1


def test_the_iteration_finds_what_the_dense_matrix_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also eigenvalues that occur twice: two copies of one graph."""
    points, _ = groups((300,), 0)
    half = affinity(points, 6).toarray()
    zeros = np.zeros_like(half)
    graph = csr_array(np.block([[half, zeros], [zeros, half]]))
    dense = spectrum(graph, 8)
    monkeypatch.setattr(spectral, "DENSE", 10)
    found = spectrum(graph, 8)
    np.testing.assert_allclose(found.eigenvalues, dense.eigenvalues, atol=1e-6)
    np.testing.assert_allclose(found.eigenvalues[::2], found.eigenvalues[1::2], atol=1e-6)
    assert found.eigenvalues[1] < 1e-9
    random_walk = np.diag(1 / graph.sum(axis=1)) @ graph.toarray()
    moved = random_walk @ found.vectors
    np.testing.assert_allclose(moved, found.vectors * (1 - found.eigenvalues), atol=1e-5)
    again = spectrum(graph, 8)
    assert again.vectors.tobytes() == found.vectors.tobytes()


def test_an_iteration_that_does_not_converge_finds_less(monkeypatch: pytest.MonkeyPatch) -> None:
    points, _ = groups((60, 60), 0)
    graph = affinity(points, 6)
    monkeypatch.setattr(spectral, "DENSE", 10)
    monkeypatch.setattr(spectral, "ITERATIONS", 1)
    found = spectrum(graph, 12)
    assert 1 <= len(found.eigenvalues) <= 12
    assert found.vectors.shape == (120, len(found.eigenvalues))
    assert np.isfinite(found.vectors).all()
    assert found.eigenvalues[0] < 1e-6


def test_copies_and_another_map_have_finite_vectors() -> None:
    """All of the other map's neighbours are copies, whose own neighbours are at no distance."""
    copies = np.tile(np.array([[1.0, 0, 0]], np.float32), (40, 1))
    graph = affinity(np.concatenate([copies, [[0, 0, 1]]]).astype(np.float32), 4)
    assert (graph.sum(axis=1) > 0).all()
    assert np.isfinite(spectrum(graph, 8).vectors).all()


def test_a_copy_that_differs_by_less_than_a_hundredth_is_a_copy() -> None:
    copies = np.tile(np.array([[0.6, 0.4]], np.float32), (40, 1))
    graph = affinity(np.concatenate([copies, [[0.603, 0.397]]]).astype(np.float32), 4).toarray()
    assert graph[-1].max() > 0.4  # exp(−0.003² / 0.01²), one way


def test_fewer_different_rows_than_clusters() -> None:
    vectors = np.repeat([[0.0, 1, 0], [1, 0, 0]], 5, axis=0)
    assert adjusted_rand_score(partition(vectors, 3, 0), [0] * 5 + [1] * 5) == 1
    assert partition(vectors, 1, 0).tolist() == [0] * 10
