// Small maps of many methods at once, at one layer or at several.

import { batch, signal, useSignalEffect } from "@preact/signals";
import { useEffect, useMemo, useRef } from "preact/hooks";
import { patiently, textOf, type Layer, type Method } from "./api";
import { spearman } from "./smallmap";
import { draw, heatOn, smaller } from "./stage";
import { choice, choose, explained, look, method, methodNamed, model, photo, picture, shown, usable,
  type Choice, type Shown } from "./view";
import { setMethod } from "./settings";
import type { Photo, Picture } from "./photos";
import { savePanel } from "./panel";
import { words } from "./words";

/** How many requests are made at once: few, so that the grid alone never fills the service's queue. */
const AT_ONCE = 2;
const MOST_LAYERS = 5, MOST_CELLS = 40, SAMPLES = 56, SMALL = 400;
type Cell = { method: string; layer: string; shown?: Shown; problem?: string; busy?: boolean };

export const cells = signal<Cell[] | null>(null);
/** The layers of the grid's columns; none if layers are not compared. */
const columns = signal<Layer[]>([]);
/** The methods that are compared at layers, and the first of those that are shown. */
const rows = signal<string[]>([]), first = signal(0);
let filling = new AbortController();

const isQuick = ({ cost }: Method) => !cost.startsWith("N");

/** Whether two maps order the positions alike: Spearman's rank correlation, on the layer's grid if
 * both have the same one, else on the photo. */
export function agreement(one: Shown, other: Shown, on: Picture): number {
  const [a, b] = [one, other].map(({ explanation }) => explanation.heatmap.shape.join());
  if (a === b && one.explanation.covers?.left === other.explanation.covers?.left) {
    return spearman(one.values, other.values);
  }
  const small = smaller(on, SAMPLES);
  return spearman(heatOn(small, one).gray, heatOn(small, other).gray);
}

function put(at: Cell, cell: Partial<Cell>): void {
  cells.value = (cells.value ?? []).map((each) =>
    each.method === at.method && each.layer === at.layer
      ? { ...each, ...cell, busy: cell.busy ?? false } : each);
}

async function compute(cell: Cell, asked: Choice, of: Photo, signal: AbortSignal): Promise<void> {
  const { method, layer } = cell;
  if (signal.aborted) return;
  put(cell, { busy: true });
  try {
    const signed = asked.signed && Boolean(methodNamed(method)?.signed);
    put(cell, { shown: await patiently(
      () => explained({ ...asked, method, layer, signed }, of, signal), signal, Infinity) });
  } catch (error) {
    if (!signal.aborted) put(cell, { problem: textOf(error) });
  }
}

/** At most so many of a list, evenly spaced; the last is one of them. */
function spread<T>(all: T[], most: number): T[] {
  const count = Math.min(all.length, most);
  return Array.from({ length: count }, (_, n) => all[Math.round(((n + 1) * all.length) / count) - 1]!);
}

/** The network's stages, as the service names them. A network of one resolution has none: then there are some of
 * its blocks, which are modules whose modules have modules. */
export function stages(): Layer[] {
  const all = usable.value, found = all.filter(({ stage }) => stage);
  if (found.length > 1) return found.slice(-MOST_LAYERS);
  const parent = (name: string) => name.slice(0, name.lastIndexOf("."));
  const above = new Set(all.map(({ name }) => parent(parent(name))));
  const numbered = all.filter(({ name }) => above.has(name) && /\.\d+$/.test(name));
  const largest = numbered.map(({ name }) => numbered.filter((each) => parent(each.name) === parent(name)))
    .reduce((most, each) => each.length > most.length ? each : most, []);
  return largest.length > 1 ? spread(largest, MOST_LAYERS) : found;
}

/** Fills the grid with the maps of all methods of a few passes; with those of some methods at each stage. */
export async function compare(several = false, from = 0): Promise<void> {
  const asked = choice.value, of = photo.value, layers = several ? stages() : [];
  if (!of) return;
  filled = common();
  let methods = (model.value?.methods ?? []).filter((each) =>
    each.available && (!several || (isQuick(each) && each.at === "layer")));
  [columns.value, rows.value, first.value] = [layers, methods.map(({ name }) => name), from];
  if (several) methods = methods.slice(from, from + rowsAtOnce());
  filling.abort();
  const { signal } = filling = new AbortController();
  const names = several ? layers.map(({ name }) => name) : [asked.layer];
  cells.value = methods.flatMap(({ name }) => names.map((layer) => ({ method: name, layer })));
  const left = cells.value.filter((cell) => isQuick(methodNamed(cell.method)!));
  const work = async () => {
    for (let next = left.shift(); next; next = left.shift()) await compute(next, asked, of, signal);
  };
  await Promise.all(Array.from({ length: AT_ONCE }, work));
}

const rowsAtOnce = () => Math.max(Math.floor(MOST_CELLS / Math.max(columns.value.length, 1)), 1);

function Small({ made, label }: { made: Shown; label: string }) {
  const canvas = useRef<HTMLCanvasElement>(null), now = picture.value, view = look.value;
  useEffect(() => {
    if (!canvas.current || !now) return;
    const small = smaller(now, SMALL);
    draw(canvas.current, now, heatOn(small, made), view, small);
  }, [now, made, view]);
  return <canvas ref={canvas} data-caption={label} aria-hidden="true" />;
}

/** A map of the grid; in a table the heads of its row and column say what it is. */
function CellView({ cell, bare = false }: { cell: Cell; bare?: boolean }) {
  const { method: name, layer, shown: made, problem, busy } = cell, now = shown.value, on = picture.value;
  const told = methodNamed(name), of = bare ? `${name} · ${layer}` : name;
  const chosen = method.value?.name === name && now?.explanation.layer === (bare ? layer : made?.explanation.layer ?? "");
  const alike = useMemo(() => made && now && on && !chosen ? agreement(made, now, on) : NaN, [made, now, on, chosen]);
  const correlation = Number.isNaN(alike) ? "" : alike.toFixed(2), agrees = correlation && words.together(correlation);
  if (made) {
    return <button type="button" class="map" aria-pressed={chosen} aria-label={bare ? `${of} ${agrees}` : undefined}
      onClick={() => batch(() => { setMethod(name); if (bare) choose({ layer }); })}>
      <Small made={made} label={`${made.explanation.layer ? words.methodAt(name, made.explanation.layer) : name}${agrees && `, ${agrees}`}`} />
      <span>{!bare && of}{!bare && made.explanation.layer && <small> {words.at(made.explanation.layer)}</small>}
        {agrees && <small> {bare ? correlation : agrees}</small>}</span>
    </button>;
  }
  return <div class="map empty">
    {problem ? <small title={problem}>{problem}</small> : bare || !told || isQuick(told) ? <small>{busy && words.waiting}</small>
      : <button type="button" aria-disabled={busy} onClick={() => {
        if (!busy) void compute(cell, choice.value, photo.value!, filling.signal);
      }}>{busy ? words.waiting : words.compute(told.budget || told.cost)}</button>}
    {!bare && <span>{of}</span>}
  </div>;
}

function Table({ all }: { all: Cell[] }) {
  const methods = [...new Set(all.map((cell) => cell.method))], count = rows.value.length;
  const to = (from: number) => () => void compare(true, from);
  return <>
    <div class="wide"><table class="grid-table">
      <thead><tr><td />{columns.value.map(({ name, grid }) =>
        <th key={name} scope="col">{name}<br /><small>{grid!.join(" × ")}</small></th>)}</tr></thead>
      <tbody>{methods.map((method) => <tr key={method}>
        <th scope="row">{method}</th>
        {all.filter((cell) => cell.method === method).map((cell) =>
          <td key={cell.layer} class={cell.busy ? "busy" : ""}><CellView cell={cell} bare /></td>)}
      </tr>)}</tbody>
    </table></div>
    {count > methods.length && <p class="row">
      <button type="button" id="rows-before" disabled={first.value === 0}
        onClick={to(Math.max(first.value - rowsAtOnce(), 0))}>{words.rowsBefore}</button>
      <span class="soft">{words.rowsShown(first.value + 1, first.value + methods.length, count)}</span>
      <button type="button" id="rows-after" disabled={first.value + methods.length >= count}
        onClick={to(first.value + methods.length)}>{words.rowsAfter}</button>
    </p>}
  </>;
}

/** What all maps of the grid have in common: they are of one photo, and answer one question to one model. */
function common(): string {
  const { method, layer, signed, ...rest } = choice.value;
  return JSON.stringify([photo.value?.digest, rest]);
}
let filled = "";

export function Comparison() {
  const section = useRef<HTMLElement>(null);
  useSignalEffect(() => {
    const now = common();
    if (now !== filled) [filled, cells.value] = [(filling.abort(), now), null];
  });
  if (!photo.value || !model.value) return null;
  return <section ref={section} class="card later" aria-labelledby="compare-heading">
    <h2 id="compare-heading">{words.compare}</h2>
    <p class="row"><button type="button" id="compare" onClick={() => void compare()}>
      {words.compareNow}</button>
      <button type="button" id="compare-layers" onClick={() => void compare(true)}>
        {words.compareLayers}</button> <span class="soft">{words.compareHint}</span></p>
    {cells.value?.some((cell) => cell.shown) && <p class="soft" id="agreement">{words.agreementHint}{words.agreementMeans}</p>}
    {cells.value && (columns.value.length ? <Table all={cells.value} /> : <ul class="grid">
      {cells.value.map((cell) => <li key={cell.method} class={cell.busy ? "busy" : ""}><CellView cell={cell} /></li>)}
    </ul>)}
    {cells.value?.some((cell) => cell.shown) && <p class="row"><button type="button" id="save-comparison"
      onClick={() => void savePanel(section.current!, "compared", columns.value.length || MOST_LAYERS)}>{words.panel}</button></p>}
  </section>;
}
