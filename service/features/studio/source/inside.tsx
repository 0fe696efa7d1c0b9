// What a layer holds: its feature maps, and the concepts that they form.

import { signal, useSignalEffect } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import * as api from "./api";
import { arrayOf } from "./npz";
import { draw, heatOn, smaller } from "./stage";
import { NOTHING, choice, choose, layers, model, photo, picture, shown, type Shown } from "./view";
import { words } from "./words";

const CHANNELS = "25", CONCEPTS = "4", SMALL = 240;
/** Of a layer with more numbers, the service draws the maps: its file would be too large. */
const MOST = 4_000_000;
const KINDS = { activation: words.byActivation, gradient: words.byGradient, concepts: words.concepts };
type Kind = keyof typeof KINDS;

const kind = signal<Kind | null>(null), busy = signal(false), problem = signal("");
const gallery = signal(""), channels = signal<number[]>([]), layer = signal("");
/** The maps of the channels, in place of a picture of all; null if the page cannot draw them. */
const maps = signal<{ index: number; most: number; made: Shown }[] | null>(null), over = signal(false);
let asking = new AbortController();

/** The feature maps of the strongest channels, as the layer's output has them; null if that does not have a row and
 * a column for each position. */
async function mapsOf(file: ArrayBuffer, channels: number[], made: Shown) {
  const output = await arrayOf(file, ".output");
  const [rows, columns] = layers.value.find(({ name }) => name === made.explanation.layer)?.grid ?? [0, 0];
  if (output?.shape.length !== 3) return null;
  const [a, b, c] = output.shape, first = b === rows && c === columns, last = a === rows && b === columns;
  if (first === last) return null;
  return channels.map((index) => {
    const values = new Float32Array(rows * columns);
    for (let n = 0; n < values.length; n++) {
      const y = Math.floor(n / columns), x = n % columns;
      values[n] = first ? output.at(index, y, x) : output.at(y, x, index);
    }
    const heatmap = { ...made.explanation.heatmap, shape: [rows, columns] as [number, number] };
    return { index, most: values.reduce((most, value) => Math.max(most, value)),
      made: { ...made, values, explanation: { ...made.explanation, heatmap, method: "", signed: undefined } } };
  });
}

/** Draws the strongest feature maps of the layer whose map is shown, or its concepts. */
export async function ask(wanted: Kind): Promise<void> {
  const of = photo.value, made = shown.value, { model: about, fit, target } = choice.value;
  if (!of || !made) return;
  asking.abort();
  const { signal } = asking = new AbortController();
  const name = made.explanation.layer;
  const parameters = { layer: name, fit, top_k: CHANNELS,
    target: target?.toString(), by: wanted === "concepts" ? undefined : wanted,
    concepts: wanted === "concepts" ? CONCEPTS : undefined };
  busy.value = true;
  problem.value = "";
  try {
    const one = (accept: string) => api.patiently(() =>
      api.about("activations", about, parameters, of.blob, accept, signal), signal);
    const { activations: [seen] } = (await (await one("application/json")).json()) as { activations: [api.Activation] };
    const small = wanted !== "concepts" && seen.output.shape.reduce((product, side) => product * side, 1) <= MOST;
    const found = small ? await mapsOf(await (await one("application/x-npz")).arrayBuffer(), seen.channels, made) : null;
    const drawn = found ? null : await (await one("image/png")).blob();
    if (signal.aborted) return;
    URL.revokeObjectURL(gallery.value);
    [gallery.value, maps.value] = [drawn ? URL.createObjectURL(drawn) : "", found];
    [kind.value, channels.value, layer.value] = [wanted, wanted === "concepts" ? [] : seen.channels, name];
  } catch (error) {
    if (!signal.aborted) problem.value = api.textOf(error);
  }
  if (!signal.aborted) busy.value = false;
}

/** One feature map, from its own least number to its own greatest; none is cut off. */
function Channel({ made }: { made: Shown }) {
  const canvas = useRef<HTMLCanvasElement>(null), now = picture.value, over_ = over.value;
  useEffect(() => {
    if (!canvas.current || !now) return;
    const small = smaller(now, SMALL), drawn = { threshold: 0, bright: false, colormap: "" } as const;
    draw(canvas.current, now, heatOn(small, made, false), over_ ? { ...drawn, view: "overlay", opacity: "heat" }
      : { ...drawn, view: "heat", opacity: 1, colormap: "viridis" }, small);
  }, [made, now, over_]);
  return <canvas ref={canvas} aria-hidden="true" />;
}

export function Inside() {
  useSignalEffect(() => {  // what is drawn is of a photo and a model, and goes with them
    void photo.value;
    void model.value;
    asking.abort();
    URL.revokeObjectURL(gallery.peek());
    [gallery.value, maps.value, channels.value, kind.value, problem.value, busy.value] = ["", null, [], null, "", false];
  });
  if (!photo.value || !model.value || !shown.value) return null;
  return <section class="card later" aria-labelledby="inside-heading">
    <h2 id="inside-heading">{words.inside}</h2>
    <div class="row" role="group" aria-labelledby="inside-heading" aria-busy={busy.value}>
      {(Object.entries(KINDS) as [Kind, string][]).map(([each, text]) =>
        <button key={each} type="button" aria-pressed={kind.value === each}
          onClick={() => void ask(each)}>{text}</button>)}
    </div>
    {problem.value && <p class="warning">{problem.value}</p>}
    {gallery.value && <img class="gallery" src={gallery.value} alt={words.insideHint(layer.value)} />}
    {channels.value.length > 0 && <>
      <p class="soft">{words.insideHint(layer.value)} {maps.value && words.ownScale}</p>
      {maps.value && <label><input type="checkbox" id="over" checked={over}
        onChange={(event) => { over.value = event.currentTarget.checked; }} /> {words.overPhoto}</label>}
      <div class={maps.value ? "grid channels" : "row channels"}>{channels.value.map((index, n) => {
        const map = maps.value?.[n], most = map?.most.toPrecision(2);
        return <button key={index} type="button" class={map && "map"}
          aria-label={words.channel(index) + (most === undefined ? "" : `, ${words.most(most)}`)}
          onClick={() => choose({ ...NOTHING, unit: `${index}@${layer.value}` })}>
          {map && <Channel made={map.made} />}<span>{words.channelShort} <span class="number">{index}</span>
            {map && <small>{words.most(most!)}</small>}</span></button>;
      })}</div></>}
  </section>;
}
