// The photo with the map over it. What changes only the look is drawn here, without a request.

import { useComputed, useSignal } from "@preact/signals";
import type { ComponentChildren } from "preact";
import { useEffect, useLayoutEffect, useRef } from "preact/hooks";
import type { Box, LabelledClass } from "./api";
import { paint, type Look } from "./colours";
import { Legend, captionOf } from "./legend";
import type { Picture } from "./photos";
import { Mark, MarkButton, MarkShare } from "./mark";
import { place, type Heat } from "./smallmap";
import { NOTHING, answers, busy, choice, choose, isBright, look, model, photo, picture, progress, shown, type Shown } from "./view";
import { Divider, MIDDLE, cutAt } from "./swipe";
import { words } from "./words";

/** Height of the picture, in hundredths of the window. */
const TALLEST = 68;

/** A picture's size and scale, which say where a map lies on it. */
export type Sized = { bitmap: { width: number; height: number }; scale: number };

/** The size of a picture whose longer side has so many pixels at most. */
export function smaller({ bitmap: { width, height }, scale }: Sized, longest: number): Sized {
  const factor = Math.min(longest / Math.max(width, height), 1);
  const bitmap = { width: Math.max(Math.round(width * factor), 1), height: Math.max(Math.round(height * factor), 1) };
  return { bitmap, scale: scale * factor };
}

/** The part of a picture that a map covers. */
function boxOf({ bitmap, scale }: Sized, { explanation: { covers } }: Shown): Box {
  if (!covers) return { left: 0, top: 0, right: bitmap.width, bottom: bitmap.height };
  return { left: covers.left * scale, top: covers.top * scale, right: covers.right * scale,
    bottom: covers.bottom * scale };
}

/** A map on the pixels of the picture that is drawn. */
export function heatOn(picture: Sized, made: Shown, bright = isBright(made.explanation.method)): Heat {
  const { explanation, values } = made, { width, height } = picture.bitmap;
  return place(values, explanation.heatmap.shape, boxOf(picture, made), width, height,
    Boolean(explanation.signed), bright);
}

/** Draws a photo and a map over it, at the picture's size or a smaller one. */
export function draw(canvas: HTMLCanvasElement, picture: Picture, heat: Heat | null, look: Look,
    { bitmap: { width, height } }: Sized = picture): void {
  if (canvas.width !== width || canvas.height !== height) Object.assign(canvas, { width, height });
  const context = canvas.getContext("2d", { willReadFrequently: true })!;
  context.drawImage(picture.bitmap, 0, 0, width, height);
  if (!heat || look.view === "photo") return;
  const image = new ImageData(width, height);
  paint(heat, look, image);
  const layer = new OffscreenCanvas(width, height);
  layer.getContext("2d")!.putImageData(image, 0, 0);
  context.drawImage(layer, 0, 0);
}

/** What is shown, in one sentence; what is known of it follows. */
function Told({ made, children }: { made: Shown; children: ComponentChildren }) {
  const { target, method, layer } = made.explanation, { unit, fit } = choice.value, now = model.value;
  if (!now || answers.value) return null;
  const nameOf = ({ label, index }: LabelledClass) => label ?? `${index}`;
  const minus = target.minus_text ?? (target.minus && nameOf(target.minus));
  const seen = fit === "auto" ? now.input.default_fit : fit as keyof typeof words.fits;
  return <p id="told"><strong>
    {unit ? words.whyUnit(unit) : words.why(nameOf(target), minus, Boolean(target.against))}
  </strong>{" "}<span class="soft">{words.how(method, layer, words.fits[seen])}.</span>{" "}{children}</p>;
}

/** The photo with the map over it. What is known of the map stands above it. */
export function Stage({ children }: { children: ComponentChildren }) {
  const canvas = useRef<HTMLCanvasElement>(null), plain = useRef<HTMLCanvasElement>(null);
  const original = useSignal(false), swipes = useSignal(false), at = useSignal(MIDDLE);
  const heat = useComputed(() =>
    picture.value && shown.value ? heatOn(picture.value, shown.value) : null);
  const now = picture.value, drawn = heat.value;
  const view: Look = original.value ? { ...look.value, view: "photo" } : look.value;
  useLayoutEffect(() => {
    if (!now) return;
    if (canvas.current) draw(canvas.current, now, drawn, view);
    if (plain.current) draw(plain.current, now, null, view);
  }, [now, drawn, look.value, original.value, swipes.value]);
  useEffect(() => {
    const hold = (event: KeyboardEvent) => {
      const down = event.type === "keydown";
      if (event.key === "o" && !(down && event.target instanceof HTMLInputElement)) original.value = down;
    };
    addEventListener("keydown", hold);
    addEventListener("keyup", hold);
    return () => { removeEventListener("keydown", hold); removeEventListener("keyup", hold); };
  }, []);
  if (!now) return null;
  const made = shown.value;
  const region = drawn?.region;
  const part = region && (region.width < now.bitmap.width || region.height < now.bitmap.height);
  const percent = (value: number, of: number) => `${(100 * value) / of}%`;
  const name = made ? captionOf(made) : "";
  return <figure class={busy.value ? "stage busy" : "stage"}>
    {made && <Told made={made}>{children}</Told>}
    <div class="picture" style={{
      width: `min(100%, ${(TALLEST * now.bitmap.width) / now.bitmap.height}vh)` }}>
      <canvas ref={canvas} id="picture" role="img"
        aria-label={made ? `${photo.value?.name}: ${made.explanation.method}, ${name}` : photo.value?.name} />
      {swipes.value && <canvas ref={plain} id="plain" class="upper" style={cutAt(at.value)} aria-hidden="true" />}
      {part && <div class="seen" title={words.seen} style={{
        left: percent(region.left, now.bitmap.width), top: percent(region.top, now.bitmap.height),
        width: percent(region.width, now.bitmap.width),
        height: percent(region.height, now.bitmap.height) }} />}
      {made?.prediction.detections?.map(({ box, index, label }) => {
        const { left, top, right, bottom } = box, text = [left, top, right, bottom].join(",");
        const wide = now.bitmap.width / now.scale, tall = now.bitmap.height / now.scale;
        return <button type="button" key={text} class="box" aria-label={label ?? `${index}`}
          aria-pressed={choice.value.box === text}
          onClick={() => choose({ ...NOTHING, target: index, box: text })}
          style={{ left: percent(left, wide), top: percent(top, tall),
            width: percent(right - left, wide), height: percent(bottom - top, tall) }} />;
      })}
      <Mark picture={now} />
      {swipes.value && <Divider at={at} left={words.views.photo} right={words.map} />}
    </div>
    <figcaption>
      {made && <Legend look={view} made={made} />}
      <button type="button" class="quiet" onPointerDown={() => { original.value = true; }}
        onPointerUp={() => { original.value = false; }}
        onPointerLeave={() => { original.value = false; }} onBlur={() => { original.value = false; }}
        onKeyDown={({ key }) => { if (key === " " || key === "Enter") original.value = true; }}
        onKeyUp={() => { original.value = false; }}>{words.original}</button>
      <button type="button" id="swipe" aria-pressed={swipes.value}
        onClick={() => { swipes.value = !swipes.value; }}>{words.swipe}</button>
      <MarkButton picture={now} />
    </figcaption>
    {progress.value && <p class="soft" role="status">
      <progress value={progress.value.done} max={progress.value.total} aria-label={words.waiting} />{" "}
      {words.passes(progress.value.done, progress.value.total)}</p>}
    {drawn && <MarkShare heat={drawn} picture={now} />}
    {part && <p class="soft">{words.seen}</p>}
    {drawn?.flat && <p class="warning">{words.nothing}</p>}
  </figure>;
}
