"""Compiling a model's fast path ahead of time."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Final

from cam.runtimes.compiled import FastPath
from service.core.disk_cache import MOST_BYTES, DiskCache
from service.core.errors import ConfigError, one_line
from service.core.settings import CoreSettings
from service.loading.served_model import ServedModel, load
from service.models.catalog import ModelEntry
from service.runtimes.packaged import package_record, sizes_record
from service.runtimes.paths import offers

NO_PACKAGES: Final = (
    "only a model whose head is linear behind the mean of a layer can be; on a CUDA device the "
    "service records the others as CUDA graphs"
)


def compile_model(entry: ModelEntry, settings: CoreSettings, sizes: Sequence[int]) -> None:
    """Compile a model, and print a line for each size of a batch.

    Args:
        sizes: () for 1, 32 and the model's `max_batch`, which is always one of them, because a full
            batch could not be computed otherwise.

    Raises:
        ConfigError: if the model cannot be compiled, or the files cannot be kept.
    """
    if settings.cache is None:
        raise ConfigError("GRADCAM_CACHE is off; it names the folder that the service reads")
    device = entry.device if isinstance(entry.device, str) else entry.device[0]
    entry = entry.model_copy(update={"device": device})
    model = load(entry, DiskCache(settings.cache))
    most = model.max_batch
    wanted = sorted({*(sizes or [1, min(32, most)]), most})
    if wanted[0] < 1 or wanted[-1] > most:
        wrong = wanted[0] if wanted[0] < 1 else wanted[-1]
        raise ConfigError(f"--size is {wrong}; it can be 1 … {most}")
    for each, count in compile_packages(entry, model, wanted):
        print(f"{model.name}: batches of {each} on {model.device}, {count / 1e6:.1f} MB")


def compile_packages(
    entry: ModelEntry, model: ServedModel, sizes: Sequence[int]
) -> Iterator[tuple[int, int]]:
    """Compile a model's forward pass ahead of time for some batch sizes, and keep the files where
    the next start of the service finds them: they are of these weights, this layer, dtype and
    processor, and of these versions of the packages. Yield each size with the bytes of its file.

    Args:
        sizes: each at most the model's `max_batch`, which has to be one of them: no larger batch
            could be computed.

    Raises:
        ConfigError: if the model cannot be compiled, or the file cannot be kept.
    """
    paths = [offer.path for offer in offers(entry, model)]
    dtypes = {path.dtype for path in paths if path.runtime == FastPath.runtime}
    who = f"model {model.name!r} cannot be compiled ahead of time"
    if not dtypes:
        raise ConfigError(
            f"{who}: it has no fast path by PyTorch on {model.device}, because its maps must be "
            'the exact ones; mode = "fast" in its entry allows other maps'
        )
    if model.head is None:
        raise ConfigError(f"{who}: {NO_PACKAGES}")
    (dtype,) = dtypes
    path = FastPath(
        model.module,
        model.default,
        dtype=dtype,
        sizes=sizes,
        compile=False,
        head=model.head,
        reading=model.reading,
    )
    seen = model.preprocessing
    for size in path.sizes:
        try:
            content = path.package((size, 3, seen.height, seen.width))
        except Exception as error:  # a compiler may raise anything
            raise ConfigError(f"{who}: {one_line(error)[:500]}") from None
        name = package_record(model.default, dtype, size)
        model.packages.write(name, content)
        if model.packages.read(name) is None:
            raise ConfigError(
                f"the compiled file of {len(content) / 1e6:.0f} MB cannot be kept: GRADCAM_CACHE "
                f"names the folder, which takes files of at most {MOST_BYTES // 2 / 1e6:.0f} MB"
            )
        yield size, len(content)
    model.packages.write(sizes_record(model.default, dtype), json.dumps(path.sizes).encode())
