// A box that one draws on the photo: the target of a segmenter or a detector, a place to look for a classifier.

import { signal } from "@preact/signals";
import { useRef } from "preact/hooks";
import type { Box } from "./api";
import type { Picture } from "./photos";
import { shareIn, type Heat } from "./smallmap";
import { choice, choose, marked, model } from "./view";
import { words } from "./words";

export const marking = signal(false);
const NUDGE = 0.02, LEAST = 0.02;

const isTarget = () => model.value?.kind === "segments" || model.value?.kind === "detections";
const textOf = ({ left, top, right, bottom }: Box) =>
  [left, top, right, bottom].map((edge) => Math.round(edge)).join(",");

/** The box that is marked, in the photo's pixels. */
export function boxMarked(): Box | null {
  const text = isTarget() ? choice.value.box : marked.value;
  if (!text) return null;
  const [left, top, right, bottom] = text.split(",").map(Number) as [number, number, number, number];
  return { left, top, right, bottom };
}

function put(box: Box | null): void {
  if (isTarget()) choose({ box: box ? textOf(box) : undefined });
  else marked.value = box ? textOf(box) : "";
}

export function MarkButton({ picture }: { picture: Picture }) {
  const wide = picture.bitmap.width / picture.scale, tall = picture.bitmap.height / picture.scale;
  const box = boxMarked();
  return <button type="button" id="mark" aria-pressed={marking.value} onClick={() => {
    marking.value = !marking.value;
    if (!marking.value) put(null);
    else if (!box) put({ left: wide / 4, top: tall / 4, right: (3 * wide) / 4, bottom: (3 * tall) / 4 });
  }}>{marking.value ? words.unmark : words.mark}</button>;
}

/** The area over the photo on which the box is drawn. */
export function Mark({ picture }: { picture: Picture }) {
  const from = useRef<{ x: number; y: number } | null>(null);
  const wide = picture.bitmap.width / picture.scale, tall = picture.bitmap.height / picture.scale;
  const box = boxMarked();
  if (!marking.value) return null;
  const at = (event: PointerEvent) => {
    const area = (event.currentTarget as HTMLElement).getBoundingClientRect();
    const clip = (value: number, most: number) => Math.min(Math.max(value, 0), 1) * most;
    return { x: clip((event.clientX - area.left) / area.width, wide),
      y: clip((event.clientY - area.top) / area.height, tall) };
  };
  const draw = (event: PointerEvent) => {
    if (!from.current) return;
    const { x, y } = at(event), start = from.current;
    if (Math.abs(x - start.x) < LEAST * wide || Math.abs(y - start.y) < LEAST * tall) return;
    put({ left: Math.min(x, start.x), top: Math.min(y, start.y),
      right: Math.max(x, start.x), bottom: Math.max(y, start.y) });
  };
  const nudge = (event: KeyboardEvent) => {
    const ways: Record<string, [number, number]> = {
      ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
    const way = ways[event.key];
    if (!way || !box) return;
    const [x, y] = [way[0] * NUDGE * wide, way[1] * NUDGE * tall];
    const moved = event.shiftKey ? { ...box, right: box.right + x, bottom: box.bottom + y }
      : { left: box.left + x, top: box.top + y, right: box.right + x, bottom: box.bottom + y };
    event.preventDefault();
    if (moved.left >= 0 && moved.top >= 0 && moved.right <= wide && moved.bottom <= tall &&
        moved.right - moved.left >= LEAST * wide && moved.bottom - moved.top >= LEAST * tall) put(moved);
  };
  const percent = (value: number, of: number) => `${(100 * value) / of}%`;
  return <div class="mark" onKeyDown={nudge}
    onPointerDown={(event) => { from.current = at(event); event.currentTarget.setPointerCapture(event.pointerId); }}
    onPointerMove={draw} onPointerUp={() => { from.current = null; }}>
    {box && <button type="button" id="marked" aria-label={words.markBox} title={words.markHint} style={{
      left: percent(box.left, wide), top: percent(box.top, tall),
      width: percent(box.right - box.left, wide), height: percent(box.bottom - box.top, tall) }} />}
  </div>;
}

/** How much of the heat lies in the box. */
export function MarkShare({ heat, picture }: { heat: Heat; picture: Picture }) {
  const box = boxMarked();
  if (!marking.value || !box) return null;
  const { scale, bitmap } = picture;
  const share = shareIn(heat, { left: box.left * scale, top: box.top * scale, right: box.right * scale,
    bottom: box.bottom * scale }, bitmap.width);
  return <p id="mark-share" role="status">
    {words.shareInside((100 * share.heat).toFixed(1), (100 * share.area).toFixed(1))}{" "}
    <span class="soft">{words.markHint}</span></p>;
}
