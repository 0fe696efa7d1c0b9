"""Find the clusters of one class's maps, the suspect ones first."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from cam.clusters.appearance import (
    MEMBERS,
    OTHERS,
    Appearance,
    Photos,
    Thumbnails,
    alike,
    appearance,
    hot_place,
)
from cam.clusters.embedding import embed
from cam.clusters.graph import affinity, distributions, neighbour_count
from cam.clusters.grid import Gridded, on_one_grid
from cam.clusters.spectral import conductances, eigengap, partition, spectrum
from cam.clusters.suspects import (
    LEAST_MEMBERS,
    LEAST_USES,
    MOST_USES,
    SENTENCES,
    Evidence,
    Reason,
    border_shares,
    foreign_heat,
    unsteadiness,
)
from cam.clusters.use import Uses
from cam.counts import counted
from cam.drawing.placement import Float
from cam.errors import InvalidImages, InvalidOption

if TYPE_CHECKING:
    from scipy.sparse import csr_array

Numbers = NDArray[np.int64]

FEWEST: Final = 30
"""Least number of maps that are split into clusters."""
COUNTS: Final = (4, 8, 16, 32)
"""Numbers of clusters at which suspects are looked for, beside the eigengap's."""
LEAST_MEAN: Final = 15
"""Least mean number of members at these numbers of clusters."""
PROTOTYPES: Final = 6
STEP: Final = 0.05
"""Conductances that differ by less count as equal: a graph of few neighbours may fall apart within
a group."""
LEAST_PHOTOS: Final = 8
"""Least number of photos of a cluster, and of others, that are compared: fewer prove nothing."""
MOST_COMPARED: Final = 512
"""Largest number of members whose photos are all read, to leave out those that lack the thing."""


@dataclass(frozen=True, eq=False)
class Cluster:
    members: Numbers
    """Positions of its maps among all maps, int64, ascending."""
    mean: Float
    """Mean of its maps, float32 (h, w), 0 … 1."""
    prototypes: Numbers
    """The members nearest to the centre, the nearest first, at most `PROTOTYPES`."""
    tightness: float
    """Mean share of a member's heat that lies as in the cluster's mean distribution, 0 … 1."""
    place: tuple[float, float]
    """Centre of the mean map's heat, (x, y) as shares of the width and height, 0 … 1."""
    border: float
    """Mean share of the heat near the border, 0 … 1; 0.36 for an even map."""
    evidence: Evidence

    @property
    def suspect(self) -> bool:
        return self.evidence.suspect

    @property
    def suspicion(self) -> float:
        """0 … 1; above 0.5 if the cluster is suspect."""
        return self.evidence.suspicion

    @property
    def reasons(self) -> tuple[Reason, ...]:
        return self.evidence.reasons

    @property
    def sentences(self) -> tuple[str, ...]:
        """The reasons, each as a sentence without a full stop."""
        return tuple(SENTENCES[reason] for reason in self.reasons)


@dataclass(frozen=True, eq=False)
class Clusters:
    labels: Numbers
    """Cluster of each map, int64 (n,), numbered by suspicion, the most suspicious first; −1 for a
    map that shows nothing (constant, or with non-finite numbers)."""
    clusters: tuple[Cluster, ...]
    embedding: Float
    """A position in two dimensions for each map, float32 (n, 2), to draw similar maps near each
    other (`cam.clusters.embedding.embed`); NaN for a map that shows nothing."""
    eigenvalues: NDArray[np.float64]
    """The smallest eigenvalues of the graph's Laplacian, ascending; empty if the maps were not
    split."""
    chosen: int
    """Number of clusters at the eigengap; suspects that it does not show are added to them."""
    note: str | None
    """Why the maps were not split, as a sentence; None if they were."""
    unreadable: int = 0
    """Number of photos that were needed and could not be read."""


def find_clusters(
    maps: Iterable[Float],
    photos: Sequence[Photos | None] | None = None,
    seed: int = 0,
    *,
    used: Sequence[NDArray[np.floating[Any]] | None] | None = None,
    by: Literal["place", "use"] = "place",
) -> Clusters:
    """Cluster the maps of one class by spectral relevance analysis (SpRAy; Lapuschkin et al.,
    Nature Communications 2019) and find the clusters that suggest a cheat: a model that looks at a
    watermark instead of the object.

    The maps are brought to one grid and connected with their most similar maps; the eigenvectors
    of the graph's Laplacian are clustered by k-means. The eigengap gives the number of clusters.
    As the maps of objects at all places have no gap that a small group could be seen at, clusters
    at several larger numbers are tested, too. Those that are suspect (`cam.clusters.suspects`)
    become clusters of their own; the other maps keep their clusters at the eigengap. If what the
    model used is known, so do suspect groups of photos in which it used similar channels, wherever
    the maps have their heat: each cluster of uses grows to the group that Fisher's discriminant
    tells from the other photos.

    The result is the same in every run, on any number of threads.

    Args:
        maps: float32 (h, w); sizes may differ. Read once, one at a time. Numbers below 0, which
            speak against the class, count as 0.
        photos: thumbnails aligned with the maps, uint8 (H, W, 3), all of one size, 24 to 64 pixels
            a side; None for a photo that cannot be read. Only those that are needed are read, and
            each once, so that the sequence may make them when it is asked. Without photos only the
            maps are evidence, and fewer cheats are found.
        seed: of k-means, of t-SNE and of the choice of photos.
        used: `Explanation.used` of each map, float32 or float16 (K,), if it was recorded. It is
            evidence if each map that shows something has one; otherwise it is ignored.
        by: what the maps that are not suspect are grouped by. "place" connects photos whose maps
            have their heat at the same places; "use" photos in which the model used the same
            channels, wherever they lie, which shows kinds of the object.

    Raises:
        InvalidImages: if a map is not (h, w), if the numbers of maps and photos differ, or if a
            thumbnail that was read is not uint8 (H, W, 3) of the first one's size.
        InvalidOption: if `used` has not one vector of the same size for each map, or is missing
            where the photos are to be grouped by it.
    """
    gridded = on_one_grid(maps)
    uses = _uses(used, gridded)
    if by == "use" and uses is None:
        raise InvalidOption("by is 'use', which needs what was used for each map")
    if photos is not None and len(photos) != gridded.count:
        raise InvalidImages(
            f"{counted(len(photos), 'photo is', 'photos are')} given for "
            f"{counted(gridded.count, 'map')}"
        )
    # Sums of several threads are added in another order in every run. Only libraries that are
    # loaded already are limited, so they are loaded here.
    import scipy.linalg
    import scipy.sparse.linalg  # noqa: F401
    import sklearn.cluster
    import sklearn.manifold  # noqa: F401
    from threadpoolctl import threadpool_limits

    with threadpool_limits(1):
        return _Search(gridded, photos, seed, uses, by).run()


def _uses(used: Sequence[NDArray[np.floating[Any]] | None] | None, gridded: Gridded) -> Uses | None:
    """Return what was used for the maps that show something; None if it is not known for each."""
    if used is None:
        return None
    if len(used) != gridded.count:
        raise InvalidOption(
            f"used has {counted(len(used), 'vector')} for {counted(gridded.count, 'map')}"
        )
    known = [values for index in gridded.kept if (values := used[index]) is not None]
    if len(known) < len(gridded.kept) or not known:
        return None
    sizes = {np.shape(values) for values in known}
    if len(sizes) > 1 or len(next(iter(sizes))) != 1:
        raise InvalidOption(f"used has vectors of the shapes {sorted(sizes)}; one (K,) is needed")
    return Uses(known)


def _cut(evidence: Evidence) -> tuple[int, int]:
    """Return what suspects that overlap are sorted by, the one that counts first."""
    return int(evidence.conductance / STEP), -evidence.size


def too_few(count: int) -> str:
    """Return why as many maps are not split, as a sentence without a full stop."""
    maps = counted(count, "map is", "maps are")
    return f"{maps} too few to be split into clusters; {FEWEST} are needed"


@dataclass(frozen=True, eq=False)
class _Divided:
    """A graph of similar points, and its divisions into several numbers of clusters."""

    graph: csr_array
    eigenvalues: NDArray[np.float64]
    """The smallest eigenvalues of its Laplacian, ascending."""
    chosen: int
    """Number of clusters at the eigengap."""
    labels: dict[int, Numbers]
    """Number of clusters → the cluster of each point."""


class _Search:
    """One class's maps on one grid, with what is computed from them once."""

    def __init__(
        self,
        gridded: Gridded,
        photos: Sequence[Photos | None] | None,
        seed: int,
        uses: Uses | None,
        by: Literal["place", "use"],
    ) -> None:
        maps = gridded.maps
        self.maps, self.kept, self.count, self.seed = maps, gridded.kept, gridded.count, seed
        self.photos = None if photos is None else Thumbnails(photos, seed)
        self.uses = uses if len(maps) >= FEWEST else None
        self.by_use = by == "use"
        self.points = uses.shares if uses is not None and self.by_use else distributions(maps)
        self.shares = maps / maps.sum((1, 2), keepdims=True)
        self.borders = border_shares(maps)

    def run(self) -> Clusters:
        size = len(self.maps)
        if size < FEWEST:
            return self._whole(too_few(size))
        if not np.ptp(self.points, axis=0).any():
            return self._whole(f"all {size} maps are equal")
        own = self._divided(self.points)
        suspects = []
        if not self.by_use:
            suspects = [
                (proof, labels == number)
                for count, labels in own.labels.items()
                for number, proof in self._evidence(own.graph, labels, count).items()
                if proof.suspect
            ]
        if self.uses is not None and np.ptp(self.uses.shares, axis=0).any():
            divided = own if self.by_use else self._divided(self.uses.shares)
            suspects = self._suspects_by_use(self.uses, divided) + suspects
        labels, evidence = self._with_suspects(own.labels[own.chosen], own.chosen, suspects)
        return self._result(labels, own.graph, own.eigenvalues, own.chosen, None, evidence)

    def _divided(self, points: Float) -> _Divided:
        size = len(self.maps)
        graph = affinity(points, neighbour_count(size))
        pairs = spectrum(graph, max(COUNTS) + 1)
        chosen = eigengap(pairs.eigenvalues)
        most = size // LEAST_MEAN
        counts = sorted({chosen, *(count for count in COUNTS if count <= most)})
        labels = {count: partition(pairs.vectors, count, self.seed) for count in counts}
        return _Divided(graph, pairs.eigenvalues, chosen, labels)

    def _suspects_by_use(
        self, uses: Uses, divided: _Divided
    ) -> list[tuple[Evidence, NDArray[np.bool_]]]:
        """Return the suspect groups of uses, and their members."""
        groups = {
            group.tobytes(): group
            for labels in divided.labels.values()
            for number in np.unique(labels)
            for group in uses.groups(labels == number)
            if LEAST_USES <= group.sum() <= MOST_USES * len(group)
        }
        suspects = []
        for group in groups.values():
            (_, leaving) = conductances(divided.graph, group.astype(np.int64), 2)
            proof = self._looked(replace(self._proof(group, leaving), by_use=True), group)
            if proof.suspect:
                suspects.append((proof, group))
        return suspects

    def _with_suspects(
        self,
        labels: Numbers,
        count: int,
        suspects: Sequence[tuple[Evidence, NDArray[np.bool_]]],
    ) -> tuple[Numbers, dict[int, Evidence]]:
        """Return a division into `count` clusters in which each suspect cluster of any division is
        a cluster of its own, and the evidence of these. Of suspects that overlap, the one with the
        lowest conductance counts, to `STEP`, and of equal ones the largest: a part of a group has
        the rest of it as neighbours. Members whose photos lack what the others show under the heat
        are left out."""
        combined = labels.copy()
        clusters = {}
        taken = np.zeros(len(combined), bool)
        for number, (proof, members) in enumerate(
            sorted(suspects, key=lambda suspect: _cut(suspect[0])), count
        ):
            known = taken & members
            if known.sum() > (members.sum() / 2 if proof.by_use else 0):
                continue
            members = members & ~taken
            taken |= members
            # Maps of one pattern that are cut off from others have one cause, however it looks.
            unsure = proof.same_thing and not proof.same_pattern
            kept = self._with_the_thing(members) if unsure else members
            combined[kept] = number
            share = float(kept.mean())
            clusters[number] = replace(proof, size=int(kept.sum()), share=share)
        return combined, clusters

    def _with_the_thing(self, members: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return the members without those whose photos lack what most members show under the heat.

        All members stay if there are more than `MOST_COMPARED`, if too few photos can be read, or
        if fewer than half of the least number would be left."""
        if members.sum() > MOST_COMPARED:
            return members
        numbers, mine = self._photos_of(members, MOST_COMPARED)
        _, others = self._photos_of(~members, OTHERS)
        if min(len(mine), len(others)) < LEAST_PHOTOS:
            return members
        kept = members.copy()
        kept[numbers[~alike(self.maps[numbers], mine, others)]] = False
        return kept if kept.sum() >= LEAST_MEMBERS // 2 else members

    def _photos_of(self, chosen: NDArray[np.bool_], most: int) -> tuple[Numbers, Photos]:
        """Return at most `most` photos of the maps that are chosen, bool (m,), and whose they are:
        positions among the maps that show something."""
        assert self.photos is not None
        numbers, photos = self.photos.some(self.kept[chosen], most)
        return np.searchsorted(self.kept, numbers), photos

    def _evidence(
        self, graph: csr_array | None, labels: Numbers, count: int
    ) -> dict[int, Evidence]:
        """Return the evidence of each cluster that has members."""
        leaving = np.zeros(count) if graph is None else conductances(graph, labels, count)
        evidence = {}
        for number in np.unique(labels).tolist():
            members = labels == number
            evidence[number] = self._looked(self._proof(members, leaving[number]), members)
        return evidence

    def _proof(self, members: NDArray[np.bool_], conductance: float) -> Evidence:
        """Return the evidence of a cluster but for its photos."""
        hot = hot_place(self.maps[members])
        beside = float(self.borders[~members].mean()) if not members.all() else 0.0
        return Evidence(
            size=int(members.sum()),
            share=float(members.mean()),
            conductance=float(conductance),
            foreign=foreign_heat(self.shares, members, hot),
            hot=int(hot.sum()),
            unsteadiness=unsteadiness(self.maps[members]),
            border=float(self.borders[members].mean()) / beside if beside else 1.0,
            appearance=None,
            difference=None if self.uses is None else self.uses.difference(members),
            by_use=self.by_use,
        )

    def _looked(self, evidence: Evidence, members: NDArray[np.bool_]) -> Evidence:
        """Return the evidence of a cluster with that of its photos, where these may decide."""
        if self.photos is None or not evidence.worth_a_look:
            return evidence
        return replace(evidence, appearance=self._look(members, whole=evidence.may_be_covered))

    def _look(self, members: NDArray[np.bool_], *, whole: bool) -> Appearance | None:
        """Read the photos of some members and of some other maps, and compare them, also as a whole
        if asked; None if too few of them can be read."""
        mine, photos = self._photos_of(members, MEMBERS)
        others, other_photos = self._photos_of(~members, OTHERS)
        if min(len(mine), len(others)) < LEAST_PHOTOS:
            return None
        heat, other_heat = self.maps[mine], self.maps[others]
        return appearance(heat, photos, other_heat, other_photos, whole=whole)

    def _whole(self, note: str) -> Clusters:
        labels = np.zeros(len(self.maps), np.int64)
        return self._result(labels, None, np.zeros(0), min(len(self.maps), 1), note)

    def _result(
        self,
        labels: Numbers,
        graph: csr_array | None,
        eigenvalues: NDArray[np.float64],
        chosen: int,
        note: str | None,
        of_suspects: Mapping[int, Evidence] | None = None,
    ) -> Clusters:
        count = int(labels.max(initial=-1)) + 1
        evidence = {**self._evidence(graph, labels, count), **(of_suspects or {})}
        order = sorted(evidence, key=lambda label: (-evidence[label].suspicion, label))
        clusters = tuple(self._cluster(labels == label, evidence[label]) for label in order)
        numbers = np.full(self.count, -1, np.int64)
        for number, label in enumerate(order):
            numbers[self.kept[labels == label]] = number
        suspects = [cluster.members for cluster in clusters if cluster.suspect]
        first = np.searchsorted(self.kept, np.concatenate(suspects)) if suspects else None
        embedding = np.full((self.count, 2), np.nan, np.float32)
        embedding[self.kept] = embed(self.points, self.seed, first)
        unreadable = 0 if self.photos is None else self.photos.unreadable
        return Clusters(numbers, clusters, embedding, eigenvalues, chosen, note, unreadable)

    def _cluster(self, members: NDArray[np.bool_], evidence: Evidence) -> Cluster:
        mean = self.maps[members].mean(0)
        points = self.points[members]
        distances = np.abs(points - points.mean(0)).sum(1) / 2
        nearest = np.argsort(distances, kind="stable")[:PROTOTYPES]
        numbers = self.kept[members]
        heat = mean.astype(np.float64) / mean.sum(dtype=np.float64)
        height, width = heat.shape
        return Cluster(
            members=numbers,
            mean=mean,
            prototypes=numbers[nearest],
            tightness=float(1 - distances.mean()),
            place=(
                float(heat.sum(0) @ (np.arange(width) + 0.5) / width),
                float(heat.sum(1) @ (np.arange(height) + 0.5) / height),
            ),
            border=float(self.borders[members].mean()),
            evidence=evidence,
        )
