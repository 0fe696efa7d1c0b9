// The photo while its pixels go or come, hottest first, and the class's probability beside it.

import { useSignal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { heatOn, smaller } from "./stage";
import { model, picture, shown } from "./view";
import { words } from "./words";

const LONGEST = 480, FRAME = 60, BLUR = 5;
export type Metric = "insertion" | "deletion";

/** What takes a pixel's place: the model's mean colour, or the photo blurred as the model sees it. */
function substrate(metric: Metric, bitmap: ImageBitmap, width: number, height: number): ImageData {
  const canvas = new OffscreenCanvas(width, height), context = canvas.getContext("2d")!;
  const { mean, value_range: range, width: columns } = model.value!.input;
  if (metric === "deletion") {
    const scale = range === "0-255" ? 1 : 255;
    context.fillStyle = `rgb(${(mean ?? [0, 0, 0]).map((value) => Math.round(value * scale)).join()})`;
    context.fillRect(0, 0, width, height);
  } else {
    context.filter = `blur(${(BLUR * width) / columns}px)`;
    context.drawImage(bitmap, 0, 0, width, height);
  }
  return context.getImageData(0, 0, width, height);
}

export function Film({ metric, curve }: { metric: Metric; curve: number[] }) {
  const canvas = useRef<HTMLCanvasElement>(null), at = useSignal(0), plays = useSignal(false);
  const frames = useRef<{ order: Uint32Array; from: ImageData; to: ImageData } | null>(null);
  const now = picture.value, made = shown.value, last = curve.length - 1;
  useEffect(() => {
    if (!now || !made) return;
    const small = smaller(now, LONGEST), { width, height } = small.bitmap;
    const { region, inside } = heatOn(small, made);
    const order = Uint32Array.from({ length: inside.length }, (_, n) => n)
      .sort((a, b) => inside[b]! - inside[a]!)
      .map((n) => (region.top + Math.floor(n / region.width)) * width + region.left + (n % region.width));
    const plain = new OffscreenCanvas(width, height).getContext("2d")!;
    plain.drawImage(now.bitmap, 0, 0, width, height);
    const photo = plain.getImageData(0, 0, width, height);
    const changed = substrate(metric, now.bitmap, width, height);
    frames.current = metric === "deletion" ? { order, from: photo, to: changed }
      : { order, from: changed, to: photo };
    at.value = 0;
  }, [now, made, metric]);
  useEffect(() => {
    const film = frames.current;
    if (!film || !canvas.current) return;
    const { width, height } = film.from, frame = new ImageData(width, height);
    const from = new Uint32Array(film.from.data.buffer), to = new Uint32Array(film.to.data.buffer);
    const pixels = new Uint32Array(frame.data.buffer);
    pixels.set(from);
    const gone = Math.round((at.value / last) * film.order.length);
    for (let n = 0; n < gone; n++) pixels[film.order[n]!] = to[film.order[n]!]!;
    Object.assign(canvas.current, { width, height });
    canvas.current.getContext("2d")!.putImageData(frame, 0, 0);
  }, [at.value, now, made, metric]);
  useEffect(() => {
    if (!plays.value) return;
    const timer = setInterval(() => {
      at.value = Math.min(at.value + 1, last);
      if (at.value === last) plays.value = false;
    }, FRAME);
    return () => clearInterval(timer);
  }, [plays.value]);
  const share = curve[at.value] ?? 0;
  return <figure class="film">
    <canvas ref={canvas} id="film" role="img" aria-label={words.film(metric)} />
    <div class="row">
      <button type="button" id="play" onClick={() => {
        if (at.value === last) at.value = 0;
        plays.value = !plays.value;
      }}>{plays.value ? words.stop : words.play}</button>
      <input id="frame" type="range" min={0} max={last} value={at.value} aria-label={words.film(metric)}
        onInput={(event) => { plays.value = false; at.value = event.currentTarget.valueAsNumber; }} />
      <output id="share">{words.left(Math.round((100 * at.value) / last), share.toFixed(3), metric)}</output>
    </div>
  </figure>;
}
