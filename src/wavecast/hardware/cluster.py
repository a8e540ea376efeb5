"""The facts about machines with several GPUs, and the network that joins such machines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from wavecast.errors import InvalidInput
from wavecast.hardware.links import NodeLinks, NodeNetwork
from wavecast.showing import Shown


@dataclass(frozen=True, slots=True)
class RankPlacement:
    """How the ranks of one group are spread over machines."""

    ranks: int
    nodes: int
    """Machines with at least one of the ranks."""
    per_node: int
    """The largest number of ranks on one machine."""


@dataclass(frozen=True, slots=True, repr=False)
class Cluster(Shown):
    """Equal machines with several GPUs each. Units are SI; speeds are for one direction.

    >>> from wavecast.hardware.clusters import cluster
    >>> cluster("dgx-h100").gpus_per_node
    8
    """

    id: str
    name: str
    node: NodeLinks
    network: NodeNetwork | None = None
    """None if it is a single machine, or if its network is unknown."""
    gpu: str | None = None
    """The id of its GPU. None if it takes several kinds."""
    aliases: tuple[str, ...] = ()
    usual_for: tuple[str, ...] = ()
    """The GPUs whose usual machine it is."""
    # A dictionary cannot be hashed. Clusters that differ only here are unequal all the same.
    sources: Mapping[str, str] = field(default_factory=dict, hash=False, repr=False)
    """Where each fact is from, by its key in the file: "node.gpus", "network.bytes_per_s"."""

    @property
    def gpus_per_node(self) -> int:
        """The number of GPUs in one machine."""
        return self.node.gpus

    @property
    def domain_gpus(self) -> int:
        """GPUs that reach each other without the network: those of one machine, or of a rack."""
        return self.node.gpus * self.node.domain_nodes

    def with_gpus_per_node(self, gpus: int) -> Cluster:
        """The same cluster with another number of GPUs used in each machine.

        Raises:
            InvalidInput: the machine does not have so many.
        """
        if not 1 <= gpus <= self.node.gpus:
            raise InvalidInput(
                f"{gpus} GPUs per machine are too many or too few; a machine of {self.id} has "
                f"{self.node.gpus}, so 1 to {self.node.gpus} can be used"
            )
        return replace(self, node=replace(self.node, gpus=gpus))

    def placement(self, ranks: int, stride: int = 1) -> RankPlacement:
        """How a group of `ranks` ranks, `stride` apart, is spread over machines.

        An NVLink domain of several machines counts as one, since no message in it uses the network.
        """
        per_node = min(ranks, max(1, -(-self.domain_gpus // stride)))
        return RankPlacement(ranks, -(-ranks // per_node), per_node)

    def __str__(self) -> str:
        return self.name
