// How the map is made, and how it is drawn.

import { USUAL, USUAL_SIGNED, colormaps, levelOf, type Look, type View } from "./colours";
import type { Explanation, Model } from "./api";
import { answer, answers, changeModel, choice, choose, look, method, methodNamed, model, names, isBright, show, shown, takers, usable } from "./view";
import { words } from "./words";

/** Chooses the layer before or after the one whose map is shown. */
export function stepLayer(by: number): void {
  const all = usable.value, { layer } = choice.value;
  const name = layer === "auto" ? method.value?.layer ?? model.value?.default_layer : layer;
  const at = all.findIndex((each) => each.name === name);
  const next = all[Math.min(Math.max(at + by, 0), all.length - 1)];
  if (next) choose({ layer: next.name });
}

export const setMethod = (name: string) => {
  const can = methodNamed(name);
  choose({ method: name, signed: choice.value.signed && Boolean(can?.signed) });
};

/** The layer of the map, in words: where in the network it lies, and how fine its map is. */
function inWords(name: string, { input, kind }: Model): string {
  const all = usable.value, at = all.findIndex((each) => each.name === name), layer = all[at];
  if (!layer) return name.includes(" + ") ? words.layersJoined(name) : "";
  const [rows, columns] = layer.grid!, ends = all.filter(({ stage }) => stage);
  const places = all.slice(at + 1).every(({ grid }) => grid![0] * grid![1] === 1) && (kind === "classes" || kind === "value")
    ? words.lastLayer : layer.stage && ends.length > 1 ? words.endOfStage(ends.indexOf(layer) + 1, ends.length)
    : words.layerOf(at + 1, all.length);
  return words.layerTold(name, places, `${rows} × ${columns}`,
    `${Math.round(input.height / rows)} × ${Math.round(input.width / columns)}`, `${input.height} × ${input.width}`);
}

/** The places of a map that has no layer: the input's pixels, or a transformer's patches. */
function atInput({ heatmap: { shape: [rows, columns] } }: Explanation, { input }: Model): string {
  return rows === input.height && columns === input.width ? words.atInput : words.ofPatches(`${rows} × ${columns}`);
}

/** The models that take words of one's own, where the one that is chosen does not. */
function Takers({ now }: { now: Model }) {
  if (now.takes_text || answers.value || !takers.value.length) return null;
  return <p class="row" id="takers"><span class="soft">{words.takers}</span>{takers.value.map((name) =>
    <button key={name} type="button" onClick={() => changeModel(name)}>{name}</button>)}</p>;
}

export function Settings() {
  if (!names.value.length) return null;
  const now = model.value;
  return <section class="card" aria-labelledby="settings-heading">
    <h2 id="settings-heading">{words.settings}</h2>
    <div class="fields">
      <label for="model">{words.model}</label>
      <select id="model" value={choice.value.model} onChange={(event) => changeModel(event.currentTarget.value)}>
        {names.value.map((each) => <option key={each} value={each}>{each}</option>)}
      </select>
      {now && !answers.value && <Fields now={now} />}
    </div>
    {now && !answers.value && <Told now={now} />}
    {now && <Takers now={now} />}
    <Made />
  </section>;
}

/** What the method and the layer are. */
function Told({ now }: { now: Model }) {
  const chosen = method.value, { layer } = choice.value;
  const name = layer === "auto" ? chosen?.layer ?? now.default_layer : layer;
  return <>
    {chosen && <p class="soft">{words.methodTold(chosen.name, chosen.summary, chosen.cost)}
      <br /><small id="method-from">{words.methodFrom(chosen.family, chosen.paper)}</small></p>}
    <p class="soft" id="layer-told">{chosen?.at !== "input" ? name && inWords(name, now) : shown.value && atInput(shown.value.explanation, now)}</p>
  </>;
}

function Fields({ now }: { now: Model }) {
  const { method: name, layer, fit } = choice.value;
  const all = usable.value, chosen = method.value;
  const automatic = chosen?.layer ?? now.default_layer;
  const at = all.findIndex((each) => each.name === (layer === "auto" ? automatic : layer));
  const layered = chosen?.at !== "input";
  return <>
      <label for="method">{words.method}</label>
      <select id="method" value={name} onChange={(event) => setMethod(event.currentTarget.value)}>
        {now.methods.map((each) => <option key={each.name} value={each.name}
          disabled={!each.available} title={each.available ? each.summary : each.reason}>
          {each.name}</option>)}
      </select>
      <label for="layer">{words.layer}</label>
      <select id="layer" value={layer} disabled={!layered} aria-describedby="layer-told"
        onChange={(event) => choose({ layer: event.currentTarget.value })}>
        <option value="auto">{words.automatic(automatic)}</option>
        {all.map((each) => <option key={each.name} value={each.name}>
          {each.name} · {each.grid!.join(" × ")}</option>)}
      </select>
      <label for="depth">{words.layerSlider}</label>
      <input id="depth" type="range" min={0} max={all.length - 1} value={at} disabled={!layered}
        aria-valuetext={all[at]?.name}
        onChange={(event) => choose({ layer: all[event.currentTarget.valueAsNumber]!.name })} />
      <label for="fit">{words.fit}</label>
      <select id="fit" value={fit} onChange={(event) => choose({ fit: event.currentTarget.value })}>
        <option value="auto">{words.automatic(words.fits[now.input.default_fit])}</option>
        {Object.entries(words.fits).map(([value, text]) =>
          <option key={value} value={value}>{text}</option>)}
      </select>
  </>;
}

/** How the map on the screen was made, and how long that took. */
function Made() {
  const made = shown.value, time = made ?? answer.value, of = made?.explanation ?? answer.value?.answer;
  if (!of || !time) return null;
  const { passes, layer, layer_reason: reason } = made?.explanation ?? {};
  return <p class="soft" id="time" role="status">
    {of.method}{layer && ` at ${layer}`}{reason && ` (${reason})`}.{" "}
    {passes && `${words.passes(passes.made, passes.of)}. `}
    {time.cached ? words.cached : words.milliseconds(time.wall, made?.phases ?? "")}
  </p>;
}

export function Looks() {
  const { view, opacity, threshold, colormap } = look.value;
  return <div class="looks" role="group" aria-label={words.view}>
    <span class="views">
      {(Object.entries(words.views) as [View, string][]).map(([value, text]) =>
        <button key={value} type="button" aria-pressed={view === value}
          onClick={() => show({ view: value })}>{text}</button>)}
    </span>
    <label>{words.opacity} <input id="opacity" type="range" min={0} max={1} step={0.05}
      value={levelOf(look.value)} onInput={(event) => show({ opacity: event.currentTarget.valueAsNumber })} /></label>
    <label title={words.byHeatHint}><input id="by-heat" type="checkbox" checked={opacity === "heat"}
      onChange={(event) => show({ opacity: event.currentTarget.checked ? "heat" : 0.5 })} /> {words.byHeat}</label>
    <label>{words.threshold} <input id="threshold" type="range" min={0} max={0.95} step={0.05}
      value={threshold}
      onInput={(event) => show({ threshold: event.currentTarget.valueAsNumber })} /></label>
    <label title={words.brightHint}><input id="bright" type="checkbox"
      checked={isBright(shown.value?.explanation.method ?? choice.value.method)}
      onChange={(event) => show({ bright: event.currentTarget.checked })} /> {words.bright}</label>
    <label>{words.colours} <select id="colours" value={colormap}
      onChange={(event) => show({ colormap: event.currentTarget.value as Look["colormap"] })}>
      <option value="">{USUAL}, {USUAL_SIGNED}</option>
      {colormaps.map((name) => <option key={name} value={name}>{name}</option>)}
    </select></label>
  </div>;
}
