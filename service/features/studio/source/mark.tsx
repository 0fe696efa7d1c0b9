// A box that one draws on the photo: the target of a segmenter or a detector, a place to look for a classifier.

import { signal } from "@preact/signals";
import { useRef } from "preact/hooks";
import type { Box } from "./api";
import type { Picture } from "./photos";
import { shareIn, type Heat } from "./smallmap";
import { choice, choose, marked, model } from "./view";
import { words } from "./words";

export const marking = signal(false);
/** Whether one paints a mask in place of a box; only a segmenter takes one. */
const brushing = signal(false);
const BRUSH = 0.04;
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
  return <>
    {marking.value && model.value?.kind === "segments" &&
      <button type="button" id="paint" aria-pressed={brushing.value} onClick={() => {
        brushing.value = !brushing.value;
        choose({ box: undefined, mask: undefined });
      }}>{words.paint}</button>}
    <button type="button" id="mark" aria-pressed={marking.value} onClick={() => {
      marking.value = !marking.value;
      brushing.value = false;
      if (!marking.value) {
        put(null);
        if (choice.value.mask) choose({ mask: undefined });
      } else if (!box) put({ left: wide / 4, top: tall / 4, right: (3 * wide) / 4, bottom: (3 * tall) / 4 });
    }}>{marking.value ? words.unmark : words.mark}</button>
  </>;
}

/** The place that is painted, at the size of the picture. */
function Brush({ picture }: { picture: Picture }) {
  const canvas = useRef<HTMLCanvasElement>(null), last = useRef<{ x: number; y: number } | null>(null);
  const { width, height } = picture.bitmap;
  const at = (event: PointerEvent) => {
    const area = canvas.current!.getBoundingClientRect();
    return { x: ((event.clientX - area.left) / area.width) * width,
      y: ((event.clientY - area.top) / area.height) * height };
  };
  const paint = (event: PointerEvent) => {
    if (!last.current) return;
    const context = canvas.current!.getContext("2d")!, to = at(event);
    Object.assign(context, { lineWidth: BRUSH * Math.max(width, height), lineCap: "round", strokeStyle: "#fff" });
    context.beginPath();
    context.moveTo(last.current.x, last.current.y);
    context.lineTo(to.x, to.y);
    context.stroke();
    last.current = to;
  };
  const take = async () => {
    last.current = null;
    const wide = Math.round(width / picture.scale), tall = Math.round(height / picture.scale);
    const whole = new OffscreenCanvas(wide, tall), context = whole.getContext("2d")!;
    context.fillRect(0, 0, wide, tall);
    context.drawImage(canvas.current!, 0, 0, wide, tall);
    const bytes = new Uint8Array(await (await whole.convertToBlob({ type: "image/png" })).arrayBuffer());
    choose({ mask: btoa(bytes.reduce((text, byte) => text + String.fromCharCode(byte), "")), box: undefined });
  };
  return <canvas ref={canvas} id="brush" class="mark brush" width={width} height={height}
    onPointerDown={(event) => {
      event.currentTarget.setPointerCapture(event.pointerId);
      last.current = at(event);
      paint(event);
    }} onPointerMove={paint} onPointerUp={() => void take()} />;
}

/** The area over the photo on which the box is drawn. */
export function Mark({ picture }: { picture: Picture }) {
  const from = useRef<{ x: number; y: number } | null>(null);
  const wide = picture.bitmap.width / picture.scale, tall = picture.bitmap.height / picture.scale;
  const box = boxMarked();
  if (!marking.value) return null;
  if (brushing.value) return <Brush picture={picture} />;
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
