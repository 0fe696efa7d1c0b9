// Small maps of many methods at once.

import { signal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { Refused, type Method } from "./api";
import { draw, heatOn } from "./stage";
import { choice, explained, look, model, photo, picture, type Choice, type Shown } from "./view";
import { setMethod } from "./settings";
import { words } from "./words";

const AT_ONCE = 3;
type Cell = { method: string; shown?: Shown; problem?: string; busy?: boolean };

export const cells = signal<Cell[] | null>(null);
let filling = new AbortController();

const isQuick = ({ cost }: Method) => !cost.startsWith("N");

function put(method: string, cell: Partial<Cell>): void {
  cells.value = (cells.value ?? []).map((each) =>
    each.method === method ? { ...each, ...cell, busy: cell.busy ?? false } : each);
}

async function compute(method: string, asked: Choice): Promise<void> {
  const of = photo.value, { signal } = filling;
  if (!of || signal.aborted) return;
  put(method, { busy: true });
  try {
    const signed = asked.signed && Boolean(model.value?.methods.find(({ name }) => name === method)?.signed);
    put(method, { shown: await explained({ ...asked, method, signed }, of, signal) });
  } catch (error) {
    if (!signal.aborted) put(method, { problem: error instanceof Refused ? error.message : String(error) });
  }
}

/** Fills the grid with the maps of all methods of a few passes. */
export async function compare(): Promise<void> {
  const methods = (model.value?.methods ?? []).filter(({ available }) => available);
  filling.abort();
  filling = new AbortController();
  cells.value = methods.map(({ name }) => ({ method: name }));
  const asked = choice.value, left = methods.filter(isQuick);
  const work = async () => {
    for (let next = left.shift(); next; next = left.shift()) await compute(next.name, asked);
  };
  await Promise.all(Array.from({ length: AT_ONCE }, work));
}

function Small({ shown }: { shown: Shown }) {
  const canvas = useRef<HTMLCanvasElement>(null), now = picture.value, view = look.value;
  useEffect(() => {
    if (canvas.current && now) draw(canvas.current, now, heatOn(now, shown), view);
  }, [now, shown, view]);
  return <canvas ref={canvas} aria-hidden="true" />;
}

export function Comparison() {
  if (!photo.value || !model.value) return null;
  return <section class="card" aria-labelledby="compare-heading">
    <h2 id="compare-heading">{words.compare}</h2>
    <p class="row"><button type="button" id="compare" onClick={() => void compare()}>
      {words.compareNow}</button> <span class="soft">{words.compareHint}</span></p>
    {cells.value && <ul class="grid">
      {cells.value.map(({ method, shown, problem, busy }) => {
        const told = model.value?.methods.find(({ name }) => name === method);
        return <li key={method} class={busy ? "busy" : ""}>
          {shown
            ? <button type="button" class="map" aria-pressed={choice.value.method === method}
                onClick={() => setMethod(method)}>
                <Small shown={shown} />
                <span>{method}</span>
              </button>
            : <div class="map empty">
                {problem ? <small>{problem}</small> : busy ? <small>{words.waiting}</small>
                  : <button type="button" onClick={() => void compute(method, choice.value)}>
                    {words.compute(told?.budget ? `${told.budget} passes` : told?.cost ?? "")}</button>}
                <span>{method}</span>
              </div>}
        </li>;
      })}
    </ul>}
  </section>;
}
