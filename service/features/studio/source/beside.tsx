// The same question to another model or about another photo, beside the map.

import { signal, useSignal, useSignalEffect } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import * as api from "./api";
import { USUAL_SIGNED, type Look } from "./colours";
import { agreement } from "./comparison";
import * as photos from "./photos";
import type { Picture } from "./photos";
import { difference } from "./smallmap";
import { Bar, SIGNED, captionOf } from "./legend";
import { draw, heatOn } from "./stage";
import { NOTHING, beside, choice, explained, look, model, names, photo, picture, shown, strip,
  type Shown } from "./view";
import { savePanel } from "./panel";
import { Divider, MIDDLE, cutAt } from "./swipe";
import { words } from "./words";

/** Both maps and their difference. */
const PAIR = 3;
const DIFFERENCE: Look = { view: "heat", opacity: 1, colormap: USUAL_SIGNED, threshold: 0 };
const other = signal<{ made: Shown; picture: Picture; name: string } | null>(null);
const problem = signal("");
let asking = new AbortController();

/** Where the other model has a class of this one's: by its name, or by its number if neither model names its classes. */
const classIn = ({ labels, classes }: api.Model, { label, index }: api.LabelledClass) =>
  label !== undefined ? labels.indexOf(label) : !labels.length && index < classes ? index : -1;

/** What is asked of the other model: the class that the map on the screen is of, or the one that it predicts if it has
 * no such class. A segmenter and a detector may have the class and not find it: it is asked of them if it is chosen. */
function sameOf(about: api.Model) {
  const { unit, minus, ...target } = shown.value!.explanation.target;
  const asks = !unit && (choice.value.target !== undefined || about.kind === "classes");
  const same = asks ? classIn(about, target) : -1, contrast = minus && same >= 0 ? classIn(about, minus) : -1;
  const able = about.methods.find(({ name, available }) => available && name === choice.value.method);
  return { ...choice.value, ...NOTHING, model: about.name, layer: "auto",
    signed: choice.value.signed && Boolean(able?.signed),
    method: able ? choice.value.method : "gradcam",
    target: same < 0 ? undefined : same, minus: contrast < 0 ? undefined : contrast };
}

async function explainOther(what: string, stop: AbortSignal): Promise<void> {
  const [kind, name] = [what.slice(0, what.indexOf(":")), what.slice(what.indexOf(":") + 1)];
  const now = photo.value!;
  if (kind === "model") {
    const about = await api.model(name);
    const made = await explained(sameOf(about), now, stop, undefined, about);
    if (!stop.aborted && picture.value) other.value = { made, picture: picture.value, name };
    return;
  }
  const of = strip.value.find(({ digest }) => digest === name);
  if (!of) return;
  const made = await explained(choice.value, of, stop), drawn = await photos.decode(of.blob);
  if (stop.aborted) drawn.bitmap.close();
  else other.value = { made, picture: drawn, name: of.name };
}

function Canvas({ id, caption, paint }: { id: string; caption: string; paint: (canvas: HTMLCanvasElement) => void }) {
  const canvas = useRef<HTMLCanvasElement>(null);
  useEffect(() => { if (canvas.current) paint(canvas.current); });
  return <canvas ref={canvas} id={id} data-caption={caption} role="img" aria-label={caption} />;
}

const best = ({ prediction }: Shown) => {
  const first = prediction.classes?.[0] ?? prediction.values?.[0] ?? prediction.detections?.[0];
  return first ? `${first.label ?? first.index} ${(first.probability ?? first.value ?? 0).toFixed(3)}` : "";
};

const classOf = ({ explanation: { target } }: Shown) => target.label ?? `${target.index}`;

/** A map with what it is of below it. */
function One({ id, name, on, made }: { id: string; name: string; on: Picture; made: Shown }) {
  const { method, layer } = made.explanation, view = look.value;
  const label = captionOf(made), how = layer ? words.methodAt(method, layer) : method;
  return <figure><Canvas id={id} caption={`${name}: ${label}; ${how}`}
    paint={(canvas) => draw(canvas, on, heatOn(on, made), view)} />
    <figcaption><span><strong>{name}</strong>: {label}
      <br /><small>{how}. {words.predicts(best(made))}</small></span></figcaption></figure>;
}

/** Both maps at one place, with a divider between them. */
function Swipe({ left, right, names: [one, two] }: { left: Shown; right: Shown; names: [string, string] }) {
  const at = useSignal(MIDDLE), on = picture.value!, view = look.value;
  const upper = useRef<HTMLCanvasElement>(null), lower = useRef<HTMLCanvasElement>(null);
  useEffect(() => {
    draw(upper.current!, on, heatOn(on, left), view);
    draw(lower.current!, on, heatOn(on, right), view);
  }, [left, right, on, view]);
  return <figure id="both"><div class="picture">
    <canvas ref={lower} id="lower" role="img" aria-label={words.divider(one, two)} />
    <canvas ref={upper} id="upper" class="upper" style={cutAt(at.value)} aria-hidden="true" />
    <Divider at={at} left={one} right={two} /></div>
    <figcaption><span>{one}</span><span>{two}</span></figcaption></figure>;
}

/** What can stand beside the map, as values and texts of a select. */
function options(): [string, string][] {
  return [...names.value.filter((name) => name !== model.value?.name).map((name): [string, string] => [`model:${name}`, words.besideModel(name)]),
    ...strip.value.filter(({ digest }) => digest !== photo.value?.digest).map(({ digest, name }): [string, string] =>
      [`photo:${digest}`, words.besidePhoto(name)])];
}

export function Beside() {
  const swipes = useSignal(false);
  const section = useRef<HTMLElement>(null);
  useSignalEffect(() => {
    const what = beside.value, ready = shown.value && picture.value;
    if (ready && what && !options().some(([value]) => value === what)) { beside.value = ""; return; }
    asking.abort();
    asking = new AbortController();
    const stop = asking.signal;
    problem.value = "";
    if (!what || !ready) { other.value = null; return; }
    api.patiently(() => explainOther(what, stop), stop).catch((error: unknown) => {
      if (!stop.aborted) [other.value, problem.value] = [null, api.textOf(error)];
    });
  });
  const now = model.value, mine = shown.value, on = picture.value, that = other.value;
  const all = options();
  if (!now || !mine || !on || !all.length) return null;
  const same = beside.value.startsWith("model:");
  const both = that && same && that.picture === on ? difference(heatOn(on, mine), heatOn(on, that.made)) : null;
  const alike = both && that ? agreement(mine, that.made, on) : NaN;
  const legend = both?.flat ? words.equal : words.difference(now.name, that?.name ?? "");
  return <section ref={section} class="card later" aria-labelledby="beside-heading">
    <h2 id="beside-heading">{words.beside}</h2>
    <select id="beside" aria-labelledby="beside-heading" value={beside.value}
      onChange={(event) => { beside.value = event.currentTarget.value; }}>
      <option value="">{words.besideNothing}</option>
      {all.map(([value, text]) => <option key={value} value={value}>{text}</option>)}
    </select>
    {problem.value && <p class="warning">{problem.value}</p>}
    {that && <div class="pair">
      <One id="mine" name={same ? now.name : photo.value!.name} on={on} made={mine} />
      <One id="other" name={that.name} on={that.picture} made={that.made} />
      {both && <figure><Canvas id="difference" caption={legend} paint={(canvas) => draw(canvas, on, both,
        DIFFERENCE)} />
        <figcaption><Bar look={DIFFERENCE} signed ticks={SIGNED} />
          <span id="legend-difference">{legend}<br />
            <small id="alike">{!Number.isNaN(alike) && `${words.together(alike.toFixed(2))}: ${words.agreementMeans}`}</small></span></figcaption></figure>}
    </div>}
    {that && captionOf(mine) !== captionOf(that.made) && <p class="warning" id="unlike">
      {same && classOf(mine) !== classOf(that.made) ? words.ofItsOwn(that.name, captionOf(that.made), captionOf(mine))
        : words.unlike(captionOf(mine), captionOf(that.made))}</p>}
    {both && that && swipes.value && <Swipe left={mine} right={that.made} names={[now.name, that.name]} />}
    {that && <p class="row">{both && <button type="button" id="swipe-both" aria-pressed={swipes.value}
      onClick={() => { swipes.value = !swipes.value; }}>{words.swipeBoth}</button>}
      <button type="button" id="save-beside"
      onClick={() => void savePanel(section.current!, "beside", PAIR)}>{words.panel}</button></p>}
  </section>;
}
