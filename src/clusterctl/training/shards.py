"""State on disk through torch.distributed.checkpoint: every rank writes its rows, any number of ranks reads them.

The planners here are what DCP leaves to its users: they say which rows of which tensor this rank has, or wants. Of a
tensor that is the same everywhere each rank writes an equal share of the rows, of a small one rank 0 all.

Importing this costs 2.6 s a rank (torch 2.13): import it where a checkpoint is really written or read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, create_default_global_save_plan
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import (
    LoadPlan,
    ReadItem,
    SavePlan,
    SavePlanner,
    TensorWriteData,
    WriteItem,
    WriteItemType,
)
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list
from torch.distributed.checkpoint.state_dict_saver import save

if TYPE_CHECKING:
    import io
    from collections.abc import Mapping
    from pathlib import Path

    from torch import Tensor
    from torch import distributed as dist

    from clusterctl.training.state import Sharded


def write(pieces: Mapping[str, Sharded], folder: Path, group: dist.ProcessGroup) -> None:
    """Write the rows of all ranks into `folder`, which exists. Every rank of `group` (gloo) calls it.

    Raises on every rank what went wrong on one.
    """
    writer = FileSystemWriter(folder, single_file_per_rank=True, sync_files=True)
    save({}, storage_writer=writer, planner=_Writing(pieces), process_group=group)


def read(pieces: Mapping[str, Sharded], folder: Path) -> None:
    """Fill the rows of `pieces`, in place, from `folder`. No other rank is waited for.

    Raises ValueError with what does not fit: a tensor that is missing, or of another shape or dtype.
    """
    reader = FileSystemReader(folder)
    metadata = reader.read_metadata()
    for name, piece in pieces.items():
        stored = metadata.state_dict_metadata.get(name)
        wanted = (piece.total, *piece.rows.shape[1:]), piece.rows.dtype
        if not isinstance(stored, TensorStorageMetadata):
            raise ValueError(f"it has no {name}")
        found = tuple(stored.size), stored.properties.dtype
        if found != wanted:
            raise ValueError(f"its {name} is {_shown(*found)}, not {_shown(*wanted)}")
    reader.set_up_storage_reader(metadata, is_coordinator=True)
    planner = _Reading(pieces)
    planner.set_up_planner({}, metadata, is_coordinator=True)
    reader.read_data(reader.prepare_local_plan(planner.create_local_plan()), planner).wait()


def _shown(shape: tuple[int, ...], dtype: torch.dtype) -> str:
    return f"{' x '.join(map(str, shape))} of {str(dtype).removeprefix('torch.')}"


def _chunk(piece: Sharded) -> ChunkStorageMetadata:
    shape = piece.rows.shape
    return ChunkStorageMetadata(torch.Size((piece.start, *[0] * (len(shape) - 1))), shape)


class _Writing(SavePlanner):
    """What this rank has."""

    def __init__(self, pieces: Mapping[str, Sharded]) -> None:
        self._pieces = pieces

    def set_up_planner(
        self, state_dict: dict[str, Any], storage_meta: StorageMeta | None = None, is_coordinator: bool = False
    ) -> None:
        """Nothing to do: the pieces are known."""

    def create_local_plan(self) -> SavePlan:
        items = []
        for name, piece in self._pieces.items():
            if piece.rows.numel():
                chunk = _chunk(piece)
                size = torch.Size((piece.total, *piece.rows.shape[1:]))
                data = TensorWriteData(chunk, TensorProperties.create_from_tensor(piece.rows), size)
                items.append(WriteItem(MetadataIndex(name, chunk.offsets), WriteItemType.SHARD, tensor_data=data))
        return SavePlan(items)

    def create_global_plan(self, all_plans: list[SavePlan]) -> tuple[list[SavePlan], Metadata]:
        return create_default_global_save_plan(all_plans)

    def finish_plan(self, new_plan: SavePlan) -> SavePlan:
        return new_plan

    def resolve_data(self, write_item: WriteItem) -> Tensor | io.BytesIO:
        return self._pieces[write_item.index.fqn].rows


class _Reading(DefaultLoadPlanner):
    """What this rank wants."""

    def __init__(self, pieces: Mapping[str, Sharded]) -> None:
        super().__init__()
        self._pieces = pieces

    def create_local_plan(self) -> LoadPlan:
        assert self.metadata is not None
        items: list[ReadItem] = []
        for name, piece in self._pieces.items():
            stored = self.metadata.state_dict_metadata[name]
            if piece.rows.numel():
                items += create_read_items_for_chunk_list(name, stored, [_chunk(piece)])  # type: ignore[arg-type]
        return LoadPlan(items)

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:  # noqa: ARG002 - DCP's signature
        raise AssertionError("there are tensors alone")  # the planner's own would unpickle whatever it is

    def lookup_tensor(self, index: MetadataIndex) -> Tensor:
        return self._pieces[index.fqn].rows
