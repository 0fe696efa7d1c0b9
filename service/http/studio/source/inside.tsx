// What a layer holds: its feature maps, and the concepts that they form.

import { signal, useSignalEffect } from "@preact/signals";
import * as api from "./api";
import { NOTHING, choice, choose, model, photo, shown } from "./view";
import { words } from "./words";

const CHANNELS = "25", CONCEPTS = "4";
const KINDS = { activation: words.byActivation, gradient: words.byGradient, concepts: words.concepts };
type Kind = keyof typeof KINDS;

const kind = signal<Kind | null>(null), busy = signal(false), problem = signal("");
const gallery = signal(""), channels = signal<number[]>([]), layer = signal("");
let asked = 0;

/** Draws the strongest feature maps of the layer whose map is shown, or its concepts. */
export async function ask(wanted: Kind): Promise<void> {
  const of = photo.value, made = shown.value, mine = ++asked;
  if (!of || !made) return;
  const name = made.explanation.layer;
  const parameters = { layer: name, fit: choice.value.fit, top_k: CHANNELS,
    target: choice.value.target?.toString(), by: wanted === "concepts" ? undefined : wanted,
    concepts: wanted === "concepts" ? CONCEPTS : undefined };
  busy.value = true;
  problem.value = "";
  try {
    const one = (accept: string) => api.patiently(() =>
      api.about("activations", choice.value.model, parameters, of.blob, accept));
    const [drawn, told] = await Promise.all([one("image/png"), one("application/json")]);
    const { activations: [seen] } = (await told.json()) as { activations: [api.Activation] };
    const picture = await drawn.blob();
    if (mine !== asked) return;
    URL.revokeObjectURL(gallery.value);
    gallery.value = URL.createObjectURL(picture);
    [kind.value, channels.value, layer.value] = [wanted, wanted === "concepts" ? [] : seen.channels, name];
  } catch (error) {
    if (mine === asked) problem.value = api.textOf(error);
  }
  busy.value = false;
}

export function Inside() {
  useSignalEffect(() => {  // what is drawn belongs to a photo, and goes with it
    void photo.value;
    asked++;
    URL.revokeObjectURL(gallery.peek());
    [gallery.value, kind.value, problem.value, busy.value] = ["", null, "", false];
  });
  if (!photo.value || !model.value || !shown.value) return null;
  return <section class="card later" aria-labelledby="inside-heading">
    <h2 id="inside-heading">{words.inside}</h2>
    <div class="row" role="group" aria-labelledby="inside-heading">
      {(Object.entries(KINDS) as [Kind, string][]).map(([each, text]) =>
        <button key={each} type="button" aria-pressed={kind.value === each} disabled={busy.value}
          onClick={() => void ask(each)}>{text}</button>)}
    </div>
    {problem.value && <p class="warning">{problem.value}</p>}
    {gallery.value && <>
      <img class="gallery" src={gallery.value} alt={words.insideHint(layer.value)} />
      {channels.value.length > 0 && <>
        <p class="soft">{words.insideHint(layer.value)}</p>
        <div class="row channels">{channels.value.map((index) =>
          <button key={index} type="button" aria-label={words.channel(index)}
            onClick={() => choose({ ...NOTHING, unit: `${index}@${layer.value}` })}>{index}</button>)}
        </div></>}
    </>}
  </section>;
}
