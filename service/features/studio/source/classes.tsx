// What the model sees in the photo, and what of it is explained.

import { useSignal } from "@preact/signals";
import type { LabelledClass, Model } from "./api";
import { NOTHING, choice, choose, method, model, shown } from "./view";
import { words } from "./words";

const FOUND = 30;
/** Classes that are less probable are folded away. */
const LEAST = 0.005;
const named = ({ index, label }: LabelledClass) => label ?? `${index}`;

/** Classes, values, segments or boxes of a prediction, each with the number that stands beside it. */
function entries(): Entry[] {
  const prediction = shown.value?.prediction;
  const told = prediction?.classes ?? prediction?.values ?? prediction?.segments ?? [];
  return told.map((each) => ({ index: each.index, label: named(each),
    share: each.probability ?? (each as { share?: number }).share, value: each.value }));
}

function Chip({ entry, at }: { entry: Entry; at: number }) {
  const target = shown.value?.explanation.target.index;
  const chosen = entry.index === target;
  const take = (event: DragEvent) => {
    event.preventDefault();
    const minus = Number(event.dataTransfer?.getData("text/plain"));
    if (minus !== entry.index) choose({ ...NOTHING, target: entry.index, minus });
  };
  return <li><button type="button" aria-pressed={chosen} draggable
    onDragStart={(event) => event.dataTransfer?.setData("text/plain", String(entry.index))}
    onDragOver={(event) => event.preventDefault()} onDrop={take}
    onClick={() => choose({ ...NOTHING, target: entry.index,
      minus: choice.value.minus === entry.index ? undefined : choice.value.minus })}>
    <span class="key" aria-hidden="true">{at < 9 ? at + 1 : ""}</span>
    <span class="label">{entry.label}</span>
    <span class="number">{entry.share?.toFixed(3) ?? entry.value?.toPrecision(4)}</span>
    {entry.share !== undefined &&
      <i style={{ width: `${Math.max(entry.share * 100, 0.5)}%` }} />}
  </button></li>;
}

/** The boxes that a detector finds: each can be explained. */
function Detections() {
  const found = shown.value?.prediction.detections ?? [];
  return <ol id="classes">
    {found.map((each, at) => {
      const { left, top, right, bottom } = each.box, box = [left, top, right, bottom].join(",");
      return <li key={box}><button type="button" aria-pressed={choice.value.box === box}
        onClick={() => choose({ ...NOTHING, target: each.index, box })}>
        <span class="key" aria-hidden="true">{at < 9 ? at + 1 : ""}</span>
        <span class="label">{named(each)}</span><span class="number">{each.score.toFixed(3)}</span>
      </button></li>;
    })}
  </ol>;
}

/** The classes whose label or synonym has a text in it. */
function found({ labels, synonyms }: Model, text: string) {
  const called = new Map<number, string>(), spaced = text.replace(/[-_]/g, " ");
  for (const [name, classes] of Object.entries(synonyms)) {
    if (name.includes(spaced)) for (const index of classes) if (!called.has(index)) called.set(index, name);
  }
  return labels.flatMap((label, index) => {
    const named = label.toLowerCase().includes(text), synonym = called.get(index);
    return named || synonym !== undefined ? [{ index, label: named ? label : `${label} (${synonym})` }] : [];
  });
}

type Entry = { index: number; label: string; share?: number; value?: number };

export function Classes() {
  const text = useSignal(""), every = useSignal(false);
  const now = model.value, all = entries(), explained = shown.value?.explanation.target.index;
  const likely = all.filter(({ index, share }) => share === undefined || share >= LEAST ||
    [explained, choice.value.minus].includes(index));
  if (!now) return null;
  const wanted = text.value.trim().toLowerCase();
  const matches = wanted ? found(now, wanted) : [];
  const { minus, against, signed, target, unit } = choice.value;
  const heading = { value: words.values, detections: words.detections, classes: words.classes,
    segments: words.classes, answers: words.asking }[now.kind];
  const label = (index: number) => now.labels[index] ?? `${index}`;
  return <section aria-labelledby="classes-heading" class="card">
    <h2 id="classes-heading">{heading}</h2>
    {now.labels.length > 0 && <input id="search" type="search" placeholder={words.search}
      aria-label={words.search} value={text.value}
      onInput={(event) => { text.value = event.currentTarget.value; }} />}
    {now.kind === "detections" && !wanted && <Detections />}
    {unit && <p>{words.unit(unit)} <button type="button" class="quiet"
      onClick={() => choose(NOTHING)}>{words.back}</button></p>}
    <ol id={now.kind === "detections" && !wanted ? undefined : "classes"} hidden={now.kind === "detections" && !wanted}>
      {(wanted ? matches.slice(0, FOUND) : every.value ? all : likely).map((entry) =>
        <Chip key={entry.index} entry={entry} at={wanted ? FOUND : all.indexOf(entry)} />)}
    </ol>
    {!wanted && all.length > likely.length && <button type="button" class="quiet" id="more"
      aria-expanded={every.value} onClick={() => { every.value = !every.value; }}>
      {(every.value ? words.fewer : words.more)(all.length - likely.length)}</button>}
    {wanted && !matches.length && <p class="soft">{words.noMatch(text.value)}</p>}
    {now.kind === "classes" && all.length > 0 && <><div class="row">
      <label><strong>{words.contrast}</strong> <select id="minus" aria-describedby="contrast-hint" value={minus ?? ""}
        onChange={({ currentTarget: { value } }) => {
          choose({ text: undefined, minusText: undefined, minus: value === "" ? undefined : Number(value), target: target ?? explained ?? all[0]!.index });
        }}>
        <option value="">{words.contrastNone}</option>
        {minus !== undefined && !all.some(({ index }) => index === minus) &&
          <option value={minus}>{label(minus)}</option>}
        {[...all, ...matches.slice(0, FOUND).filter(({ index }) => !all.some((each) => each.index === index) && index !== minus)]
          .filter(({ index }) => index !== explained).map(({ index, label }) => <option key={index} value={index}>{label}</option>)}
      </select></label>
      <label><input type="checkbox" checked={against}
        onChange={(event) => choose({ against: event.currentTarget.checked })} /> {words.against}</label>
      <label><input type="checkbox" checked={signed} disabled={!method.value?.signed}
        onChange={(event) => choose({ signed: event.currentTarget.checked })} /> {words.signed}</label>
    </div><p class="soft" id="contrast-hint">{words.contrastHint}</p></>}
  </section>;
}
