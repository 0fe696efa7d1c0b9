"""A callback of Lightning: logs the maps of the first validation batch every few epochs."""

from __future__ import annotations

from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from cam import explain


class LogExplanations(Callback):
    """Logs a map of each image of the first validation batch to the trainer's TensorBoard logger,
    and keeps the latest ones in `maps`.

    Args:
        every: number of epochs between two logs.
        most: maximum number of images.
        options: arguments of `cam.explain`, such as `method` and `layer`.
    """

    def __init__(self, every: int = 1, most: int = 8, **options: Any) -> None:
        self.every, self.most, self.options = every, most, options
        self.maps: list[torch.Tensor] = []

    def on_validation_batch_end(
        self,
        trainer: Trainer,
        module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        if batch_idx or dataloader_idx or trainer.current_epoch % self.every:
            return
        images = (batch[0] if isinstance(batch, list | tuple) else batch)[: self.most]
        with torch.inference_mode(False), torch.enable_grad():
            explained = explain(module, images.clone(), **self.options)
        self.maps = [torch.from_numpy(one.map / max(one.map.max(), 1e-12)) for one in explained]
        writer = getattr(trainer.logger, "experiment", None)
        if hasattr(writer, "add_image"):
            for number, one in enumerate(self.maps):
                tag = f"gradcam/{number}"
                writer.add_image(tag, one, trainer.current_epoch, dataformats="HW")
