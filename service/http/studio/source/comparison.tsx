// Small maps of many methods at once, at one layer or at several.

import { signal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { patiently, textOf, type Method } from "./api";
import { spearman } from "./smallmap";
import { draw, heatOn, smaller } from "./stage";
import { choice, choose, explained, look, method, methodNamed, model, photo, picture, shown, usable,
  type Choice, type Shown } from "./view";
import { setMethod } from "./settings";
import type { Picture } from "./photos";
import { words } from "./words";

const AT_ONCE = 3, MOST_LAYERS = 5, SAMPLES = 56;
type Cell = { method: string; layer: string; shown?: Shown; problem?: string; busy?: boolean };

export const cells = signal<Cell[] | null>(null);
/** The layers of the grid's columns; one if they are not compared. */
const columns = signal(1);
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

async function compute(cell: Cell, asked: Choice): Promise<void> {
  const of = photo.value, { signal } = filling, { method, layer } = cell;
  if (!of || signal.aborted) return;
  put(cell, { busy: true });
  try {
    const signed = asked.signed && Boolean(methodNamed(method)?.signed);
    put(cell, { shown: await patiently(
      () => explained({ ...asked, method, layer, signed }, of, signal), signal) });
  } catch (error) {
    if (!signal.aborted) put(cell, { problem: textOf(error) });
  }
}

/** The last layer of each resolution, from the finest to the coarsest, at most five. */
function depths(): string[] {
  const last = new Map(usable.value.map(({ grid, name }) => [grid!.join(), name]));
  return [...last.values()].slice(-MOST_LAYERS);
}

/** Fills the grid with the maps of all methods of a few passes. */
export async function compare(several = false): Promise<void> {
  const asked = choice.value, layers = several ? depths() : [asked.layer];
  const methods = (model.value?.methods ?? []).filter((each) =>
    each.available && (!several || (isQuick(each) && each.at === "layer")));
  filling.abort();
  filling = new AbortController();
  columns.value = layers.length;
  cells.value = methods.flatMap(({ name }) => layers.map((layer) => ({ method: name, layer })));
  const left = cells.value.filter((cell) => isQuick(methodNamed(cell.method)!));
  const work = async () => {
    for (let next = left.shift(); next; next = left.shift()) await compute(next, asked);
  };
  await Promise.all(Array.from({ length: AT_ONCE }, work));
}

function Small({ made }: { made: Shown }) {
  const canvas = useRef<HTMLCanvasElement>(null), now = picture.value, view = look.value;
  useEffect(() => {
    if (canvas.current && now) draw(canvas.current, now, heatOn(now, made), view);
  }, [now, made, view]);
  return <canvas ref={canvas} aria-hidden="true" />;
}

function CellView({ cell }: { cell: Cell }) {
  const { method: name, layer, shown: made, problem, busy } = cell, now = shown.value, on = picture.value;
  const told = methodNamed(name), of = columns.value > 1 ? `${name} · ${layer}` : name;
  const chosen = method.value?.name === name && (columns.value === 1 || choice.value.layer === layer);
  const alike = made && now && on && !chosen ? agreement(made, now, on) : NaN;
  return <li class={busy ? "busy" : ""}>
    {made
      ? <button type="button" class="map" aria-pressed={chosen}
          onClick={() => { setMethod(name); if (columns.value > 1) choose({ layer }); }}>
          <Small made={made} />
          <span>{of}{!Number.isNaN(alike) && <small> {words.together(alike.toFixed(2))}</small>}</span>
        </button>
      : <div class="map empty">
          {problem ? <small title={problem}>{problem}</small> : busy ? <small>{words.waiting}</small>
            : <button type="button" onClick={() => void compute(cell, choice.value)}>
              {words.compute(told?.budget ? `${told.budget} passes` : told?.cost ?? "")}</button>}
          <span>{of}</span>
        </div>}
  </li>;
}

export function Comparison() {
  if (!photo.value || !model.value) return null;
  const style = columns.value > 1 ? { gridTemplateColumns: `repeat(${columns.value}, minmax(0, 1fr))` } : {};
  return <section class="card later" aria-labelledby="compare-heading">
    <h2 id="compare-heading">{words.compare}</h2>
    <p class="row"><button type="button" id="compare" onClick={() => void compare()}>
      {words.compareNow}</button>
      <button type="button" id="compare-layers" onClick={() => void compare(true)}>
        {words.compareLayers}</button> <span class="soft">{words.compareHint}</span></p>
    {cells.value && <ul class="grid" style={style}>
      {cells.value.map((cell) => <CellView key={`${cell.method} ${cell.layer}`} cell={cell} />)}
    </ul>}
  </section>;
}
