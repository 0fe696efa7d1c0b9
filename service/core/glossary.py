"""Definitions of the figures of an answer, for the HTTP contract, the metadata of Parquet files,
the report's tooltips and docs/answers.md.
"""

from __future__ import annotations

from typing import Final

TERMS: Final = {
    "id": "The image's id: its path below the folder, or the id that the request gave it.",
    "number": "Number of the map among the image's maps, from 0.",
    "asked": "The target that a table named for this image, as it stands in the table.",
    "predicted_index": (
        "Index of the model's best class for the image, from 0; absent for segmenters, detectors "
        "and regressions."
    ),
    "predicted_label": "Label of the best class; absent if the model has no labels.",
    "predicted_probability": "Probability of the best class, by the model's activation, 0 … 1.",
    "correct": (
        "Whether the class that was named as target is the model's best class; absent if no class "
        "was named."
    ),
    "target": "What the map explains, in words: a class, a unit, or a comparison.",
    "target_index": (
        "Index of the explained class, or of a regression's output, from 0; absent if neither is "
        "explained."
    ),
    "target_label": "Label of the explained class; absent if the model has no labels.",
    "target_probability": (
        "Probability of the explained class, by the model's activation, 0 … 1; for a segmenter the "
        "mean over its pixels, for a detector the detection's score; absent for a regression."
    ),
    "target_score": (
        "The number that is explained: the class's logit, or a regression's value, unless the "
        "target says otherwise."
    ),
    "method": "The method that made the map.",
    "layer": "The target layer, or `input` for methods that need none.",
    "layer_reason": (
        "Why `auto` means this layer, if it is not the default layer of most methods; absent "
        "otherwise."
    ),
    "reason": (
        "Number of the reason that the map shows, if `reasons` asks for several: 1 for the photo "
        "as it is, 2 for the photo in which the hot pixels of reason 1 are masked, and so on. The "
        "target's score and probability are those of that masked photo."
    ),
    "peak": (
        "The hottest pixel of the picture that `size` asks for; the top left pixel is (0, 0). "
        "Absent if nothing is hot."
    ),
    "mass": (
        "The mean of the map over what the model saw. The map is scaled to 0 … 1 (a signed one to "
        "−1 … 1) and has the pixels that `size` asks for."
    ),
    "concentration": (
        "The share of the heat in the hottest tenth of the layer's positions, 0.1 … 1. Heat is the "
        "method's numbers before they are scaled. 0.1 if the map is the same everywhere, 1 if all "
        "heat is in that tenth; absent for a flat map."
    ),
    "border": (
        "The share of the heat within a tenth of the height and of the width from the edges of "
        "what the model saw, on the layer's grid, 0 … 1. Heat is the method's numbers before they "
        "are scaled. 0.36 if the map is the same everywhere; absent for a flat map."
    ),
    "mode": (
        "What computed the map: `exact`, the unchanged model, or `fast`, a faster form of the "
        "model, such as half precision or OpenVINO. Its maps were compared with the exact ones; "
        "`GET /v1/models/{model}` says how well they agree. On an accelerator the first answers "
        "are exact, until the fast path is ready; all maps of a job have the same mode."
    ),
    "agreement": (
        "With several methods: other method → Spearman's rank correlation of its map with this "
        "map, for the same target and layer, −1 … 1: 1 if both maps order all positions alike, 0 "
        "if the orders are unrelated. Maps on different grids are compared on the coarser grid. "
        "Absent if the map is flat. `agreement_mean` is the mean over the other methods."
    ),
    "scores": (
        "How good the map is by each metric that `evaluate` names, metric → value (see "
        "docs/evaluation.md); absent if it names none."
    ),
    "hot": (
        "The rectangle, in pixels of the map, around the connected pixels at or above `threshold` "
        "that include the peak."
    ),
    "width": "Width of the picture that `size` asks for, in pixels: usually that of the photo.",
    "height": "Height of the picture that `size` asks for, in pixels.",
    "region": (
        "The rectangle of whole pixels of the map that the model saw; outside it the map is 0."
    ),
    "covers": (
        "The edges of the map in the photo's pixels; (0, 0) is the photo's top left corner. If "
        "`size` is `image`, the map covers the whole photo; otherwise it covers what the model "
        "saw, which may be a part of the photo (`fit=crop`) or larger than the photo "
        "(`fit=pad`). In a table the map always covers what the model saw, because a table holds "
        "the layer's map."
    ),
    "placement": (
        "For a model that resizes, crops, pads, mirrors or transposes its input itself: the "
        "edges of the layer's grid in the photo's pixels, and the orientation of the grid. The "
        "map is drawn inside these edges and is 0 outside them. Absent if the grid covers the "
        "model's input evenly and upright."
    ),
    "map": (
        "The map as `normalize` asks for it: scaled to 0 … 1 (a signed one to −1 … 1), or the "
        "method's own numbers; row by row, as `map_encoding` says."
    ),
    "map_encoding": (
        "`float32`: little-endian numbers; `png`: an 8-bit grayscale PNG, 255 is 1 (in a signed "
        "map, 0 is −1 and 128 is 0)."
    ),
    "map_height": "Number of rows of the map.",
    "map_width": "Number of columns of the map.",
    "passes": (
        "For methods that can make a map of fewer passes than their formula needs: `made` is the "
        "number of passes that were made, `of` the number that the formula needs (for methods of "
        "channels: the passes of all channels; for random masks: `budget`). `made` is smaller if "
        "`budget` is smaller, or if no budget is given and the request's time is nearly up; a "
        "warning then says so."
    ),
    "warning": "Why the map should not be trusted as it is.",
    "error": "Why the image has no map.",
    "problem": "The kind of the error: urn:gradcam-service:…",
}
"""Name of a figure → its definition: unit, range, frame of coordinates, and when it is absent."""
